"""A queue against a list and a dictionary, through restarts, crashes and a disk that fails."""

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from kestrelmq import Item, JournalError, PersistentQueue, QueueConfig
from tests.support.examples import examples
from tests.support.fake_clock import FakeClock

pytestmark = pytest.mark.compiled_only

texts = st.binary(max_size=6)
expiries = st.one_of(st.none(), st.none(), st.integers(1, 30))
configs = st.builds(
    QueueConfig,
    max_items=st.one_of(st.none(), st.integers(1, 8)),
    max_size=st.one_of(st.none(), st.integers(4, 30)),
    max_item_size=st.one_of(st.none(), st.just(5)),
    max_age=st.one_of(st.none(), st.just(20)),
    max_memory_size=st.sampled_from([1, 8, 1000]),
    discard_old_when_full=st.booleans(),
    journal_dialect=st.sampled_from(["documented", "kestrel-2"]),
)


@dataclass(frozen=True)
class Entry:
    """An item as the model sees it; times in milliseconds."""

    data: bytes
    add_time: int
    expiry: int | None


def copy_as_it_is(source: Path, target: Path) -> None:
    """Copy the files as they are at one moment, though a thread may be replacing some."""
    while True:
        names = sorted(source.iterdir())
        with contextlib.suppress(shutil.Error):
            shutil.copytree(source, target)
            if sorted(source.iterdir()) == names:
                return
        shutil.rmtree(target)


class QueueMachine(RuleBasedStateMachine):
    """Does the same to a `PersistentQueue` and to a plain model."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.generation = 0
        self.clock = FakeClock()
        self.waiting: list[Entry] = []
        self.open: dict[int, Entry] = {}

    @property
    def path(self) -> Path:
        """Where the queue is; a crash moves it."""
        return Path(self.directory.name) / str(self.generation)

    @initialize(config=configs)
    def begin(self, config: QueueConfig) -> None:
        """Set the queue up."""
        self.config = config
        self.queue = PersistentQueue("q", self.path, config, clock=self.clock)
        self.queue.setup()

    def teardown(self) -> None:
        """Leave nothing behind."""
        self.queue.close()
        self.directory.cleanup()

    # --- the model ---

    def drop_expired(self) -> None:
        """Drop expired items from the head."""
        while self.waiting and self.is_expired(self.waiting[0]):
            del self.waiting[0]

    def is_expired(self, entry: Entry) -> bool:
        """Whether an item's time is up."""
        return entry.expiry is not None and entry.expiry <= self.clock.now()

    def is_full(self, size: int) -> bool:
        """Whether an item of `size` bytes is refused, or older ones are dropped for it."""
        items, most = self.config.max_items, self.config.max_size
        used = sum(len(entry.data) for entry in self.waiting)
        if items is not None and len(self.waiting) >= items:
            return True
        if self.config.discard_old_when_full:
            return most is not None and used + size > most
        return most is not None and used >= most

    def admit(self, data: bytes) -> bool:
        """Make room where that is allowed; say whether an item may be added."""
        if self.config.max_item_size is not None and len(data) > self.config.max_item_size:
            return False
        self.drop_expired()
        if self.config.discard_old_when_full:
            while self.waiting and self.is_full(len(data)):
                del self.waiting[0]
            return True
        return not self.is_full(len(data))

    def check(self, item: Item | None, expected: Entry | None) -> None:
        """Compare what was read with what the model has."""
        found = None if item is None else Entry(item.data, item.add_time, item.expiry)
        assert found == expected

    # --- what users do ---

    @rule(data=texts, expiry=expiries)
    def add(self, data: bytes, expiry: int | None) -> None:
        """Add an item."""
        now = self.clock.now()
        due = None if expiry is None else now + expiry * 1000
        if self.config.max_age is not None:
            latest = now + int(self.config.max_age * 1000)
            due = latest if due is None else min(due, latest)
        admitted = self.admit(data)
        assert self.queue.add(data, expiry) == admitted
        if admitted:
            self.waiting.append(Entry(data, now, due))

    @rule()
    def peek(self) -> None:
        """Look at the head."""
        self.drop_expired()
        self.check(self.queue.peek(), self.waiting[0] if self.waiting else None)

    @rule()
    def remove(self) -> None:
        """Take the head."""
        self.drop_expired()
        self.check(self.queue.remove(), self.waiting.pop(0) if self.waiting else None)

    @rule()
    def open_read(self) -> None:
        """Open a read of the head."""
        self.drop_expired()
        item = self.queue.remove(transaction=True)
        self.check(item, self.waiting[0] if self.waiting else None)
        if item is not None:
            assert item.xid != 0
            assert item.xid not in self.open
            self.open[item.xid] = self.waiting.pop(0)

    @precondition(lambda self: self.open)
    @rule(choice=st.randoms(use_true_random=False))
    def confirm(self, choice: Random) -> None:
        """Finish one of the open reads."""
        xid = choice.choice(sorted(self.open))
        assert self.queue.confirm_remove(xid)
        del self.open[xid]
        assert not self.queue.confirm_remove(xid)

    @precondition(lambda self: self.open)
    @rule(choice=st.randoms(use_true_random=False))
    def give_back(self, choice: Random) -> None:
        """Give one of the open reads back."""
        xid = choice.choice(sorted(self.open))
        assert self.queue.unremove(xid)
        self.waiting.insert(0, self.open.pop(xid))

    @rule()
    def flush(self) -> None:
        """Drop what waits."""
        self.queue.flush()
        self.waiting.clear()

    @rule(seconds=st.integers(1, 25))
    def time_passes(self, seconds: int) -> None:
        """Let items expire."""
        self.clock.advance(seconds)

    # --- what happens to them ---

    @rule()
    def restart(self) -> None:
        """Close the queue and set it up again."""
        self.queue.close()
        self.reload()

    @rule(torn=st.binary(max_size=4))
    def crash(self, torn: bytes) -> None:
        """Go on with the files as they are now, perhaps with a record that is not whole."""
        before = self.path
        self.generation += 1
        copy_as_it_is(before, self.path)
        with (self.path / "q").open("ab") as journal:
            journal.write(b"\x02\x20" + torn[:2] if torn else b"")
        self.queue.close()
        self.reload()

    def reload(self) -> None:
        """Load the queue; what was open is at the head, the oldest first."""
        self.queue = PersistentQueue("q", self.path, self.config, clock=self.clock)
        self.queue.setup()
        self.waiting[:0] = [self.open[xid] for xid in sorted(self.open)]
        self.open.clear()

    @rule(data=texts)
    def add_on_a_failing_disk(self, data: bytes) -> None:
        """Nothing is added."""
        self.fail(lambda: self.queue.add(data))

    @rule(transaction=st.booleans())
    def remove_on_a_failing_disk(self, *, transaction: bool) -> None:
        """Nothing is taken."""
        self.fail(lambda: self.queue.remove(transaction=transaction))

    @precondition(lambda self: self.open)
    @rule(confirm=st.booleans())
    def end_read_on_a_failing_disk(self, *, confirm: bool) -> None:
        """A read that is confirmed stays open; one that is given back comes back afterwards."""
        xid = min(self.open)
        end = self.queue.confirm_remove if confirm else self.queue.unremove
        self.fail(lambda: end(xid))
        if not confirm:
            self.waiting.insert(0, self.open.pop(xid))

    @rule()
    def flush_on_a_failing_disk(self) -> None:
        """Nothing is dropped."""
        self.fail(self.queue.flush)

    def fail(self, operation: Callable[[], object]) -> None:
        """Do what cannot be written: it raises, unless it had nothing to write."""
        with patch("os.write", side_effect=OSError(28, "No space left on device")):
            try:
                result = operation()
            except JournalError:
                return
            assert not result

    # --- what always holds ---

    @invariant()
    def same_content(self) -> None:
        """Both hold the same, once expired items are off the head."""
        if not hasattr(self, "queue"):
            return
        self.drop_expired()
        self.queue.peek()
        assert len(self.queue) == len(self.waiting)
        assert self.queue.bytes == sum(len(entry.data) for entry in self.waiting)
        held = self.queue._queue()
        limit = max(self.config.max_memory_size, 6)
        given_back = 6 * (len(self.open) + len(self.waiting))
        assert held.backlog.memory_bytes <= limit + given_back
        assert set(held.reads.open) == set(self.open)


QueueMachine.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=40)
TestQueue = QueueMachine.TestCase
