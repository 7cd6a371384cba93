"""The server: listeners, sessions, status, membership, and the order they start and stop in."""
