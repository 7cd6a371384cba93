"""What the queues look like, taken once a second while somebody watches.

Taking it never holds the loop for longer than a slice of some hundred queues. What changed since
any earlier look is found by version, so a watcher is sent differences only. An age is never part
of a row: it would change every second; when the oldest item was added does not.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

from kestrelmq.admin.history import History
from kestrelmq.engine.queue import Queue
from kestrelmq.server.context import ServerContext

SLICE: Final = 200
"""Queues looked at before others may run."""
WATCHED: Final = 1.0
"""Seconds between looks while somebody watches."""
UNWATCHED: Final = 5.0
"""Seconds between looks while nobody does."""
ALL: Final = ""
_GONE_KEPT: Final = 10_000

State = Literal["ok", "behind", "failing", "damaged", "loading"]
"""ok · behind: part of it is on disk only · failing: its journal cannot be written · damaged ·
loading: it cannot be used yet."""

Values = tuple[int, int, float, float, int, int, int, State]
"""Items, bytes, adds a second, reads a second, when the oldest was added (ms), open, waiters."""

DAMAGED: Final[Values] = (0, 0, 0.0, 0.0, 0, 0, 0, "damaged")
LOADING: Final[Values] = (0, 0, 0.0, 0.0, 0, 0, 0, "loading")


@dataclass(slots=True)
class Row:
    """A queue as it was last seen; `version` is the look at which it last changed."""

    values: Values
    version: int
    added: int
    taken: int


@dataclass(frozen=True, slots=True)
class Totals:
    """All queues together."""

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


class Sampler:
    """Looks at the queues now and then, and remembers.

    Attributes:
        rows: by queue name.
        totals: of all of them.
        version: number of the last look.
        history: of single queues.
        past: of all together, under the name `ALL`.
    """

    def __init__(self, context: ServerContext) -> None:
        self.rows: dict[str, Row] = {}
        self.totals = Totals()
        self.version = 0
        self.history = History()
        self.past = History()
        self._context = context
        self._gone: deque[tuple[int, str]] = deque(maxlen=_GONE_KEPT)
        self._forgotten = 0
        self._watchers = 0
        self._wake = asyncio.Event()
        self._looked = asyncio.Event()
        self._last = time.monotonic()

    @property
    def watchers(self) -> int:
        """How many watch at present."""
        return self._watchers

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look every second for the length of a `with` block."""
        self._watchers += 1
        self._wake.set()
        try:
            yield
        finally:
            self._watchers -= 1

    async def run(self) -> None:
        """Look again and again."""
        while True:
            begun = time.monotonic()
            await self.look()
            period = WATCHED if self._watchers else UNWATCHED
            self._wake.clear()
            try:
                async with asyncio.timeout(max(0.0, begun + period - time.monotonic())):
                    await self._wake.wait()
            except TimeoutError:
                continue
            # Somebody came: what is fresh enough will do.
            await asyncio.sleep(max(0.0, begun + WATCHED - time.monotonic()))

    async def next(self, version: int) -> None:
        """Wait until there was a look after number `version`."""
        while self.version <= version:
            await self._looked.wait()

    async def look(self) -> None:
        """Look at every queue once."""
        version = self.version + 1
        now = time.monotonic()
        elapsed = max(now - self._last, 1e-3)
        self._last = now
        stamp = time.time_ns() // 1_000_000
        sums = _Sums()
        queues = list(self._context.collection.queues.items())
        for start in range(0, len(queues), SLICE):
            for name, queue in queues[start : start + SLICE]:
                self._look_at(name, queue, version, elapsed, stamp, sums)
            await asyncio.sleep(0)
        collection = self._context.collection
        for names, values in ((collection.loading, LOADING), (collection.damaged, DAMAGED)):
            for name in list(names):
                if name not in self.rows or self.rows[name].values != values:
                    self.rows[name] = Row(values, version, 0, 0)
        for name in [
            name
            for name in self.rows
            if name not in collection.queues
            and name not in collection.damaged
            and name not in collection.loading
        ]:
            self._drop(name, version)
        self.totals = sums.totals(stamp, len(self.rows), len(collection.damaged))
        self.past.add(
            ALL, (stamp, sums.items, round(sums.put_rate, 1), round(sums.get_rate, 1), sums.oldest)
        )
        self.version = version
        looked, self._looked = self._looked, asyncio.Event()
        looked.set()

    def _look_at(  # one look at one queue
        self, name: str, queue: Queue, version: int, elapsed: float, stamp: int, sums: "_Sums"
    ) -> None:
        row = self.rows.get(name)
        added, taken = queue.total_items, queue.get_hits
        if row is None:
            put_rate = get_rate = 0.0
        else:
            put_rate = max(0.0, round((added - row.added) / elapsed, 1))
            get_rate = max(0.0, round((taken - row.taken) / elapsed, 1))
        values = values_of(queue, put_rate, get_rate)
        sums.add(values, queue.memory_bytes)
        if row is None:
            self.rows[name] = Row(values, version, added, taken)
        else:
            row.added, row.taken = added, taken
            if row.values == values:
                return
            row.values = values
            row.version = version
        self.history.add(name, (stamp, values[0], put_rate, get_rate, values[4]))

    def _drop(self, name: str, version: int) -> None:
        del self.rows[name]
        self.history.forget(name)
        if len(self._gone) == self._gone.maxlen:
            self._forgotten = self._gone[0][0]
        self._gone.append((version, name))

    def changed(self, since: int) -> Iterator[list[tuple[str, Values]]]:
        """Yield the rows that changed after look number `since`, in slices."""
        found = [(name, row.values) for name, row in self.rows.items() if row.version > since]
        for start in range(0, len(found), SLICE):
            yield found[start : start + SLICE]

    def gone(self, since: int) -> list[str] | None:
        """Return the queues that went after look number `since`; None when that is not known."""
        if since < self._forgotten:
            return None
        return [name for version, name in self._gone if version > since and name not in self.rows]


class _Sums:
    """Adds rows up."""

    __slots__ = (
        "bytes",
        "failing",
        "get_rate",
        "items",
        "memory_bytes",
        "oldest",
        "open_reads",
        "put_rate",
        "waiters",
    )

    def __init__(self) -> None:
        self.items = self.bytes = self.memory_bytes = self.failing = 0
        self.open_reads = self.waiters = self.oldest = 0
        self.put_rate = self.get_rate = 0.0

    def add(self, values: Values, memory_bytes: int) -> None:
        """Count one queue."""
        items, size, put_rate, get_rate, oldest, open_reads, waiters, state = values
        self.items += items
        self.bytes += size
        self.memory_bytes += memory_bytes
        self.put_rate += put_rate
        self.get_rate += get_rate
        self.open_reads += open_reads
        self.waiters += waiters
        self.failing += state == "failing"
        if oldest and (not self.oldest or oldest < self.oldest):
            self.oldest = oldest

    def totals(self, stamp: int, queues: int, damaged: int) -> Totals:
        """Return what was counted."""
        return Totals(
            time=stamp,
            queues=queues,
            damaged=damaged,
            failing=self.failing,
            items=self.items,
            bytes=self.bytes,
            memory_bytes=self.memory_bytes,
            put_rate=round(self.put_rate, 1),
            get_rate=round(self.get_rate, 1),
            oldest=self.oldest,
            open_reads=self.open_reads,
            waiters=self.waiters,
        )


def values_of(queue: Queue, put_rate: float, get_rate: float) -> Values:
    """Return how a queue is now, with the rates it had lately."""
    return (
        len(queue),
        queue.size,
        put_rate,
        get_rate,
        queue.oldest,
        len(queue.open) - queue.set_aside,
        len(queue.waiters.line),
        state_of(queue),
    )


def state_of(queue: Queue) -> State:
    """Return how a queue that is up is doing."""
    if queue.failure is not None:
        return "failing"
    return "behind" if queue.read_behind else "ok"
