"""Moving and copying items between queues, for every protocol and the admin API.

Both work in slices, and others are served in between. `queues/moving.py` says what a crash leaves.
"""

import asyncio
from functools import partial

from kestrelmq.access.users import User
from kestrelmq.errors import JournalError
from kestrelmq.protocol.managing import Move as MoveRequest
from kestrelmq.queues.browsing import Look
from kestrelmq.queues.moving import Copy, Move, Moved, Redrive
from kestrelmq.server.context import ServerContext
from kestrelmq.server.requests.changes import run_job, wait_until_durable


async def move(context: ServerContext, request: MoveRequest, user: User | None) -> Moved | None:
    """Move, copy or redrive items, as `request` says.

    The fanout children of a queue do not get what is redriven, and no queue that `user` may not add
    to. What is read from the source of a copy meanwhile may make it leave out or repeat some items.

    Returns:
        How many were moved or copied; None if there is no such queue.

    Raises:
        InvalidQueueName: items cannot be moved there.
        JournalError, QueueUnavailable: a queue cannot be read or written; items may be in both.
        Forbidden: nothing may be read or added at present.
    """
    context.check_readable()
    context.check_writable()
    collection, target = context.collection, request.target
    queue = collection.existing(request.queue)
    if queue is None:
        return None
    work: Move | Copy
    if request.redrives or target is None:
        check = partial(context.check_client, user, write=True)
        work = Redrive(collection, queue, target, check)
    elif request.copies:
        work = Copy(collection, queue, target, request.count)
    else:
        work = Move(collection, queue, target, request.count)
    slices = work.slices()
    try:
        for step in slices:
            try:
                if isinstance(step, Look):
                    await context.browser.load(step)
                elif isinstance(step, tuple):
                    await wait_until_durable(context, *step)
                else:
                    await run_job(context, step)
            except (JournalError, OSError) as error:
                slices.throw(error)
            await asyncio.sleep(0)
    finally:
        slices.close()
    await wait_until_durable(context, queue)
    return Moved(work.moved, work.stopped)
