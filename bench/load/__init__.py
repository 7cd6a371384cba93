"""The load generator: requests of every protocol, the loop that sends them, what came back."""
