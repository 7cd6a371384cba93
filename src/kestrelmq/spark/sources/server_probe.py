"""The driver's side of the servers: which queues there are, reserving their items, finishing them.

A server that cannot be asked counts as one without items, and is not asked for a while. Queues that
a pattern means are found in the server's statistics; only those that have items are read, so that a
queue that was deleted does not come back.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeAlias, TypeVar

from kestrelmq.client import commands
from kestrelmq.client.address import Address, parse_address
from kestrelmq.client.blocking import Connection, connected
from kestrelmq.client.cluster import Membership, ServerSet
from kestrelmq.client.commands import Command, Reads, ReservedCount
from kestrelmq.client.options import ClientOptions
from kestrelmq.client.statistics import (
    QueueStats,
    damaged_queues,
    number,
    queue_stats,
    stats_of_queue,
)
from kestrelmq.clock import Clock, SystemClock
from kestrelmq.errors import ClientError, ServerRefused, ServerUnavailable
from kestrelmq.spark.sources.live_offsets import Held
from kestrelmq.spark.sources.live_options import KestrelReadOptions
from kestrelmq.spark.sources.queue_choice import QueueChoice
from kestrelmq.spark.sources.refusals import (
    QueueCannotBeRead,
    ask_when_loaded,
    is_refusal,
    is_retired,
)

T = TypeVar("T")
Place: TypeAlias = tuple[str, str]
"""A server's address, and a queue."""

MAX_QUEUES: Final = 1000
"""Most queues in a batch, each counted once for each server that has it."""
_FURTHEST: Final = 2**31 - 1
"""An offset behind the end of any queue."""
_MAX_THREADS: Final = 64
_REQUESTS_AT_ONCE: Final = 100
_MOST_REASONS: Final = 3
"""Servers that an error names if none can be asked."""
_MOST_SHOWN: Final = 100
"""Queues of a server that the backlog shows one by one."""
_HEAD_BYTES: Final = 16 << 20
"""Most bytes of items that are looked at to learn how long they have waited."""
_READS_PAUSED: Final = frozenset({"reads", "all"})

_log: Final = logging.getLogger("kestrelmq.spark")


@dataclass(frozen=True, slots=True)
class _ListedQueues:
    """The queues of a choice that a server has; one that it could not load has only `failure`.

    `loading` is the number of queues that it may have, too, but has not loaded yet; `children` are
    those that are to be created for its queues where they are missing.
    """

    stats: Sequence[QueueStats]
    loading: int = 0
    children: frozenset[str] = frozenset()


class ServerProbe:
    """Asks the servers about queues. Not thread-safe; it uses threads of its own."""

    def __init__(
        self,
        membership: Membership,
        choice: QueueChoice,
        options: ClientOptions | None = None,
        random: Random | None = None,
        clock: Clock | None = None,
        *,
        create_children: bool = False,
    ) -> None:
        """Prepare to ask.

        Args:
            membership: the servers.
            choice: the queues.
            options: options of the connections.
            random: the order in which servers and queues are asked.
            clock: tells how long items have waited.
            create_children: whether queues that match the first half of a pattern such as
                `orders_*+copy` get the child that they do not have yet.
        """
        self._membership = membership
        self._choice = choice
        self._options = options or ClientOptions()
        self._random = random or Random()  # noqa: S311 # spreads load, keeps no secret
        self._clock = clock or SystemClock()
        self._servers = ServerSet(membership.reads, time.monotonic, self._random)
        self._connections: dict[Address, Connection] = {}
        self._failures: dict[Address, ClientError] = {}
        self._creates = create_children

    @classmethod
    def of(cls, options: KestrelReadOptions) -> "ServerProbe":
        """Prepare to ask the servers that the options of a source name."""
        cluster, creates = options.cluster, options.create_children
        clients = cluster.client_options()
        return cls(cluster.membership(), options.queue, clients, create_children=creates)

    def known(self) -> list[str]:
        """Return all servers, those that are set aside included. Raises ServerUnavailable."""
        self._membership.start()
        return sorted(str(server) for server in self._membership.reads())

    def queues(self, but: Collection[str]) -> list[Place]:
        """Return the queues to reserve items of, in any order, on all servers but some.

        Raises:
            QueueCannotBeRead: a server cannot tell which queues a pattern matches.
            ServerUnavailable: ZooKeeper cannot be reached.
        """
        if self._choice.patterns:
            found = [
                (str(server), one.name)
                for server, listed in self._list_each().items()
                for one in listed.stats
                if one.items and one.paused not in _READS_PAUSED
            ]
        else:
            self._membership.start()
            choice = self._servers.choose()
            servers = choice.ready or choice.aside[:1]
            found = [(str(server), name) for server in servers for name in self._choice.names]
        found = [place for place in found if place[0] not in but]
        return self._random.sample(found, min(len(found), MAX_QUEUES))

    def reserve(
        self, requests: Mapping[Place, tuple[str, int]]
    ) -> dict[Place, ReservedCount | ServerRefused | None]:
        """Reserve items of queues, each under its tag and at most so many; not more than 1 MiB.

        Return how much that was, or None if the tag has been finished. Queues without items are
        left out, and so are servers that cannot be asked.
        """
        by_server: dict[Address, list[Place]] = {}
        for place in requests:
            by_server.setdefault(parse_address(place[0]), []).append(place)

        def ask(server: Address) -> dict[Place, ReservedCount | ServerRefused | None]:
            asked = [self._reserving(place, *requests[place]) for place in by_server[server]]
            answers = zip(by_server[server], self._run_each(server, asked), strict=True)
            return {
                place: answer[0] if isinstance(answer, list) else answer
                for place, answer in answers
                if answer != []
            }

        found: dict[Place, ReservedCount | ServerRefused | None] = {}
        for answers in self._ask_each(list(by_server), ask).values():
            found |= answers
        return found

    def _reserving(self, place: Place, tag: str, items: int) -> Command[list[ReservedCount] | None]:
        owner = tag.partition(":")[0]
        terms = commands.reserve_terms(0, tag, owner, nodata=True)
        return commands.reserve_held([commands.checked_queue(place[1])], items, terms, 0.0)

    def settle(self, server: str, held: Held, epoch: int) -> bool:
        """Finish what is held at a server; give back what no batch has, up to `epoch`.

        The call may be repeated. Return False if the server cannot be told now.
        """
        address = parse_address(server)
        if address in self._servers.choose().aside:
            return False
        try:
            queues = {*held.queues, *self._choice.names}
            if self._choice.patterns:
                queues |= {
                    one.name for one in self._list(address).stats if one.number("open_transactions")
                }
            self._settle(address, held)
            retiring = [
                commands.retire(commands.checked_queue(queue), held.name, epoch)
                for queue in sorted(queues)
            ]
            for answer in self._run_each(address, retiring):
                if isinstance(answer, ServerRefused):
                    raise answer
        except ClientError as error:
            self._set_aside(address, error)
            return False
        return True

    def _settle(self, server: Address, held: Held) -> None:
        tags = list(held.tags())
        finishing = [
            commands.finish(commands.checked_queue(queue), Reads(tag=tag)) for queue, tag, _ in tags
        ]
        answers = self._run_each(server, finishing)
        for (queue, tag, count), answer in zip(tags, answers, strict=True):
            if isinstance(answer, ServerRefused):
                if not is_retired(answer):  # an earlier driver has finished it, and gone on
                    raise answer
            elif answer != count:
                _log.warning(
                    "%s: %d of the %d items of queue %s under %s went back, and come again",
                    server,
                    count - answer,
                    count,
                    queue,
                    tag,
                )

    def check_readable(self, patience: float) -> None:
        """Check that every server that answers lets the queues be read.

        Args:
            patience: seconds to wait for a server on which a queue is still loading.

        Raises:
            QueueCannotBeRead: a server refuses to let a queue be read, or cannot tell which queues
                a pattern matches.
            ServerUnavailable: ZooKeeper cannot be reached.
        """
        if self._creates:
            self._list_each()
        self._membership.start()
        choice = self._servers.choose()
        refusing = {server for server, why in self._failures.items() if is_refusal(why)}
        servers = [*choice.ready, *refusing.intersection(choice.aside)]
        if servers:
            with ThreadPoolExecutor(min(len(servers), _MAX_THREADS)) as threads:
                list(threads.map(lambda server: self._check_readable(server, patience), servers))

    def present(self, patience: float) -> dict[str, dict[str, int]]:
        """Return what `counts` does, once the queues can be read: see `check_readable`.

        Raises:
            QueueCannotBeRead: a queue cannot be read.
            ServerUnavailable: no server can be asked.
        """
        self.check_readable(patience)
        counts = self.counts()
        if counts:
            return counts
        reasons = sorted(map(str, self._failures.values()))
        shown = "; ".join(reasons[:_MOST_REASONS])
        more = f"; and {len(reasons) - _MOST_REASONS} more" if reasons[_MOST_REASONS:] else ""
        raise ServerUnavailable(
            f"no server can be asked what is in the queue: {shown or 'none is known'}{more}"
        )

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of items in each queue on each server that can be asked.

        Those that readers hold are among them: they may be the query's own.

        Raises:
            QueueCannotBeRead: a queue has items, but reading it is paused: the server would answer
                as for an empty queue.
        """
        found = {}
        for server, listed in self._list_each().items():
            for one in listed.stats:
                if one.items and one.paused in _READS_PAUSED:
                    raise QueueCannotBeRead(
                        f"queue {one.name!r} on {server} cannot be read: it is paused"
                    )
            found[str(server)] = {
                one.name: one.items + one.number("open_transactions") for one in listed.stats
            }
        return found

    def ends(self, server: str, queue: str) -> tuple[str, int, int]:
        """Return the places of a queue's head and of its end, behind what both begin with.

        Raises ClientError. Of a queue that is gone they are the same.
        """
        name = commands.checked_queue(queue)
        looks = [commands.browse(name, offset, 0) for offset in (0, _FURTHEST)]
        pages = self._run(parse_address(server), commands.together(looks))
        places = [page.place.rpartition(":") for page in pages if page is not None]
        if len(places) < len(looks) or places[0][0] != places[1][0]:
            return "", 0, 0
        return places[0][0], int(places[0][2]), int(places[1][2])

    def backlog(self) -> dict[str, dict[str, Any]]:
        """Return how much waits on each server that can be asked.

        Returns:
            For each server its waiting `items`, their `bytes`, its `open_reads`; as `oldest_ms` how
            long the item has waited that has waited longest at the head of a queue, if the server
            tells; and as `age_ms` how long the item that was read last had waited. With several
            queues also, as `queues`, the same of each, but of no more than those with most items.
        """
        found: dict[str, dict[str, Any]] = {}
        for server, listed in self._list_each().items():
            longest = sorted(listed.stats, key=lambda one: (-one.items, one.name))[:_MOST_SHOWN]
            ages = self._ages(server, longest)
            backlog: dict[str, Any] = _sums(listed.stats)
            backlog["oldest_ms"] = max(ages.values(), default=0)
            if self._choice.only is None:
                backlog["queues"] = {one.name: _sums([one]) for one in longest}
                for name, age in ages.items():
                    backlog["queues"][name]["oldest_ms"] = age
            found[str(server)] = backlog
        return found

    def close(self) -> None:
        """Close every connection."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._membership.close()

    def _ages(self, server: Address, queues: Iterable[QueueStats]) -> dict[str, int]:
        """Return how long the heads of queues have waited (ms).

        A server cannot tell without sending the items, so some are left out if these are large.
        """
        found: dict[str, int] = {}
        size = 0
        for one in queues:
            if not one.items:
                found[one.name] = 0
                continue
            if size >= _HEAD_BYTES:
                break
            name = commands.checked_queue(one.name)
            try:
                page = self._run(server, commands.browse(name, 0, 1, b"", is_pattern=False))
            except ServerRefused:
                continue
            except ClientError:
                break
            for head in page.items if page is not None else ():
                # The server's clock may be ahead.
                found[one.name] = max(0, self._clock.now() - head.add_time)
                size += len(head.data)
        return found

    def _check_readable(self, server: Address, patience: float) -> None:
        try:
            for name in self._names_to_check(server, patience):
                command = commands.peek(commands.checked_queue(name))
                ask_when_loaded(name, str(server), lambda: self._run(server, command), patience)  # noqa: B023 # called at once
        except ClientError as error:
            self._set_aside(server, error)
        else:
            self._answered(server)

    def _names_to_check(self, server: Address, patience: float) -> Sequence[str]:
        """Return the queues that may have items or be damaged.

        Raises:
            QueueCannotBeRead: the server is still loading queues that a pattern may mean.
        """
        if not self._choice.patterns:
            return self._choice.names

        def list_loaded() -> _ListedQueues:
            listed = self._list(server)
            if listed.loading:
                raise ServerRefused(f"one of {listed.loading} queues is still loading")
            return listed

        listed = ask_when_loaded(str(self._choice), str(server), list_loaded, patience)
        return [one.name for one in listed.stats if one.items or "failure" in one.values]

    # --- statistics ---

    def _list_each(self) -> dict[Address, _ListedQueues]:
        """Return the queues of each server that can be asked; create children that are missing.

        They are created on every server, because a queue's next item may go to any.
        """
        found = self._ask_all(self._list)
        children = frozenset[str]().union(*(listed.children for listed in found.values()))
        missing = {
            server: children - {one.name for one in listed.stats}
            for server, listed in found.items()
        }
        servers = [server for server, names in missing.items() if names]

        def peeks(names: Iterable[str]) -> list[Command[Any]]:
            return [commands.peek(commands.checked_queue(name)) for name in names]

        self._ask_each(servers, lambda server: self._run_each(server, peeks(missing[server])))
        return found

    def _list(self, server: Address) -> _ListedQueues:
        """Return the queues of the choice that a server has.

        Raises:
            QueueCannotBeRead: it cannot tell which queues a pattern matches.
        """
        try:
            return self._list_all(server) if self._choice.patterns else self._list_named(server)
        except ServerRefused as error:
            if is_refusal(error):
                raise
            raise QueueCannotBeRead(f"{server} is not a kestrelmq server: {error}") from error

    def _list_named(self, server: Address) -> _ListedQueues:
        found = []
        for name in self._choice.names:
            try:
                pairs = self._run(server, commands.stats(commands.checked_queue(name)))
            except ServerRefused as error:
                if not is_refusal(error):
                    raise
                continue  # it is still loading
            stats = stats_of_queue(str(server), name, pairs)
            if stats is not None:
                found.append(stats)
        return _ListedQueues(found)

    def _list_all(self, server: Address) -> _ListedQueues:
        pairs = self._run(server, commands.stats())
        found = queue_stats(str(server), pairs)
        found += [
            QueueStats(str(server), name, {"failure": reason})
            for name, reason in damaged_queues(pairs).items()
        ]
        children = frozenset(
            child for one in found if self._creates for child in self._choice.children_of(one.name)
        )
        loading = next((number(value) for name, value in pairs if name == "queues_loading"), 0)
        chosen = [one for one in found if self._choice.matches(one.name)]
        return _ListedQueues(chosen, loading, children)

    # --- asking ---

    def _ask_all(self, ask: Callable[[Address], T]) -> dict[Address, T]:
        """Return the servers' answers; ask servers that are set aside only if no other answers."""
        self._membership.start()
        choice = self._servers.choose()
        found = self._ask_each(choice.ready, ask)
        return found or self._ask_each(choice.aside, ask)

    def _ask_each(
        self, servers: Sequence[Address], ask: Callable[[Address], T]
    ) -> dict[Address, T]:
        if not servers:
            return {}
        with ThreadPoolExecutor(min(len(servers), _MAX_THREADS)) as threads:
            answers = threads.map(lambda server: self._ask(server, ask), servers)
            return {
                server: answer[0]
                for server, answer in zip(servers, answers, strict=True)
                if answer is not None
            }

    def _ask(self, server: Address, ask: Callable[[Address], T]) -> tuple[T] | None:
        """Return the answer in a tuple, or None if the server cannot be asked."""
        try:
            answer = ask(server)
        except ClientError as error:
            self._set_aside(server, error)
            return None
        self._answered(server)
        return (answer,)

    def _close(self, server: Address) -> None:
        connection = self._connections.pop(server, None)
        if connection is not None:
            connection.close()

    def _run_each(self, server: Address, several: Sequence[Command[T]]) -> list[T | ServerRefused]:
        """Run commands, some at once; return their results, or why the server refuses."""
        found: list[T | ServerRefused] = []
        for at in range(0, len(several), _REQUESTS_AT_ONCE):
            found += self._run(server, commands.each(several[at : at + _REQUESTS_AT_ONCE]))
        return found

    def _run(self, server: Address, command: Command[T]) -> T:
        connection = self._connections.get(server)
        if connection is None or not connection.is_usable():
            self._close(server)
            connection = self._connections[server] = connected(server, self._options)
        return connection.run(command)

    def _set_aside(self, server: Address, error: ClientError) -> None:
        """Do not ask a server for a while; raise `error` if any other server would answer the same.

        A refusal because of the state of the server or the queue is particular to this server; any
        other refusal means that the request is wrong.
        """
        if isinstance(error, ServerRefused) and not is_refusal(error):
            raise error
        self._failures[server] = error
        if self._servers.failed(server):
            _log.warning("%s is set aside: %s", server, error)

    def _answered(self, server: Address) -> None:
        self._failures.pop(server, None)
        self._servers.succeeded(server)


def _sums(queues: Sequence[QueueStats]) -> dict[str, int]:
    return {
        "items": sum(one.items for one in queues),
        "bytes": sum(one.bytes for one in queues),
        "open_reads": sum(one.number("open_transactions") for one in queues),
        "age_ms": max((one.age_msec for one in queues), default=0),
    }
