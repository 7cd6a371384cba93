"""Queues: their items, waiting readers, fanout and journals. No sockets, no protocols."""
