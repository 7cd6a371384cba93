"""Journals when file descriptors are few."""

import contextlib
import mmap
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelmq.journal.files import DiskDirectory, mapped
from tests.support.descriptors import open_below

pytestmark = pytest.mark.compiled


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
    others = take_all(Path(__file__))
    with pytest.raises(OSError, match="Too many open files"):
        directory.append_to("jobs")
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
