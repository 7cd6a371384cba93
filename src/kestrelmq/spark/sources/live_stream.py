"""The driver's side of a stream: reserve the items of the next batch, finish those of the last.

`live_offsets` says what an offset has. A batch is made in these steps; whatever dies in between,
the next driver begins again with the first one, and comes to the same:

    1. Spark asks for the batch behind `start`: everything up to `start` is in its commit log.
    2. What `start` holds is finished; then its epoch is retired at every server, which gives back
       what an attempt has reserved for it that was never logged. A server that cannot be told keeps
       its entry in the next offset, and nothing is reserved there before it was told.
    3. Items are reserved under tags of the next epoch. An earlier attempt's tags give the same.
    4. Spark logs the offset, and runs the batch: tasks read the items by their tags.

So nothing is ever done to an epoch above `start` that would harm another driver of the query: one
of them logs the batch, the other one fails, because Spark's log has it or its tags are retired.

The first batch has no rows: it logs the query's name, before anything is reserved under it.

This module does not need Spark; `source` connects it to Spark's interface.
"""

import logging
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import uuid4

from kestrelmq.client.commands import ReservedCount
from kestrelmq.clock import Clock, SystemClock
from kestrelmq.errors import ConfigError, KestrelError, ServerRefused
from kestrelmq.protocol.reserving import MAX_RESERVED
from kestrelmq.spark.sources.live_offsets import Held, HeldOffset, parse_offset, tag_of
from kestrelmq.spark.sources.live_options import KestrelReadOptions
from kestrelmq.spark.sources.refusals import is_refusal, is_retired
from kestrelmq.spark.sources.server_probe import Place, ServerProbe

BACKLOG_PAUSE: Final = 10.0
"""Seconds for which the backlog is not asked for again."""
_POLL: Final = 0.05
"""Seconds between two attempts to reserve items."""
_IDLE_SHARE: Final = 10
"""They take at most one part in so many of the time in which there are none."""
_MOST_BYTES: Final = 1 << 20
"""About the most bytes that a server reserves at once."""

Reached = Callable[[str], None]
"""Called at each step, by its name; crash tests stop there."""

_log: Final = logging.getLogger("kestrelmq.spark")


class CheckpointIsOver(KestrelError):  # noqa: N818 # says what it is
    """The servers know of later batches than the checkpoint: it is an old copy, or in use."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Maximum items and bytes of a batch; `items` None means what the servers have now."""

    items: int | None
    bytes: int


class StreamDriver:
    """Plans the batches of one query."""

    def __init__(
        self,
        servers: ServerProbe,
        options: KestrelReadOptions,
        *,
        clock: Clock | None = None,
        pause: Callable[[float], None] = time.sleep,
        reached: Reached | None = None,
    ) -> None:
        """Prepare to plan batches. No I/O is done before the first call.

        Args:
            servers: the servers to ask.
            options: what to read, and how.
            clock: measures the time.
            pause: sleeps.
            reached: for crash tests.
        """
        self._servers = servers
        self._options = options
        self._choice = str(options.queue)
        self._clock = clock or SystemClock()
        self._pause = pause
        self._reached = reached or (lambda _: None)
        self._remaining: dict[Place, int] | None = None
        self._asked_at: float | None = None
        self._fraction = 0.0
        self._backlog: dict[str, dict[str, Any]] | None = None
        self._backlog_until = 0.0
        # The servers that were told that this batch is over.
        self._told: tuple[tuple[str, int], set[str]] = (("", 0), set())
        # The offset that was returned last, and the one before it until Spark has logged that one.
        self._returned: HeldOffset | None = None
        self._unlogged: HeldOffset | None = None

    def initial_offset(self) -> dict[str, Any]:
        """Return the offset before the first batch."""
        return HeldOffset("", 0, self._choice).to_json()

    @property
    def is_limited(self) -> bool:
        """Whether the query ends once it has read what the servers had at its start."""
        return self._remaining is not None

    def offset_of(self, logged: Mapping[str, Any]) -> HeldOffset:
        """Return an offset that was logged.

        Raises:
            ConfigError: it is of other queues, or no offset of this version.
        """
        try:
            offset = parse_offset(logged)
        except (KeyError, TypeError, ValueError):
            raise ConfigError(
                "the checkpoint is of an earlier version or another source: begin a new one"
            ) from None
        if self._choice != offset.queue:
            raise ConfigError(
                f"option 'queue' of reading kestrel: {self._choice!r} is not allowed: the "
                f"checkpoint is of queue {offset.queue!r}; give other queues their own checkpoint"
            )
        return offset

    def latest_offset(self, start: Mapping[str, Any], limits: BatchLimits) -> dict[str, Any]:
        """Return the offset of the next batch, or `start` if there are no items.

        Raises:
            ConfigError: the checkpoint is of other queues, or Spark does not log each batch.
            CheckpointIsOver: the servers know of later batches.
            QueueCannotBeRead: the query ends once it has read what was there, and a server has a
                queue but refuses to let it be read, or it is paused.
        """
        before = self.offset_of(start)
        self._check_logged(before)
        if not before.name:
            self._reached("naming")
            return self._return(before, replace(before, name=self._new_name()))
        carried = self._settle(before)
        self._reached("settled")
        if self.is_limited:
            self._servers.check_readable(self._options.patience)
        held = self._reserve_patiently(before.name, before.epoch + 1, carried, self._rated(limits))
        self._reached("reserved")
        if not held:
            if self._remaining is not None and any(self._remaining.values()):
                # Other readers took the rest, or somebody paused a queue: then this raises.
                self._servers.counts()
            return dict(start)
        (name,) = {one.name for one in held.values()}
        servers = tuple(self._servers.known())
        now = self._clock.now()
        offset = HeldOffset(name, before.epoch + 1, self._choice, now, carried | held, servers)
        return self._return(before, offset)

    def limit_to_present_items(self) -> None:
        """From now on, take no more than the servers have now.

        Raises:
            ServerUnavailable: no server can be asked.
            QueueCannotBeRead: a server has a queue but refuses to let it be read.
        """
        self._remaining = _by_queue(self._servers.present(self._options.patience))

    def backlog(self) -> dict[str, dict[str, Any]] | None:
        """Return how much waits on each server that can be asked; None if no server can.

        What is returned may be some seconds old, so that a busy stream does not ask all the time.
        """
        now = self._clock.monotonic()
        if now >= self._backlog_until:
            self._backlog = self._servers.backlog() or None
            self._backlog_until = self._clock.monotonic() + BACKLOG_PAUSE
        return self._backlog

    def commit(self, end: Mapping[str, Any]) -> None:
        """Note that Spark has logged the batch behind `end`."""
        if self._unlogged == self.offset_of(end):
            self._unlogged = None

    def close(self) -> None:
        """Close the connections."""
        self._servers.close()

    def _return(self, before: HeldOffset, offset: HeldOffset) -> dict[str, Any]:
        self._returned, self._unlogged = offset, before if before.name else None
        return offset.to_json()

    def _check_logged(self, before: HeldOffset) -> None:
        """Check that Spark logs each offset before it asks for the next one.

        Otherwise a query that dies would begin with one that is finished.
        """
        if before == self._returned and self._unlogged is not None:
            raise ConfigError(
                "reading kestrel: asyncProgressTrackingEnabled is not allowed: Spark must log each "
                "batch before it runs"
            )

    def _new_name(self) -> str:
        prefix = re.sub(r"[^\w.-]", "_", self._options.query_name)[:60] or "spark"
        return f"{prefix}-{uuid4().hex[:16]}"

    def _settle(self, before: HeldOffset) -> dict[str, Held]:
        """Finish what `before` holds; return what the servers could not be told."""
        batch = (before.name, before.epoch)
        if self._told[0] != batch:
            self._told = (batch, set())
        carried = {}
        for server in sorted({*before.held, *self._servers.known()} - self._told[1]):
            held = before.held.get(server, Held(*batch))
            epoch = before.epoch if held.name == before.name else held.epoch
            if self._servers.settle(server, held, epoch):
                self._told[1].add(server)
            else:
                carried[server] = held
            self._reached("settling")
        return carried

    def _reserve_patiently(
        self, name: str, epoch: int, but: Collection[str], limits: BatchLimits
    ) -> dict[str, Held]:
        """Reserve the items of the next batch; wait for one if there is none."""
        deadline = self._clock.monotonic() + (0.0 if self.is_limited else self._options.wait)
        while True:
            begun = self._clock.monotonic()
            try:
                found = self._reserve(name, epoch, but, limits)
            except CheckpointIsOver as error:
                if self._options.fails_on_loss:
                    raise
                _log.warning("%s", error)
                name = self._new_name()
                continue
            now = self._clock.monotonic()
            if found or now >= deadline:
                return found
            self._pause(min(max(_POLL, (now - begun) * _IDLE_SHARE), deadline - now))

    def _reserve(
        self, name: str, epoch: int, but: Collection[str], limits: BatchLimits
    ) -> dict[str, Held]:
        """Reserve items of all queues in turn, until the limits."""
        most = self._remaining
        if most is None and limits.items is None:
            most = _by_queue(self._servers.counts())
        places = [place for place in self._servers.queues(but) if most is None or most.get(place)]
        items = sum((most or {}).values()) if limits.items is None else limits.items
        size, largest = limits.bytes, 0
        taken: dict[Place, list[tuple[str, int]]] = {}
        while places and items > 0 and size > 0:
            places = places[:items]
            room = size // len(places)
            each, more = divmod(items, len(places))
            fitting = MAX_RESERVED
            if room < _MOST_BYTES:
                fitting = max(1, room // largest) if largest else 1
            requests = {}
            for number, place in enumerate(places):
                wanted = min(each + (number < more), fitting, MAX_RESERVED)
                tag = tag_of(name, epoch, len(taken.get(place, ())))
                requests[place] = (tag, wanted if most is None else min(wanted, most[place]))
            answers = self._servers.reserve(requests)
            self._reached("reserving")
            for place, answer in answers.items():
                if isinstance(answer, ServerRefused) and is_refusal(answer):
                    _log.info("%s: queue %s: %s", *place, answer)
                    continue
                count = self._checked(answer, place)
                taken.setdefault(place, []).append((count.nonce, count.count))
                items -= count.count
                size -= count.bytes
                largest = max(largest, -(-count.bytes // count.count))
                if most is not None:
                    most[place] = max(0, most[place] - count.count)
            places = [
                place
                for place in places
                if isinstance(answers.get(place), ReservedCount) and (most is None or most[place])
            ]
        held: dict[str, dict[str, list[tuple[str, int]]]] = {}
        for (server, queue), parts in taken.items():
            held.setdefault(server, {})[queue] = parts
        return {server: Held(name, epoch, queues) for server, queues in held.items()}

    def _checked(self, answer: ReservedCount | ServerRefused | None, place: Place) -> ReservedCount:
        if answer is None or is_retired(answer):
            raise CheckpointIsOver(
                f"{place[0]} knows of later batches of this query than the checkpoint: it is an "
                "old copy, or another query uses it; with failOnDataLoss=false it goes on as a new "
                "query"
            )
        if isinstance(answer, ServerRefused):
            raise KestrelError(
                f"{place[0]} cannot be read by Spark: it must be a server of kestrelmq, of this "
                f"version or later ({answer})"
            )
        return answer

    def _rated(self, limits: BatchLimits) -> BatchLimits:
        """Return the limits of a batch that takes what `rate` allows since the last call."""
        rate = self._options.max_items_per_second
        if rate is None:
            return limits
        now = self._clock.monotonic()
        passed = 1.0 if self._asked_at is None else now - self._asked_at
        self._asked_at = now
        allowed = self._fraction + passed * rate
        if allowed < 1:
            self._pause((1 - allowed) / rate)
            self._asked_at, allowed = self._clock.monotonic(), 1.0
        items = int(allowed)
        self._fraction = allowed - items
        most = items if limits.items is None else min(items, limits.items)
        return BatchLimits(most, limits.bytes)


def _by_queue(counts: Mapping[str, Mapping[str, int]]) -> dict[Place, int]:
    """Return counts of servers' queues by server and queue."""
    return {
        (server, name): items for server, found in counts.items() for name, items in found.items()
    }
