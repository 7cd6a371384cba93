"""The health check: whether the server can do its work."""

from kestrelmq.engine.loading_queues import still_loading
from kestrelmq.server.context import ServerContext


def unhealthy_because(context: ServerContext) -> list[str]:
    """Return the reasons why the server is not healthy; an empty list if it is."""
    reasons = []
    status = context.status
    if not status.reads_allowed and not status.writes_allowed:
        reasons.append(f"the status is {status.status.value}")
    collection = context.collection
    if collection.guard.lost is not None:
        reasons.append(collection.guard.lost)
    failing = [name for name, queue in collection.queues.items() if queue.failure is not None]
    for names, what in ((failing, "cannot be written"), (sorted(collection.damaged), "is damaged")):
        if names:
            more = f", and {len(names) - 1} more" if len(names) > 1 else ""
            reasons.append(f"the journal of {names[0]} {what}{more}")
    late = sorted(collection.loading)
    if late:
        more = f", and {len(late) - 1} more" if len(late) > 1 else ""
        reasons.append(f"{still_loading(late[0])}{more}")
    return reasons
