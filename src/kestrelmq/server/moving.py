"""Moving and copying items between queues, for every protocol and the admin API.

Both work in slices, and others are served in between. `engine/moving.py` says what a crash leaves.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from kestrelmq.engine.moving import SLICE_BYTES, SLICE_ITEMS, Move, Target
from kestrelmq.engine.queue import Queue
from kestrelmq.errors import InvalidQueueName, JournalError
from kestrelmq.server.changes import wait_until_durable
from kestrelmq.server.context import ServerContext


@dataclass(frozen=True, slots=True)
class Moved:
    """How many items were moved or copied, and why it ended early; None if it did not."""

    count: int
    stopped: str | None


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
        target = _source_of_dead_letters(context, source)
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
    to = Target(context.collection, target, queue)
    offset, left = 0, len(queue) if count is None else count
    while left > 0 and to.refusal is None:
        records = await context.browser.records(queue, offset, min(left, SLICE_ITEMS), SLICE_BYTES)
        if not records:
            break
        for record in records:
            if not to.add(record):
                break
        await wait_until_durable(context, *to.write())
        await asyncio.sleep(0)
        offset += len(records)
        left -= len(records)
    return Moved(to.added, to.refusal)


def _source(context: ServerContext, source: str, target: str) -> Queue | None:
    """Return the queue `source`, if there is one and items may go from there to `target`."""
    context.check_readable()
    context.check_writable()
    context.check_client(source, write=False)
    context.check_client(target, write=True)
    queue = context.collection.queues.get(source)
    if queue is None:
        context.collection.check_usable(source)
    return queue


def _source_of_dead_letters(context: ServerContext, name: str) -> str:
    """Return the queue whose `dead_letter_queue` is `name`.

    Raises:
        InvalidQueueName: there is none, or there are several.
    """
    found = sources_of_dead_letters(context.collection.queues.values(), name)
    if len(found) != 1:
        which = "several queues have" if found else "no queue has"
        raise InvalidQueueName(f"{which} {name} as dead_letter_queue: name the target")
    return found[0].name


def sources_of_dead_letters(queues: Iterable[Queue], name: str) -> list[Queue]:
    """Return those of `queues` whose dead letters go to the queue `name`."""
    return [queue for queue in queues if queue.config.dead_letter_queue == name]
