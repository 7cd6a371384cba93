"""Samples of the state of all queues, taken once a second while somebody watches.

Only the queues that changed since the last sample are looked at, so idle ones cost nothing.
Sampling never blocks the event loop for longer than a slice of a few hundred queues takes. Samples
are numbered, and each queue has the number of the sample in which it last changed, so a watcher is
sent only differences. A snapshot has no age, which would change every second, but the time at which
the oldest item was added, which does not.
"""

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, Literal, NamedTuple

from kestrelmq.admin.history import Histories, Point, Totals
from kestrelmq.admin.slices import batches, slices
from kestrelmq.clock import SystemClock
from kestrelmq.queue.queue import Queue
from kestrelmq.queues.collection import name_of
from kestrelmq.server.context import ServerContext

SLICE: Final = 50
"""Queues sampled before other tasks may run: this takes two or three milliseconds."""
WATCHED_PERIOD: Final = 1.0
"""Seconds between samples while somebody watches."""
UNWATCHED_PERIOD: Final = 5.0
"""Seconds between samples while nobody watches."""
ALL: Final = ""
_GONE_KEPT: Final = 10_000
_HEADS_SPARED: Final = 1000
"""Entries of the heap that may be out of date, besides one a queue."""

State = Literal["ok", "behind", "full", "failing", "damaged", "loading"]
"""ok · behind: in read-behind · full: it refuses items until some are read · failing: its journal
cannot be written · damaged: it must be repaired · loading: it cannot be used yet."""


class QueueSnapshot(NamedTuple):
    """The state of one queue, with the fields of `QueueSummary`.

    The order of the fields is their order in the events that the console gets.

    Attributes:
        items, bytes: number of waiting items, and bytes of data in them.
        put_rate, get_rate: items added and read per second.
        oldest: when the oldest waiting item was added (ms since the epoch); 0 if there is none.
        open_reads, waiters: number of open reads and of waiting readers.
        state: whether the queue works, and if not, why.
        paused: what is paused: `reads`, `writes` or `all`; empty for nothing.
    """

    items: int = 0
    bytes: int = 0
    put_rate: float = 0.0
    get_rate: float = 0.0
    oldest: int = 0
    open_reads: int = 0
    waiters: int = 0
    state: State = "ok"
    paused: str = ""


DAMAGED: Final = QueueSnapshot(state="damaged")
LOADING: Final = QueueSnapshot(state="loading")


@dataclass(slots=True)
class SampledQueue:
    """The last sample of a queue.

    Attributes:
        snapshot: its state.
        version: the number of the sample in which the state last changed.
        added, taken: items ever added and read.
        memory_bytes: bytes of items in memory.
    """

    snapshot: QueueSnapshot
    version: int
    added: int = 0
    taken: int = 0
    memory_bytes: int = 0


@dataclass(slots=True)
class QueueTotals:
    """The sums over all queues; `oldest` is the earliest of all."""

    time: int = 0
    queues: int = 0
    damaged: int = 0
    failing: int = 0
    items: int = 0
    bytes: int = 0
    memory_bytes: int = 0
    put_rate: float = 0.0
    get_rate: float = 0.0
    oldest: int = 0
    open_reads: int = 0
    waiters: int = 0

    def count(self, sampled: SampledQueue, sign: int) -> None:
        """Add a queue to the sums, with `sign` -1 take it off; its rates and `oldest` aside."""
        snapshot = sampled.snapshot
        self.items += sign * snapshot.items
        self.bytes += sign * snapshot.bytes
        self.memory_bytes += sign * sampled.memory_bytes
        self.open_reads += sign * snapshot.open_reads
        self.waiters += sign * snapshot.waiters
        self.failing += sign * (snapshot.state == "failing")
        self.damaged += sign * (snapshot.state == "damaged")


class Sampler:
    """Samples the queues periodically and keeps what it found.

    Attributes:
        sampled: the last sample of each queue, by name; those that changed last come last.
        totals: the sums over all queues.
        version: the number of the last sample.
        history: the history of each queue.
        total_history: the history of the totals, under the name `ALL`.
    """

    def __init__(self, context: ServerContext) -> None:
        self.sampled: dict[str, SampledQueue] = {}
        self.totals = QueueTotals()
        self.version = 0
        self.history = Histories()
        self.total_history = Histories()
        self._added = self._taken = 0.0
        self._context = context
        self._changed = context.collection.commits.follow(context.collection.queues.values())
        # The queues that were added to or read in the last sample: their rates will change.
        self._busy: set[str] = set()
        # When the oldest item of each queue was added: a heap, in which some are out of date.
        self._heads: list[tuple[int, str]] = []
        self._gone: deque[tuple[int, str]] = deque(maxlen=_GONE_KEPT)
        self._forgotten = 0
        self._watchers = 0
        self._wake = asyncio.Event()
        self._sample_taken = asyncio.Event()
        self._last = time.monotonic()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count a watcher, and so sample every second, during a `with` block."""
        self._watchers += 1
        self._wake.set()
        try:
            yield
        finally:
            self._watchers -= 1

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            begun = time.monotonic()
            await self.take_sample()
            period = WATCHED_PERIOD if self._watchers else UNWATCHED_PERIOD
            self._wake.clear()
            try:
                async with asyncio.timeout(max(0.0, begun + period - time.monotonic())):
                    await self._wake.wait()
            except TimeoutError:
                continue
            # A watcher came. It gets the last sample until that is `WATCHED_PERIOD` seconds old.
            await asyncio.sleep(max(0.0, begun + WATCHED_PERIOD - time.monotonic()))

    async def wait_for_sample(self, version: int) -> None:
        """Wait until there is a sample after number `version`."""
        while self.version <= version:
            await self._sample_taken.wait()

    async def take_sample(self) -> None:
        """Take one sample: of the queues that changed, and of those that are read or added to."""
        version = self.version + 1
        now = time.monotonic()
        elapsed = max(now - self._last, 1e-3)
        self._last = now
        stamp = SystemClock().now()
        collection = self._context.collection
        changed = list(self._changed)
        self._changed.clear()
        names = set(self._busy)
        async for some_queues in slices(changed, SLICE):
            names.update(map(name_of, some_queues))
        async for some in slices(names, SLICE):
            for name in some:
                queue = collection.queues.get(name)
                if queue is not None:
                    self._sample_queue(name, queue, version, elapsed, stamp)
        for states, snapshot in ((collection.loading, LOADING), (collection.damaged, DAMAGED)):
            async for some in slices(list(states), SLICE):
                for name in some:
                    last = self.sampled.get(name)
                    if name in states and (last is None or last.snapshot != snapshot):
                        self._replace(name, SampledQueue(snapshot, version))
        there = (collection.queues, collection.damaged, collection.loading)
        async for some in slices(names, SLICE):
            for name in some:
                if name in self.sampled and not any(name in queues for queues in there):
                    self._drop(name, version)
        await self._sum_up(stamp, elapsed)
        self.version = version
        taken_event, self._sample_taken = self._sample_taken, asyncio.Event()
        taken_event.set()

    async def _sum_up(self, stamp: int, elapsed: float) -> None:
        totals = self.totals
        put_rate = get_rate = 0.0
        async for names in slices(list(self._busy), SLICE):
            busy = [self.sampled[name].snapshot for name in names]
            put_rate += sum(one.put_rate for one in busy)
            get_rate += sum(one.get_rate for one in busy)
        await self._forget_old_heads()
        totals.oldest = await self._oldest()
        totals.time = stamp
        totals.queues = len(self.sampled)
        totals.put_rate, totals.get_rate = round(put_rate, 1), round(get_rate, 1)
        self.total_history.add(
            ALL, Point(stamp, totals.items, totals.put_rate, totals.get_rate, totals.oldest)
        )
        added, taken = self._added, self._taken
        self._added += put_rate * elapsed
        self._taken += get_rate * elapsed
        now = Totals(stamp, totals.items, self._added, self._taken, totals.oldest)
        self.total_history.count(ALL, now, added, taken)

    async def _oldest(self) -> int:
        """Return when the oldest item of all was added (ms since the epoch); 0 without any."""
        forgotten = 0
        while self._heads:
            oldest, name = self._heads[0]
            if name in self.sampled and self.sampled[name].snapshot.oldest == oldest:
                return oldest
            heapq.heappop(self._heads)  # it was the head of its queue once
            forgotten += 1
            if forgotten % SLICE == 0:
                await asyncio.sleep(0)
        return 0

    async def _forget_old_heads(self) -> None:
        """Make the heap anew if more than half of it is out of date."""
        if len(self._heads) <= 2 * len(self.sampled) + _HEADS_SPARED:
            return
        old, self._heads = self._heads, []
        async for names in slices(list(self.sampled), SLICE):
            for name in names:
                self._add_head(name)
            del old[-3 * SLICE :]  # to drop all at once would take long

    def _sample_queue(
        self, name: str, queue: Queue, version: int, elapsed: float, stamp: int
    ) -> None:
        last = self.sampled.get(name)
        added, taken = queue.backlog.total_items, queue.counts.get_hits
        if last is None:
            put_rate = get_rate = 0.0
        else:
            put_rate = max(0.0, round((added - last.added) / elapsed, 1))
            get_rate = max(0.0, round((taken - last.taken) / elapsed, 1))
        snapshot = snapshot_of(queue, put_rate, get_rate)
        is_new = last is None or last.snapshot != snapshot
        changed = version if last is None or is_new else last.version
        self._replace(
            name, SampledQueue(snapshot, changed, added, taken, queue.backlog.memory_bytes)
        )
        if is_new:
            self.history.add(
                name, Point(stamp, snapshot.items, put_rate, get_rate, snapshot.oldest)
            )
        if last is not None:  # the first sample is not a change: at the start every queue has one
            counted = Totals(stamp, snapshot.items, added, taken, snapshot.oldest)
            self.history.count(name, counted, last.added, last.taken)

    def _take_off(self, name: str) -> SampledQueue | None:
        """Take a queue off the sums; return its last sample, if there is one."""
        last = self.sampled.get(name)
        if last is not None:
            self.totals.count(last, -1)
            self._busy.discard(name)
        return last

    def _replace(self, name: str, new: SampledQueue) -> None:
        """Put a queue's new sample in the place of the last one."""
        last = self._take_off(name)
        if last is not None and last.version != new.version:
            del self.sampled[name]  # it comes last now
        self.sampled[name] = new
        self.totals.count(new, 1)
        snapshot = new.snapshot
        if snapshot.put_rate or snapshot.get_rate:
            self._busy.add(name)
        if last is None or last.snapshot.oldest != snapshot.oldest:
            self._add_head(name)

    def _add_head(self, name: str) -> None:
        oldest = self.sampled[name].snapshot.oldest
        if oldest:
            heapq.heappush(self._heads, (oldest, name))

    def _drop(self, name: str, version: int) -> None:
        self._take_off(name)
        del self.sampled[name]
        self.history.forget(name)
        if len(self._gone) == self._gone.maxlen:
            self._forgotten = self._gone[0][0]
        self._gone.append((version, name))

    def changed_since(self, since: int) -> Iterator[list[tuple[str, QueueSnapshot]]]:
        """Yield the queues that changed after sample number `since`, in slices.

        Only those are looked at. A change between two slices may be in the later one already.
        """
        if since:
            later = takewhile(lambda one: one[1].version > since, reversed(self.sampled.items()))
            names = [name for name, _ in later]
        else:
            names = list(self.sampled)
        for some in batches(names, SLICE):
            yield [(name, self.sampled[name].snapshot) for name in some if name in self.sampled]

    def removed_since(self, since: int) -> list[str] | None:
        """Return the queues that were removed after sample `since`; None if that is not known."""
        if since < self._forgotten:
            return None
        return [
            name for version, name in self._gone if version > since and name not in self.sampled
        ]


def snapshot_of(queue: Queue, put_rate: float = 0.0, get_rate: float = 0.0) -> QueueSnapshot:
    """Return the present state of a queue, with the given rates."""
    return QueueSnapshot(
        len(queue),
        queue.backlog.size,
        put_rate,
        get_rate,
        queue.backlog.oldest,
        queue.reads.held,
        queue.waiters.readers,
        state_of(queue),
        str(queue.paused),
    )


def state_of(queue: Queue) -> State:
    """Return the state of a queue that is loaded."""
    if queue.core.is_failing:
        return "failing"
    if queue.fullness is not None:
        return "full"
    return "behind" if queue.backlog.read_behind else "ok"
