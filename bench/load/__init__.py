"""The load generator: requests in every protocol, the loop that sends them, checking replies."""
