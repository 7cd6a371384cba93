"""`sync_journal` on the real server: one fsync for many adds, and periodic ones."""

from pathlib import Path
from threading import Barrier, Thread

import pytest

from kestrelmq.client import Client
from tests.crash.test_kill import Wire
from tests.support.patience import until
from tests.support.server import ServerProcess, running_server

pytestmark = pytest.mark.compiled_only

CONNECTIONS = 100
ROUNDS = 20


def syncs(server: ServerProcess) -> int:
    """Return how often the journal was forced to disk."""
    with Client(server.address) as client:
        (stats,) = client.stats().values()
    return int(stats["queue_work_journal_syncs"])


def test_one_fsync_covers_the_adds_of_many_connections(tmp_path: Path) -> None:
    """A hundred that add at once share their fsyncs; each is answered only after one."""
    with running_server(tmp_path, config='[default]\nsync_journal = "0ms"\n') as server:
        start = Barrier(CONNECTIONS)
        answers: list[bytes] = []

        def add() -> None:
            wire = Wire(server.ports["memcache"])
            start.wait()
            answers.extend(wire.ask(b"set work 0 0 4\r\ndata\r\n") for _ in range(ROUNDS))
            wire.close()

        threads = [Thread(target=add) for _ in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [b"STORED"] * (CONNECTIONS * ROUNDS)
        done = syncs(server)
        assert ROUNDS <= done <= CONNECTIONS * ROUNDS / 5


def test_a_lone_add_is_synced_at_once(tmp_path: Path) -> None:
    """Nobody waits for company."""
    with running_server(tmp_path, config='[default]\nsync_journal = "0ms"\n') as server:
        wire = Wire(server.ports["memcache"])
        for _ in range(10):
            assert wire.ask(b"set work 0 0 4\r\ndata\r\n") == b"STORED"
        wire.close()
        assert syncs(server) == 10


def test_a_period_syncs_in_the_background(tmp_path: Path) -> None:
    """Once a period while something is written, and not at all when nothing is."""
    with running_server(tmp_path, config='[default]\nsync_journal = "100ms"\n') as server:
        wire = Wire(server.ports["memcache"])
        assert wire.ask(b"set work 0 0 4\r\ndata\r\n") == b"STORED"
        until(lambda: syncs(server) > 0)
        assert syncs(server) == 1
        assert wire.ask(b"set work 0 0 4\r\ndata\r\n") == b"STORED"
        until(lambda: syncs(server) > 1)
        assert syncs(server) == 2
        wire.close()
