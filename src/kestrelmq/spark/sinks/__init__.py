"""Data sinks: what turns rows into journals."""
