"""The loop of the server: turns, polling, background tasks and work in threads."""
