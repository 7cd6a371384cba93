"""Journals when file descriptors are few."""

import contextlib
import errno
import mmap
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelmq.disk.directories import DiskDirectory
from kestrelmq.disk.opening import mapped
from kestrelmq.format.names import QueueFiles
from kestrelmq.format.records import REMOVE_RECORD, item
from kestrelmq.journal.loading import load_queue
from kestrelmq.journal.writer import FileJournal
from tests.support.descriptors import open_below
from tests.support.fake_clock import FakeClock

pytestmark = pytest.mark.compiled

CONTENT = item(FakeClock().now(), 0, b"x")


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """Have this process own no more than 40 descriptors besides those that it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(map(int, os.listdir("/proc/self/fd"))) + 40  # noqa: PTH208 # names are enough
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    yield most
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def take_all(file: Path) -> list[int]:
    """Open `file` until there is no descriptor left; return them."""
    taken: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.open(file, os.O_RDONLY))
    return taken


def test_journals_go_on_when_others_have_all_descriptors(
    tmp_path: Path, few_descriptors: int
) -> None:
    """Any number of them, by turns: one gives its descriptor to another."""
    directory = DiskDirectory(tmp_path)
    files = [directory.append_to(f"q{number}") for number in range(few_descriptors)]
    others = take_all(tmp_path / "q0")
    for file in files:
        file.append(b"x")
    files.append(directory.append_to("late"))
    for other in others:
        os.close(other)
    for file in files:
        file.close()
    assert all((tmp_path / f"q{number}").read_bytes() == b"x" for number in range(few_descriptors))


def test_without_any_descriptor_a_journal_waits_for_one(
    tmp_path: Path, few_descriptors: int
) -> None:
    """No other journal can do without; once a client goes, it can be opened."""
    directory = DiskDirectory(tmp_path)
    directory.sync()  # it has its own descriptor now
    others: list[int] = []

    def open_a_journal() -> None:
        for _ in range(100):  # what an earlier test left open may be closed at any time
            others.extend(take_all(Path(__file__)))
            directory.append_to("jobs").close()

    with pytest.raises(OSError, match="Too many open files"):
        open_a_journal()
    os.close(others.pop())
    directory.append_to("jobs").close()
    for other in others:
        os.close(other)


def test_a_file_that_is_synced_keeps_its_descriptor(
    tmp_path: Path, few_descriptors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one gives its own to the file that needs one."""
    directory = DiskDirectory(tmp_path)
    synced, idle, late = (directory.append_to(name) for name in ("synced", "idle", "late"))
    assert late.release()
    others = take_all(tmp_path / "idle")

    def append(descriptor: int) -> None:
        late.append(b"x")
        os.fstat(descriptor)  # fails, if it was given away

    monkeypatch.setattr("os.fsync", append)
    synced.sync()
    for other in others:
        os.close(other)
    assert (tmp_path / "late").read_bytes() == b"x"
    for file in (synced, idle, late):
        file.close()


@pytest.mark.parametrize("size", [0, 9, 1 << 20])
def test_a_file_that_was_read_is_released(tmp_path: Path, size: int) -> None:
    """With its map, if it was long enough for one."""
    (tmp_path / "jobs").write_bytes(bytes(size))
    with mapped(tmp_path / "jobs") as content:
        assert content[:] == bytes(size)
        assert isinstance(content, mmap.mmap) == (size > 9)
    assert open_below(tmp_path) == []
    if isinstance(content, mmap.mmap):
        assert content.closed


def load(path: Path) -> FileJournal:
    """Return the loaded journal of the queue `jobs`, which has one item."""
    (path / "jobs").write_bytes(CONTENT)
    files = QueueFiles("jobs", has_current=True)
    return load_queue(DiskDirectory(path), files, None, FakeClock()).journal


def test_a_loaded_journal_is_opened_when_it_is_needed(tmp_path: Path) -> None:
    """There may be very many that never are."""
    journal = load(tmp_path)
    journal.open()
    assert (journal.size, open_below(tmp_path)) == (len(CONTENT), [])
    journal.append(REMOVE_RECORD)
    assert open_below(tmp_path) == ["jobs"]
    assert (tmp_path / "jobs").read_bytes() == CONTENT + REMOVE_RECORD
    journal.close()
    assert open_below(tmp_path) == []


@pytest.mark.parametrize(
    ("other", "reason"),
    [(CONTENT, "replaced by another"), (CONTENT * 2, "changed by another")],
    ids=["replaced", "changed"],
)
def test_a_loaded_journal_must_be_the_same_when_it_is_needed(
    tmp_path: Path, other: bytes, reason: str
) -> None:
    """Nothing is done to another file of that name, or to one that others have appended to."""
    journal = load(tmp_path)
    journal.open()
    if len(other) == len(CONTENT):
        (tmp_path / "new").write_bytes(other)
        (tmp_path / "new").rename(tmp_path / "jobs")
    else:
        (tmp_path / "jobs").write_bytes(other)
    for _ in range(2):
        with pytest.raises(OSError, match=reason):
            journal.append(REMOVE_RECORD)
    journal.close()
    assert (tmp_path / "jobs").read_bytes() == other
    assert open_below(tmp_path) == []


def test_a_journal_that_cannot_be_appended_to_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the start tells, and not the first add."""
    system_open = os.open

    def read_only(path: str, flags: int, *rest: int, **more: int) -> int:
        if path == "jobs" and flags & os.O_ACCMODE != os.O_RDONLY:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return system_open(path, flags, *rest, **more)

    monkeypatch.setattr("os.open", read_only)
    with pytest.raises(PermissionError):
        load(tmp_path)
