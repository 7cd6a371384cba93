"""Journals that a worker turns on or off: what the queue does meanwhile, and who waits."""

from pathlib import Path

import pytest

from kestrelmq.clock import Pause
from kestrelmq.config import QueueConfig
from kestrelmq.engine.worker import Done, Job, run_to_end
from kestrelmq.errors import JournalError, KestrelError, QueueUnavailable
from kestrelmq.journal.records import item
from kestrelmq.journal.writer import FileJournal, NoJournal
from tests.support.crashing_directory import CrashingDirectory
from tests.support.held_worker import HeldWorker, LateWorker
from tests.support.local_queues import LocalQueues, items_on_disk, queue_settings
from tests.support.recording_directory import RecordingDirectory, SyncFile, SyncNames

pytestmark = pytest.mark.compiled


class Spool(LocalQueues):
    """A queue `jobs` whose settings change by steps of a worker.

    Attributes:
        worker: what waits for the disk.
        refused: what the changes of settings that are over could not put in force.
    """

    def __init__(
        self,
        path: Path,
        directory: CrashingDirectory | RecordingDirectory | None = None,
        **settings: object,
    ) -> None:
        self.path = path if directory is None else directory.path
        self.worker = HeldWorker()
        self.refused: list[list[str]] = []
        super().__init__(queue_settings(self.path, **settings), directory)
        self.collection.tasks.worker = self.worker

    def change(self, **settings: object) -> None:
        """Begin to put settings in force."""
        config = queue_settings(self.path, **settings)
        run_to_end(self.collection.reloading(config, self.refused.append))
        self.commit()

    def end(self) -> None:
        """Do all that is left for the worker."""
        while self.worker.step():
            self.commit()

    @property
    def files(self) -> set[str]:
        """The files of the queue path."""
        return {file.name for file in self.path.iterdir()} - {"~~lock"}


@pytest.mark.parametrize("worker", [HeldWorker, LateWorker])
def test_a_queue_is_used_while_its_journal_is_turned_on(
    tmp_path: Path, worker: type[HeldWorker]
) -> None:
    """What it does before and after each job, and before its report, is there at the end."""
    spool = Spool(tmp_path, keep_journal=False)
    spool.collection.tasks.worker = spool.worker = worker()
    spool.add(*(b"%d" % number for number in range(9)))
    held = spool.open_read()
    spool.change()
    number = 9
    while spool.worker:
        spool.add(b"%d" % number)
        spool.take()
        number += 1
        assert spool.refused == []
        assert spool.worker.step()
    assert spool.refused == [[]]
    spool.add(b"last")
    assert spool.queue().confirm(held)
    spool.commit()
    expected = spool.items()
    spool.close()
    assert items_on_disk(tmp_path) == expected


def test_a_queue_is_used_while_its_journal_is_turned_off(tmp_path: Path) -> None:
    """Items on disk come back in pieces; what is added meanwhile is kept, as far as it fits."""
    spool = Spool(tmp_path, max_memory_size=250_000)
    data = [b"%d " % number + bytes(100_000) for number in range(12)]
    spool.add(*data[:10])
    assert spool.queue().read_behind
    spool.change(keep_journal=False, max_memory_size=1_250_000)
    pieces = 0
    while spool.queue().read_behind:
        assert spool.worker.step()
        pieces += 1
    assert pieces > 1
    spool.add(data[10])
    assert spool.worker.step()
    assert isinstance(spool.queue().journal, NoJournal)
    assert spool.refused == []
    spool.add(data[11])
    spool.end()
    assert spool.refused == [[]]
    assert spool.items() == data
    assert spool.files == set()
    assert not spool.queue().add(data[0])
    spool.close()


def test_what_memory_has_no_room_for_is_refused_while_the_files_go(tmp_path: Path) -> None:
    """Nothing may be on disk only by then; if the journal stays, there is room again."""
    disk = CrashingDirectory.within(tmp_path)
    spool = Spool(tmp_path, disk, max_memory_size=100)
    spool.add(bytes(90))
    spool.change(keep_journal=False, max_memory_size=100)
    assert not spool.queue().add(bytes(50))
    assert spool.queue().refusals.memory == 1
    disk.break_steps("rename jobs~~delete")
    spool.end()
    disk.mend()
    assert "stays as it is" in spool.refused[0][0]
    spool.add(bytes(50))
    assert spool.queue().read_behind
    spool.close()


def test_items_that_are_added_while_others_are_read_back_may_be_too_many(tmp_path: Path) -> None:
    """Then the journal stays."""
    spool = Spool(tmp_path, max_memory_size=10)
    spool.add(*(bytes(200_000) for _ in range(4)))
    spool.change(keep_journal=False, max_memory_size=900_000)
    spool.add(bytes(200_000))
    spool.end()
    assert "its items have 1000000 bytes" in spool.refused[0][0]
    assert len(spool.queue()) == 5
    assert isinstance(spool.queue().journal, FileJournal)
    spool.close()


CHANGES: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "on": ({"keep_journal": False}, {}),
    "off": ({}, {"keep_journal": False}),
    "drained": ({"max_items": 9}, {"fanout_only": True}),
    "dialect": ({}, {"journal_dialect": "kestrel-2"}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_only_the_worker_waits_for_the_disk(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is synced where clients are served, however much there is to sync."""
    before, after = CHANGES[name]
    directory = RecordingDirectory(tmp_path)
    spool = Spool(tmp_path, directory, **before)
    spool.add(bytes(600_000))
    if name == "drained":
        spool.take()
    # A file of another time, which a queue that begins a journal sets aside.
    if name == "on":
        (tmp_path / "jobs").write_bytes(item(0, 0, b"old"))

    def syncs() -> int:
        return sum(isinstance(one, SyncFile | SyncNames) for one in directory.operations)

    def run(job: Job, done: Done) -> None:
        def counted(pause: Pause) -> None:
            before = syncs()
            job(pause)
            in_jobs.append(syncs() - before)

        HeldWorker.run(spool.worker, counted, done)

    in_jobs: list[int] = []
    monkeypatch.setattr(spool.worker, "run", run)
    before_change = syncs()
    spool.change(**after)
    assert (spool.refused, in_jobs) == ([], [])
    spool.end()
    assert spool.refused == [[]]
    assert syncs() - before_change == sum(in_jobs) > 0
    spool.close()


def test_a_dialect_whose_file_cannot_be_synced_stays(tmp_path: Path) -> None:
    """The rotation would leave a file that may have a gap."""
    disk = CrashingDirectory.within(tmp_path)
    spool = Spool(tmp_path, disk)
    spool.add(bytes(600_000))
    spool.open_read()
    spool.change(journal_dialect="kestrel-2")
    disk.break_steps("sync jobs")
    spool.end()
    disk.mend()
    assert spool.queue().config.journal_dialect == "documented"
    assert spool.queue().unremove(spool.queue().last_xid)
    spool.commit()
    spool.close()


def test_the_journal_of_a_drained_queue_is_removed_once(tmp_path: Path) -> None:
    """However often it is looked at until then; what is added meanwhile goes to the children."""
    spool = Spool(tmp_path)
    spool.add(b"x")
    spool.change(fanout_only=True)
    spool.take()
    spool.collection.tick()
    assert len(spool.worker) == 1
    spool.collection.tick()
    assert len(spool.worker) == 1
    spool.end()
    assert spool.files == set()
    assert not spool.queue().is_draining
    spool.close()


@pytest.mark.parametrize("waits", [True, False])
def test_a_fanout_only_queue_that_has_items_gets_a_journal(tmp_path: Path, *, waits: bool) -> None:
    """If it is to keep one from now on."""
    spool = Spool(tmp_path, keep_journal=False)
    spool.add(b"x")
    if not waits:
        spool.open_read()
    spool.change(keep_journal=True, fanout_only=True)
    spool.end()
    assert spool.queue().is_draining
    spool.close()
    assert items_on_disk(tmp_path, fanout_only=True) == [b"x"]


def test_a_drained_queue_whose_journal_cannot_be_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told in the log, and tried again."""
    disk = CrashingDirectory.within(tmp_path)
    spool = Spool(tmp_path, disk)
    spool.add(b"x")
    spool.change(fanout_only=True)
    spool.take()
    disk.break_steps("rename jobs~~delete")
    spool.collection.tick()
    spool.end()
    disk.mend()
    assert any("the journal of queue jobs cannot be removed" in one for one in caplog.messages)
    assert spool.queue().is_draining
    spool.collection.tick()
    spool.end()
    assert spool.files == set()
    spool.close()


def test_a_bug_in_the_removal_of_a_drained_queue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the removal is tried again."""
    disk = CrashingDirectory.within(tmp_path)
    spool = Spool(tmp_path, disk)
    spool.add(b"x")
    spool.change(fanout_only=True)
    spool.take()

    def fail(point: str) -> bool:
        if point.startswith("rename jobs"):
            raise ValueError("a bug")
        return False

    disk.fail = fail
    spool.collection.tick()
    assert caplog.messages == ["the journal of a queue was not removed"]
    disk.mend()
    spool.collection.tick()
    spool.end()
    assert spool.files == set()
    spool.close()


def test_a_queue_that_is_closed_while_its_journal_is_removed(tmp_path: Path) -> None:
    """It gets no settings, and so no upkeep, any more."""
    spool = Spool(tmp_path)
    spool.add(b"x")
    spool.change(fanout_only=True)
    spool.take()
    spool.collection.tick()
    queue = spool.queue()
    spool.close()
    assert spool.worker.step()
    assert queue not in spool.collection.tasks
    assert queue._upkeep is None
    assert items_on_disk(tmp_path) == []


def test_changes_of_one_queue_come_one_after_the_other(tmp_path: Path) -> None:
    """The last one stands, and each is told when it is over."""
    spool = Spool(tmp_path)
    spool.add(b"x")
    for keep_journal in (False, True, False, True):
        spool.change(keep_journal=keep_journal)
    assert spool.refused == []
    spool.end()
    assert spool.refused == [[]] * 4
    assert isinstance(spool.queue().journal, FileJournal)
    spool.close()
    assert items_on_disk(tmp_path) == [b"x"]


def test_files_that_are_being_removed_are_left_alone(tmp_path: Path) -> None:
    """They are of an expired queue; a new one of that name begins a journal meanwhile."""
    spool = Spool(tmp_path, max_queue_age=1)
    spool.add(b"x")
    spool.take()
    spool.clock.advance(2)
    spool.collection.sweep()
    assert "jobs" not in spool.collection.queues
    spool.config = queue_settings(tmp_path, keep_journal=False)
    run_to_end(spool.collection.reloading(spool.config, spool.refused.append))
    spool.add(b"y")
    spool.change()
    spool.end()
    assert spool.refused == [[], []]
    assert spool.files == {"jobs"}
    spool.close()
    assert items_on_disk(tmp_path) == [b"y"]


def test_a_journal_whose_last_sync_fails_is_written_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What it held before was synced; the upkeep sees to the rest."""
    disk = CrashingDirectory.within(tmp_path)
    spool = Spool(tmp_path, disk, keep_journal=False)
    spool.add(b"x")
    spool.change()
    for _ in range(2):
        spool.worker.step()
    assert isinstance(spool.queue().journal, FileJournal)
    disk.break_steps("sync jobs")
    spool.add(b"y")
    spool.end()
    disk.mend()
    assert any("could not be synced" in one for one in caplog.messages)
    assert spool.refused == [[]]
    spool.collection.tick()
    spool.queue().sync()
    spool.close()
    assert items_on_disk(disk.path) == [b"x", b"y"]


def test_a_queue_is_deleted_after_its_journal_is_turned_on(tmp_path: Path) -> None:
    """Settings that come later do nothing."""
    spool = Spool(tmp_path, keep_journal=False)
    spool.add(b"x")
    told: list[JournalError | None] = []
    spool.change()
    spool.collection.deletions.begin(spool.queue(), told.append)
    spool.change(keep_journal=False)
    spool.end()
    assert told == [None]
    assert spool.refused == [[], []]
    assert "jobs" not in spool.collection.queues
    assert spool.files == set()
    spool.close()


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
@pytest.mark.parametrize("keep_journal", [False, True])
def test_queues_are_closed_while_a_journal_is_switched(
    tmp_path: Path, steps: int, *, keep_journal: bool
) -> None:
    """The next start finds all, or what was asked for."""
    spool = Spool(tmp_path, keep_journal=not keep_journal, max_memory_size=1)
    items = [b"x"] if keep_journal else [bytes(300_000)] * 3
    spool.add(*items)
    spool.change(keep_journal=keep_journal, max_memory_size=1_000_000)
    for _ in range(steps):
        spool.worker.step()
    spool.close()
    spool.end()
    assert items_on_disk(tmp_path) in ([], items)


def test_no_delayed_item_begins_a_journal_that_is_switched(tmp_path: Path) -> None:
    """It is refused: the files of delayed items are switched together with the others."""
    spool = Spool(tmp_path, keep_journal=False)
    spool.add(b"x")
    due = spool.clock.now() + 1000
    spool.change()
    spool.worker.step()
    with pytest.raises(QueueUnavailable, match="journal of queue jobs is being begun"):
        spool.queue().add_delayed(b"late", due)
    spool.end()
    spool.change(keep_journal=False)
    with pytest.raises(QueueUnavailable, match="journal of queue jobs is being removed"):
        spool.queue().add_delayed(b"late", due)
    spool.end()
    assert spool.refused == [[], []]
    spool.close()


def test_delayed_items_are_in_the_journal_with_the_others(tmp_path: Path) -> None:
    """Those that were added meanwhile, too. If one of the files cannot be written, none stays."""
    disk = CrashingDirectory.within(tmp_path)
    spool = Spool(tmp_path, disk, keep_journal=False)
    spool.add(b"x")
    spool.queue().add_delayed(b"late", spool.clock.now() + 1000)
    spool.change()
    disk.break_steps("rename jobs~~next")
    spool.end()
    disk.mend()
    assert "stays as it is" in spool.refused[0][0]
    assert spool.files == set()
    spool.change()
    spool.worker.step()
    spool.queue().add_delayed(b"later", spool.clock.now() + 1000)
    spool.commit()
    spool.end()
    spool.close()
    again = LocalQueues(queue_settings(disk.path), disk, clock=spool.clock)
    again.advance(2)
    assert again.items() == [b"x", b"late", b"later"]
    again.close()


def test_a_declaration_waits_for_the_journal(tmp_path: Path) -> None:
    """One that was followed by another is not taken back when it fails."""
    disk = CrashingDirectory.within(tmp_path)
    spool = Spool(tmp_path, disk)
    spool.add(b"x")
    told: list[KestrelError | None] = []
    spool.collection.begin_declaring("jobs", QueueConfig(keep_journal=False), told.append)
    spool.collection.begin_declaring(
        "jobs", QueueConfig(keep_journal=False, max_items=7), told.append
    )
    assert told == []
    disk.break_steps("rename jobs~~delete")
    spool.worker.step()
    disk.mend()
    spool.end()
    assert isinstance(told[0], JournalError)
    assert told[1:] == [None]
    assert spool.queue().config.max_items == 7
    assert isinstance(spool.queue().journal, NoJournal)
    spool.close()
