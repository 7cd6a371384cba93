"""Journals when file descriptors are few."""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelmq.journal.files import DiskDirectory

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
