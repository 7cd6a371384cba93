"""Requests that take several turns, or concern whole queues: the same for all protocols."""
