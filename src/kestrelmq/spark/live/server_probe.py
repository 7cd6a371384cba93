"""Ask servers which queues have items: the driver does so before a batch, with a timed wait.

A server that cannot be asked counts as one without items, and is not asked for a while. A queue
that a server refuses to let be read is left out, and asked for again the next time.

Queues that are named are peeked at, which any server understands, and creates them, as any read
does. Queues that a pattern means are found in the server's statistics; only those that have items
are peeked at, so that a queue that was deleted does not come back.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeVar

from kestrelmq.client import commands
from kestrelmq.client.address import Address, parse_address
from kestrelmq.client.blocking import Connection
from kestrelmq.client.cluster import Membership, ServerSet
from kestrelmq.client.commands import Command, Reads
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
from kestrelmq.spark.live.batch_plan import MAX_QUEUES, WaitingQueue
from kestrelmq.spark.live.queue_choice import QueueChoice
from kestrelmq.spark.live.refusals import QueueCannotBeRead, ask_when_loaded, is_refusal
from kestrelmq.spark.live.server_reads import settling
from kestrelmq.spark.live.staging import StagedPart

T = TypeVar("T")

_MAX_THREADS: Final = 64
_POLL: Final = 0.25
"""Seconds between two looks for queues of a pattern."""
_MOST_REASONS: Final = 3
"""Servers that an error names if none can be asked."""
_MOST_SHOWN: Final = 100
"""Queues of a server that the backlog shows one by one."""
_IDLE_SHARE: Final = 10
"""Looking for queues takes at most one part in so many of the time in which there are none."""
_HEAD_BYTES: Final = 16 << 20
"""Most bytes of items that are looked at to learn how long they have waited."""
_READS_PAUSED: Final = frozenset({"reads", "all"})
_NOBODY: Final = "kestrelmq.spark"
"""An owner that never reserves anything."""

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
        self._refusing: set[Address] = set()
        self._failures: dict[Address, str] = {}
        self._refused: set[tuple[Address, str]] = set()
        self._lists_all: set[Address] = set()
        self._tells_no_ages: set[Address] = set()
        self._look_at = 0.0
        self._creates = create_children

    def with_items(self, wait: float) -> list[WaitingQueue]:
        """Return the queues that have items; if none has, wait up to `wait` seconds for one.

        Raises:
            ServerUnavailable: ZooKeeper cannot be reached.
            QueueCannotBeRead: a server cannot tell which queues a pattern matches.
        """
        if self._choice.patterns:
            return self._poll(wait)
        begun = time.monotonic()
        answers = self._ask_all(lambda server: self._peek(server, self._choice.names))
        asked = [
            (server, name, has_item)
            for server, found in answers.items()
            for name, has_item in found.items()
        ]
        having = [WaitingQueue(str(server), name) for server, name, has_item in asked if has_item]
        if having or wait <= 0:
            return having
        if not asked:
            # No server answers: without this pause the driver would ask again at once.
            time.sleep(max(0.0, wait - (time.monotonic() - begun)))
            return []
        return self._wait_for_one([(server, name) for server, name, _ in asked], wait)

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
        refusing = [server for server in choice.aside if server in self._refusing]
        servers = [*choice.ready, *refusing]
        if servers:
            with ThreadPoolExecutor(min(len(servers), _MAX_THREADS)) as threads:
                list(threads.map(lambda server: self._check_readable(server, patience), servers))

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of items in each queue on each server that can be asked.

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
            found[str(server)] = {one.name: one.items for one in listed.stats}
        return found

    def unavailable(self) -> ServerUnavailable:
        """Return the error to raise when no server can be asked; it says why."""
        reasons = sorted(self._failures.values())
        shown = "; ".join(reasons[:_MOST_REASONS])
        more = f"; and {len(reasons) - _MOST_REASONS} more" if reasons[_MOST_REASONS:] else ""
        return ServerUnavailable(
            f"no server can be asked what is in the queue: {shown or 'none is known'}{more}"
        )

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
            if ages is not None:
                backlog["oldest_ms"] = max(ages.values(), default=0)
            if self._choice.only is None:
                backlog["queues"] = {one.name: _sums([one]) for one in longest}
                for name, age in (ages or {}).items():
                    backlog["queues"][name]["oldest_ms"] = age
            found[str(server)] = backlog
        return found

    def reserving(self, servers: Iterable[str]) -> dict[str, bool]:
        """Return which of the servers have reserved reads; without those that do not answer.

        They are asked to extend the leases of an owner that has none, which changes nothing.
        """
        found = {}
        for server in servers:
            try:
                self._run(parse_address(server), commands.extend_owner(_NOBODY, 1.0))
                found[server] = True
            except ClientError as error:
                if isinstance(error, ServerRefused) and not is_refusal(error):
                    found[server] = False  # it does not know the command
                else:
                    self._set_aside(parse_address(server), error)
        return found

    def settle(self, part: StagedPart) -> bool:
        """Tell the server of a part about it; return whether that was possible."""
        try:
            for command in settling(part):
                self._run(parse_address(part.server), command)
        except ClientError as error:
            _log.info("%s: cannot be told yet what was read: %s", part.server, error)
            return False
        return True

    def finish(self, server: str, tags: Sequence[tuple[str, str]]) -> list[int] | None:
        """Finish what is reserved under tags; return how many reads that were, for each.

        0 means that they went back: the lease has ended, the tag is retired, or the queue is gone.
        The call may be repeated. If the server cannot be told, return None.

        Args:
            server: the server.
            tags: queues, each with a tag.
        """
        counts = []
        try:
            for queue, tag in tags:
                command = commands.finish(commands.checked_queue(queue), Reads(tag=tag))
                try:
                    counts.append(self._run(parse_address(server), command))
                except ServerRefused as error:
                    if "is retired" not in str(error):
                        raise
                    counts.append(0)
        except ClientError as error:
            _log.warning("%s: it will be told later what was read: %s", server, error)
            return None
        return counts

    def release(self, server: str, queue: str, tag: str) -> None:
        """Give back what is reserved under a tag, uncounted; if that fails, its lease ends."""
        command = commands.release(
            commands.checked_queue(queue), Reads(tag=tag), 0.0, counted=False
        )
        try:
            self._run(parse_address(server), command)
        except ClientError as error:
            _log.info("%s: some items stay reserved: %s", server, error)

    def retire(self, queues: Mapping[str, Collection[str]], name: str, epoch: int) -> None:
        """Release what is reserved under tags of `name` up to `epoch`, and refuse these tags.

        If a server cannot be asked, what is reserved there stays so until its lease ends.

        Args:
            queues: the queues of each server.
            name: a name of the query.
            epoch: the batch.
        """
        for server, names in queues.items():
            address, found = parse_address(server), list(map(commands.checked_queue, names))
            try:
                if self._choice.patterns:
                    # A queue that a pattern meant may be gone, and would be created again.
                    there = self._run(address, commands.together(list(map(commands.exists, found))))
                    found = [
                        queue for queue, is_there in zip(found, there, strict=True) if is_there
                    ]
                retiring = [commands.retire(queue, name, epoch) for queue in found]
                if retiring:
                    self._run(address, commands.together(retiring))
            except ClientError as error:
                _log.info("%s: the tags of batch %d stay: %s", server, epoch, error)

    def close(self) -> None:
        """Close every connection."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._membership.close()

    def _ages(self, server: Address, queues: Iterable[QueueStats]) -> dict[str, int] | None:
        """Return how long the heads of queues have waited (ms); None if the server cannot tell.

        It cannot tell without sending the items, so some queues are left out if these are large.
        """
        if server in self._tells_no_ages:
            return None
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
            except ServerRefused as error:
                if is_refusal(error):
                    continue
                self._tells_no_ages.add(server)
                return None
            except ClientError:
                break
            for head in page.items if page is not None else ():
                # The server's clock may be ahead.
                found[one.name] = max(0, self._clock.now() - head.add_time)
                size += len(head.data)
        return found

    # --- looking for items ---

    def _poll(self, wait: float) -> list[WaitingQueue]:
        """Look for queues of patterns that have items, again and again for `wait` seconds."""
        deadline = time.monotonic() + wait
        while True:
            pause = self._look_at - time.monotonic()
            if wait > 0 and pause > 0:
                left = deadline - time.monotonic()
                time.sleep(max(0.0, min(pause, left)))
                if pause > left:
                    return []
            begun = time.monotonic()
            found = self._look()
            if found or wait <= 0:
                return found
            took = time.monotonic() - begun
            self._look_at = time.monotonic() + max(_POLL, took * _IDLE_SHARE)

    def _look(self) -> list[WaitingQueue]:
        """Return queues that have items, no more than a batch may have, and can be read."""
        having = [
            (server, one.name)
            for server, listed in self._list_each().items()
            for one in listed.stats
            if one.items and one.paused not in _READS_PAUSED
        ]
        chosen: dict[Address, list[str]] = {}
        for server, name in self._random.sample(having, min(len(having), MAX_QUEUES)):
            chosen.setdefault(server, []).append(name)
        answers = self._ask_each(list(chosen), lambda server: self._peek(server, chosen[server]))
        return [
            WaitingQueue(str(server), name)
            for server, found in answers.items()
            for name, has_item in found.items()
            if has_item
        ]

    def _peek(self, server: Address, names: Iterable[str]) -> dict[str, bool]:
        """Return for each queue whether it has items; without those that cannot be read.

        Raises:
            ServerRefused: none of them can be read.
        """
        found = {}
        refusal = None
        for name in names:
            try:
                item = self._run(server, commands.peek(commands.checked_queue(name)))
            except ServerRefused as error:
                if not is_refusal(error):
                    raise
                refusal = error
                self._close(server)  # the server may be closing the connection
                if (server, name) not in self._refused:
                    _log.warning("%s: queue %s cannot be read: %s", server, name, error)
                self._refused.add((server, name))
            else:
                found[name] = item is not None
                self._refused.discard((server, name))
        if refusal is not None and not found:
            raise refusal
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
        self._ask_each(servers, lambda server: self._peek(server, missing[server]))
        return found

    def _list(self, server: Address) -> _ListedQueues:
        """Return the queues of the choice that a server has.

        Raises:
            QueueCannotBeRead: it cannot tell which queues a pattern matches.
        """
        if self._choice.patterns:
            try:
                return self._list_all(server)
            except ServerRefused as error:
                if is_refusal(error):
                    raise
                raise QueueCannotBeRead(
                    f"{server} cannot tell which queues match {str(self._choice)!r} ({error}): "
                    "name them in option 'queue'"
                ) from error
        if server not in self._lists_all:
            try:
                return self._list_named(server)
            except ServerRefused as error:
                if is_refusal(error):
                    raise
                # It has no statistics of single queues.
                self._lists_all.add(server)
        return self._list_all(server)

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

    def _run(self, server: Address, command: Command[T]) -> T:
        connection = self._connections.get(server)
        if connection is None or not connection.is_usable():
            self._close(server)
            connection = Connection(server, self._options)
            connection.open()
            self._connections[server] = connection
        return connection.run(command)

    def _set_aside(self, server: Address, error: ClientError) -> None:
        """Do not ask a server for a while; raise `error` if any other server would answer the same.

        A refusal because of the state of the server or the queue is particular to this server; any
        other refusal means that the request is wrong.
        """
        if is_refusal(error):
            self._refusing.add(server)
        elif isinstance(error, ServerRefused):
            raise error
        self._failures[server] = str(error)
        if self._servers.failed(server):
            _log.warning("%s is set aside: %s", server, error)

    def _answered(self, server: Address) -> None:
        self._refusing.discard(server)
        self._failures.pop(server, None)
        self._servers.succeeded(server)

    def _wait_for_one(
        self, queues: Sequence[tuple[Address, str]], wait: float
    ) -> list[WaitingQueue]:
        """Return the first queue that gets an item within `wait` seconds, if there is one.

        The waits for the others continue in the background until they end. They have connections of
        their own, so that a reply that is still due is not taken for the reply to another request.
        If there are very many queues, only some are waited for; all are asked again afterwards.
        """
        threads = ThreadPoolExecutor(min(len(queues), _MAX_THREADS))
        chosen = self._random.sample(queues, min(len(queues), _MAX_THREADS))
        try:
            waits = {threads.submit(self._wait, *one, wait): one for one in chosen}
            for done in as_completed(waits):
                if done.result():
                    server, name = waits[done]
                    return [WaitingQueue(str(server), name)]
            return []
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def _wait(self, server: Address, name: str, wait: float) -> bool:
        connection = Connection(server, self._options)
        begun = time.monotonic()
        try:
            connection.open()
            return connection.run(commands.peek(commands.checked_queue(name), wait)) is not None
        except ClientError:
            # The next request shows what is wrong; but this wait must not end early.
            time.sleep(max(0.0, wait - (time.monotonic() - begun)))
            return False
        finally:
            connection.close()


def _sums(queues: Sequence[QueueStats]) -> dict[str, int]:
    return {
        "items": sum(one.items for one in queues),
        "bytes": sum(one.bytes for one in queues),
        "open_reads": sum(one.number("open_transactions") for one in queues),
        "age_ms": max((one.age_msec for one in queues), default=0),
    }
