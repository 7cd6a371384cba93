"""Every fsync, lock and rename, and every file that is opened."""
