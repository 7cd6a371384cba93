"""The blocking client. `AsyncClient` in `aio` is the same with `await`; `plans` holds the logic.

Thread-safe: each operation has a connection to itself, out of a pool, and so has each open read
from its start to its end. A `reserve`, `consume` or `monitor` belongs to the thread that began it.
"""

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Any, Self, TypeVar

from kestrelmq.client import commands
from kestrelmq.client.cluster import Membership
from kestrelmq.client.connection import Connection, Pool
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


class Client:
    """A client of one server or of a cluster of servers that speak the memcache protocol.

    `servers` is `"host:port"`, several of them, or who else knows the servers. Nothing is connected
    before the first operation. Every operation raises the errors of `kestrelmq.errors.ClientError`.
    """

    def __init__(
        self,
        servers: str | Iterable[str] | Membership = "127.0.0.1:22133",
        *,
        options: ClientOptions | None = None,
        random: Random | None = None,
    ) -> None:
        self._options = options or ClientOptions()
        self._membership = membership_of(servers)
        self._plans = planner_of(self._membership, self._options, time.monotonic, random)
        self._pool = Pool(self._options)

    @classmethod
    def discover(
        cls, zookeeper_hosts: str, path_prefix: str, *, options: ClientOptions | None = None
    ) -> Self:
        """Return a client of the servers that ZooKeeper knows under `path_prefix`."""
        from kestrelmq.client.discovery import ZooKeeperMembership  # noqa: PLC0415 # kazoo is large

        return cls(ZooKeeperMembership(zookeeper_hosts, path_prefix), options=options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; items of open reads go back to their queues."""
        self._pool.close()
        self._membership.close()

    # Items

    def put(
        self, queue: str, data: bytes, expiry: Expiry = None, *, retry_unknown: bool | None = None
    ) -> bool:
        """Add an item; False when every server that answered refused it (full, or too large).

        Raises:
            ConnectionLost, OperationTimeout: it may or may not be stored. Not raised while another
                server takes it with `retry_unknown`, at the risk of a duplicate.
        """
        return self.put_many(queue, [data], expiry, retry_unknown=retry_unknown)[0]

    def put_many(
        self,
        queue: str,
        items: Sequence[bytes],
        expiry: Expiry = None,
        *,
        retry_unknown: bool | None = None,
    ) -> list[bool]:
        """Add items, many to a round trip; say for each what `put` says.

        An error's `stored` says for each item whether it is stored, None where that is unknown.
        """
        return self._carry_out(
            self._plans.put(queue, items, protocol_expiry(expiry), retry_unknown=retry_unknown)
        )

    def get(self, queue: str, timeout: float | None = None) -> bytes | None:
        """Take an item, waiting up to `timeout` seconds for one; None when there is none.

        The item is lost when the connection breaks on its way here; `reserve` has no such gap.
        """
        return self._carry_out(self._plans.take(queue, timeout, commands.get))

    def peek(self, queue: str, timeout: float | None = None) -> bytes | None:
        """Return the head item of the first server that has one, and leave it there."""
        return self._carry_out(self._plans.take(queue, timeout, commands.peek))

    @contextmanager
    def reserve(self, queue: str, timeout: float | None = None) -> Iterator[bytes | None]:
        """Take an item for the length of a `with` block; None when there is none.

        The item is confirmed when the block ends, and goes back to the head of its queue when the
        block raises, or this process dies.

        Raises:
            ConnectionLost, OperationTimeout: at the end of the block: the confirmation may not have
                arrived, and then the item comes again.
        """
        held = self._carry_out(self._plans.hold(queue, timeout))
        try:
            yield held.result if held is not None else None
        except BaseException:
            if held is not None:
                self._carry_out(self._plans.abort(queue, held))
            raise
        if held is not None:
            self._carry_out(self._plans.confirm(queue, [held]))

    def consume(
        self, queue: str, *, idle_timeout: float | None = None, max_items: int | None = None
    ) -> Generator[bytes, None, None]:
        """Iterate over items; each is confirmed when the next is asked for.

        An item goes back to its queue when the loop ends before it asked for the next: by an error,
        a `break`, or the end of the process. End a loop by `max_items` to keep the last one
        confirmed, or by `idle_timeout`: no item came for that many seconds. Without either it goes
        on for ever, also while no server can be reached.

        Raises:
            ServerUnavailable: no server could be reached during a whole `idle_timeout`.
        """
        wait = math.inf if idle_timeout is None else idle_timeout
        held: Held[bytes] | None = None
        for _ in count() if max_items is None else range(max_items):
            held = self._carry_out(self._plans.advance(queue, held, wait))
            if held is None:
                return
            try:
                yield held.result
            except BaseException:
                self._carry_out(self._plans.abort(queue, held))
                raise
        if held is not None:
            self._carry_out(self._plans.finish(queue, held))

    @contextmanager
    def monitor(
        self, queue: str, seconds: float, max_items: int | None = None
    ) -> Iterator[list[bytes]]:
        """Collect the items that arrive within `seconds`, for the length of a `with` block.

        They are confirmed, and go back, together, as the one of `reserve`.
        """
        batch = self._carry_out(self._plans.monitor(queue, seconds, max_items))
        try:
            yield [item for held in batch for item in held.result]
        except BaseException:
            for held in batch:
                held.connection.close()
            raise
        self._carry_out(self._plans.confirm(queue, batch))

    # Queues and servers. But for `exists`, these ask every server, and fail when one of them does.

    def flush(self, queue: str) -> None:
        """Discard the items of a queue on every server."""
        self._everywhere(commands.flush(commands.checked_queue(queue)))

    def flush_all(self) -> None:
        """Discard the items of every queue on every server."""
        self._everywhere(commands.flush_all())

    def delete(self, queue: str) -> None:
        """Drop a queue on every server; one that does not exist is no error."""
        self._everywhere(commands.delete(commands.checked_queue(queue)))

    def exists(self, queue: str) -> bool:
        """Say whether a server has the queue. Unlike a read, this does not create it.

        Raises:
            ServerUnavailable, ...: the servers that answered do not have it, others did not answer.
        """
        return self._carry_out(self._plans.exists(queue))

    def stats(self) -> dict[str, dict[str, str]]:
        """Return every statistic by its name, for each server."""
        return {server: dict(pairs) for server, pairs in self._everywhere(commands.stats()).items()}

    def queues(self) -> list[QueueStats]:
        """Return the queues of every server, with their statistics."""
        answers = self._everywhere(commands.stats())
        return [queue for server, pairs in answers.items() for queue in queue_stats(server, pairs)]

    def status(self) -> dict[str, str]:
        """Return the status of each server, such as `UP`."""
        return self._everywhere(commands.status())

    def set_status(self, status: str) -> None:
        """Change the status of every server: up, readonly, quiescent, or what else they know."""
        self._everywhere(commands.set_status(status))

    def version(self) -> dict[str, str]:
        """Return the version of each server."""
        return self._everywhere(commands.version())

    def reload(self) -> None:
        """Let every server read its configuration again."""
        self._everywhere(commands.reload())

    def shutdown(self) -> None:
        """Stop every server."""
        self._everywhere(commands.shutdown())

    # How plans are carried out

    def _everywhere(self, command: commands.Command[T]) -> dict[str, T]:
        results = self._carry_out(self._plans.everywhere(command))
        return {str(server): result for server, result in results.items()}

    def _carry_out(self, plan: Plan[T]) -> T:
        self._pool.check_open()
        self._membership.start()
        held: list[Connection] = []
        answer: Any = None
        step_on: Callable[[Any], Step] = plan.send
        try:
            while True:
                step = step_on(answer)
                try:
                    answer, step_on = self._perform(step, held), plan.send
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

    def _perform(self, step: Step, held: list[Connection]) -> Any:
        match step:
            case Run(server, command):
                connection = self._pool.acquire(server)
                result = connection.run(command)
                self._pool.release(connection)
                return result
            case Hold(server, command, on):
                connection = on.connection if on is not None else self._pool.acquire(server)
                result = connection.run(command)
                if is_something(result):
                    held.append(connection)
                    return Held(server, connection, result, on.streak + 1 if on else 0)
                self._pool.release(connection)
                return None
            case Free(before, command):
                result = before.connection.run(command)
                self._pool.release(before.connection)
                return result
            case Pause(seconds):
                time.sleep(seconds)
                return None
