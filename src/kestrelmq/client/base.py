"""What both clients do in the same way; they differ in how they wait for a server.

What waits is a coroutine. In `Client` it never suspends, because what it awaits blocks the thread
(`unsuspended.run`).
"""

# ruff: noqa: ASYNC109 # these timeouts are sent to the server: how long it waits for an item

import math
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

from kestrelmq.client.address import user_of
from kestrelmq.client.cluster import Membership, membership_of
from kestrelmq.client.core import IoRequest, Pool, answered, carry_out, is_ours
from kestrelmq.client.options import ClientOptions, checked_count, options_of
from kestrelmq.client.plans import ClientOperations, HeldReads, Plan, Planner
from kestrelmq.client.reserved import ItemData, beat_period, begin_block
from kestrelmq.client.tls import tls_of
from kestrelmq.errors import ClientClosed
from kestrelmq.forks import PerProcess

T = TypeVar("T")


@dataclass(slots=True)
class Begun:
    """What a client has in one process: its connections, and what makes its plans."""

    pool: Pool[Any]
    plans: Planner


BegunT = TypeVar("BegunT", bound=Begun)
ItemT = TypeVar("ItemT", bound=ItemData)


class BaseClient(ClientOperations, ABC, Generic[BegunT, ItemT]):
    """A client of one server or of a cluster.

    Attributes:
        _kinds: those of what it has in a process, of its connections, and of the items it holds.
    """

    _kinds: ClassVar[tuple[type[Any], type[Any], type[Any]]]

    def __init__(
        self,
        servers: str | Iterable[str] | Membership = "127.0.0.1:22133",
        *,
        options: ClientOptions | None = None,
        affinity: Literal["queue"] | None = None,
        name: str | None = None,
        user: str | None = None,
        password: str | None = None,
        tls: bool | ssl.SSLContext | None = None,
        random: Random | None = None,
    ) -> None:
        user = user if user is not None else user_of(servers)
        tls = tls if tls is not None else tls_of(servers)
        chosen = options_of(options, affinity, name, user, password, tls=tls)
        self._membership = membership = membership_of(servers)
        kind, connection, self._item = self._kinds
        clock = self._clock
        self._begun = PerProcess[BegunT](
            lambda parents: kind(
                Pool(chosen, connection, None if parents is None else parents.pool),
                Planner.of(membership, chosen, clock, random),
            )
        )

    @classmethod
    def discover(
        cls, zookeeper_hosts: str, path_prefix: str, *, options: ClientOptions | None = None
    ) -> Self:
        """Return a client of the servers that are registered in ZooKeeper under `path_prefix`."""
        from kestrelmq.client.discovery import ZooKeeperMembership  # noqa: PLC0415 # kazoo is large

        return cls(ZooKeeperMembership(zookeeper_hosts, path_prefix), options=options)

    @property
    def _plans(self) -> Planner:
        return self._begun.get().plans

    @staticmethod
    @abstractmethod
    def _clock() -> float:
        """Return the time in seconds."""

    @abstractmethod
    async def _start(self, begun: BegunT) -> None:
        """Start the membership, unless that was done."""

    @abstractmethod
    async def _answer(self, io_request: IoRequest[Any]) -> Any:
        """Do the I/O; return its result, or its error: the plan decides what to do about that."""

    @abstractmethod
    def _kept_up(self, item: ItemT, period: float | None) -> AbstractContextManager[None]:
        """Extend the lease of an item every `period` seconds during a `with` block; None: never."""

    async def _do(self, plan: Plan[T], reads: Iterable[HeldReads[Any]] = ()) -> T:
        begun = self._begun.get()
        begun.pool.check_open()
        await self._start(begun)
        return await answered(carry_out(plan, begun.pool, reads), self._answer)

    async def _leave(self, plan: Plan[None], reads: Sequence[HeldReads[Any]]) -> None:
        """End a block that holds reads by `plan`; in a fork, they are not its own to end."""
        if is_ours(reads):
            await self._do(plan, reads)


class AsyncBlocks(BaseClient[BegunT, ItemT]):
    """The operations that hold reads open.

    They need only what a `BaseClient` has, so `Client` does the same by them.
    """

    @asynccontextmanager
    async def reserve(
        self,
        queue: str,
        timeout: float | None = None,
        *,
        lease: float = 60.0,
        grace: float = 0.0,
        heartbeat: float | bool | None = True,
    ) -> AsyncIterator[ItemT | None]:
        """Hold an item during an `async with` block, as `Client.reserve` does."""
        period = beat_period(lease, heartbeat=heartbeat)
        plans = await self._do(begin_block(self._plans, queue, timeout, lease, grace))
        if plans is None:
            yield None
            return
        item: ItemT = self._item.of(plans, self)
        try:
            with self._kept_up(item, period):
                yield item
        except BaseException:
            with suppress(ClientClosed):  # then the item goes back with its connection
                await self._leave(plans.abort(), [plans.held])
            raise
        await self._leave(plans.end(), [plans.held])

    async def consume(
        self,
        queue: str,
        *,
        idle_timeout: float | None = None,
        max_items: int | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """Iterate over items; each is confirmed when the next is requested, as in `Client.consume`.

        When a loop ends early, Python closes an asynchronous iterator late. Use
        `async with contextlib.aclosing(...)`, so that an unconfirmed item goes back at once.
        """
        wait = math.inf if idle_timeout is None else idle_timeout
        held: HeldReads[bytes] | None = None
        turns = count() if max_items is None else range(checked_count(max_items, "max_items"))
        for _ in turns:
            held = await self._do(self._plans.advance(queue, held, wait))
            if held is None:
                return
            try:
                yield held.result
            except BaseException:
                with suppress(ClientClosed):
                    await self._leave(self._plans.abort(queue, held), [held])
                raise
        if held is not None:
            await self._do(self._plans.confirm_last(queue, held))

    @asynccontextmanager
    async def monitor(
        self, queue: str, seconds: float, max_items: int | None = None
    ) -> AsyncIterator[list[bytes]]:
        """Collect the items that arrive within `seconds`, as `Client.monitor` does."""
        batch = await self._do(self._plans.monitor(queue, seconds, max_items))
        try:
            yield [item for held in batch for item in held.result]
        except BaseException:
            for held in batch:
                held.connection.close()
            raise
        await self._leave(self._plans.confirm(queue, batch), batch)

    async def export(self, queue: str) -> AsyncGenerator[str, None]:
        """Iterate over the items of a queue as lines of JSON, as `Client.export` does."""
        place = None
        while True:
            page = await self._do(self._plans.export_page(queue, place))
            for line in page.lines:
                yield line
            place = page.following
            if place is None:
                return
