"""Directories of bulk writes: whose they are, and what is removed when."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kestrelmq.clock import SystemClock
from kestrelmq.config.model import ServerConfig
from kestrelmq.disk.write_directories import (
    WriteOwner,
    create,
    process_above,
    remove,
    remove_abandoned,
    remove_all,
)
from kestrelmq.queues.collection import QueueCollection
from tests.support.fake_clock import FakeClock

pytestmark = pytest.mark.compiled

DAY_MS = 24 * 3_600_000


@pytest.fixture
def other() -> Iterator["subprocess.Popen[bytes]"]:
    """Run a process that waits to be ended."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def names(path: Path) -> list[str]:
    """Return what is in a directory."""
    return sorted(entry.name for entry in path.iterdir())


def test_a_directory_stays_while_its_process_runs(
    tmp_path: Path, other: "subprocess.Popen[bytes]"
) -> None:
    """Another write leaves it alone, and removes it when the process was killed."""
    directory = create(tmp_path, WriteOwner.of(other.pid))
    mine = create(tmp_path, WriteOwner.of(os.getpid()))
    (directory / "part").write_bytes(b"x")

    remove_abandoned(tmp_path)
    assert names(tmp_path) == sorted([directory.name, mine.name])
    # Killed and not yet waited for: a process is dead from then on.
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    remove_abandoned(tmp_path)
    assert names(tmp_path) == [mine.name]
    remove(mine)
    remove(mine)
    assert names(tmp_path) == []


def test_an_id_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    """So is one of before the machine was started again."""
    me = WriteOwner.of(os.getpid())
    create(tmp_path, replace(me, started=me.started - 1))
    create(tmp_path, replace(me, boot="00000000"))
    kept = create(tmp_path, me)

    remove_abandoned(tmp_path)

    assert names(tmp_path) == [kept.name]


def test_a_write_of_another_machine_is_left_for_a_day(tmp_path: Path) -> None:
    """Whether its process runs cannot be told here; a file that changes says that it does."""
    create(tmp_path, replace(WriteOwner.of(os.getpid()), machine="00000000"))
    (written,) = tmp_path.iterdir()
    (written / "part").write_bytes(b"x")
    clock = FakeClock(now=SystemClock().now() + DAY_MS - 60_000)

    remove_abandoned(tmp_path, clock)
    assert names(tmp_path) == [written.name]
    os.utime(written, (0, 0))
    remove_abandoned(tmp_path, clock)
    assert names(tmp_path) == [written.name]
    os.utime(written / "part", (0, 0))
    remove_abandoned(tmp_path, clock)
    assert names(tmp_path) == []


def test_a_directory_without_an_owner_is_nobodys(tmp_path: Path) -> None:
    """Those of earlier versions say no owner; half of a removal goes on; the rest is untouched."""
    for name in ("~~write-0123456789abcdef", "~~removed-5", "~~other", "write-1"):
        (tmp_path / name / "deep").mkdir(parents=True)

    remove_abandoned(tmp_path)

    assert names(tmp_path) == ["write-1", "~~other"]


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    """What they lead to is somebody else's, be they in the place of a directory or within one."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_bytes(b"kept")
    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / "~~write-1").symlink_to(precious)
    (spool / "~~removed-1").symlink_to(precious)
    (create(spool, WriteOwner.of(os.getpid())) / "link").symlink_to(precious)

    remove_all(spool)

    assert names(spool) == []
    assert names(precious) == ["file"]


def test_a_server_start_removes_all(tmp_path: Path, other: "subprocess.Popen[bytes]") -> None:
    """A write is committed while no server runs: one that a start interrupts has to fail."""
    create(tmp_path, WriteOwner.of(other.pid))
    (tmp_path / "~~write-0123456789abcdef").mkdir()
    (tmp_path / "~~write-0123456789abcdef" / "part").write_bytes(b"x")
    collection = QueueCollection(ServerConfig(queue_path=tmp_path), SystemClock())

    collection.open()
    collection.close()

    assert names(tmp_path) == ["~~lock"]


def test_a_process_has_one_above(other: "subprocess.Popen[bytes]") -> None:
    """Until it is gone."""
    assert process_above(other.pid) == os.getpid()
    other.kill()
    other.wait()
    assert process_above(other.pid) is None


def test_a_directory_that_is_removed_by_two_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another write finds the half of the removal, and is faster; that is no error."""
    directory = create(tmp_path, WriteOwner.of(os.getpid()))

    def remove_meanwhile(_descriptor: int) -> None:
        remove_abandoned(tmp_path)

    monkeypatch.setattr("os.fsync", remove_meanwhile)
    remove(directory)
    assert names(tmp_path) == []
    assert caplog.text == ""


@pytest.mark.parametrize("step", ["os.fsync", "os.rmdir"])
def test_what_cannot_be_removed_stays_for_the_next_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    """The log says so; nothing can be added to it by its old name."""
    directory = create(tmp_path, WriteOwner.of(os.getpid()))

    def fail(*_arguments: object, **_directories: object) -> None:
        raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr(step, fail)
    remove(directory)
    assert "cannot be removed: [Errno 5] the disk fails" in caplog.text
    (left,) = names(tmp_path)
    assert left.startswith("~~removed-")
    monkeypatch.undo()
    remove_abandoned(tmp_path)
    assert names(tmp_path) == []


def test_where_processes_cannot_be_told_every_write_may_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system without `/proc`: what a killed write left is removed by a server start only."""

    def is_missing(path: Path, *_arguments: object) -> str:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    monkeypatch.setattr(Path, "read_text", is_missing)
    monkeypatch.setattr(Path, "readlink", is_missing)
    assert process_above(os.getpid()) is None
    dead = create(tmp_path, replace(WriteOwner.of(os.getpid()), process=2**22 + 1))
    remove_abandoned(tmp_path)
    assert names(tmp_path) == [dead.name]
    remove_all(tmp_path)
    assert names(tmp_path) == []


def test_a_process_of_another_machine_may_run() -> None:
    """Whether it does cannot be told here, whatever runs under its id."""
    me = WriteOwner.of(os.getpid())
    assert me.may_run()
    assert replace(me, machine="00000000", process=2**22 + 1).may_run()
    assert not replace(me, process=2**22 + 1).may_run()
