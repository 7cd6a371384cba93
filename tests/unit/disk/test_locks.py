"""The lock of a queue path: who has it, and what a tool sees of it."""

import errno
import fcntl
import os
import time
from pathlib import Path

import pytest

from kestrelmq.disk.locks import FileLock, QueuePathLock, is_locked, lock_directory
from kestrelmq.errors import QueuePathLocked
from tests.support.descriptors import open_below, times_open

pytestmark = pytest.mark.compiled


def test_a_tool_sees_whether_a_server_has_a_queue_path(tmp_path: Path) -> None:
    """It creates nothing to find out, and lets the server take its lock all the same."""
    assert not is_locked(tmp_path)
    assert not is_locked(tmp_path / "missing")
    assert list(tmp_path.iterdir()) == []
    lock = QueuePathLock(tmp_path)
    lock.acquire()
    assert is_locked(tmp_path)
    lock.release()
    assert not is_locked(tmp_path)
    lock.acquire()
    lock.release()
    assert open_below(tmp_path) == []


def test_users_of_single_queues_share_a_queue_path(tmp_path: Path) -> None:
    """They keep a server out, and none of them is named; to a tool they are no server."""
    first, second = (QueuePathLock(tmp_path, shared=True) for _ in range(2))
    first.acquire()
    second.acquire()
    assert not is_locked(tmp_path)
    with pytest.raises(QueuePathLocked, match=r"in use by a server, a tool or the library$"):
        QueuePathLock(tmp_path).acquire()
    first.release()
    second.release()


def test_a_file_system_without_locks_is_no_other_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what is wrong, and the file is closed again."""

    def refuse(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock = QueuePathLock(tmp_path)
    with pytest.raises(OSError, match="No locks available"):
        lock.acquire()
    with pytest.raises(OSError, match="No locks available"):
        is_locked(tmp_path)
    assert open_below(tmp_path) == []
    monkeypatch.undo()
    lock.acquire()
    lock.release()


def test_a_lock_file_that_was_removed_or_replaced_is_noticed(tmp_path: Path) -> None:
    """Others may lock what is there now. Who holds no lock misses none."""
    path = tmp_path / "lock"
    lock, other = FileLock(path, "in use"), FileLock(path, "in use")

    def in_place() -> list[bool]:
        return [lock.is_in_place, other.is_in_place]

    assert in_place() == [True, True]
    lock.acquire()
    assert in_place() == [True, True]
    path.unlink()
    assert in_place() == [False, True]
    other.acquire()
    assert in_place() == [False, True]
    lock.release()
    other.release()
    assert in_place() == [True, True]


def test_a_directory_is_locked_until_its_descriptor_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has no more time gets an error and leaves nothing open; who has waits for the lock."""
    held = lock_directory(tmp_path, 0)
    with pytest.raises(OSError, match="another process has locked the directory") as caught:
        lock_directory(tmp_path, -1)
    assert (caught.value.errno, caught.value.filename) == (errno.EBUSY, str(tmp_path))
    assert times_open(tmp_path) == 1
    pauses: list[float] = []

    def release_meanwhile(seconds: float) -> None:
        pauses.append(seconds)
        os.close(held)

    monkeypatch.setattr(time, "sleep", release_meanwhile)
    taken = lock_directory(tmp_path, 60)
    assert len(pauses) == 1
    os.close(taken)
    assert times_open(tmp_path) == 0
    with pytest.raises(FileNotFoundError):
        lock_directory(tmp_path / "missing", 60)


@pytest.mark.parametrize("releases", [False, True])
def test_a_process_forked_meanwhile_does_not_share_a_lock(
    tmp_path: Path, *, releases: bool
) -> None:
    """It has the descriptor, too: it cannot release the lock, and does not hold it up."""
    lock, other = (FileLock(tmp_path / "lock", "in use") for _ in range(2))
    lock.acquire()
    (waiting, ending), (told, telling) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        if releases:
            lock.release()
        os.close(ending)
        os.write(telling, b"x")
        os.read(waiting, 1)
        os._exit(0)
    os.read(told, 1)
    assert not other.try_acquire()
    lock.release()
    assert other.try_acquire()
    other.release()
    os.close(ending)
    os.waitpid(child, 0)
    for descriptor in (waiting, told, telling):
        os.close(descriptor)
