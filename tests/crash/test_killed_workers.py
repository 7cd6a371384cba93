"""Workers that fail on one item in a hundred are killed at random, and so is the server.

In the end every good item was handled, and every bad one is in the dead-letter queue with its
count. `make soak` runs it for ten minutes.
"""

import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

import pytest

from kestrelmq.client import Client
from tests.crash.test_bad_items import CONFIG, MOST, dead_letters
from tests.support.failing_worker import is_bad
from tests.support.forking import ForkedProcess
from tests.support.patience import until
from tests.support.server import ServerProcess, running_server

pytestmark = pytest.mark.compiled_only

WORKERS: Final = 3
BATCH: Final = 200
"""Items that are added before each kill; half of them are handled first."""
KILLS: Final = 8
SOAK_SECONDS: Final = 600.0
SERVER_IS_KILLED: Final = 0.3
"""How often a kill is one of the server."""

_PROGRAM: Final = "from tests.support.failing_worker import main; main()"


class Crew:
    """Worker processes and what they noted.

    Attributes:
        begun: the deliveries of each item that some worker began.
        handled: the items that were handled.
    """

    def __init__(self, server: ServerProcess, folder: Path) -> None:
        """Keep the logs of the workers in `folder`."""
        self.begun: defaultdict[bytes, list[int]] = defaultdict(list)
        self.handled: set[bytes] = set()
        self._server = server
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._workers: list[ForkedProcess] = []

    def __enter__(self) -> Self:
        for _ in range(WORKERS):
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            _kill(worker)

    def _start(self) -> None:
        log = self._folder / f"{len(self._read)}.log"
        log.touch()
        self._read[log] = 0
        arguments = [self._server.address, "jobs", str(log)]
        self._workers.append(ForkedProcess(_PROGRAM, arguments, dict(os.environ)))

    def kill_one(self, chance: random.Random) -> None:
        """Kill a worker, and start another."""
        _kill(self._workers.pop(chance.randrange(WORKERS)))
        self._start()

    def has_handled(self, items: set[bytes]) -> bool:
        """Read what was noted meanwhile; return whether all of `items` were handled."""
        for log, begin in self._read.items():
            noted = log.read_bytes()[begin:]
            # A worker that is killed may leave a part of a line.
            whole = noted.rpartition(b"\n")[0]
            self._read[log] = begin + len(whole)
            for line in whole.split():
                self._note(*line.split(b"="))
        assert all(worker.poll() is None for worker in self._workers)
        return items <= self.handled

    def _note(self, item: bytes, word: bytes) -> None:
        if word == b"done":
            self.handled.add(item)
        else:
            self.begun[item].append(int(word))


def _kill(worker: ForkedProcess) -> None:
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    worker.stdout.close()


def check(tmp_path: Path, is_over: Callable[[int], bool]) -> None:
    """Kill workers and the server until it is over, and compare what became of the items."""
    chance = random.Random(11)
    items: list[bytes] = []
    with (
        running_server(tmp_path, config=CONFIG) as server,
        Crew(server, tmp_path) as crew,
        Client(server.address) as client,
    ):
        kills = 0
        while not is_over(kills):
            batch = [b"%07d" % number for number in range(len(items), len(items) + BATCH)]
            assert all(client.put_many("jobs", batch))
            items += batch
            first_half = {item for item in items[: -BATCH // 2] if not is_bad(item)}
            until(lambda: crew.has_handled(first_half))  # noqa: B023 # called before the next
            time.sleep(chance.uniform(0, 0.3))  # at any moment
            if chance.random() < SERVER_IS_KILLED:
                server.kill9()
                server.start()
            else:
                crew.kill_one(chance)
            kills += 1
        good = {item for item in items if not is_bad(item)}
        until(lambda: crew.has_handled(good))
        until(lambda: is_empty(client))
        dead = dead_letters(server)
    compare(crew, items, dead)


def is_empty(client: Client) -> bool:
    """Whether nothing waits in the queue, and nobody has an item of it."""
    (queue,) = [one for one in client.queues() if one.name == "jobs"]
    return not (queue.items or queue.number("open_transactions") or queue.number("delayed"))


def compare(crew: Crew, items: list[bytes], dead: dict[bytes, int]) -> None:
    """Check what became of the items; `dead` has the deliveries of each dead letter."""
    assert set(dead) == {item for item in items if is_bad(item)}
    assert not crew.handled & set(dead)
    for item, deliveries in dead.items():
        assert deliveries >= max(MOST, len(crew.begun[item]))
    for item, begun in crew.begun.items():
        assert len(set(begun)) == len(begun), f"a delivery of {item!r} was not counted"
        assert max(begun) <= dead.get(item, MOST)


def test_killed_workers_lose_nothing(tmp_path: Path) -> None:
    """A few kills, most of them of workers."""
    check(tmp_path, lambda kills: kills >= KILLS)


@pytest.mark.soak
def test_killed_workers_at_length(tmp_path: Path) -> None:
    """For ten minutes."""
    end = time.monotonic() + SOAK_SECONDS
    check(tmp_path, lambda _kills: time.monotonic() >= end)
