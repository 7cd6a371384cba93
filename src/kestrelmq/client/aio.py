"""The asyncio client: `Client` of `blocking`, with `await`. `plans` holds the logic of both.

For one event loop; any number of its tasks may use one client. A task that is cancelled in an
operation closes that operation's connection, so an item on its way in an open read goes back.
"""

# ruff: noqa: ASYNC109 # a timeout here is how long the server waits for an item, part of the request

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from random import Random
from typing import Any, Self, TypeVar

from kestrelmq.client import commands
from kestrelmq.client.aio_connection import AsyncConnection, AsyncPool
from kestrelmq.client.cluster import Membership
from kestrelmq.client.options import (
    ClientOptions,
    Expiry,
    membership_of,
    planner_of,
    protocol_expiry,
)
from kestrelmq.client.statistics import QueueStats, queue_stats
from kestrelmq.client.steps import Free, Held, Hold, Pause, Plan, Run, Step, is_something
from kestrelmq.errors import ClientError

T = TypeVar("T")


class AsyncClient:
    """A client of one server or of a cluster, for asyncio. Parameters are those of `Client`."""

    def __init__(
        self,
        servers: str | Iterable[str] | Membership = "127.0.0.1:22133",
        *,
        options: ClientOptions | None = None,
        random: Random | None = None,
    ) -> None:
        self._options = options or ClientOptions()
        self._membership = membership_of(servers)
        self._plans = planner_of(self._membership, self._options, _loop_time, random)
        self._pool = AsyncPool(self._options)
        self._started = False

    @classmethod
    def discover(
        cls, zookeeper_hosts: str, path_prefix: str, *, options: ClientOptions | None = None
    ) -> Self:
        """Return a client of the servers that ZooKeeper knows under `path_prefix`."""
        from kestrelmq.client.discovery import ZooKeeperMembership  # noqa: PLC0415 # kazoo is large

        return cls(ZooKeeperMembership(zookeeper_hosts, path_prefix), options=options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection; items of open reads go back to their queues."""
        self._pool.close()
        if self._started:
            await asyncio.to_thread(self._membership.close)

    # Items

    async def put(
        self, queue: str, data: bytes, expiry: Expiry = None, *, retry_unknown: bool | None = None
    ) -> bool:
        """Add an item, as `Client.put`."""
        return (await self.put_many(queue, [data], expiry, retry_unknown=retry_unknown))[0]

    async def put_many(
        self,
        queue: str,
        items: Sequence[bytes],
        expiry: Expiry = None,
        *,
        retry_unknown: bool | None = None,
    ) -> list[bool]:
        """Add items, as `Client.put_many`."""
        plan = self._plans.put(queue, items, protocol_expiry(expiry), retry_unknown=retry_unknown)
        return await self._carry_out(plan)

    async def get(self, queue: str, timeout: float | None = None) -> bytes | None:
        """Take an item, as `Client.get`."""
        return await self._carry_out(self._plans.take(queue, timeout, commands.get))

    async def peek(self, queue: str, timeout: float | None = None) -> bytes | None:
        """Return the head item of the first server that has one, and leave it there."""
        return await self._carry_out(self._plans.take(queue, timeout, commands.peek))

    @asynccontextmanager
    async def reserve(
        self, queue: str, timeout: float | None = None
    ) -> AsyncIterator[bytes | None]:
        """Take an item for the length of an `async with` block, as `Client.reserve`."""
        held = await self._carry_out(self._plans.hold(queue, timeout))
        try:
            yield held.result if held is not None else None
        except BaseException:
            if held is not None:
                await self._carry_out(self._plans.abort(queue, held))
            raise
        if held is not None:
            await self._carry_out(self._plans.confirm(queue, [held]))

    async def consume(
        self, queue: str, *, idle_timeout: float | None = None, max_items: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Iterate over items, each confirmed when the next is asked for, as `Client.consume`.

        Python closes an asynchronous iterator late when its loop ends early. Put it in
        `async with contextlib.aclosing(...)`, so that an item that is not done goes back at once.
        """
        wait = math.inf if idle_timeout is None else idle_timeout
        held: Held[bytes] | None = None
        for _ in count() if max_items is None else range(max_items):
            held = await self._carry_out(self._plans.advance(queue, held, wait))
            if held is None:
                return
            try:
                yield held.result
            except BaseException:
                await self._carry_out(self._plans.abort(queue, held))
                raise
        if held is not None:
            await self._carry_out(self._plans.finish(queue, held))

    @asynccontextmanager
    async def monitor(
        self, queue: str, seconds: float, max_items: int | None = None
    ) -> AsyncIterator[list[bytes]]:
        """Collect the items that arrive within `seconds`, as `Client.monitor`."""
        batch = await self._carry_out(self._plans.monitor(queue, seconds, max_items))
        try:
            yield [item for held in batch for item in held.result]
        except BaseException:
            for held in batch:
                held.connection.close()
            raise
        await self._carry_out(self._plans.confirm(queue, batch))

    # Queues and servers. But for `exists`, these ask every server, and fail when one of them does.

    async def flush(self, queue: str) -> None:
        """Discard the items of a queue on every server."""
        await self._everywhere(commands.flush(commands.checked_queue(queue)))

    async def flush_all(self) -> None:
        """Discard the items of every queue on every server."""
        await self._everywhere(commands.flush_all())

    async def delete(self, queue: str) -> None:
        """Drop a queue on every server; one that does not exist is no error."""
        await self._everywhere(commands.delete(commands.checked_queue(queue)))

    async def exists(self, queue: str) -> bool:
        """Say whether a server has the queue, as `Client.exists`."""
        return await self._carry_out(self._plans.exists(queue))

    async def stats(self) -> dict[str, dict[str, str]]:
        """Return every statistic by its name, for each server."""
        answers = await self._everywhere(commands.stats())
        return {server: dict(pairs) for server, pairs in answers.items()}

    async def queues(self) -> list[QueueStats]:
        """Return the queues of every server, with their statistics."""
        answers = await self._everywhere(commands.stats())
        return [queue for server, pairs in answers.items() for queue in queue_stats(server, pairs)]

    async def status(self) -> dict[str, str]:
        """Return the status of each server, such as `UP`."""
        return await self._everywhere(commands.status())

    async def set_status(self, status: str) -> None:
        """Change the status of every server: up, readonly, quiescent, or what else they know."""
        await self._everywhere(commands.set_status(status))

    async def version(self) -> dict[str, str]:
        """Return the version of each server."""
        return await self._everywhere(commands.version())

    async def reload(self) -> None:
        """Let every server read its configuration again."""
        await self._everywhere(commands.reload())

    async def shutdown(self) -> None:
        """Stop every server."""
        await self._everywhere(commands.shutdown())

    # How plans are carried out

    async def _everywhere(self, command: commands.Command[T]) -> dict[str, T]:
        results = await self._carry_out(self._plans.everywhere(command))
        return {str(server): result for server, result in results.items()}

    async def _carry_out(self, plan: Plan[T]) -> T:
        self._pool.check_open()
        if not self._started:
            await asyncio.to_thread(self._membership.start)
            self._started = True
        held: list[AsyncConnection] = []
        answer: Any = None
        step_on: Callable[[Any], Step] = plan.send
        try:
            while True:
                step = step_on(answer)
                try:
                    answer, step_on = await self._perform(step, held), plan.send
                except ClientError as error:
                    answer, step_on = error, plan.throw
        except StopIteration as done:
            result: T = done.value
            return result
        except BaseException:
            # Whatever was opened on the way is of no use to the caller: the servers get it back.
            for connection in held:
                connection.close()
            raise

    async def _perform(self, step: Step, held: list[AsyncConnection]) -> Any:
        match step:
            case Run(server, command):
                connection = await self._pool.acquire(server)
                result = await connection.run(command)
                self._pool.release(connection)
                return result
            case Hold(server, command, on):
                connection = on.connection if on is not None else await self._pool.acquire(server)
                result = await connection.run(command)
                if is_something(result):
                    held.append(connection)
                    return Held(server, connection, result, on.streak + 1 if on else 0)
                self._pool.release(connection)
                return None
            case Free(before, command):
                result = await before.connection.run(command)
                self._pool.release(before.connection)
                return result
            case Pause(seconds):
                await asyncio.sleep(seconds)
                return None


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
