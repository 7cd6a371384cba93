"""Large items that move to another queue: written in rounds, and meanwhile in nobody's way."""

import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import pytest

from kestrelmq.clock import no_pause
from kestrelmq.config import AliasConfig, QueueConfig, ServerConfig
from kestrelmq.disk.directories import Directory
from kestrelmq.errors import JournalError, QueueUnavailable
from kestrelmq.format.records import Item, item_data, item_deliveries, item_expiry
from kestrelmq.journal.open_read import ReserveTerms
from kestrelmq.queue.paused import Paused
from kestrelmq.queue.waiters import ReadMode, Waiter
from kestrelmq.queues.browsing import Look
from kestrelmq.queues.moving import Copy, Move, Step
from kestrelmq.scheduling.worker import LARGE_ITEM, InlineWorker, Worker
from tests.support.crashing_directory import CrashingDirectory
from tests.support.held_worker import HeldWorker
from tests.support.local_queues import LocalQueues

pytestmark = pytest.mark.compiled

LARGE: Final = b"x" * LARGE_ITEM
OTHER: Final = b"y" * LARGE_ITEM


class Spool(LocalQueues):
    """Queues whose items go to `late` when they expire, and to `dead` when they failed twice.

    Attributes:
        writer: copies and writes the large items, step by step.
    """

    def __init__(
        self,
        path: Path,
        directory: Directory | None = None,
        writer: Worker | None = None,
        **target: object,
    ) -> None:
        self.path = path
        self.writer = HeldWorker()
        self._large_items: Worker = self.writer if writer is None else writer
        settings = QueueConfig.model_validate(target)
        jobs = QueueConfig(expire_to_queue="late", dead_letter_queue="dead", max_deliveries=2)
        super().__init__(
            ServerConfig(
                queue_path=path,
                queues={"jobs": jobs, "late": settings, "dead": settings},
                aliases={"all": AliasConfig(destination_queues=["a", "b"])},
            ),
            directory,
        )

    def open(self) -> None:
        """Load the queues; `writer` writes the large items."""
        super().open()
        self.collection.commits.writer = self._large_items

    def kill(self) -> None:
        """Open the queues again as they are on disk; what was not written then never is."""
        if self._large_items is self.writer:
            self.writer = self._large_items = HeldWorker()
        super().kill()

    def put_expiring(self, *items: bytes) -> None:
        """Add items to `jobs` that expire in a second, and let it pass."""
        self.add(*items, expiry=self.clock.now() + 1000)
        self.work()
        self.clock.advance(2)

    def sweep(self) -> None:
        """Do what is done each second, and commit."""
        self.clock.advance(1)
        self.collection.sweep()
        self.commit()

    def fail(self, times: int = 1) -> None:
        """Hand the head of `jobs` out, and take it back."""
        for _ in range(times):
            self.queue().returns.give_back((self.open_read(),))
            self.commit()

    def work(self) -> bool:
        """Let the writer do all that there is, and commit; return whether there was anything."""
        worked = False
        while self.writer.step():
            self.commit()
            worked = True
        return worked

    def fill(self, *items: bytes, name: str = "jobs") -> None:
        """Add items, and have them written."""
        self.add(*items, name=name)
        self.work()


@pytest.fixture(name="spool")
def local_queues(tmp_path: Path) -> Iterator[Spool]:
    """Empty queues."""
    queues = Spool(tmp_path)
    yield queues
    queues.close()


# --- move and copy ---


def run_move(spool: Spool, target: str = "other") -> Move:
    """Move all items of `jobs`, and do what that asks for at once."""
    work = Move(spool.collection, spool.queue(), target)
    for step in work.slices():
        if callable(step):
            step(no_pause)
        spool.commit()
        spool.work()
    spool.commit()
    spool.work()
    return work


def copy_one(spool: Spool) -> Step:
    """Copy a large item to `other`, up to the write of it."""
    slices = Copy(spool.collection, spool.queue(), "other").slices()
    look, job, written = (_done(step) for step in islice(slices, 3))
    assert isinstance(look, Look)
    assert callable(job)
    return written


def _done(step: Step) -> Step:
    """Do what a step asks for; return it."""
    if isinstance(step, Look):
        for view in step.views():
            view.load()
    elif callable(step):
        step(no_pause)
    return step


@pytest.mark.parametrize("target", ["other", "all"])
def test_items_of_any_size_keep_their_order(spool: Spool, target: str) -> None:
    """And their expiries; for all destinations of an alias."""
    expiry = spool.clock.now() + 60_000
    items = [b"1", LARGE, b"2", b"3", OTHER, LARGE, b"4"]
    spool.add(*items, expiry=expiry)
    spool.work()
    spool.queue("a+child")
    assert run_move(spool, target).moved == len(items)
    for _ in range(2):
        for name in ("a", "b", "a+child") if target == "all" else ("other",):
            assert spool.items(name) == items
            assert {item_expiry(one) for one in spool.queue(name).backlog.browse(9)} == {expiry}
        assert (spool.items(), spool.queue().reads.held) == ([], 0)
        spool.restart()


def test_an_item_that_is_being_moved_is_in_nobodys_way(spool: Spool) -> None:
    """Others read what is behind it; a crash leaves it where it was."""
    spool.fill(LARGE, b"next")
    slices = Move(spool.collection, spool.queue(), "other").slices()
    job = next(slices)
    assert callable(job)
    assert (spool.items(), spool.items("other")) == ([b"next"], [])
    job(no_pause)
    spool.commit()
    assert spool.items("other") == []
    spool.kill()
    assert (spool.items(), spool.items("other")) == ([LARGE, b"next"], [])


@pytest.mark.parametrize("reason", ["full", "paused", "full alias"])
def test_a_target_that_refuses_it(tmp_path: Path, reason: str) -> None:
    """It is the head again, and not counted as delivered; of an alias no queue gets it."""
    spool = Spool(tmp_path, max_items=1)
    spool.fill(LARGE)
    if reason == "full":
        spool.add(b"full", name="late")
    elif reason == "paused":
        spool.queue("late").configure(QueueConfig())
        spool.collection.pause("late", Paused.WRITES)
    else:
        aliases = {"both": AliasConfig(destination_queues=["free", "late"])}
        spool.reload(spool.config.model_copy(update={"aliases": aliases}))
        spool.add(b"full", name="late")
        spool.queue("free")
    work = run_move(spool, "both" if "alias" in reason else "late")
    assert work.stopped is not None
    assert (work.moved, spool.items(), spool.queue().reads.held) == (0, [LARGE], 0)
    assert item_deliveries(spool.queue().backlog.browse(1)[0]) == 0
    if "alias" in reason:
        assert spool.items("free") == []
    spool.close()


def test_an_item_that_cannot_be_written_is_given_back(tmp_path: Path) -> None:
    """And whoever moves is told."""
    directory = CrashingDirectory.within(tmp_path)
    spool = Spool(directory.path, directory)
    spool.fill(LARGE)
    other = spool.queue("other")
    directory.fail = lambda point: point == "append to other"
    slices = Move(spool.collection, spool.queue(), "other").slices()
    job = next(slices)
    assert callable(job)
    job(no_pause)
    assert next(slices) == (other,)
    told: list[JournalError | None] = []
    spool.collection.commits.after_writing((other,), told.append)
    assert spool.writer.step()
    (failure,) = told
    assert failure is not None
    with pytest.raises(JournalError, match="queue other"):
        slices.throw(failure)
    directory.mend()
    assert list(spool.collection.commits.commit()) == [other]
    assert (spool.items(), spool.queue().reads.held) == ([LARGE], 0)
    directory.fail = lambda point: point == "append to other"
    assert copy_one(spool) == (other,)
    assert spool.writer.step()
    directory.mend()
    assert list(spool.collection.commits.commit()) == [other]
    assert spool.items("other") == []
    assert copy_one(spool) == (other,)
    assert spool.work()
    assert spool.items("other") == [LARGE]
    spool.close()


def test_a_source_that_is_deleted_meanwhile(spool: Spool) -> None:
    """Ends the move."""
    spool.fill(LARGE)
    slices = Move(spool.collection, spool.queue(), "other").slices()
    job = next(slices)
    assert callable(job)
    job(no_pause)
    spool.collection.delete("jobs")
    with pytest.raises(QueueUnavailable, match="jobs is closed"):
        next(slices)


# --- items that expire ---


def test_a_large_item_expires_to_another_queue(spool: Spool) -> None:
    """Readers get what is behind it meanwhile; then the target has it, also after a restart."""
    spool.put_expiring(LARGE, b"small", OTHER)
    spool.add(b"live")
    assert spool.take() == b"live"
    assert (spool.items(), spool.queue().reads.items_aside) == ([], 2)
    assert spool.items("late") == [b"small"]
    spool.sweep()  # begins nothing twice
    spool.work()
    assert (spool.items("late"), spool.queue().reads.items_aside) == ([b"small", LARGE, OTHER], 0)
    assert spool.queue().counts.expired_items == 3
    spool.kill()
    assert (spool.items(), spool.items("late")) == ([], [b"small", LARGE, OTHER])


def test_a_crash_before_it_has_moved(spool: Spool) -> None:
    """It expires again, and comes once."""
    spool.put_expiring(LARGE)
    spool.sweep()
    spool.kill()
    spool.sweep()
    assert spool.work()
    assert (spool.items(), spool.items("late")) == ([], [LARGE])


def test_a_target_that_cannot_take_an_expired_one_now(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried again with the sweeps, and logged."""
    spool = Spool(tmp_path, max_items=1)
    spool.add(b"full", name="late")
    spool.put_expiring(LARGE)
    spool.sweep()
    assert (spool.items("late"), spool.queue().reads.items_aside) == ([b"full"], 1)
    assert "expired items cannot go to late: it refuses them" in caplog.text
    spool.drain("late")
    for _ in range(2):
        spool.sweep()
        spool.work()
    assert (spool.items("late"), spool.queue().reads.items_aside) == ([LARGE], 0)
    spool.close()


def test_no_more_is_set_aside_than_fits_in_memory(spool: Spool) -> None:
    """The others wait, and those behind them."""
    spool.queue().configure(
        spool.queue().config.model_copy(update={"max_memory_size": len(LARGE) + 100})
    )
    spool.put_expiring(LARGE, OTHER, b"last")
    spool.sweep()
    assert (spool.queue().reads.items_aside, len(spool.queue())) == (1, 2)
    assert spool.queue().line.peek() is None
    for _ in range(2):
        assert spool.work()
        spool.sweep()
    assert sorted(spool.items("late")) == sorted([LARGE, OTHER, b"last"])


def test_a_large_item_expires_to_its_own_queue(spool: Spool) -> None:
    """It goes to the end, and a reader that waits gets it."""
    spool.queue().configure(spool.queue().config.model_copy(update={"expire_to_queue": "jobs"}))
    spool.put_expiring(LARGE)
    got: list[Item | None] = []
    spool.sweep()
    spool.queue().waiters.add(Waiter(ReadMode.REMOVE, lambda one, _: got.append(one), _unexpected))
    assert spool.work()
    assert [item_data(one) for one in got if one is not None] == [LARGE]


def _unexpected(error: Exception) -> None:
    raise AssertionError(error)


def test_a_large_item_that_expires_to_no_queue_is_dropped(spool: Spool) -> None:
    """As any other; and so is one whose target is gone from the settings."""
    spool.put_expiring(LARGE, OTHER)
    spool.sweep()
    assert spool.writer.step()
    spool.queue().configure(QueueConfig())
    spool.sweep()
    assert (len(spool.queue()), spool.queue().reads.items_aside) == (0, 2)
    spool.work()
    spool.put_expiring(LARGE)
    spool.sweep()
    assert (len(spool.queue()), spool.queue().reads.items_aside) == (0, 0)
    assert len(spool.items("late")) == 2


def test_an_expired_item_that_cannot_be_written(tmp_path: Path) -> None:
    """It stays aside, is tried again, and comes once."""
    directory = CrashingDirectory.within(tmp_path)
    spool = Spool(directory.path, directory)
    spool.queue("late")
    spool.put_expiring(LARGE)
    spool.sweep()
    directory.fail = lambda point: point == "append to late"
    while spool.writer.step():
        pass
    directory.mend()
    assert list(spool.collection.commits.commit()) == [spool.queue("late")]
    assert (spool.items("late"), spool.queue().reads.items_aside) == ([], 1)
    for _ in range(2):
        spool.sweep()
        spool.work()
    assert (spool.items("late"), spool.queue().reads.items_aside) == ([LARGE], 0)
    spool.kill()
    assert (spool.items(), spool.items("late")) == ([], [LARGE])
    spool.close()


def test_a_queue_that_cannot_be_written_moves_nothing(tmp_path: Path) -> None:
    """Otherwise the item would be in both queues."""
    directory = CrashingDirectory.within(tmp_path)
    spool = Spool(directory.path, directory)
    spool.put_expiring(LARGE)
    directory.fail = lambda point: point == "append to jobs"
    spool.collection.sweep()
    assert spool.collection.commits.commit()
    assert spool.writer.step()  # it was taken back meanwhile
    assert (spool.items("late"), len(spool.queue()), spool.queue().reads.items_aside) == ([], 1, 0)
    directory.mend()
    spool.collection.tick()
    for _ in range(2):
        spool.sweep()
        spool.work()
    assert (spool.items(), spool.items("late")) == ([], [LARGE])
    spool.close()


# --- dead letters ---


@pytest.mark.parametrize("journal_off", [False, True])
def test_a_large_dead_letter(
    spool: Spool, caplog: pytest.LogCaptureFixture, *, journal_off: bool
) -> None:
    """Readers get what is behind it; then the dead-letter queue has it with its count."""
    caplog.set_level(logging.WARNING)
    if journal_off:
        queues = {**spool.config.queues, "dead": QueueConfig(keep_journal=False)}
        spool.reload(spool.config.model_copy(update={"queues": queues}))
    spool.fill(LARGE, b"next")
    spool.fail(2)
    assert (spool.items(), spool.items("dead"), spool.queue().reads.held) == ([b"next"], [], 0)
    assert spool.queue().counts.dead_lettered == 0
    assert spool.work()
    assert spool.queue().counts.dead_lettered == 1
    assert f"an item of {len(LARGE)} bytes goes to dead after 2 deliveries" in caplog.text
    for _ in range(1 if journal_off else 2):
        (record,) = spool.queue("dead").backlog.browse(2)
        assert (item_data(record), item_deliveries(record)) == (LARGE, 2)
        assert (spool.items(), spool.queue().reads.open.get(1)) == ([b"next"], None)
        spool.kill()


def test_a_crash_while_a_dead_letter_is_written(spool: Spool) -> None:
    """It is dead all the same, and comes once."""
    spool.fill(LARGE, b"next")
    spool.fail(2)
    spool.kill()
    assert spool.take() == b"next"
    assert spool.work()
    assert (spool.items(), spool.items("dead")) == ([], [LARGE])


def test_a_dead_letter_queue_that_is_full(tmp_path: Path) -> None:
    """The item stays, whether the queue is full at once or was filled meanwhile."""
    spool = Spool(tmp_path, max_items=1)
    spool.fill(LARGE)
    spool.fail(2)
    spool.add(b"full", name="dead")
    assert spool.work()
    assert (spool.items(), item_deliveries(spool.queue().backlog.browse(1)[0])) == ([LARGE], 2)
    spool.fail()
    assert (spool.items(), len(spool.writer)) == ([LARGE], 0)
    spool.clock.advance(2)
    spool.fail()
    assert (spool.items(), len(spool.writer)) == ([LARGE], 0)
    spool.kill()
    assert spool.items() == [LARGE]
    assert spool.take() == LARGE
    spool.close()


def test_a_dead_head_whose_queue_is_filled_meanwhile(tmp_path: Path) -> None:
    """It is found after a restart; it stays, and nothing is counted twice."""
    spool = Spool(tmp_path, max_items=1)
    spool.fill(LARGE)
    spool.fail()
    spool.open_read()
    spool.kill()
    assert spool.queue().line.peek() is None
    spool.add(b"full", name="dead")
    assert spool.work()
    assert (spool.items(), item_deliveries(spool.queue().backlog.browse(1)[0])) == ([LARGE], 2)
    spool.close()


def test_a_late_reader_confirms_a_dead_letter(spool: Spool) -> None:
    """Before it has moved: then it is done, and does not move."""
    spool.fill(LARGE)
    spool.fail()
    xid = spool.open_read()
    spool.queue().returns.give_back((xid,))
    assert spool.queue().reads.confirm(xid)
    spool.commit()
    assert spool.writer.step()
    assert (spool.items("dead"), spool.queue().reads.items_aside) == ([], 0)


def test_a_queue_that_is_deleted_meanwhile(spool: Spool) -> None:
    """Its dead letter goes with it."""
    spool.fill(LARGE)
    spool.fail(2)
    spool.collection.delete("jobs")
    assert spool.writer.step()
    assert spool.items("dead") == []


@pytest.mark.parametrize("counted", [False, True])
def test_a_reserved_read_that_is_released_as_dead(spool: Spool, *, counted: bool) -> None:
    """Its reservation ends at once; after a crash the item is not reserved."""
    spool.fill(LARGE)
    terms = ReserveTerms(lease=60_000, grace=0, owner="", tag="a:1:x")
    assert spool.queue().reserved.reserve(terms, 7, 1, 1) is not None
    spool.commit()
    spool.queue().returns.give_back(
        spool.queue().reserved.with_tag("a:1:x"), counted=counted, is_dead=True
    )
    spool.commit()
    assert spool.queue().reserved.with_tag("a:1:x") == ()
    spool.kill()
    assert (spool.items(), spool.queue().reserved.with_tag("a:1:x")) == ([LARGE], ())
    spool.queue().returns.give_back((spool.open_read(),), counted=counted, is_dead=True)
    spool.commit()
    spool.work()
    assert (spool.items(), spool.items("dead")) == ([], [LARGE])


def test_a_reservation_whose_end_cannot_be_written(tmp_path: Path) -> None:
    """It is reserved as before, and its item does not move."""
    directory = CrashingDirectory.within(tmp_path)
    spool = Spool(directory.path, directory)
    spool.fill(LARGE)
    terms = ReserveTerms(lease=60_000, grace=0, owner="", tag="a:1:x")
    assert spool.queue().reserved.reserve(terms, 7, 1, 1) is not None
    spool.commit()
    directory.fail = lambda point: point == "append to jobs"
    xids = spool.queue().reserved.with_tag("a:1:x")
    spool.queue().returns.give_back(xids, is_dead=True)
    assert spool.collection.commits.commit()
    directory.mend()
    assert spool.queue().reserved.with_tag("a:1:x") == xids
    assert spool.queue().reads.items_aside == 0
    assert spool.writer.step()
    assert spool.items("dead") == []
    spool.close()


def test_a_dead_letter_is_on_disk_before_it_has_left(tmp_path: Path) -> None:
    """If replies wait for syncs; and at once, where nothing else runs meanwhile."""
    directory = CrashingDirectory.within(tmp_path)
    spool = Spool(directory.path, directory, InlineWorker())
    jobs = spool.config.queues["jobs"].model_copy(update={"sync_journal": 0})
    queues = {**spool.config.queues, "jobs": jobs}
    spool.reload(spool.config.model_copy(update={"queues": queues}))
    spool.queue("dead")
    spool.fill(LARGE)
    spool.fail()
    xid = spool.open_read()
    directory.fail = lambda point: point.startswith("sync") and "dead" in point
    spool.queue().returns.give_back((xid,))
    directory.mend()
    spool.commit()
    assert spool.items() == [LARGE]
    spool.clock.advance(2)
    spool.collection.tick()
    spool.fail()
    assert (spool.items(), set(spool.items("dead"))) == ([], {LARGE})
    spool.close()
