"""Journals and stored tables as Spark sources and sinks: rows, options, readers and writers."""
