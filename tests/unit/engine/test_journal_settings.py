"""Turning a queue's journal on and off while it serves: nothing is lost, wherever a crash comes."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.journal.files import Directory
from kestrelmq.journal.records import item, item_data
from kestrelmq.journal.writer import FileJournal
from tests.support.crashing_directory import CrashingDirectory, CrashLoss
from tests.support.local_queues import LocalQueues, items_on_disk
from tests.support.real_directory import SimulatedCrash

pytestmark = pytest.mark.compiled

EVERYTHING = [b"opened", b"0", b"1", b"2"]


class Spool(LocalQueues):
    """A queue path with a queue `jobs` whose settings change."""

    def __init__(self, path: Path, directory: Directory | None = None, **settings: object) -> None:
        self.path = path
        super().__init__(self.settings(**settings), directory)

    def settings(self, **settings: object) -> ServerConfig:
        """Return what the configuration file says."""
        return ServerConfig(
            queue_path=self.path, queues={"jobs": QueueConfig.model_validate(settings)}
        )

    def change(self, **settings: object) -> list[str]:
        """Put settings in force; return what could not be."""
        return self.reload(self.settings(**settings))

    def fill(self) -> None:
        """Add items, and hold the first one open."""
        self.add(b"opened", b"0", b"1")
        self.open_read()
        self.add(b"2")

    @property
    def files(self) -> set[str]:
        """The files of the queue path."""
        return {file.name for file in self.path.iterdir()} - {"~~lock"}


@pytest.mark.parametrize("dialect", ["documented", "kestrel-2"])
def test_a_journal_begins_with_what_the_queue_holds(tmp_path: Path, dialect: str) -> None:
    """Items, open reads and the next xid; what comes later is added to it."""
    spool = Spool(tmp_path, keep_journal=False)
    spool.fill()
    last = spool.queue().last_xid
    assert spool.change(journal_dialect=dialect) == []
    assert (spool.queue().config.keep_journal, spool.queue().config.journal_dialect) == (
        True,
        dialect,
    )
    assert list(spool.queue().open) == [last]
    opened = spool.queue().open_read()
    assert opened is not None
    assert opened[0] == last + 1
    spool.queue().add(b"3")
    spool.commit()
    spool.queue().confirm(last)
    spool.commit()
    spool.close()
    assert items_on_disk(tmp_path, journal_dialect=dialect) == [b"0", b"1", b"2", b"3"]


def test_a_journal_that_ends_leaves_everything_in_memory(tmp_path: Path) -> None:
    """Its files are gone; the next start finds an empty queue."""
    spool = Spool(tmp_path)
    spool.fill()
    assert spool.change(keep_journal=False) == []
    assert spool.files == set()
    assert spool.items() == EVERYTHING[1:]
    assert spool.queue().unremove(spool.queue().last_xid)
    spool.commit()
    assert spool.items() == EVERYTHING
    assert spool.change() == []
    spool.close()
    assert items_on_disk(tmp_path) == EVERYTHING


def test_a_queue_that_does_not_fit_in_memory_keeps_its_journal(tmp_path: Path) -> None:
    """The reload says why, and the settings show what is in force."""
    spool = Spool(tmp_path, max_memory_size=3)
    for _ in range(10):
        spool.queue().add(b"x")
    spool.commit()
    (refused,) = spool.change(keep_journal=False, max_memory_size=9)
    assert "10 bytes" in refused
    assert spool.queue().config.keep_journal
    assert spool.queue().config.max_memory_size == 9
    assert len(spool.queue()) == 10
    assert spool.change(keep_journal=False, max_memory_size=10) == []
    assert spool.items() == [b"x"] * 10
    spool.close()


def test_files_of_another_time_are_not_taken_for_the_journal(tmp_path: Path) -> None:
    """They were left alone while the queue kept no journal, and are kept under other names."""
    old = Spool(tmp_path)
    old.queue().add(b"old")
    old.commit()
    old.close()
    spool = Spool(tmp_path, keep_journal=False)
    spool.fill()
    assert spool.change() == []
    spool.close()
    assert items_on_disk(tmp_path) == EVERYTHING
    (kept,) = [name for name in spool.files if "~~left" in name]
    assert item_data((tmp_path / kept).read_bytes()) == b"old"


def test_of_the_files_of_another_time_those_that_a_pack_replaced_are_not_kept(
    tmp_path: Path,
) -> None:
    """A crash before left them; what the pack says is kept, and is still what the journal was."""
    for name in ("jobs.100", "jobs.200.pack", "jobs"):
        (tmp_path / name).write_bytes(item(0, 0, name.encode()))
    spool = Spool(tmp_path, keep_journal=False)
    spool.add(b"new")
    assert spool.change() == []
    spool.close()
    assert items_on_disk(tmp_path) == [b"new"]
    kept = {name.split("~~")[0] for name in spool.files if "~~left" in name}
    assert kept == {"jobs.200.pack", "jobs"}
    assert spool.files - {name for name in spool.files if "~~left" in name} == {"jobs"}


def test_fanout_only_takes_no_more_and_drains(tmp_path: Path) -> None:
    """What is there stays readable, and in the journal, which goes with the last item."""
    spool = Spool(tmp_path)
    spool.fill()
    child = spool.collection.obtain("jobs+copy")
    assert spool.change(fanout_only=True) == []
    assert spool.queue().add(b"new")
    spool.commit()
    assert [item_data(record) for record in child.browse(9)] == [b"new"]
    assert spool.items() == EVERYTHING[1:]
    spool.close()
    spool = Spool(tmp_path, fanout_only=True)
    assert spool.items() == EVERYTHING
    while spool.queue().remove() is not None:
        spool.commit()
    spool.collection.tick()
    assert spool.files == {"jobs+copy"}
    assert not isinstance(spool.queue().journal, FileJournal)
    assert spool.change() == []
    spool.queue().add(b"kept")
    spool.commit()
    spool.close()
    assert items_on_disk(tmp_path) == [b"kept"]


def crashes(tmp_path: Path) -> Iterator[tuple[CrashingDirectory, Path]]:
    """Yield directories, each to crash one step later; and where to put what is left."""
    for number in count(1):
        here = tmp_path / str(number)
        yield CrashingDirectory.within(here), here


@pytest.mark.parametrize("turned", ["on", "off"])
@pytest.mark.parametrize("left", [False, True])
def test_a_crash_while_the_journal_is_turned_on_or_off(
    tmp_path: Path, turned: str, *, left: bool
) -> None:
    """It leaves everything or nothing; once the reload is done, what was asked for."""
    points: list[str | None] = []
    for directory, here in crashes(tmp_path):
        if left and turned == "on":
            (directory.path / "jobs").write_bytes(item(0, 0, b"old"))
            directory = CrashingDirectory.within(here)  # noqa: PLW2901
        spool = Spool(directory.path, directory, keep_journal=turned == "off")
        spool.fill()
        if turned == "off":
            spool.queue().sync()
        directory.crash_at = directory.steps + len(points) + 1
        try:
            assert spool.change(keep_journal=turned == "on") == []
        except SimulatedCrash:
            points.append(directory.crashed)
        is_done = directory.crashed is None
        for loss in CrashLoss:
            target = here / loss.name
            directory.survive(loss, target)
            found = items_on_disk(target)
            if is_done:
                assert found == (EVERYTHING if turned == "on" else []), loss
            else:
                assert found in (EVERYTHING, [], [b"old"]), (directory.crashed, loss)
        directory.crash_at = None
        directory.crashed = None
        spool.close()
        directory.abandon()
        if is_done:
            break
    assert len(points) > 4


def fail_at(directory: CrashingDirectory, beginning: str, number: int) -> None:
    """Let the step fail that is the `number`th, from 1 on, of those that begin so."""
    seen = count(1)
    directory.fail = lambda point: point.startswith(beginning) and next(seen) == number


def heal(directory: CrashingDirectory) -> None:
    """Let no step fail any more."""
    directory.mend()


@pytest.mark.parametrize(
    "step", ["create", "append", "sync jobs~~", "rename", "sync the directory", "open"]
)
def test_a_journal_that_cannot_begin_leaves_no_file(tmp_path: Path, step: str) -> None:
    """It would be found at the next start, with items that are gone by then."""
    directory = CrashingDirectory.within(tmp_path)
    spool = Spool(directory.path, directory, keep_journal=False)
    spool.fill()
    fail_at(directory, step, 1)
    (refused,) = spool.change()
    heal(directory)
    assert refused.startswith("keep_journal of queue jobs stays as it is: queue jobs: ")
    assert not spool.queue().config.keep_journal
    assert spool.files == set()
    spool.add(b"3")
    assert spool.change() == []
    spool.close()
    assert items_on_disk(directory.path) == [*EVERYTHING, b"3"]


def test_delayed_items_of_a_journal_that_cannot_begin_stay_in_memory(tmp_path: Path) -> None:
    """The journal that they had got already is removed, too; the next reload begins both."""
    directory = CrashingDirectory.within(tmp_path)
    spool = Spool(directory.path, directory, keep_journal=False)
    assert spool.collection.add("jobs", b"late", due=spool.clock.now() + 1000)
    directory.break_steps("create jobs~~next")
    (refused,) = spool.change()
    heal(directory)
    assert refused.startswith("keep_journal of queue jobs stays as it is: queue jobs: ")
    assert (spool.files, spool.queue().delayed) == (set(), 1)
    assert spool.change() == []
    assert spool.files == {"jobs", "jobs~~delayed"}
    spool.kill()
    spool.advance(1)
    assert spool.items() == [b"late"]
    spool.close()


@pytest.mark.parametrize(
    ("step", "number"),
    [("rename", 1), ("create", 1), ("sync the", 1), ("rename", 2), ("sync the", 2)],
)
def test_a_journal_that_cannot_end_goes_on(tmp_path: Path, step: str, number: int) -> None:
    """What is added later is there at the next start, too; the next reload ends it."""
    directory = CrashingDirectory.within(tmp_path)
    spool = Spool(directory.path, directory, max_memory_size=3)
    spool.fill()
    fail_at(directory, step, number)
    (refused,) = spool.change(keep_journal=False)
    heal(directory)
    assert refused.startswith("keep_journal of queue jobs stays as it is: queue jobs: ")
    assert spool.queue().config.keep_journal
    spool.add(b"3")
    assert spool.items() == [*EVERYTHING[1:], b"3"]
    spool.config = spool.settings()
    spool.restart()
    assert spool.items() == [*EVERYTHING, b"3"]
    assert spool.change(keep_journal=False) == []
    assert spool.files == set()
    spool.close()


def test_a_journal_that_cannot_be_read_does_not_end(tmp_path: Path) -> None:
    """Neither where files are gone, nor where they are shorter than they were."""
    spool = Spool(tmp_path, max_memory_size=1)
    spool.add(b"0", b"1", b"2")
    (journal,) = tmp_path.glob("jobs.*")
    journal.rename(tmp_path / "away")
    (refused,) = spool.change(keep_journal=False)
    assert "No such file" in refused
    (tmp_path / "away").rename(journal)
    whole = journal.read_bytes()
    with journal.open("r+b") as file:
        file.truncate(len(whole) - 1)
    (refused,) = spool.change(keep_journal=False)
    assert refused.endswith("a record is cut short, and another file follows")
    journal.write_bytes(whole)
    assert spool.queue().config.keep_journal
    assert spool.drain() == [b"0", b"1", b"2"]
    spool.close()
