"""Data sources: journals, queues as journals have them, and queues of running servers."""
