"""What the command line does with the journals of queues that nobody serves."""
