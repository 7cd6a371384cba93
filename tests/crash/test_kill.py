"""The real server is killed again and again under load; nobody loses or repeats an item.

Producers note what was acknowledged, reliable consumers what they confirmed. In the end the queues
are drained, and the notes must add up, for every way that an item can take:

    work    set and read again
    both    an alias: each item must be read from `left` and from `right`
    short   items that expire at once, to `late`; a kill in between may leave one in both queues

Readers hold one read open at a time, or several (`monitor`). `make soak` runs it for
`KESTRELMQ_KILLS` kills, 200 unless set, and prints what was counted.
"""

import os
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Final

import pytest

from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server

pytestmark = pytest.mark.compiled_only

CONFIG: Final = """
expiration_timer_frequency = "20ms"
[default]
max_memory_size = "60 KiB"
default_journal_size = "40 KiB"
max_journal_size = "300 KiB"
min_journal_compact_delay = 0
[queues.short]
expire_to_queue = "late"
[aliases.both]
destination_queues = ["left", "right"]
"""
WAYS: Final = {"work": ("work",), "both": ("left", "right"), "short": ("late",)}
"""The queues in which an item turns up, by where it was put."""
QUEUES: Final = ("work", "left", "right", "short", "late")
ACKNOWLEDGED: Final = 300
CONFIRMED: Final = 60
"""What must be done between two kills."""

Copy = tuple[str, bytes]
"""An item, and the queue in which it must turn up; one that expires is its target's."""


class Broken(Exception):  # noqa: N818 # says what it is
    """The connection is gone, or of no use yet."""


class Wire:
    """A connection that speaks just enough of the protocol."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self._file = self._socket.makefile("rwb")

    def ask(self, request: bytes) -> bytes:
        """Send a request and return the first line of the reply."""
        try:
            self._file.write(request)
            self._file.flush()
        except OSError:
            raise Broken from None
        return self._line()

    def _line(self) -> bytes:
        try:
            line = self._file.readline()
        except OSError:
            raise Broken from None
        if not line.endswith(b"\n"):
            raise Broken
        if line.startswith(b"SERVER_ERROR ") and line.endswith(b"is still loading\r\n"):
            time.sleep(0.02)
            raise Broken
        return line.strip()

    def wait_until_loaded(self) -> None:
        """Wait until the server has loaded all queues."""
        until(lambda: b"STAT queues_loading 0" in self._stats())

    def _stats(self) -> list[bytes]:
        lines = [self.ask(b"stats\r\n")]
        while lines[-1] != b"END":
            lines.append(self._line())
        return lines

    def get(self, key: str) -> bytes | None:
        """Return an item; None for an empty reply."""
        return self._item(self.ask(f"get {key}\r\n".encode()))

    def monitor(self, queue: str, count: int) -> Iterator[bytes]:
        """Yield at most `count` items, which are open reads then."""
        item = self._item(self.ask(f"monitor {queue} 1 {count}\r\n".encode()))
        while item is not None:
            yield item
            item = self._item(self._line())

    def _item(self, line: bytes) -> bytes | None:
        if line == b"END":
            return None
        assert line.startswith(b"VALUE "), line
        size = int(line.split()[3])
        try:
            data = self._file.read(size + 7)
        except OSError:
            raise Broken from None
        if len(data) < size + 7:
            raise Broken
        assert data[size:] == b"\r\nEND\r\n"
        return data[:size]

    def close(self) -> None:
        """Close it, whatever state it is in."""
        with suppress(OSError):
            self._file.close()
        self._socket.close()


@dataclass
class Notes:
    """What producers and consumers know.

    Attributes:
        generation: how often the server was killed.
        acknowledged: copies whose add was answered.
        confirmed: copies whose read was finished, and that was answered.
        perhaps: copies whose read may have been finished.
        held: copies that a reader has, by the generation in which it got them.
        open_at_kill: copies that were held when the server was killed.
        again: of those, the ones that were delivered again, as they must be.
        problems: what must not be.
    """

    server: ServerProcess
    generation: int = 0
    stop: Event = field(default_factory=Event)
    lock: Lock = field(default_factory=Lock)
    acknowledged: set[Copy] = field(default_factory=set)
    confirmed: set[Copy] = field(default_factory=set)
    perhaps: set[Copy] = field(default_factory=set)
    held: dict[Copy, int] = field(default_factory=dict)
    open_at_kill: set[Copy] = field(default_factory=set)
    again: set[Copy] = field(default_factory=set)
    resurrected: set[Copy] = field(default_factory=set)
    duplicated: set[Copy] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def connect(self) -> tuple[Wire, int] | None:
        """Connect once the server is there; None when the test ends."""
        while not self.stop.is_set():
            generation = self.generation
            try:
                return Wire(self.server.ports["memcache"]), generation
            except OSError:
                time.sleep(0.02)
        return None

    def delivered(self, copy: Copy, generation: int) -> None:
        """Note that a reader got a copy."""
        with self.lock:
            if copy in self.confirmed:
                self.resurrected.add(copy)
            if self.held.get(copy) == generation:
                self.duplicated.add(copy)
            elif copy in self.held or copy in self.open_at_kill:
                self.again.add(copy)
            self.held[copy] = generation

    def released(self, copy: Copy) -> None:
        """Note that a reader gave a copy back or is done with it."""
        with self.lock:
            self.held.pop(copy, None)

    def lost_hold(self, copies: list[Copy], generation: int) -> None:
        """Note what a reader held when its connection broke."""
        with self.lock:
            for copy in copies:
                if self.held.get(copy) == generation:
                    del self.held[copy]
                    self.open_at_kill.add(copy)


def copies_of(queue: str, data: bytes) -> list[Copy]:
    """Return the copies that an item put to `queue` must turn up as."""
    return [(name, data) for name in WAYS[queue]]


def copy_in(queue: str, data: bytes) -> Copy:
    """Return the copy that was read from `queue`; what is about to expire is its target's."""
    return ("late" if queue == "short" else queue), data


def guarded(notes: Notes, work: "Work", name: int) -> None:
    """Run a producer or consumer until the test ends; note what must not be."""
    try:
        work(notes, name)
    except BaseException as problem:  # noqa: BLE001 # whatever it is, the test must see it
        notes.problems.append(repr(problem))


def produce(notes: Notes, name: int) -> None:
    """Add items until the test ends, and note those that were acknowledged."""
    rng = random.Random(name)
    number = 0
    while (connected := notes.connect()) is not None:
        wire, _ = connected
        with suppress(Broken):
            while not notes.stop.is_set():
                number += 1
                data = b"%d-%d " % (name, number) + b"x" * rng.choice([10, 100, 1000])
                queue = rng.choice(tuple(WAYS))
                expiry = -1 if queue == "short" else 0
                request = b"set %b 0 %d %d\r\n%b\r\n" % (queue.encode(), expiry, len(data), data)
                reply = wire.ask(request)
                assert reply == b"STORED", reply
                notes.acknowledged.update(copies_of(queue, data))
                if number % 200 > 150:
                    time.sleep(0.002)
        wire.close()


def consume_one(notes: Notes, name: int) -> None:
    """Read items one at a time until the test ends, and note those that were confirmed."""
    rng = random.Random(1000 + name)
    while (connected := notes.connect()) is not None:
        wire, generation = connected
        held: list[Copy] = []
        with suppress(Broken):
            while not notes.stop.is_set():
                queue = rng.choice(QUEUES)
                data = wire.get(f"{queue}/t=20/open")
                if data is None:
                    continue
                held = [copy_in(queue, data)]
                notes.delivered(held[0], generation)
                if rng.random() < 0.2:
                    notes.released(held[0])
                    assert wire.get(f"{queue}/abort") is None
                    continue
                notes.perhaps.add(held[0])
                assert wire.get(f"{queue}/close") is None
                notes.confirmed.add(held[0])
                notes.released(held[0])
        notes.lost_hold(held, generation)
        wire.close()


def consume_several(notes: Notes, name: int) -> None:
    """Hold several reads open at once, and confirm all, or some, or hang up with all open."""
    rng = random.Random(2000 + name)
    while (connected := notes.connect()) is not None:
        wire, generation = connected
        held: list[Copy] = []
        with suppress(Broken):
            while not notes.stop.is_set():
                queue = rng.choice(QUEUES)
                for data in wire.monitor(queue, rng.randint(1, 20)):
                    held.append(copy_in(queue, data))
                    notes.delivered(held[-1], generation)
                done = held[: rng.randint(0, len(held))] if rng.random() < 0.5 else held
                if done:
                    notes.perhaps.update(done)
                    assert wire.ask(b"confirm %b %d\r\n" % (queue.encode(), len(done))) == b"END"
                    notes.confirmed.update(done)
                for copy in held:
                    notes.released(copy)
                if len(done) < len(held):
                    held = []
                    break  # the rest goes back
                held = []
        notes.lost_hold(held, generation)
        wire.close()


Work = Callable[[Notes, int], None]
CLIENTS: Final = (produce, produce, produce, consume_one, consume_one, consume_several)


def drain(port: int, queue: str = "work") -> list[bytes]:
    """Take everything that is in a queue."""
    wire = Wire(port)
    wire.wait_until_loaded()
    left = []
    while (data := wire.get(queue)) is not None:
        left.append(data)
    wire.close()
    return left


@dataclass(frozen=True)
class Tally:
    """What came of it; copies are counted.

    Attributes:
        kills: how often the server was killed.
        acknowledged: their add was answered.
        confirmed: their read was finished, and that was answered.
        again: open at a kill, and delivered again afterwards, as they must be.
        lost: acknowledged, and never seen again.
        resurrected: confirmed, and seen again.
        duplicated: given to two readers at a time, or twice in a queue.
        moved_twice: expired to another queue, and found there twice, as a kill may leave them.
    """

    kills: int
    acknowledged: int
    confirmed: int
    again: int
    lost: int
    resurrected: int
    duplicated: int
    moved_twice: int

    @classmethod
    def of(cls, notes: Notes, left: Counter[Copy]) -> "Tally":
        """Add up the notes; `left` is what was in the queues in the end."""
        rest = set(left)
        resurrected = notes.resurrected | (notes.confirmed & rest)
        duplicated = notes.duplicated | {copy for copy, count in left.items() if count > 1}
        moved = {copy for copy in resurrected | duplicated if copy[0] == "late"}
        return cls(
            kills=notes.generation,
            acknowledged=len(notes.acknowledged),
            confirmed=len(notes.confirmed),
            again=len(notes.again),
            lost=len(notes.acknowledged - notes.perhaps - rest),
            resurrected=len(resurrected - moved),
            duplicated=len(duplicated - moved),
            moved_twice=len(moved),
        )

    def __str__(self) -> str:
        return (
            f"{self.kills} kills: {self.acknowledged} copies of items acknowledged, "
            f"{self.confirmed} confirmed, {self.again} open at a kill and delivered again; "
            f"{self.lost} lost, {self.resurrected} resurrected, {self.duplicated} duplicated, "
            f"{self.moved_twice} expired to another queue twice"
        )


def await_progress(notes: Notes) -> None:
    """Wait until enough was done since the last kill, or something went wrong."""
    acknowledged, confirmed = len(notes.acknowledged), len(notes.confirmed)
    until(
        lambda: (
            bool(notes.problems)
            or (
                len(notes.acknowledged) - acknowledged >= ACKNOWLEDGED
                and len(notes.confirmed) - confirmed >= CONFIRMED
            )
        )
    )


def kill_again_and_again(tmp_path: Path, kills: int) -> Tally:
    """Kill and start the server under load, so often; add up the notes."""
    rng = random.Random(5)
    with running_server(tmp_path, config=CONFIG, waits=False) as server:
        notes = Notes(server)
        threads = [
            Thread(target=guarded, args=(notes, work, name)) for name, work in enumerate(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        try:
            while notes.generation < kills and not notes.problems:
                await_progress(notes)
                time.sleep(rng.uniform(0.0, 0.5))  # at any moment
                server.kill9()
                notes.generation += 1
                server.start()
        finally:
            notes.stop.set()
            for thread in threads:
                thread.join(PATIENCE)
        server.restart()
        port = server.ports["memcache"]
        left = Counter(copy_in(queue, data) for queue in QUEUES for data in drain(port, queue))
    assert notes.problems == []
    return Tally.of(notes, left)


def check(tally: Tally) -> None:
    """Nothing acknowledged is lost, nothing confirmed comes back, nothing is there twice."""
    assert (tally.lost, tally.resurrected, tally.duplicated) == (0, 0, 0)
    assert tally.acknowledged >= ACKNOWLEDGED * tally.kills
    assert tally.confirmed >= CONFIRMED * tally.kills


def test_killed_under_load_nothing_is_lost_or_comes_back(tmp_path: Path) -> None:
    """A few times; what was acknowledged is there, what was confirmed is gone."""
    check(kill_again_and_again(tmp_path, 8))


@pytest.mark.soak
def test_killed_as_often_as_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same for `KESTRELMQ_KILLS` kills, 200 unless set."""
    kills = int(os.environ.get("KESTRELMQ_KILLS", "200"))
    tally = kill_again_and_again(tmp_path, kills)
    with capsys.disabled():
        print(f"\n{tally}")  # noqa: T201 # what the soak is for
    check(tally)
    assert tally.kills == kills
