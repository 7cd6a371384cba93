"""One queue in memory: its items, its readers, and the records that they make."""
