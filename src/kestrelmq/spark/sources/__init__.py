"""Data sources: journals as tables and streams, and queues as tables."""
