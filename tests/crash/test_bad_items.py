"""Workers fail on one item in a hundred, lose their connections, and the server is killed.

In the end every good item was handled, and every bad one is in the dead-letter queue with its
count. `make soak` runs it for `KESTRELMQ_KILLS` kills, 200 unless set.
"""

import json
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Final
from urllib.request import urlopen

import pytest

from tests.crash.test_kill import Broken, Wire
from tests.support.patience import until
from tests.support.server import ServerProcess, running_server

pytestmark = pytest.mark.compiled_only

MOST: Final = 6
"""Deliveries after which an item is dead."""
CONFIG: Final = f"""
[queues.jobs]
max_deliveries = {MOST}
dead_letter_queue = "failed"
default_journal_size = "4 KiB"
min_journal_compact_delay = 0
"""
BETWEEN_KILLS: Final = 150
"""Items that are handled between two kills."""
LOSES_CONNECTION: Final = 0.02


@dataclass
class Workers:
    """Workers that handle the items of `jobs`.

    Attributes:
        handled: the good items that were handled.
        problems: what must not be.
    """

    server: ServerProcess
    stop: Event = field(default_factory=Event)
    handled: set[bytes] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def reached(self, count: int) -> bool:
        """Whether so many items were handled; also when the test has failed."""
        return len(self.handled) >= count or bool(self.problems)

    def work(self, seed: int) -> None:
        """Handle items until the test ends, over one connection after the other."""
        chance = random.Random(seed)
        while not self.stop.is_set():
            try:
                wire = Wire(self.server.ports["memcache"])
            except OSError:
                time.sleep(0.02)
                continue
            try:
                self._use(wire, chance)
            except Broken:
                pass
            except BaseException as problem:  # noqa: BLE001 # the test must see it
                self.problems.append(repr(problem))
                return
            finally:
                wire.close()

    def _use(self, wire: Wire, chance: random.Random) -> None:
        while not self.stop.is_set():
            item = wire.get("jobs/open/t=100")
            if item is None:
                continue
            if chance.random() < LOSES_CONNECTION:
                return
            if is_bad(item):
                assert wire.get("jobs/abort") is None
                continue
            self.handled.add(item)
            assert wire.get("jobs/close") is None


def is_bad(item: bytes) -> bool:
    """Whether workers fail on an item."""
    return item.endswith(b"00")


def dead_letters(server: ServerProcess) -> dict[bytes, int]:
    """Take the dead letters, and return how often each was delivered."""
    port, page = server.ports["admin"], "/api/v1/queues/failed/items?limit=100"
    wire = Wire(server.ports["memcache"])
    dead: dict[bytes, int] = {}
    try:
        while True:
            with urlopen(f"http://127.0.0.1:{port}{page}") as reply:
                found = json.load(reply)["items"]
            if not found:
                return dead
            for item in found:
                data = wire.get("failed")
                assert data is not None
                dead[data] = item["deliveries"]
    finally:
        wire.close()


def put(server: ServerProcess, items: list[bytes]) -> None:
    """Put items into `jobs`."""
    wire = Wire(server.ports["memcache"])
    for item in items:
        assert wire.ask(b"set jobs 0 0 %d\r\n%b\r\n" % (len(item), item)) == b"STORED"
    wire.close()


def check(tmp_path: Path, kills: int) -> None:
    """Kill the server so often, and compare what became of the items.

    Each kill has items of its own, which are put after the one before. So however late this thread
    sees that enough were handled, there are enough for the next.
    """
    items = [b"%06d" % number for number in range(1, BETWEEN_KILLS * (kills + 1))]
    bad = {item for item in items if is_bad(item)}
    good = 0
    with running_server(tmp_path, config=CONFIG) as server:
        workers = Workers(server)
        threads = [Thread(target=workers.work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        try:
            for start in range(0, len(items), BETWEEN_KILLS):
                if start:
                    server.kill9()
                    server.start()
                batch = items[start : start + BETWEEN_KILLS]
                put(server, batch)
                good += len(set(batch) - bad)
                enough = good - BETWEEN_KILLS // 2
                until(lambda: workers.reached(enough))  # noqa: B023 # it is called before the next
            until(lambda: workers.reached(good))
            wire = Wire(server.ports["memcache"])
            until(lambda: b"0" == stat(wire, "items") == stat(wire, "open_transactions"))
            wire.close()
        finally:
            workers.stop.set()
            for thread in threads:
                thread.join()
        assert not workers.problems
        dead = dead_letters(server)
        assert set(dead) == bad
        assert min(dead.values(), default=MOST) >= MOST


def stat(wire: Wire, name: str) -> bytes:
    """Return a statistic of the queue `jobs`."""
    line = wire.ask(b"stats\r\n")
    found = b""
    while line != b"END":
        if line.startswith(b"STAT queue_jobs_%b " % name.encode()):
            found = line.split()[2]
        line = wire._line()
    return found


def test_a_bad_item_stops_nobody(tmp_path: Path) -> None:
    """While the server is killed three times."""
    check(tmp_path, 3)


@pytest.mark.soak
def test_bad_items_over_many_kills(tmp_path: Path) -> None:
    """Many kills."""
    check(tmp_path, int(os.environ.get("KESTRELMQ_KILLS", "200")))
