"""Ask servers whether they have items: the driver does so before a batch, with a timed wait.

A server that cannot be asked counts as one without items, and is not asked for a while.
"""

import logging
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from random import Random
from typing import Final, TypeVar

from kestrelmq.client import commands
from kestrelmq.client.address import Address, parse_address
from kestrelmq.client.blocking import Connection
from kestrelmq.client.cluster import Membership, ServerSet
from kestrelmq.client.commands import Command
from kestrelmq.client.options import ClientOptions
from kestrelmq.client.statistics import queue_stats
from kestrelmq.errors import ClientError, ServerRefused
from kestrelmq.spark.refusals import QueueCannotBeRead, ask_when_loaded, is_refusal
from kestrelmq.spark.server_reads import settling
from kestrelmq.spark.staging import StagedPart

T = TypeVar("T")

_MAX_THREADS: Final = 64
_BACKLOG: Final = {
    "items": "items",
    "bytes": "bytes",
    "open_reads": "open_transactions",
    "age_ms": "age_msec",
}
_READS_PAUSED: Final = frozenset({"reads", "all"})
_NOBODY: Final = "kestrelmq.spark"
"""An owner that never reserves anything."""

_log: Final = logging.getLogger("kestrelmq.spark")


class ServerProbe:
    """Asks the servers about a queue. Not thread-safe; it uses threads of its own."""

    def __init__(
        self,
        membership: Membership,
        queue: str,
        options: ClientOptions | None = None,
        random: Random | None = None,
    ) -> None:
        self._membership = membership
        self._queue = queue
        self._name = commands.checked_queue(queue)
        self._options = options or ClientOptions()
        chance = random or Random()  # noqa: S311 # spreads load, keeps no secret
        self._servers = ServerSet(membership.reads, time.monotonic, chance)
        self._connections: dict[Address, Connection] = {}
        self._refusing: set[Address] = set()

    def with_items(self, wait: float) -> list[str]:
        """Return the servers that have items; if none has, wait up to `wait` seconds for one.

        Raises:
            ServerUnavailable: ZooKeeper cannot be reached.
        """
        begun = time.monotonic()
        found = self._ask_all(commands.peek(self._name))
        having = [str(server) for server, item in found.items() if item is not None]
        if having or wait <= 0:
            return sorted(having)
        if not found:
            # No server answers: without this pause the driver would ask again at once.
            time.sleep(max(0.0, wait - (time.monotonic() - begun)))
            return []
        return self._wait_for_one(list(found), wait)

    def check_readable(self, patience: float) -> None:
        """Check that every server that answers lets the queue be read.

        Args:
            patience: seconds to wait for a server on which the queue is still loading.

        Raises:
            QueueCannotBeRead: a server refuses to let the queue be read.
            ServerUnavailable: ZooKeeper cannot be reached.
        """
        self._membership.start()
        choice = self._servers.choose()
        refusing = [server for server in choice.aside if server in self._refusing]
        servers = [*choice.ready, *refusing]
        if servers:
            with ThreadPoolExecutor(min(len(servers), _MAX_THREADS)) as threads:
                list(threads.map(lambda server: self._check_readable(server, patience), servers))

    def counts(self) -> dict[str, int]:
        """Return the number of items in the queue on each server that can be asked.

        Raises:
            QueueCannotBeRead: a server has items, but reading them is paused: it would answer as
                for an empty queue.
        """
        found = {}
        for server, pairs in self._ask_all(commands.stats()).items():
            items = 0
            for queue in queue_stats(str(server), pairs):
                if queue.name == self._queue:
                    items = queue.items
                    if items and queue.paused in _READS_PAUSED:
                        raise QueueCannotBeRead(
                            f"queue {self._queue!r} on {server} cannot be read: it is paused"
                        )
            found[str(server)] = items
        return found

    def backlog(self) -> dict[str, dict[str, int]]:
        """Return how much waits on each server that can be asked.

        Returns:
            For each server its waiting `items`, their `bytes`, its `open_reads`, and `age_ms`: how
            long the item that was read last had waited.
        """
        found = {}
        for server, pairs in self._ask_all(commands.stats()).items():
            stats = [one for one in queue_stats(str(server), pairs) if one.name == self._queue]
            found[str(server)] = {
                name: sum(one.number(stat) for one in stats) for name, stat in _BACKLOG.items()
            }
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
            for command in settling(self._name, part):
                self._run(parse_address(part.server), command)
        except ClientError as error:
            _log.info("%s: cannot be told yet what was read: %s", part.server, error)
            return False
        return True

    def retire(self, servers: Iterable[str], name: str, epoch: int) -> None:
        """Release what is reserved under tags of `name` up to `epoch`, and refuse these tags.

        If a server cannot be asked, what is reserved there stays so until its lease ends.
        """
        for server in servers:
            try:
                self._run(parse_address(server), commands.retire(self._name, name, epoch))
            except ClientError as error:
                _log.info("%s: the tags of batch %d stay: %s", server, epoch, error)

    def close(self) -> None:
        """Close every connection."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._membership.close()

    def _ask_all(self, command: Command[T]) -> dict[Address, T]:
        """Return the servers' answers; ask servers that are set aside only if no other answers."""
        self._membership.start()
        choice = self._servers.choose()
        found = self._ask_each(choice.ready, command)
        return found or self._ask_each(choice.aside, command)

    def _ask_each(self, servers: Sequence[Address], command: Command[T]) -> dict[Address, T]:
        if not servers:
            return {}
        with ThreadPoolExecutor(min(len(servers), _MAX_THREADS)) as threads:
            answers = threads.map(lambda server: self._ask(server, command), servers)
            return {
                server: answer[0]
                for server, answer in zip(servers, answers, strict=True)
                if answer is not None
            }

    def _ask(self, server: Address, command: Command[T]) -> tuple[T] | None:
        """Return the answer in a tuple, or None if the server cannot be asked."""
        try:
            answer = self._run(server, command)
        except ClientError as error:
            self._set_aside(server, error)
            return None
        self._answered(server)
        return (answer,)

    def _check_readable(self, server: Address, patience: float) -> None:
        command = commands.peek(self._name)
        try:
            ask_when_loaded(self._queue, str(server), lambda: self._run(server, command), patience)
        except ClientError as error:
            self._set_aside(server, error)
        else:
            self._answered(server)

    def _run(self, server: Address, command: Command[T]) -> T:
        connection = self._connections.get(server)
        if connection is None or not connection.is_usable():
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
        if self._servers.failed(server):
            _log.warning("%s is set aside: %s", server, error)

    def _answered(self, server: Address) -> None:
        self._refusing.discard(server)
        self._servers.succeeded(server)

    def _wait_for_one(self, servers: Sequence[Address], wait: float) -> list[str]:
        """Return the first server that gets an item within `wait` seconds, if there is one.

        The waits on the other servers continue in the background until they end. They have
        connections of their own, so that a reply that is still due is not taken for the reply to
        another request.
        """
        threads = ThreadPoolExecutor(min(len(servers), _MAX_THREADS))
        try:
            waits = {threads.submit(self._wait, server, wait): server for server in servers}
            for done in as_completed(waits):
                if done.result():
                    return [str(waits[done])]
            return []
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def _wait(self, server: Address, wait: float) -> bool:
        connection = Connection(server, self._options)
        begun = time.monotonic()
        try:
            connection.open()
            return connection.run(commands.peek(self._name, wait)) is not None
        except ClientError:
            # The next request shows what is wrong; but this wait must not end early.
            time.sleep(max(0.0, wait - (time.monotonic() - begun)))
            return False
        finally:
            connection.close()
