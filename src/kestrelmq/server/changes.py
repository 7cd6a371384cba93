"""What clients do to whole queues: flush them, drop what expired, delete them, reload the settings.

One place for every protocol and the admin API. None of it holds up the loop: many queues are done
in shares of the turns, and what waits for the disk is done in a thread. Whoever asked is answered
in the end, and what came after the request is applied then (`answer_later`).
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

from kestrelmq.engine.queue import Queue
from kestrelmq.errors import ConfigError, JournalError, KestrelError
from kestrelmq.server.connection import Connection
from kestrelmq.server.context import ServerContext
from kestrelmq.server.long_reply import AwaitedReply, in_slices

Result = TypeVar("Result")


async def settle(context: ServerContext, *queues: Queue) -> None:
    """Wait until what was changed in `queues` is as durable as they promise.

    Raises:
        JournalError: it could not be written, and was taken back; or it could not be synced.
    """
    await context.turns.committed(*queues)
    await context.turns.synced({queue for queue in queues if queue.config.sync_journal == 0})


async def flush(context: ServerContext, name: str) -> int:
    """Drop every waiting item of a queue; return how many. Raises as `QueueCollection.flush`."""
    return context.collection.flush(name)


async def flush_all(context: ServerContext) -> None:
    """Drop every waiting item of every queue. Raises as `QueueCollection.flushing`."""
    await in_slices(context.collection.flushing(), context.turns)


async def flush_expired(context: ServerContext, name: str) -> int:
    """Drop the expired items at the head of a queue; return how many.

    Raises as `QueueCollection.flush_expired` and `settle`.
    """
    count = context.collection.flush_expired(name)
    queue = context.collection.queues.get(name)
    if queue is not None:
        await settle(context, queue)
    return count


async def flush_all_expired(context: ServerContext) -> int:
    """Drop the expired items at the head of every queue; return how many.

    Raises, after trying all, as `QueueCollection.expiring` and `settle`.
    """
    work = context.collection.expiring()
    changed: list[Queue] = []
    failures: list[str] = []
    while True:
        try:
            changed += next(work)
        except StopIteration as end:
            await settle(context, *changed)
            if failures:
                raise JournalError(failures[0]) from None
            count: int = end.value
            return count
        if context.turns.share_is_over():
            try:
                await settle(context, *changed)
            except JournalError as error:
                failures.append(str(error))
            changed.clear()


async def delete(context: ServerContext, name: str) -> bool:
    """Drop a queue with its items and its journal; False when there is none.

    Raises as `QueueCollection.delete`.
    """
    ended: asyncio.Future[JournalError | None] = asyncio.get_running_loop().create_future()

    def tell(failure: JournalError | None) -> None:
        if not ended.done():
            ended.set_result(failure)

    if not context.collection.begin_delete(name, tell):
        return False
    failure = await ended
    if failure is not None:
        raise failure
    return True


async def reload(context: ServerContext) -> list[str]:
    """Read the configuration file again, and put it in force; return what needs a restart.

    Raises:
        ConfigError: it cannot be read or used, or not all of it.
    """
    try:
        return await context.reload()
    except OSError as error:
        raise ConfigError(str(error)) from None


def answer_later(
    connection: Connection,
    change: Coroutine[None, None, Result],
    answer: Callable[[Result], None],
    refuse: Callable[[KestrelError], None],
) -> None:
    """Make a change and answer then; no other request of the connection is applied meanwhile.

    Args:
        connection: who asked. The change is made even if it closes.
        change: what is asked for.
        answer: sends the reply.
        refuse: sends the reply to a change that failed.
    """

    def ended(task: asyncio.Task[Result]) -> None:
        if task.cancelled():
            return

        def reply() -> None:
            try:
                result = task.result()
            except KestrelError as error:
                refuse(error)
            else:
                answer(result)

        connection.done()
        connection.guard(reply)

    connection.write(AwaitedReply())
    task = asyncio.get_running_loop().create_task(change)
    task.add_done_callback(ended)
