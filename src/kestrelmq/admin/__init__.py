"""The admin service: HTTP API, metrics, and the console."""
