"""All queues of a queue path: names, loading, fanout, aliases, moving, looking at items."""
