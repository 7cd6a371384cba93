"""Changes to whole queues: flush, drop expired items, delete, pause, declare.

Every protocol and the admin API use these functions. None of them blocks the loop: work on many
queues is done in slices, in each turn's time for slow requests, and work that waits for the disk is
done in a thread. The client is answered at the end, and only then is its next request applied
(`answer_later`). Who asks for them logs the request: `managing`, and `admin.guard` over HTTP.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator, Mapping
from functools import partial
from typing import TypeVar

from kestrelmq.errors import JournalError, KestrelError
from kestrelmq.queue.paused import Paused
from kestrelmq.queue.queue import Queue
from kestrelmq.queues.registry import declaration
from kestrelmq.scheduling.worker import Done, Job
from kestrelmq.server.connection import Connection
from kestrelmq.server.context import ServerContext
from kestrelmq.server.long_reply import SearchRequest, TaskRequest, in_slices

Result = TypeVar("Result")


async def wait_until_durable(context: ServerContext, *queues: Queue) -> None:
    """Wait until the changes to `queues` are as durable as their settings ask for.

    Raises:
        JournalError: they could not be written, and were undone; or they could not be synced.
    """
    await context.turns.committed(*queues)
    await context.turns.synced({queue for queue in queues if queue.config.sync_journal == 0})


async def run_job(context: ServerContext, job: Job) -> None:
    """Have the thread that writes large items run `job`. Raises what that raises."""
    await _ended(partial(context.writer.run, job))


async def flush(context: ServerContext, name: str) -> int:
    """Drop all items of a queue that wait now; return how many.

    Raises as `QueueCollection.flush` and `wait_until_durable`.
    """
    queue = context.collection.existing(name)
    if queue is None:
        return 0
    count = await in_slices(queue.flushing(), context.turns)
    await wait_until_durable(context, queue)
    return count


async def flush_all(context: ServerContext) -> None:
    """Drop all items of every queue that wait now.

    Raises as `QueueCollection.flushing` and `wait_until_durable`.
    """
    await _durably(context, context.collection.flushing())


async def flush_expired(context: ServerContext, name: str | None = None) -> int:
    """Drop the expired items at the head of a queue, or of every queue; return how many.

    Raises as `QueueCollection.expiring` and `wait_until_durable`, after trying all queues.
    """
    return await _durably(context, context.collection.expiring(name))


async def _durably(context: ServerContext, work: Generator[list[Queue], None, Result]) -> Result:
    """Run `work` to its end in slices, and wait until all that it changes is durable.

    `work` yields the queues that it has just changed: if the changes of a turn cannot be written,
    only those who wait for that turn are told.

    Raises what `work` does, and after its end as `wait_until_durable`.
    """
    changed: list[Queue] = []
    failures: list[str] = []
    while True:
        try:
            changed += next(work)
        except StopIteration as end:
            await wait_until_durable(context, *changed)
            if failures:
                raise JournalError(failures[0]) from None
            result: Result = end.value
            return result
        if context.turns.slow_share_is_over():
            try:
                await wait_until_durable(context, *changed)
            except JournalError as error:
                failures.append(str(error))
            changed.clear()


async def delete(context: ServerContext, name: str) -> bool:
    """Delete a queue with its items and its journal; return False when there is none.

    Raises as `QueueCollection.delete`.
    """
    queue = context.collection.existing(name)
    if queue is None:
        return False
    await _ended(partial(context.collection.deletions.begin, queue))
    return True


async def pause(
    context: ServerContext, name: str, operations: Paused, *, resume: bool = False
) -> bool:
    """Pause or resume operations of a queue; return False when there is no such queue.

    Raises as `QueueCollection.pause` and `save`.
    """
    collection = context.collection
    change = collection.resume if resume else collection.pause
    if not change(name, operations):
        return False
    await save(context)
    return True


async def declare(context: ServerContext, name: str, settings: Mapping[str, object]) -> bool:
    """Create a queue with settings of its own, or give it others; return whether it is new.

    Raises as `declaration`, `QueueCollection.declare` and `save`.
    """
    collection = context.collection
    # A file is created, and many may declare at once: each waits for its turn.
    while context.turns.slow_share_is_over():  # noqa: ASYNC110
        await asyncio.sleep(0)
    is_new = name not in collection.queues
    queue = collection.declare(name, declaration(settings))
    await save(context)
    if not queue.state.is_closed:  # nobody has deleted it since
        await wait_until_durable(context, queue)
    return is_new


async def save(context: ServerContext) -> None:
    """Wait until all that clients have set for queues is on disk.

    Raises:
        JournalError: it could not be written; it is in force until a restart.
    """
    await _ended(context.collection.registry.save)


async def _ended(begin: Callable[[Done], None]) -> None:
    """Call `begin` with a callback, and wait until that is called; raise the error it is given."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell(error: BaseException | None) -> None:
        if ended.done():  # the task that waited was cancelled
            return
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)

    begin(tell)
    await ended


def answer_later(
    connection: Connection,
    change: Coroutine[None, None, Result],
    answer: Callable[[Result], None],
    refuse: Callable[[KestrelError], None],
    *,
    is_search: bool = False,
) -> None:
    """Run `change`, then send the reply; the connection's other requests wait until then.

    Args:
        connection: where the request came from. A change is made even if it closes.
        change: the change that was requested.
        answer: sends the reply to the change's result.
        refuse: sends the reply when the change fails.
        is_search: whether it is a search, which is of no use once the client is gone.
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

        connection.request_done()
        connection.guard(reply)

    task = asyncio.get_running_loop().create_task(change)
    if is_search:
        SearchRequest(connection, task).resume()
    else:
        connection.wait_for_work(TaskRequest())
    task.add_done_callback(ended)
