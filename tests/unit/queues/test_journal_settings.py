"""The settings of a queue's journal, which hold from when it is created or loaded on."""

from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.errors import QueueUnavailable
from kestrelmq.format.records import item_data
from kestrelmq.journal.writer import FileJournal, NoJournal
from kestrelmq.scheduling.worker import LARGE_ITEM
from tests.support.crashing_directory import CrashingDirectory
from tests.support.local_queues import LocalQueues, items_on_disk

pytestmark = pytest.mark.compiled

DO = "delete and create them, or restart"
EVERYTHING = [b"opened", b"0", b"1", b"2"]


class Spool(LocalQueues):
    """A queue path with a queue `jobs` whose settings change."""

    def __init__(
        self, path: Path, directory: CrashingDirectory | None = None, **settings: object
    ) -> None:
        self.path = path
        super().__init__(self.settings(**settings), directory)

    def settings(self, **settings: object) -> ServerConfig:
        """Return what the configuration file says."""
        return ServerConfig(
            queue_path=self.path, queues={"jobs": QueueConfig.model_validate(settings)}
        )

    def change(self, **settings: object) -> list[str]:
        """Reload with other settings; return what is not in force."""
        return self.reload(self.settings(**settings))

    def start_with(self, **settings: object) -> None:
        """Start again with other settings."""
        self.config = self.settings(**settings)
        self.restart()

    def fill(self) -> None:
        """Add items, and hold the first one open."""
        self.add(b"opened", b"0", b"1")
        self.open_read()
        self.add(b"2")

    @property
    def files(self) -> dict[str, bytes]:
        """The files of the queue path, and what is in them."""
        return {file.name: file.read_bytes() for file in self.path.iterdir()}


@pytest.mark.parametrize(
    ("setting", "before", "after"),
    [
        ("keep_journal", True, False),
        ("keep_journal", False, True),
        ("journal_dialect", "documented", "kestrel-2"),
        ("journal_dialect", "kestrel-2", "documented"),
    ],
)
def test_a_reload_leaves_the_journal_as_it_is(
    tmp_path: Path, setting: str, before: object, after: object
) -> None:
    """It says so, and how to change it; the other settings are in force. Deleting is one way."""
    spool = Spool(tmp_path, None, **{setting: before})
    spool.fill()
    journal = spool.queue().journal
    for _ in range(2):
        answer = spool.change(**{setting: after, "max_items": 4})
        assert answer == [f"{setting} of jobs: {DO}"]
        config = spool.queue().config
        assert (getattr(config, setting), config.max_items) == (before, 4)
    assert spool.queue().journal is journal
    assert spool.items() == EVERYTHING[1:]
    assert spool.change(**{setting: before}) == []
    spool.change(**{setting: after})
    spool.collection.delete("jobs")
    spool.fill()
    assert getattr(spool.queue().config, setting) == after
    assert spool.change(**{setting: after}) == []
    kept = isinstance(spool.queue().journal, FileJournal)
    assert kept is spool.queue().config.keep_journal
    spool.kill()
    assert spool.items() == (EVERYTHING if kept else [])
    spool.close()


def test_an_answer_names_few_of_many_queues(tmp_path: Path) -> None:
    """The others are counted; all of them share their settings."""
    spool = LocalQueues(ServerConfig(queue_path=tmp_path))
    queues = [spool.queue(f"q{number}") for number in range(3)]
    default = QueueConfig(keep_journal=False, journal_dialect="kestrel-2")
    config = spool.config.model_copy(update={"default": default})
    assert spool.reload(config) == [
        f"keep_journal of q0, q1, q2: {DO}",
        f"journal_dialect of q0, q1, q2: {DO}",
    ]
    spool.reload(spool.config.model_copy(update={"default": QueueConfig()}))
    queues += [spool.queue(f"q{number}") for number in range(3, 9)]
    assert spool.reload(config)[0] == f"keep_journal of q0, q1, q2 and 6 more: {DO}"
    assert len({id(queue.config) for queue in queues}) == 1
    spool.close()


def test_a_journal_that_is_turned_on_is_empty_at_the_next_start(tmp_path: Path) -> None:
    """What was only in memory is gone, as at every other start."""
    spool = Spool(tmp_path, keep_journal=False)
    spool.fill()
    spool.change()
    spool.restart()
    assert spool.items() == []
    spool.fill()
    spool.kill()
    assert spool.items() == EVERYTHING
    spool.close()


def test_the_files_of_a_journal_that_is_turned_off_are_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The items in them are there again at the next start with a journal, delayed ones, too."""
    spool = Spool(tmp_path)
    spool.fill()
    assert spool.collection.add("jobs", b"late", due=spool.clock.now() + 1000)
    spool.commit()
    before = spool.files
    spool.start_with(keep_journal=False)
    assert "queue jobs keeps no journal; its files are left alone" in caplog.messages
    assert isinstance(spool.queue().journal, NoJournal)
    assert spool.items() == []
    spool.add(b"in memory")
    assert spool.collection.add("jobs", b"late, too", due=spool.clock.now() + 1000)
    spool.commit()
    spool.collection.tick()
    spool.start_with()
    assert {name: spool.files[name] for name in before} == before
    assert spool.items() == EVERYTHING
    spool.advance(1)
    assert spool.items() == [*EVERYTHING, b"late"]
    spool.close()


def test_a_new_journal_is_not_mixed_with_files_that_were_left_alone(tmp_path: Path) -> None:
    """A queue that is created anew waits for the next start, which loads them."""
    spool = Spool(tmp_path)
    spool.fill()
    assert spool.collection.add("jobs", b"late", due=spool.clock.now() + 1000)
    spool.commit()
    spool.close()
    spool.config = spool.settings(keep_journal=False)
    spool.open()
    spool.add(b"in memory")
    before = spool.files
    spool.change()
    assert spool.collection.delete("jobs")
    with pytest.raises(QueueUnavailable, match="files from another time, which the next start"):
        spool.queue()
    spool.change(keep_journal=False)
    spool.add(b"in memory")
    assert spool.files == before
    spool.start_with()
    assert spool.items() == EVERYTHING
    assert spool.queue().delayed == 1
    spool.close()


def test_fanout_only_takes_no_more_and_keeps_what_there_is(tmp_path: Path) -> None:
    """That stays readable, and in the journal, as what comes when it takes items again."""
    spool = Spool(tmp_path)
    spool.fill()
    child = spool.collection.obtain("jobs+copy")
    assert spool.change(fanout_only=True) == []
    assert spool.queue().add(b"new")
    spool.commit()
    assert [item_data(record) for record in child.backlog.browse(9)] == [b"new"]
    assert spool.items() == EVERYTHING[1:]
    spool.restart()
    assert spool.drain() == EVERYTHING
    assert spool.change() == []
    spool.add(b"kept")
    spool.kill()
    spool.close()
    assert items_on_disk(tmp_path) == [b"kept"]


@pytest.mark.parametrize("way", ["write", "large", "delay", "delete"])
def test_a_queue_that_is_created_fanout_only_has_no_file_before_it_takes_items(
    tmp_path: Path, way: str
) -> None:
    """From then on it has a journal like others."""
    spool = Spool(tmp_path, fanout_only=True)
    spool.add(b"to nobody")
    spool.collection.tick()
    assert set(spool.files) == {"~~lock"}
    assert spool.change() == []
    match way:
        case "write":
            spool.add(b"kept")
        case "large":
            spool.add(b"kept", bytes(LARGE_ITEM))
        case "delay":
            assert spool.collection.add("jobs", b"kept", due=spool.clock.now() + 1000)
            spool.commit()
        case "delete":
            assert spool.collection.delete("jobs")
            assert set(spool.files) == {"~~lock"}
            spool.add(b"kept")
    spool.kill()
    spool.advance(1)
    assert spool.items()[0] == b"kept"
    spool.close()


def test_the_first_write_of_a_journal_may_fail(tmp_path: Path) -> None:
    """The next one creates the file."""
    disk = CrashingDirectory.within(tmp_path)
    spool = Spool(disk.path, disk, fanout_only=True)
    spool.queue()
    spool.change()
    disk.break_steps("open jobs")
    assert spool.collection.add("jobs", b"refused")
    assert spool.collection.commits.commit()
    disk.mend()
    spool.add(b"kept")
    spool.kill()
    assert spool.items() == [b"kept"]
    spool.close()
