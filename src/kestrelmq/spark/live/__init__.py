"""Queues of running servers as a Spark source and sink: batches, their parts, and their tasks."""
