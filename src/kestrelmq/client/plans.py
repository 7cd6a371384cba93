"""What a client's operations do, step by step, without doing any of it.

A plan is a generator: it yields a step (ask this server, pause), and is sent the answer, or has the
error thrown into it; what it returns is the operation's result. The blocking and the asyncio
client carry the steps out, so that choice, retry and fairness are the same in both, and a test can
play the servers.

What an error says about the server decides what is retried:

- It was never reached, or it answered SERVER_ERROR: nothing happened there. Another one is tried.
- The connection broke before the answer: unknown. Reads go on at another server: an item of an
  open read goes back to its queue by itself, and one taken without is gone either way. An add may
  have been stored, so it is tried again only where the caller accepts a duplicate.
- It answered CLIENT_ERROR or ERROR: every server would; the caller is told at once.
"""

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from kestrelmq.client import commands
from kestrelmq.client.address import Address
from kestrelmq.client.cluster import ServerSet
from kestrelmq.client.commands import Command
from kestrelmq.client.rounds import Batch, Round, batches, joined
from kestrelmq.client.steps import Free, Held, Hold, Pause, Plan, Run, Step
from kestrelmq.errors import (
    ClientError,
    ConnectionLost,
    OperationTimeout,
    ProtocolError,
    ServerRefused,
    ServerUnavailable,
)

T = TypeVar("T")

LONGEST_WAIT: Final = 10.0
"""Seconds of one wait at the only server; a longer one is made of several."""

LONGEST_STREAK: Final = 64
"""Items in a row that a consumer takes from one server of a cluster before it looks at others."""

_log: Final = logging.getLogger("kestrelmq.client")


# The server failed, and the operation did not happen there, or may be repeated elsewhere.
_FAILED: Final = (ServerUnavailable, ConnectionLost, OperationTimeout, ProtocolError)
_PAUSE_WHEN_ALL_FAILED: Final = 0.1


@dataclass(slots=True)
class Planner:
    """Makes the plans of one client.

    `poll_interval` is how long, in seconds, a blocking read of a cluster waits at one server before
    it looks at the next.
    """

    reads: ServerSet
    writes: ServerSet
    clock: Callable[[], float]
    poll_interval: float = 0.05
    retry_unknown: bool = False

    # Adding

    def put(
        self, queue: str, items: Sequence[bytes], expiry: int, *, retry_unknown: bool | None
    ) -> Plan[list[bool]]:
        """Add `items` in order, in batches; answer for each whether it was stored."""
        name = commands.checked_queue(queue)
        retry = self.retry_unknown if retry_unknown is None else retry_unknown
        outcomes: list[bool | None] = [None] * len(items)
        for batch in batches(items):
            try:
                yield from self._put_batch(name, expiry, Batch(items, batch, outcomes), retry=retry)
            except ClientError as error:
                error.stored = tuple(outcomes)
                raise
        return [outcome is True for outcome in outcomes]

    def _put_batch(self, queue: bytes, expiry: int, batch: Batch, *, retry: bool) -> Plan[None]:
        turns = Round(self.writes)
        while (server := turns.next_server()) is not None:
            answers: list[bool] = []
            command = commands.set_items(queue, batch.left(), expiry, answers)
            try:
                yield Run(server, command)
            except ServerRefused as error:
                batch.record(answers)
                turns.refused(error)
            except ServerUnavailable as error:
                turns.failed(server, error, again=False)
            except _FAILED as error:
                batch.record(answers, others_unknown=True)
                turns.failed(server, error, again=retry)
                if not retry:
                    raise
            else:
                batch.record(answers)
                turns.answered(server)
            if not batch.pending:
                return
        # Full wherever an answer came from is an answer; otherwise the caller must know why.
        if not batch.all_refused():
            raise turns.error()

    # Reading

    def take(
        self,
        queue: str,
        timeout: float | None,
        command: Callable[[bytes, float], Command[bytes | None]],
    ) -> Plan[bytes | None]:
        """Find an item by `command` at any server, waiting up to `timeout` seconds for one."""
        name = commands.checked_queue(queue)
        found: bytes | None = yield from self._search(
            timeout, lambda server, wait: Run(server, command(name, wait))
        )
        return found

    def hold(self, queue: str, timeout: float | None) -> Plan[Held[bytes] | None]:
        """Open a read at any server, waiting up to `timeout` seconds for an item."""
        name = commands.checked_queue(queue)
        found: Held[bytes] | None = yield from self._search(
            timeout,
            lambda server, wait: Hold(server, commands.open_read(name, wait)),
        )
        return found

    def _search(self, timeout: float | None, step: Callable[[Address, float], Step]) -> Plan[Any]:
        deadline = self.clock() + (timeout or 0.0)
        first = True
        while True:
            turns = Round(self.reads)
            waits = not (first and turns.is_cluster)
            while (server := turns.next_server()) is not None:
                remaining = deadline - self.clock()
                longest = self.poll_interval if turns.is_cluster else LONGEST_WAIT
                wait = max(0.0, min(remaining, longest)) if waits else 0.0
                try:
                    found = yield step(server, wait)
                except ServerRefused as error:
                    turns.refused(error)
                except _FAILED as error:
                    turns.failed(server, error, again=True)
                else:
                    turns.answered(server)
                    if found is not None:
                        return found
            first = False
            remaining = deadline - self.clock()
            if remaining <= 0:
                if not turns.any_answered:
                    raise turns.error()
                return None
            if not turns.any_answered:
                yield Pause(min(_PAUSE_WHEN_ALL_FAILED, remaining))

    def monitor(
        self, queue: str, seconds: float, max_items: int | None
    ) -> Plan[list[Held[list[bytes]]]]:
        """Open the reads of all items that arrive within `seconds`, up to `max_items`.

        At the only server that is one command. In a cluster the servers are watched in turn, a
        second each, because the protocol counts in whole seconds.
        """
        name = commands.checked_queue(queue)
        deadline = self.clock() + seconds
        batch: list[Held[list[bytes]]] = []
        left = max_items
        while left is None or left > 0:
            turns = Round(self.reads)
            turn = 1.0 if turns.is_cluster else LONGEST_WAIT
            while (server := turns.next_server()) is not None and (left is None or left > 0):
                wait = math.ceil(min(turn, max(0.0, deadline - self.clock())))
                try:
                    held = yield Hold(server, commands.monitor(name, wait, left))
                except ServerRefused as error:
                    turns.refused(error)
                except _FAILED as error:
                    turns.failed(server, error, again=True)
                else:
                    turns.answered(server)
                    if held is not None:
                        batch.append(held)
                        left = None if left is None else left - len(held.result)
            if deadline - self.clock() <= 0:
                if not batch and not turns.any_answered:
                    raise turns.error()
                break
            if not turns.any_answered:
                yield Pause(_PAUSE_WHEN_ALL_FAILED)
        return batch

    # Ending reads

    def confirm(self, queue: str, batch: Sequence[Held[Any]]) -> Plan[None]:
        """Confirm every open read of `batch`; those that cannot be are in the error raised."""
        name = commands.checked_queue(queue)
        errors: list[ClientError] = []
        for held in batch:
            one = not isinstance(held.result, list)
            command: Command[Any] = (
                commands.close_read(name) if one else commands.confirm(name, len(held.result))
            )
            try:
                yield Free(held, command)
            except ClientError as error:
                errors.append(error)
        if errors:
            raise joined(errors)

    def abort(self, queue: str, held: Held[bytes]) -> Plan[None]:
        """Give the item back. A connection that breaks gives it back as well."""
        with suppress(ClientError):
            yield Free(held, commands.abort_read(commands.checked_queue(queue)))

    def advance(
        self, queue: str, held: Held[bytes] | None, timeout: float
    ) -> Plan[Held[bytes] | None]:
        """Confirm the read that is open and open the next, in one step while a server has items.

        When the confirmation fails the item comes again, to this reader or another.
        """
        if held is not None:
            name = commands.checked_queue(queue)
            stay = held.streak < LONGEST_STREAK
            try:
                if stay:
                    found: Held[bytes] | None = yield Hold(
                        held.server, commands.open_read(name, close=True), on=held
                    )
                    if found is not None:
                        return found
                else:
                    yield Free(held, commands.close_read(name))
            except (ServerRefused, *_FAILED) as error:
                _log.warning("%s: an item of %r may come again: %s", held.server, queue, error)
        return (yield from self.hold(queue, timeout))

    def finish(self, queue: str, held: Held[bytes]) -> Plan[None]:
        """Confirm the last read of a consumer, as `advance` does."""
        try:
            yield Free(held, commands.close_read(commands.checked_queue(queue)))
        except ClientError as error:
            _log.warning("%s: an item of %r may come again: %s", held.server, queue, error)

    # Every server

    def exists(self, queue: str) -> Plan[bool]:
        """Find out whether a server has the queue; it comes into being on none.

        It is an error when those that answer do not have it, and others do not answer.
        """
        name = commands.checked_queue(queue)
        errors: list[ClientError] = []
        for server in self._all_servers():
            try:
                if (yield Run(server, commands.exists(name))):
                    return True
            except ClientError as error:
                errors.append(error)
        if errors:
            raise joined(errors)
        return False

    def _all_servers(self) -> list[Address]:
        """Return every server, sorted. Raises ServerUnavailable: none is known."""
        choice = self.reads.choose()
        others = self.writes.choose()
        servers = sorted({*choice.ready, *choice.aside, *others.ready, *others.aside})
        if not servers:
            raise ServerUnavailable("no server is known")
        return servers

    def everywhere(self, command: Command[T]) -> Plan[dict[Address, T]]:
        """Run `command` at every server; when some fail, the others are still asked."""
        results: dict[Address, T] = {}
        errors: list[ClientError] = []
        for server in self._all_servers():
            try:
                results[server] = yield Run(server, command)
            except ClientError as error:
                errors.append(error)
        if errors:
            raise joined(errors)
        return results
