"""The real server is killed again and again under load; nobody loses or repeats an item.

Producers note what was acknowledged, reliable consumers what they confirmed. In the end the queue
is drained, and the notes must add up. `make soak` runs it for `KESTRELMQ_KILLS` kills, 200 unless
set, and prints what was counted.
"""

import os
import random
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock, Thread

import pytest

from tests.support.server import ServerProcess, running_server

CONFIG = """
[default]
max_memory_size = "60 KiB"
default_journal_size = "40 KiB"
max_journal_size = "300 KiB"
min_journal_compact_delay = 0
"""
PRODUCERS = CONSUMERS = 3


class Broken(Exception):  # noqa: N818 # says what it is
    """The connection is gone."""


class Wire:
    """A connection that speaks just enough of the protocol."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._file = self._socket.makefile("rwb")

    def ask(self, request: bytes) -> bytes:
        """Send a request and return the first line of the reply."""
        try:
            self._file.write(request)
            self._file.flush()
            line = self._file.readline()
        except OSError:
            raise Broken from None
        if not line.endswith(b"\n"):
            raise Broken
        return line.strip()

    def get(self, key: bytes) -> bytes | None:
        """Return an item; None for an empty reply."""
        line = self.ask(b"get %b\r\n" % key)
        if line == b"END":
            return None
        assert line.startswith(b"VALUE "), line
        try:
            data = self._file.read(int(line.split()[3]) + 7)
        except OSError:
            raise Broken from None
        if not data.endswith(b"\r\nEND\r\n"):
            raise Broken
        return data[:-7]

    def close(self) -> None:
        """Close it, whatever state it is in."""
        with suppress(OSError):
            self._file.close()
        self._socket.close()


class Notes:
    """What producers and consumers know."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.generation = 0
        self.stop = Event()
        self.lock = Lock()
        self.acknowledged: set[bytes] = set()
        self.confirmed: set[bytes] = set()
        self.perhaps: set[bytes] = set()
        self.held: dict[bytes, int] = {}
        self.open_at_kill: set[bytes] = set()
        self.again: set[bytes] = set()
        self.resurrected: set[bytes] = set()
        self.duplicated: set[bytes] = set()
        self.problems: list[str] = []

    def connect(self) -> tuple[Wire, int] | None:
        """Connect once the server is there; None when the test ends."""
        while not self.stop.is_set():
            generation = self.generation
            try:
                return Wire(self.server.ports["memcache"]), generation
            except OSError:
                time.sleep(0.02)
        return None

    def problem(self, text: str) -> None:
        """Note what must not be."""
        with self.lock:
            self.problems.append(text)


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
                reply = wire.ask(b"set work 0 0 %d\r\n%b\r\n" % (len(data), data))
                if reply == b"STORED":
                    notes.acknowledged.add(data)
                else:
                    notes.problem(f"set was answered {reply!r}")
                if number % 200 > 150:
                    time.sleep(0.002)
        wire.close()


def consume(notes: Notes, name: int) -> None:
    """Read items reliably until the test ends, and note those that were confirmed."""
    rng = random.Random(1000 + name)
    while (connected := notes.connect()) is not None:
        wire, generation = connected
        data = None
        with suppress(Broken):
            while not notes.stop.is_set():
                data = wire.get(b"work/t=50/open")
                if data is None:
                    continue
                _note_delivery(notes, data, generation)
                if rng.random() < 0.2:
                    notes.held.pop(data, None)
                    assert wire.get(b"work/abort") is None
                    continue
                notes.perhaps.add(data)
                assert wire.get(b"work/close") is None
                notes.confirmed.add(data)
                notes.held.pop(data, None)
        if data is not None and notes.held.get(data) == generation:
            notes.held.pop(data, None)
            notes.open_at_kill.add(data)
        wire.close()


def _note_delivery(notes: Notes, data: bytes, generation: int) -> None:
    with notes.lock:
        if data in notes.confirmed:
            notes.resurrected.add(data)
        if notes.held.get(data) == generation:
            notes.duplicated.add(data)
        elif data in notes.held or data in notes.open_at_kill:
            notes.again.add(data)
        notes.held[data] = generation


def drain(port: int, queue: bytes = b"work") -> list[bytes]:
    """Take everything that is in a queue."""
    wire = Wire(port)
    left = []
    while (data := wire.get(queue)) is not None:
        left.append(data)
    wire.close()
    return left


@dataclass(frozen=True)
class Tally:
    """What came of it.

    Attributes:
        kills: how often the server was killed.
        acknowledged: items whose add was answered.
        confirmed: items whose read was finished, and that was answered.
        again: items that were open at a kill, and delivered again afterwards, as they must be.
        lost: acknowledged, and never seen again.
        resurrected: confirmed, and seen again.
        duplicated: given to two readers at a time, or twice in the queue.
    """

    kills: int
    acknowledged: int
    confirmed: int
    again: int
    lost: int
    resurrected: int
    duplicated: int

    @classmethod
    def of(cls, kills: int, notes: Notes, left: list[bytes]) -> "Tally":
        """Add up the notes; `left` is what was in the queue in the end."""
        rest = set(left)
        twice = {data for data in rest if left.count(data) > 1} if len(rest) < len(left) else set()
        return cls(
            kills=kills,
            acknowledged=len(notes.acknowledged),
            confirmed=len(notes.confirmed),
            again=len(notes.again),
            lost=len(notes.acknowledged - notes.perhaps - rest),
            resurrected=len(notes.resurrected | (notes.confirmed & rest)),
            duplicated=len(notes.duplicated | twice),
        )

    def __str__(self) -> str:
        return (
            f"{self.kills} kills: {self.acknowledged} items acknowledged, "
            f"{self.confirmed} confirmed, {self.again} open at a kill and delivered again; "
            f"{self.lost} lost, {self.resurrected} resurrected, {self.duplicated} duplicated"
        )


def kill_again_and_again(tmp_path: Path, kills: int, seconds: float) -> Tally:
    """Kill and start the server under load, so often or for so long; add up the notes."""
    rng = random.Random(5)
    deadline = time.monotonic() + seconds
    killed = 0
    with running_server(tmp_path, config=CONFIG) as server:
        notes = Notes(server)
        threads = [Thread(target=produce, args=(notes, n)) for n in range(PRODUCERS)]
        threads += [Thread(target=consume, args=(notes, n)) for n in range(CONSUMERS)]
        for thread in threads:
            thread.start()
        try:
            while killed < kills and time.monotonic() < deadline and not notes.problems:
                time.sleep(rng.uniform(0.1, 0.8))
                server.kill9()
                killed += 1
                notes.generation += 1
                server.start()
        finally:
            notes.stop.set()
            for thread in threads:
                thread.join(30)
        server.restart()
        left = drain(server.ports["memcache"])
    assert notes.problems == []
    return Tally.of(killed, notes, left)


def check(tally: Tally) -> None:
    """Nothing acknowledged is lost, nothing confirmed comes back, nothing is there twice."""
    assert (tally.lost, tally.resurrected, tally.duplicated) == (0, 0, 0)
    assert tally.acknowledged > 100 * tally.kills
    assert tally.confirmed > 20 * tally.kills


@pytest.mark.timeout(300)
def test_killed_under_load_nothing_is_lost_or_comes_back(tmp_path: Path) -> None:
    """For most of a minute; what was acknowledged is there, what was confirmed is gone."""
    tally = kill_again_and_again(tmp_path, 10_000, seconds=45)
    check(tally)
    assert tally.kills >= 3


@pytest.mark.soak
def test_killed_as_often_as_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same for `KESTRELMQ_KILLS` kills, 200 unless set."""
    kills = int(os.environ.get("KESTRELMQ_KILLS", "200"))
    tally = kill_again_and_again(tmp_path, kills, seconds=float("inf"))
    with capsys.disabled():
        print(f"\n{tally}")  # noqa: T201 # what the soak is for
    check(tally)
    assert tally.kills == kills
