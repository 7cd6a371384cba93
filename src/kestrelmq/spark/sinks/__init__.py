"""Data sinks: what turns rows into journals, or into items of running servers' queues."""
