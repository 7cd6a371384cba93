"""What clients have set for queues: the file `~~queues`, when it is written, and when it is bad."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrelmq.config import ServerConfig
from kestrelmq.disk.directories import DiskDirectory
from kestrelmq.errors import JournalError
from kestrelmq.queue.paused import Paused
from kestrelmq.queues import registry
from kestrelmq.queues.collection import QueueCollection
from kestrelmq.queues.registry import QueueEntry, QueueRegistry, declaration
from tests.support.crashing_directory import CrashingDirectory
from tests.support.fake_clock import FakeClock
from tests.support.held_worker import HeldWorker
from tests.support.local_queues import LocalQueues
from tests.support.recording_directory import Append, RecordingDirectory

FILE = "~~queues"
READS = QueueEntry(Paused.READS)
CONTENT = (
    b'{"kestrelmq": "queues", "version": 1}\n'
    b'a48698f3 {"name": "jobs", "paused": "reads"}\n'
    b'72d8df50 {"name": "caf\xc3\xa9", "paused": "all", "declared": {"max_items": 5, '
    b'"keep_journal": false}}\n'
)
LINE = registry.checked_line


def failures(kept: QueueRegistry) -> list[JournalError | None]:
    """Save, and return what is told."""
    told: list[JournalError | None] = []
    kept.save(told.append)
    return told


def test_the_file_is_as_documented(tmp_path: Path) -> None:
    """Byte for byte; it is read as it was written."""
    kept = QueueRegistry(DiskDirectory(tmp_path), FakeClock())
    kept.put("jobs", READS)
    kept.put("café", QueueEntry(Paused.ALL, declaration({"max_items": 5, "keep_journal": False})))
    assert failures(kept) == [None]
    assert (tmp_path / FILE).read_bytes() == CONTENT
    again = QueueRegistry(DiskDirectory(tmp_path), FakeClock())
    again.load()
    assert (again.entry("jobs"), again.entry("café").paused) == (READS, Paused.ALL)
    assert [file.name for file in tmp_path.iterdir()] == [FILE]


def test_nothing_is_written_while_nothing_is_set(tmp_path: Path) -> None:
    """Not even by a resume or a deletion; what does not change is not written again."""
    spool = LocalQueues(ServerConfig(queue_path=tmp_path))
    spool.add(b"x")
    spool.collection.resume("jobs", Paused.ALL)
    assert failures(spool.collection.registry) == [None]
    spool.collection.delete("jobs")
    spool.restart()
    assert not (tmp_path / FILE).exists()
    spool.close()


def test_one_write_serves_all_that_wait(tmp_path: Path) -> None:
    """Those who came while the file was being written wait for the next one."""
    worker, told = HeldWorker(), list[str]()
    kept = QueueRegistry(DiskDirectory(tmp_path), FakeClock())
    kept.worker = worker
    for name in ("first", "second", "third"):
        kept.put(name, READS)
        kept.save(lambda _failure, name=name: told.append(name))  # type: ignore[misc]
    assert worker.step()
    assert told == ["first"]
    assert worker.step()
    assert told == ["first", "second", "third"]
    assert not worker.step()


def test_what_waits_for_a_write_that_did_it_too_is_told_at_once(tmp_path: Path) -> None:
    """A second write would change nothing."""
    worker, told = HeldWorker(), list[str]()
    kept = QueueRegistry(DiskDirectory(tmp_path), FakeClock())
    kept.worker = worker
    kept.put("jobs", READS)
    kept.save(lambda _failure: told.append("first"))
    kept.save(lambda _failure: told.append("second"))
    assert (worker.step(), worker.step()) == (True, False)
    assert told == ["first", "second"]


def test_a_write_that_fails_is_told_and_tried_again(tmp_path: Path) -> None:
    """What is set is in force; the file is the old one, and no temporary is left."""
    directory = CrashingDirectory.within(tmp_path)
    kept = QueueRegistry(directory, FakeClock())
    kept.put("jobs", READS)
    assert failures(kept) == [None]
    before = (tmp_path / "queues" / FILE).read_bytes()
    kept.put("jobs", QueueEntry(Paused.ALL))
    directory.break_steps()
    (failure,) = failures(kept)
    directory.mend()
    assert "could not be saved in ~~queues" in str(failure)
    assert kept.entry("jobs").paused is Paused.ALL
    assert (tmp_path / "queues" / FILE).read_bytes() == before
    assert failures(kept) == [None]
    assert b'"paused": "all"' in (tmp_path / "queues" / FILE).read_bytes()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 50,
        CONTENT[:20],
        CONTENT[:36],
        CONTENT.replace(b"reads", b"write"),
        CONTENT.replace(b'"version": 1', b'"version": 2'),
        b"[" * 100_000,
        registry.encode([LINE(b"not JSON")]),
        registry.encode([LINE(b"[]")]),
        registry.encode([LINE(b'{"paused": "reads"}')]),
        registry.encode([LINE(b'{"name": "../jobs", "paused": "reads"}')]),
        registry.encode([LINE(b'{"name": "jobs", "paused": "some"}')]),
        registry.encode([LINE(b'{"name": "jobs", "paused": 1}')]),
        registry.encode([LINE(b'{"name": "jobs", "other": 1}')]),
        registry.encode([LINE(b'{"name": "jobs", "declared": {"max_size": 1}}')]),
        registry.encode([LINE(b'{"name": "jobs", "declared": {"max_items": -1}}')]),
        registry.encode([LINE(b'{"name": "jobs", "declared": 5}')]),
    ],
)
def test_a_damaged_file_is_kept_aside_and_no_item_is_lost(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The server starts, with a warning; nothing is paused."""
    spool = LocalQueues(ServerConfig(queue_path=tmp_path))
    spool.add(b"kept")
    spool.close()
    (tmp_path / FILE).write_bytes(content)
    spool.open()
    assert (spool.items(), spool.collection.damaged) == ([b"kept"], {})
    (aside,) = tmp_path.glob("~~queues~~damaged-*")
    assert aside.read_bytes() == content
    assert not (tmp_path / FILE).exists()
    assert "~~queues cannot be used" in caplog.text
    assert spool.take() == b"kept"
    spool.close()


def test_a_damaged_file_that_cannot_be_renamed_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It stays until it can be, and the log says why."""
    (tmp_path / "queues").mkdir()
    (tmp_path / "queues" / FILE).write_bytes(b"damaged")
    directory = CrashingDirectory.within(tmp_path)
    kept = QueueRegistry(directory, FakeClock())
    directory.break_steps("rename")
    kept.load()
    assert "~~queues cannot be renamed: " in caplog.text
    assert directory.names() == [FILE]
    directory.mend()
    QueueRegistry(directory, FakeClock()).load()
    (aside,) = directory.names()
    assert aside.startswith("~~queues~~damaged-")


def test_a_file_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    """It stays, and so do the pauses: a later start finds them."""
    spool = LocalQueues(ServerConfig(queue_path=tmp_path))
    spool.add(b"kept")
    spool.collection.pause("jobs", Paused.READS)
    assert failures(spool.collection.registry) == [None]
    spool.close()
    before = (tmp_path / FILE).read_bytes()

    def unreadable(name: str) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)

    directory = DiskDirectory(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DiskDirectory, "open", lambda _, name: unreadable(name))
        collection = QueueCollection(ServerConfig(queue_path=tmp_path), FakeClock(), directory)
        with pytest.raises(PermissionError, match="clients have set for queues cannot be read"):
            collection.open()
    collection.open()
    assert str(collection.registry.entry("jobs").paused) == "reads"
    collection.close()
    assert (tmp_path / FILE).read_bytes() == before


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_line_that_a_crash_cut_short_is_dropped(tmp_path: Path, cut: int) -> None:
    """Nobody was told that it was saved; what is set later is saved as ever."""
    head, first, last = CONTENT.splitlines(keepends=True)
    (tmp_path / FILE).write_bytes(head + last + first[:-cut])
    for paused in ("", "all"):
        kept = QueueRegistry(DiskDirectory(tmp_path), FakeClock())
        kept.load()
        assert str(kept.entry("café").paused) == "all"
        assert str(kept.entry("jobs").paused) == ("reads" if cut == 1 and not paused else paused)
        kept.put("jobs", QueueEntry(Paused.ALL))
        assert failures(kept) == [None]
        kept.close()
    assert [file.name for file in tmp_path.iterdir()] == [FILE]


def test_a_change_costs_no_more_than_its_own_line(tmp_path: Path) -> None:
    """The file is written anew when it has doubled, which many changes share."""
    directory = RecordingDirectory(tmp_path)
    kept = QueueRegistry(directory, FakeClock())
    for number in range(500):
        kept.put(f"queue-{number}", READS)
    assert failures(kept) == [None]
    before = (tmp_path / FILE).stat().st_size
    for number in range(5000):
        kept.put("queue-7", QueueEntry(Paused.ALL if number % 2 else Paused.WRITES))
        assert failures(kept) == [None]
        assert (tmp_path / FILE).stat().st_size <= 2 * before + (65 << 10)
    appended = [one for one in directory.operations if isinstance(one, Append)]
    lines = 5000 * len(registry.encode_entry("queue-7", QueueEntry(Paused.WRITES)))
    assert sum(len(one.data) for one in appended) < 2 * lines
    again = QueueRegistry(DiskDirectory(tmp_path), FakeClock())
    again.load()
    assert len(registry.decode((tmp_path / FILE).read_bytes())) == 500
    assert again.entry("queue-7").paused is Paused.ALL
    kept.close()


def test_a_file_that_others_removed_is_written_anew(tmp_path: Path) -> None:
    """With all that is set."""
    directory = DiskDirectory(tmp_path)
    kept = QueueRegistry(directory, FakeClock())
    for name in ("first", "second", "third"):
        kept.put(name, READS)
        (tmp_path / FILE).unlink(missing_ok=True)
        directory.recheck({FILE})
        assert failures(kept) == [None]
    kept.close()
    assert set(registry.decode((tmp_path / FILE).read_bytes())) == {"first", "second", "third"}


def test_a_link_is_not_followed_but_set_aside(tmp_path: Path) -> None:
    """It could lead anywhere."""
    outside = tmp_path / "outside"
    outside.write_bytes(CONTENT)
    path = tmp_path / "queues"
    path.mkdir()
    (path / FILE).symlink_to(outside)
    collection = QueueCollection(ServerConfig(queue_path=path), FakeClock())
    collection.open()
    assert not collection.registry.entry("jobs").paused
    assert outside.read_bytes() == CONTENT
    assert [file.is_symlink() for file in path.glob("~~queues~~damaged-*")] == [True]
    collection.close()


def test_a_deleted_queue_is_forgotten_before_its_deletion_is_told(tmp_path: Path) -> None:
    """So a new queue of its name is not paused, nor is it after a restart."""
    spool = LocalQueues(ServerConfig(queue_path=tmp_path))
    spool.queue()
    spool.collection.pause("jobs", Paused.ALL)
    assert failures(spool.collection.registry) == [None]
    worker = spool.collection.registry.worker = HeldWorker()
    told: list[JournalError | None] = []
    spool.collection.deletions.begin(spool.queue(), told.append)
    assert (told, str(spool.queue().paused)) == ([], "")
    assert worker.step()
    assert told == [None]
    assert registry.decode((tmp_path / FILE).read_bytes()) == {}
    spool.close()


names = st.text(
    st.characters(categories=["L", "N", "P", "S"], exclude_characters="/~.+"),
    min_size=1,
    max_size=40,
)


@given(st.dictionaries(names, st.sampled_from([Paused.READS, Paused.WRITES, Paused.ALL])))
def test_what_is_encoded_is_decoded(paused: dict[str, Paused]) -> None:
    """Whatever the names are."""
    entries = {name: QueueEntry(what) for name, what in paused.items()}
    lines = [registry.encode_entry(name, entry) for name, entry in entries.items()]
    assert registry.decode(registry.encode(lines)) == entries


@given(st.dictionaries(names, st.just(READS), max_size=5), st.data())
def test_a_changed_byte_is_noticed(entries: dict[str, QueueEntry], data: st.DataObject) -> None:
    """Wherever it is, unless the file says the same."""
    lines = [registry.encode_entry(name, entry) for name, entry in entries.items()]
    content = bytearray(registry.encode(lines))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    try:
        found = registry.decode(bytes(content))
    except ValueError:
        return
    assert found == entries
