"""Huge and hostile journals: little memory, and an answer to whoever wants it to stop."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kestrelmq.disk.directories import DiskDirectory
from kestrelmq.format.names import group_files
from kestrelmq.format.records import item
from kestrelmq.journal.loading import Pace, load_queue
from kestrelmq.tools.dump import entries
from kestrelmq.tools.import_export import rows
from kestrelmq.tools.journal_files import select
from kestrelmq.tools.verify import verify
from tests.support.fake_clock import FakeClock

pytestmark = pytest.mark.compiled

NOW = 1_700_000_000_000
HUGE = 100 << 30
LARGEST = b"\x02\xff\xff\xff\x7f" + item(NOW, 0, b"")[5:]
"""The header of an item of 2 GiB."""


def sparse(path: Path, begin: bytes, size: int) -> Path:
    """Write a file that begins so, and is a hole to the end."""
    path.write_bytes(begin)
    os.truncate(path, size)
    return path


def load(path: Path, pace: Pace | None = None) -> int:
    """Load the queue; return how many items it has."""
    directory = DiskDirectory(path)
    found = group_files(directory.names()).queues["q"]
    state = load_queue(directory, found, 1 << 20, FakeClock(NOW), pace).state
    return state.items


@pytest.mark.parametrize("begin", [b"", item(NOW, 0, b"a") * 3])
def test_a_hole_to_the_end(tmp_path: Path, begin: bytes) -> None:
    """It is a torn tail: what is set aside is a hole, too, and takes no room."""
    sparse(tmp_path / "q", begin, HUGE)
    (selected,) = select([tmp_path])
    torn = verify(selected).torn
    assert torn is not None
    assert (torn.start, torn.end) == (len(begin), HUGE)
    count = len(begin) // 22
    assert len(list(entries(selected, with_data=False))) == count
    assert len(list(rows(selected))) == count
    assert load(tmp_path) == count
    (aside,) = tmp_path.glob("*~~torn-*")
    assert aside.stat().st_size == HUGE - len(begin)
    assert aside.stat().st_blocks * 512 < 16 << 20
    assert load(tmp_path) == count


class Stopped(Exception):  # noqa: N818 # says what it is
    """The loading is not to go on."""


@pytest.mark.parametrize("begin", [b"", b"\xff", item(NOW, 0, b"a") + b"\xff"])
def test_the_search_for_its_end_can_be_stopped(tmp_path: Path, begin: bytes) -> None:
    """By whatever stops the loading; so can a search for records behind damage."""
    sparse(tmp_path / "q", begin, 64 << 20)
    with (tmp_path / "q").open("r+b") as file:
        file.write(begin + bytes(32 << 20))  # no hole
    calls = 0

    def pace() -> bool:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise Stopped
        return True

    def progress(_bytes: int) -> None:
        pace()

    (selected,) = select([tmp_path])
    with pytest.raises(Stopped):
        verify(selected, progress)
    if not begin:
        calls = 0
        with pytest.raises(Stopped):
            load(tmp_path, pace)


def test_a_dump_needs_no_memory_for_what_it_does_not_print(tmp_path: Path) -> None:
    """Not even for an item as large as one can be."""
    path = sparse(tmp_path / "q", LARGEST, 5 + (1 << 31) - 1)
    code = (
        "import re\n"
        "from kestrelmq.tools.dump import describe, entries\n"
        "from kestrelmq.tools.journal_files import select\n"
        "from pathlib import Path\n"
        f"one, = select([Path({str(path)!r})])\n"
        "print(*map(describe, entries(one, with_data=False)))\n"
        # A peak of its own: what getrusage tells begins with that of the process it came from.
        "print(re.search(r'VmHWM:\\s*(\\d+)', Path('/proc/self/status').read_text())[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    told, peak = done.stdout.splitlines()
    assert told == "ADDX 2147483631 bytes at 2023-11-14T22:13:20.000Z"
    assert int(peak) < 300 << 10
