"""The real server is killed again and again while deliveries, delays, leases and tags are in use.

Everybody notes what was said to the server and what it answered. In the end the queues are read to
their end, and the notes must add up:

- nothing that was acknowledged is lost: it was finished, waits, or is a dead letter;
- a delivery that was counted is never forgotten: no two deliveries of an item have one number;
- what was finished, or is a dead letter, is not delivered again;
- an open tag always has the same items, a finished one none, a retired one is refused;
- a put that is repeated is stored once; a delayed item does not come before it is due.

The checks do not depend on the order in which threads make their notes: the number of a delivery
says what came first. `make soak` runs it for `KESTRELMQ_KILLS` kills, 200 unless set.
"""

import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Final

import pytest

from kestrelmq.journal.writer import Dialect
from tests.crash.test_bad_items import stat
from tests.crash.test_kill import Broken, Wire
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server

pytestmark = pytest.mark.compiled_only

CONFIG: Final = """
expiration_timer_frequency = "20ms"
[default]
journal_dialect = "{dialect}"
max_memory_size = "60 KiB"
default_journal_size = "40 KiB"
max_journal_size = "300 KiB"
min_journal_compact_delay = 0
[queues.jobs]
max_deliveries = 5
dead_letter_queue = "failed"
"""
MOST: Final = 5
HOUR: Final = 3_600_000
PROGRESS: Final = 100
"""Items that are put, and that are finished, between two kills."""
LOSES_CONNECTION: Final = 0.02
READERS: Final = 3
READS_AT_ONCE: Final = 6 * READERS
"""Reads that may be on their way to the dead letters when the server is killed, at most."""
EARLY: Final = 0.01
"""Seconds by which two clocks may differ when a delay is measured."""


@dataclass(frozen=True)
class Delivery:
    """An item that a reader was given; `number` is how often it was handed out."""

    data: bytes
    number: int
    read: bytes


class ReserveWire(Wire):
    """A connection that reserves items."""

    def reserve(self, arguments: str) -> list[Delivery] | None:
        """Reserve items; None if the tag is done."""
        line = self.ask(f"reserve {arguments}\r\n".encode())
        if line == b"DONE":
            return None
        found = []
        while line != b"END":
            if line.startswith(b"SERVER_ERROR"):
                raise Broken
            word, _, read, number, _, _, size = line.split()
            assert word == b"ITEM", line
            found.append(Delivery(self._data(int(size)), int(number), read))
            line = self._line()
        return found

    def _data(self, size: int) -> bytes:
        try:
            data = self._file.read(size + 2)
        except OSError:
            raise Broken from None
        if len(data) < size + 2:
            raise Broken
        return data[:size]

    def count(self, verb: str, rest: bytes) -> int:
        """Send `verb jobs REST`; return the number in the answer."""
        line = self.ask(b"%b jobs %b\r\n" % (verb.encode(), rest))
        if line.startswith(b"SERVER_ERROR"):
            raise Broken
        return int(line.split()[1])


@dataclass
class Notes:
    """What everybody said and was answered.

    Attributes:
        kills: how often the server was killed.
        put: the items whose put was answered.
        deliveries: the numbers of the deliveries of each item.
        uncounted: how often somebody asked that a delivery of an item does not count.
        finished: the number of the delivery that was finished, of each item, if that was answered.
        perhaps: items that somebody asked to be finished.
        buried: the number of the delivery after which an item became a dead letter, if that was
            answered.
        perhaps_buried: after which deliveries of an item somebody asked that it becomes a dead
            letter.
        problems: what must not be.
    """

    server: ServerProcess
    kills: int = 0
    stop: Event = field(default_factory=Event)
    put: set[bytes] = field(default_factory=set)
    deliveries: defaultdict[bytes, list[int]] = field(default_factory=lambda: defaultdict(list))
    uncounted: Counter[bytes] = field(default_factory=Counter)
    finished: dict[bytes, int] = field(default_factory=dict)
    perhaps: set[bytes] = field(default_factory=set)
    buried: dict[bytes, int] = field(default_factory=dict)
    perhaps_buried: defaultdict[bytes, set[int]] = field(default_factory=lambda: defaultdict(set))
    problems: list[str] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def connections(self) -> Iterator[ReserveWire]:
        """Connect, and again whenever the last connection is broken, until the test ends."""
        while not self.stop.is_set():
            try:
                wire = ReserveWire(self.server.ports["memcache"])
            except OSError:
                time.sleep(0.02)
                continue
            yield wire
            wire.close()

    def delivered(self, found: Sequence[Delivery]) -> None:
        """Note what a reader got."""
        now = time.time()
        with self.lock:
            for one in found:
                self.deliveries[one.data].append(one.number)
                if now < due(one.data) - EARLY:
                    self.problems.append(f"{one.data!r} came before it was due")


def due(data: bytes) -> float:
    """Return when an item may come, which its data says."""
    return float(data.split()[1])


# --- who does what ---


def produce(notes: Notes, name: int) -> None:
    """Add items, some of them delayed; repeat each put until it is answered."""
    chance = random.Random(name)
    numbers = count()
    request = data = b""
    for wire in notes.connections():
        with suppress(Broken):
            while not notes.stop.is_set():
                if not request:
                    number, delay = next(numbers), chance.choice([0, 0, 0, 10, 100, 400])
                    data = b"%d-%d %f " % (name, number, time.time() + delay / 1000)
                    data += b"x" * chance.choice([1, 50, 500])
                    key = b"jobs/producer=p%d/seq=%d/delay=%d" % (name, number, delay)
                    request = b"set %b 0 0 %d\r\n%b\r\n" % (key, len(data), data)
                reply = wire.ask(request)
                if reply.startswith(b"SERVER_ERROR"):
                    raise Broken
                if reply == b"STORED":
                    notes.put.add(data)
                    request = b""
                else:
                    assert reply == b"NOT_STORED", reply  # there are too many delayed items
                time.sleep(chance.choice([0, 0, 0, 0.005]))


def reserve_and_end(notes: Notes, name: int) -> None:
    """Reserve some items, and end the reads in every way there is; or do not end them."""
    chance = random.Random(1000 + name)
    for wire in notes.connections():
        owner = chance.choice(["", f" owner=w{name} grace=50"])
        with suppress(Broken):
            while not notes.stop.is_set():
                arguments = f"jobs {chance.randint(1, 6)} lease={chance.choice([300, 2000])} t=50"
                found = wire.reserve(arguments + owner)
                assert found is not None
                notes.delivered(found)
                while found:
                    size = chance.randint(1, 3)
                    end_reads(notes, wire, found[:size], chance)
                    found = found[size:]
                if chance.random() < LOSES_CONNECTION:
                    break


def end_reads(
    notes: Notes, wire: ReserveWire, reads: Sequence[Delivery], chance: random.Random
) -> None:
    """End reads in one of the ways; note that this was asked for, and that it was answered."""
    names = b" ".join(one.read for one in reads)
    everything = {one.data: one.number for one in reads}
    match chance.choice(["finish"] * 6 + ["release", "delay", "uncounted", "dead", "extend", ""]):
        case "finish":
            notes.perhaps.update(everything)
            if wire.count("finish", names) == len(reads):
                notes.finished.update(everything)
        case "release":
            wire.count("release", names)
        case "delay":
            wire.count("release", names + b" delay=%d" % chance.choice([0, 50, 500]))
        case "uncounted":
            with notes.lock:
                notes.uncounted.update(everything.keys())
            wire.count("release", names + b" uncounted")
        case "dead":
            for data, number in everything.items():
                notes.perhaps_buried[data].add(number)
            if wire.count("release", names + b" dead") == len(reads):
                notes.buried.update(everything)
        case "extend":
            wire.count("extend", b"100 " + names)
        case _:
            pass  # the leases end


class TagSteps:
    """Reads one epoch after the other under tags, and repeats each step until it is answered."""

    def __init__(self, notes: Notes, name: str) -> None:
        self._notes = notes
        self._name = name
        self._epoch = 0
        self._found: list[Delivery] = []
        self._is_ending = False

    @property
    def _tag(self) -> str:
        return f"tag={self._name}:{self._epoch}:0"

    def run(self, chance: random.Random) -> None:
        """Go on until the test ends."""
        for wire in self._notes.connections():
            with suppress(Broken):
                while not self._notes.stop.is_set():
                    if not self._is_ending:
                        self._reserve(wire)
                        self._is_ending = bool(self._found) and chance.random() < 0.7
                    if self._is_ending:
                        self._finish(wire)
                        self._retire(wire, chance)

    def complete(self, wire: ReserveWire) -> None:
        """Finish the epoch in which the test ended."""
        if not self._is_ending:
            self._reserve(wire)
        if self._found:
            self._finish(wire)

    def _reserve(self, wire: ReserveWire) -> None:
        """Reserve the items of this epoch, or get those again that it has."""
        found = wire.reserve(f"jobs 20 lease={HOUR} t=50 {self._tag}")
        assert found is not None, f"{self._tag} is done"
        if self._found:
            assert found == self._found, f"{self._tag} has other items"
        else:
            self._found = found
            self._notes.delivered(found)

    def _finish(self, wire: ReserveWire) -> None:
        """Finish this epoch, and begin the next one."""
        everything = {one.data: one.number for one in self._found}
        self._notes.perhaps.update(everything)
        assert wire.count("finish", self._tag.encode()) == len(everything)
        self._notes.finished.update(everything)
        assert wire.reserve(f"jobs 20 lease={HOUR} {self._tag}") is None
        self._epoch, self._found, self._is_ending = self._epoch + 1, [], False

    def _retire(self, wire: ReserveWire, chance: random.Random) -> None:
        """Retire what is over, now and then."""
        if self._epoch > 1 and chance.random() < 0.3:
            wire.count("retire", b"%b %d" % (self._name.encode(), self._epoch - 2))
            reply = wire.ask(f"reserve jobs 1 lease=1 tag={self._name}:0:0\r\n".encode())
            assert reply.startswith((b"CLIENT_ERROR", b"SERVER_ERROR")), reply


# --- what came of it ---


def drain(wire: ReserveWire, queue: str) -> list[Delivery]:
    """Take everything that is in a queue."""
    left: list[Delivery] = []
    while found := wire.reserve(f"{queue} 100 lease={HOUR}"):
        names = b" ".join(one.read for one in found)
        assert wire.ask(b"finish %b %b\r\n" % (queue.encode(), names)) == (
            b"FINISHED %d" % len(found)
        )
        left += found
    return left


@dataclass(frozen=True)
class Outcome:
    """What was noted, what was left in the queue, and the dead letters."""

    notes: Notes
    left: Sequence[Delivery]
    dead: Sequence[Delivery]

    def __str__(self) -> str:
        notes = self.notes
        deliveries = sum(map(len, notes.deliveries.values()))
        return (
            f"{notes.kills} kills: {len(notes.put)} items put, "
            f"{deliveries} deliveries, {len(notes.finished)} finished, "
            f"{len(self.dead)} dead letters, {len(self.left)} left"
        )

    def check(self) -> None:
        """Add it all up."""
        notes = self.notes
        assert notes.problems == []
        left, dead = ({one.data for one in found} for found in (self.left, self.dead))
        assert len(left) == len(self.left), "a put was stored twice"
        assert not notes.put - set(notes.finished) - notes.perhaps - left - dead, "lost"
        for one in self.left:
            numbers = notes.deliveries[one.data]
            assert one.number > len(numbers) - notes.uncounted[one.data], "a count is too low"
        for data, numbers in notes.deliveries.items():
            assert len(numbers) - len(set(numbers)) <= notes.uncounted[data], (data, numbers)
        for ended in (notes.finished, notes.buried):
            assert not left & set(ended), "what was over is there again"
            for data, number in ended.items():
                assert max(notes.deliveries[data]) <= number, "what was over came again"
        assert set(notes.buried) <= dead
        self.check_dead_letters()

    def check_dead_letters(self) -> None:
        """Check the counts of the dead letters.

        A kill may have left one in its queue, too, where it was delivered again: then it has the
        count that it had when it died. If it died there again, there are two dead letters of it.
        """
        notes, in_both = self.notes, 0
        most: defaultdict[bytes, int] = defaultdict(int)
        for one in self.dead:
            most[one.data] = max(most[one.data], one.number - 1)
        assert len(self.dead) - len(most) <= READS_AT_ONCE * notes.kills
        for data, number in notes.buried.items():
            assert most[data] >= number, "the count of a dead letter is too low"
        for one in self.dead:
            numbers, count = notes.deliveries[one.data], one.number - 1
            assert count >= MOST or one.data in notes.perhaps_buried, "it was not dead"
            asked = notes.perhaps_buried.get(one.data, set())
            is_asked = count in asked and count != notes.buried.get(one.data)
            if count < len(numbers) - notes.uncounted[one.data]:
                assert is_asked or count >= MOST, "a count is too low"
                in_both += 1
        assert in_both <= READS_AT_ONCE * notes.kills
        assert notes.finished
        assert notes.buried


def kill_again_and_again(tmp_path: Path, kills: int, dialect: Dialect) -> Outcome:
    """Kill and start the server under load, so often; return what came of it."""
    chance = random.Random(5)
    config = CONFIG.format(dialect=dialect)
    with running_server(tmp_path, config=config, waits=False) as server:
        notes = Notes(server)
        tags = [TagSteps(notes, name) for name in ("sink", "copy")]
        work: list[Callable[[], None]] = [
            *(partial(produce, notes, name) for name in range(2)),
            *(partial(reserve_and_end, notes, name) for name in range(READERS)),
            *(partial(one.run, random.Random(name)) for name, one in enumerate(tags)),
        ]
        threads = [Thread(target=guarded, args=(notes, one)) for one in work]
        for thread in threads:
            thread.start()
        try:
            while notes.kills < kills and not notes.problems:
                await_progress(notes)
                time.sleep(chance.uniform(0, 0.3))  # at any moment
                server.kill9()
                notes.kills += 1
                server.start()
        finally:
            notes.stop.set()
            for thread in threads:
                thread.join(PATIENCE)
        server.restart()
        wire = ReserveWire(server.ports["memcache"])
        wire.wait_until_loaded()
        for tag in tags:
            tag.complete(wire)
        until(lambda: stat(wire, "open_transactions") == b"0" == stat(wire, "delayed"))
        outcome = Outcome(notes, drain(wire, "jobs"), drain(wire, "failed"))
        wire.close()
    return outcome


def guarded(notes: Notes, work: Callable[[], None]) -> None:
    """Work until the test ends; note what must not be."""
    try:
        work()
    except BaseException as problem:  # noqa: BLE001 # whatever it is, the test must see it
        notes.problems.append(repr(problem))


def await_progress(notes: Notes) -> None:
    """Wait until enough was done since the last kill, or something went wrong."""
    put, finished = len(notes.put) + PROGRESS, len(notes.finished) + PROGRESS
    until(
        lambda: bool(notes.problems) or (len(notes.put) >= put and len(notes.finished) >= finished)
    )


def test_deliveries_survive_kills(tmp_path: Path) -> None:
    """A few kills."""
    kill_again_and_again(tmp_path, 8, "documented").check()


@pytest.mark.soak
@pytest.mark.parametrize("dialect", ["documented", "kestrel-2"])
def test_deliveries_survive_many_kills(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dialect: Dialect
) -> None:
    """The same for `KESTRELMQ_KILLS` kills, 200 unless set."""
    outcome = kill_again_and_again(tmp_path, int(os.environ.get("KESTRELMQ_KILLS", "200")), dialect)
    with capsys.disabled():
        print(f"\n{dialect}: {outcome}")  # noqa: T201 # what the soak is for
    outcome.check()
