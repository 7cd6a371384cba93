"""A queue that is written in rounds against a plain list: what is behind a round waits for it.

A worker that the machine steps writes the large items, and the disk may fail at any time. While a
round runs, the queue goes on in memory; if it fails, all that was collected since is taken back.
What a restart finds is what was written, and no more.
"""

import tempfile
from pathlib import Path
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.errors import JournalError, QueueUnavailable
from kestrelmq.format.records import item_data
from kestrelmq.queue.queue import Queue
from tests.support.crashing_directory import CrashingDirectory
from tests.support.held_worker import HeldWorker
from tests.support.local_queues import LocalQueues

ALL: Final = 10_000


class WriteRounds(RuleBasedStateMachine):
    """Adds and removals, some of them large, of which each is committed."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self.waiting: list[bytes] = []
        # What is written, and what is when the running round has ended; None if none runs.
        self.written: list[bytes] = []
        self.sent: list[bytes] | None = None
        self.has_large = self.is_broken = False
        self.number = 0

    @initialize(memory=st.sampled_from([60, ALL]))
    def begin(self, memory: int) -> None:
        """Start on an empty queue path; with little memory, most items are on disk only."""
        self.disk = CrashingDirectory.within(Path(self._directory.name))
        config = QueueConfig(max_memory_size=memory, default_journal_size=500)
        self.spool = LocalQueues(ServerConfig(queue_path=self.disk.path, default=config), self.disk)
        self._use_worker()

    def _use_worker(self) -> None:
        self.worker = HeldWorker()
        self.spool.collection.commits.writer = self.worker

    @property
    def queue(self) -> Queue:
        """The queue."""
        return self.spool.queue()

    def _commit(self) -> None:
        failed = bool(self.spool.collection.commits.commit())
        if self.sent is not None:
            assert not failed
        elif self.has_large:
            self.sent, self.has_large = list(self.waiting), False
        elif self.is_broken and self.waiting != self.written:
            assert failed
            self.waiting = list(self.written)
        else:
            self.written = list(self.waiting)

    @rule(count=st.integers(1, 3), large=st.booleans())
    def add(self, count: int, *, large: bool) -> None:
        """Add items; the last as if it were large."""
        for _ in range(count):
            self.number += 1
            data = b"%d" % self.number * 9
            assert self.queue.add(data)
            self.waiting.append(data)
        if large:
            self.queue.changes.is_large = self.has_large = True
        self._commit()

    @rule(count=st.integers(1, 3))
    def remove(self, count: int) -> None:
        """Remove items; what is not written yet cannot be read back from disk."""
        for _ in range(count):
            try:
                record = self.queue.line.remove()
            except (QueueUnavailable, JournalError):
                assert self.is_broken
                self.spool.collection.commits.commit()
                self.waiting = list(self.written)
                return
            if record is None:
                assert not self.waiting or self.queue.core.is_writing
            else:
                assert item_data(record) == self.waiting.pop(0)
        self._commit()

    @precondition(lambda self: self.sent is not None)
    @rule()
    def end_round(self) -> None:
        """The worker has written, or could not; then comes what is behind."""
        assert self.sent is not None
        assert self.worker.step()
        sent, self.sent = self.sent, None
        if self.is_broken:
            assert self.spool.collection.commits.commit()
            self.waiting, self.has_large = list(self.written), False
            return
        self.written = sent
        if self.has_large:
            self.sent, self.has_large = list(self.waiting), False
        else:
            self.written = list(self.waiting)
        assert not self.spool.collection.commits.commit()

    @rule(broken=st.booleans())
    def break_disk(self, *, broken: bool) -> None:
        """Let appends fail from now on, or succeed again."""
        self.is_broken = broken
        if broken:
            self.disk.break_steps("append")
        else:
            self.disk.mend()

    @rule()
    def tick(self) -> None:
        """Let a second pass."""
        if not self.is_broken:
            self.spool.clock.advance(1)
            self.spool.collection.tick()
            self._commit()

    @rule()
    def kill(self) -> None:
        """Restart from what was written."""
        self.break_disk(broken=False)
        self.spool.kill()
        self._use_worker()
        self.waiting, self.sent, self.has_large = list(self.written), None, False

    @invariant()
    def is_as_the_model(self) -> None:
        """In memory, and in numbers."""
        if self.number:
            assert len(self.queue) == len(self.waiting)
            assert self.queue.core.is_writing == (self.sent is not None)
            in_memory = [item_data(record) for record in self.queue.backlog.browse(ALL)]
            assert in_memory == self.waiting[: len(in_memory)]

    def teardown(self) -> None:
        """At a clean stop all is written."""
        self.break_disk(broken=False)
        self.spool.restart()
        assert [item_data(record) for record in iter(self.queue.line.remove, None)] == self.waiting
        self.spool.close()
        self._directory.cleanup()


TestWriteRounds = WriteRounds.TestCase
