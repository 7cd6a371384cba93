"""When the server gives memory back that is free again."""

import asyncio
import errno
import sys
from collections.abc import Callable
from typing import Final

import pytest

from kestrelmq.server.memory_return import MemoryReturn, find_trim, resident_memory

MIB: Final = 1 << 20


class Process:
    """A process that is as large as the test says, and what was done to it.

    Attributes:
        resident: how large it is.
        has_descriptors: whether there is one left to find out how large it is.
        served: how many events there were.
        living: how many queues, connections and items it has.
        done: what was called, in order.
        now: its time, in seconds.
        trim_takes: how long a trim takes, in seconds.
    """

    def __init__(self) -> None:
        self.resident = 50 * MIB
        self.has_descriptors = True
        self.served = self.living = 0
        self.done: list[str] = []
        self.now = self.trim_takes = 0.0
        self.memory = MemoryReturn(
            self._trim,
            lambda: self.served,
            lambda: self.living,
            lambda: self.done.append("forget"),
            self._measured,
            lambda: self.now,
        )

    def _measured(self) -> int:
        if not self.has_descriptors:
            raise OSError(errno.EMFILE, "Too many open files")
        return self.resident

    def _trim(self, pad: int) -> int:
        assert pad == 0
        self.done.append("trim")
        self.now += self.trim_takes
        return 1

    def look(self, events: int = 0, after: float = 3.0) -> list[str]:
        """Let some time pass with so many events; return what was done then."""
        self.now += after
        self.served += events
        self.done.clear()
        asyncio.run(self.memory.look())
        return self.done.copy()


def test_a_process_that_has_not_grown_is_left_alone() -> None:
    """Whatever clients do."""
    process = Process()
    assert process.look(events=10) == []
    process.resident = 52 * MIB
    assert process.look(events=10) == []


def test_memory_is_given_back_twice_after_the_last_event() -> None:
    """Threads may free more after the first time; then there is no more to free."""
    process = Process()
    process.resident = 100 * MIB
    assert process.look() == []
    assert process.look(events=10) == ["forget", "trim"]
    assert process.look() == ["forget", "trim"]
    assert process.look() == []
    assert process.look(events=1) == ["forget", "trim"]


def test_caches_stay_while_clients_are_busy() -> None:
    """They need them; and the heap is trimmed rarely then."""
    process = Process()
    process.resident = 100 * MIB
    assert process.look(events=100_000) == ["trim"]
    assert process.look(events=100_000) == []
    assert process.look(events=100_000, after=40) == ["trim"]
    assert process.look(events=10) == ["forget", "trim"]


def test_trims_that_take_long_are_rare() -> None:
    """They take at most a hundredth of the time."""
    process = Process()
    process.resident = 100 * MIB
    process.trim_takes = 1.0
    assert process.look(events=100_000) == ["trim"]
    assert process.look(events=100_000, after=128) == []
    assert process.look(events=100_000, after=2) == ["trim"]


def test_the_least_memory_is_what_counts() -> None:
    """A server that began with long queues is compared with what it was when they were empty."""
    process = Process()
    process.resident = 20 * MIB
    assert process.look(events=1) == []
    process.resident = 50 * MIB
    assert process.look(events=1) == ["forget", "trim"]


def test_all_objects_are_collected_only_if_they_are_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A collection takes as long as there are objects, and everybody waits."""
    collected: Callable[[], object] = lambda: process.done.append("collect")  # noqa: E731
    process = Process()
    monkeypatch.setattr("gc.collect", collected)
    process.resident = 100 * MIB
    assert process.look(events=1) == ["forget", "collect", "trim"]
    process.living = 100_000
    assert process.look(events=1) == ["forget", "trim"]


def test_nothing_is_done_while_no_descriptor_is_left() -> None:
    """The memory is given back once it can be measured again."""
    process = Process()
    process.resident = 100 * MIB
    process.has_descriptors = False
    assert process.look(events=1) == []
    process.has_descriptors = True
    assert process.look() == ["forget", "trim"]


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_the_heap_of_this_process_is_trimmed() -> None:
    """What was freed in the middle of the heap goes back to the system."""
    trim = find_trim()
    if trim is None:
        pytest.skip("not glibc")
    items = [bytes(1024) for _ in range(100_000)]
    last = bytes(1024)
    filled = resident_memory()
    items.clear()
    trim(0)
    assert filled - resident_memory() > 50 * MIB
    assert last


def test_there_is_nothing_to_trim_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only glibc has it."""
    monkeypatch.setattr(sys, "platform", "darwin")
    assert find_trim() is None
