"""When and where work on queues is done: rounds of syncs, deadlines, threads."""
