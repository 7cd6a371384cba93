"""Replay journals in parallel, and tell what is in queues and what was."""
