"""Moving and copying items between queues, for every protocol and the admin API.

Both work in slices, and others are served in between. `queues/moving.py` says what a crash leaves.
"""

import asyncio
from collections.abc import Generator
from functools import partial

from kestrelmq.access.users import User
from kestrelmq.errors import JournalError
from kestrelmq.queue.queue import Queue
from kestrelmq.queues.moving import SLICE_BYTES, Copy, Move, Moved, Redrive
from kestrelmq.scheduling.worker import Job
from kestrelmq.server.context import ServerContext
from kestrelmq.server.requests.changes import run_job, wait_until_durable


async def move(
    context: ServerContext, source: str, target: str, count: int | None = None
) -> Moved | None:
    """Move the first `count` items of a queue, or all that wait, to another one.

    Args:
        context: what the sessions share.
        source: the name of the queue.
        target: where they go.
        count: how many; None is all.

    Returns:
        None if there is no queue `source`.

    Raises:
        InvalidQueueName: items cannot be moved there.
        JournalError, QueueUnavailable: a queue cannot be read or written; items may be in both.
    """
    _check_status(context)
    queue = context.collection.existing(source)
    if queue is None:
        return None
    return await _moved(context, queue, Move(context.collection, queue, target, count))


async def redrive(
    context: ServerContext, source: str, target: str | None, user: User | None
) -> Moved | None:
    """Move all dead letters of a queue to where they came from, or to `target`; as `move`.

    The fanout children of a queue do not get them, and no queue that `user` may not add to.
    """
    _check_status(context)
    queue = context.collection.existing(source)
    if queue is None:
        return None
    check = partial(context.check_client, user, write=True)
    return await _moved(context, queue, Redrive(context.collection, queue, target, check))


async def _moved(context: ServerContext, queue: Queue, work: Move) -> Moved:
    """Do a move of the items of `queue`."""
    slices = work.slices()
    try:
        for step in slices:
            try:
                if isinstance(step, tuple):
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


async def copy(
    context: ServerContext, source: str, target: str, count: int | None = None
) -> Moved | None:
    """Copy the first `count` items of a queue, or all that wait, to another one; as `move`.

    What is read from the source meanwhile may make it leave out or repeat some items.
    """
    _check_status(context)
    queue = context.collection.existing(source)
    if queue is None:
        return None
    work = Copy(context.collection, queue, target, count)
    while (part := work.next_slice) is not None:
        records = await context.browser.records(queue, *part, SLICE_BYTES)
        await wait_until_durable(context, *await _added(context, work.adding(records)))
        await asyncio.sleep(0)
    return work.copied


async def _added(
    context: ServerContext, work: Generator[Job, None, tuple[Queue, ...]]
) -> tuple[Queue, ...]:
    """Do some of a copy; return the queues that have it. Raises JournalError."""
    try:
        while True:
            try:
                await run_job(context, next(work))
            except OSError as error:
                work.throw(error)
    except StopIteration as end:
        written: tuple[Queue, ...] = end.value
        return written
    finally:
        work.close()


def _check_status(context: ServerContext) -> None:
    """Raise Forbidden if nothing may be read or added at present."""
    context.check_readable()
    context.check_writable()
