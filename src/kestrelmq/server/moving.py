"""Moving and copying items between queues, for every protocol and the admin API.

Both work in slices, and others are served in between. `engine/moving.py` says what a crash leaves.
"""

import asyncio

from kestrelmq.engine.moving import SLICE_BYTES, Copy, Move, Moved, source_of_dead_letters
from kestrelmq.engine.queue import Queue
from kestrelmq.errors import JournalError
from kestrelmq.server.changes import wait_until_durable
from kestrelmq.server.context import ServerContext


async def move(
    context: ServerContext, source: str, target: str | None, count: int | None = None
) -> Moved | None:
    """Move the first `count` items of a queue, or all that wait, to another one.

    Args:
        context: what the sessions share.
        source: the name of the queue.
        target: where they go; None for the only queue that has `source` as `dead_letter_queue`.
        count: how many; None is all.

    Returns:
        None if there is no queue `source`.

    Raises:
        InvalidQueueName: items cannot be moved there.
        JournalError, QueueUnavailable: a queue cannot be read or written; items may be in both.
    """
    if target is None:
        target = source_of_dead_letters(context.collection, source)
    queue = _source(context, source, target)
    if queue is None:
        return None
    work = Move(context.collection, queue, target, count)
    slices = work.slices()
    try:
        for queues in slices:
            try:
                await wait_until_durable(context, *queues)
            except JournalError as error:
                slices.throw(error)
            await asyncio.sleep(0)
    finally:
        slices.close()
    await wait_until_durable(context, queue)
    return Moved(work.moved, work.stopped)


async def copy(
    context: ServerContext, source: str, target: str, count: int | None = None
) -> Moved | None:
    """Copy the first `count` items of a queue, or all that wait, to another one; as `move`.

    What is read from the source meanwhile may make it leave out or repeat some items.
    """
    queue = _source(context, source, target)
    if queue is None:
        return None
    work = Copy(context.collection, queue, target, count)
    while (part := work.next_slice) is not None:
        records = await context.browser.records(queue, *part, SLICE_BYTES)
        await wait_until_durable(context, *work.add(records))
        await asyncio.sleep(0)
    return work.copied


def _source(context: ServerContext, source: str, target: str) -> Queue | None:
    """Return the queue `source`, if there is one and items may go from there to `target`."""
    context.check_readable()
    context.check_writable()
    context.check_client(source, write=False)
    context.check_client(target, write=True)
    return context.collection.existing(source)
