"""Tools for testing kestrelmq and programs that use it."""
