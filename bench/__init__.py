"""Benchmarks: kestrelmq and its peers, side by side on one machine. Linux only (epoll, /proc)."""
