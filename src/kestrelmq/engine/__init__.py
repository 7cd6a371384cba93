"""Queues: what is in them, who waits for them, how they fan out. No sockets, no protocols."""
