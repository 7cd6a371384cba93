"""Backups of a real server under load, which is killed meanwhile; each is served by another one.

The producers and consumers are those of `test_kill`; its notes tell what must be in a backup, and
what must not. `make soak` makes `KESTRELMQ_BACKUPS` backups, 50 unless set.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import pytest

from kestrelmq.client import Client
from kestrelmq.clock import SystemClock
from kestrelmq.tools.backup import Manifest, back_up, restore
from tests.crash.test_kill import (
    CLIENTS,
    CONFIG,
    QUEUES,
    Copy,
    Notes,
    await_progress,
    copy_in,
    drain,
    guarded,
)
from tests.support.commands import run_command
from tests.support.patience import PATIENCE
from tests.support.server import running_server

pytestmark = pytest.mark.compiled_only


@dataclass(frozen=True)
class Made:
    """A backup, and what was known.

    Attributes:
        path: where it is.
        acknowledged: copies that were acknowledged before it began.
        confirmed: copies that were confirmed before it began.
        perhaps: copies whose read may have been finished when it ended.
    """

    path: Path
    acknowledged: frozenset[Copy]
    confirmed: frozenset[Copy]
    perhaps: frozenset[Copy]


def make_backups(tmp_path: Path, count: int) -> list[Made]:
    """Back the queues up under load; at each second one the server is killed, and started again."""
    rng = random.Random(7)
    made: list[Made] = []
    with running_server(tmp_path, config=CONFIG, waits=False) as server:
        notes = Notes(server)
        threads = [
            Thread(target=guarded, args=(notes, work, name)) for name, work in enumerate(CLIENTS)
        ]
        for thread in threads:
            thread.start()

        def kill_soon() -> None:
            time.sleep(rng.uniform(0.0, 0.3))  # at any moment
            server.kill9()
            notes.generation += 1
            server.start()

        try:
            while len(made) < count and not notes.problems:
                await_progress(notes)
                path = tmp_path / "backups" / str(len(made))
                killing = Thread(target=kill_soon) if len(made) % 2 else None
                if killing is not None:
                    killing.start()
                known = frozenset(notes.acknowledged.copy()), frozenset(notes.confirmed.copy())
                done = run_command("backup", str(path), "--queue-path", str(server.queue_path))
                made.append(Made(path, *known, frozenset(notes.perhaps.copy())))
                if killing is not None:
                    killing.join()
                assert (done.returncode, done.stderr) == (0, b"")
        finally:
            notes.stop.set()
            for thread in threads:
                thread.join(PATIENCE)
    assert notes.problems == []
    return made


def check(made: Made, tmp_path: Path) -> None:
    """Nothing is lost, nothing that was confirmed comes back, and each queue is of one moment."""
    restore(made.path, tmp_path / "queues")
    with running_server(tmp_path, config=CONFIG) as server:
        port = server.ports["memcache"]
        left = Counter(copy_in(queue, data) for queue in QUEUES for data in drain(port, queue))
    assert made.acknowledged - made.perhaps - left.keys() == set()
    assert {copy for copy in made.confirmed & left.keys() if copy[0] != "late"} == set()
    assert {copy for copy, times in left.items() if times > 1 and copy[0] != "late"} == set()


def check_all(tmp_path: Path, count: int) -> None:
    """Make so many backups, and check each."""
    made = make_backups(tmp_path / "source", count)
    assert len(made) == count
    for number, one in enumerate(made):
        check(one, tmp_path / f"restored-{number}")


def test_backups_under_load_lose_nothing(tmp_path: Path) -> None:
    """A few, with and without a kill; rotations and packs come all the time."""
    check_all(tmp_path, 4)


@pytest.mark.soak
def test_as_many_backups_as_asked(tmp_path: Path) -> None:
    """The same for `KESTRELMQ_BACKUPS` backups, 50 unless set."""
    check_all(tmp_path, int(os.environ.get("KESTRELMQ_BACKUPS", "50")))


def test_items_that_move_between_queues(tmp_path: Path) -> None:
    """Each is in one of them, or in both, whenever the backup is as of one moment."""
    items = {b"%d" % number for number in range(50)}
    with running_server(tmp_path) as server, Client(server.address) as client:
        client.put_many("a", sorted(items))
        is_over = False

        def move() -> None:
            with Client(server.address) as mover:
                while not is_over:
                    mover.move("a", "b")
                    mover.move("b", "a")

        moving = Thread(target=move)
        moving.start()
        try:
            made = several(lambda path: back_up(server.queue_path, path, SystemClock()), tmp_path)
        finally:
            is_over = True
            moving.join(PATIENCE)
    for path in made:
        restore(path, path / "new" / "queues")
        with running_server(path / "new") as server:
            port = server.ports["memcache"]
            assert {*drain(port, "a"), *drain(port, "b")} == items


def several(make: Callable[[Path], Manifest], tmp_path: Path) -> list[Path]:
    """Make backups; return three that are as of one moment."""
    found: list[Path] = []
    number = 0
    while len(found) < 3:
        number += 1
        path = tmp_path / f"backup-{number}"
        if make(path).is_one_moment:
            found.append(path)
    return found
