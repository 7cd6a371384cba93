"""What clients have set for queues: the file `~~queues`, when it is written, and when it is bad."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrelmq.config import ServerConfig
from kestrelmq.engine import registry
from kestrelmq.engine.collection import QueueCollection
from kestrelmq.engine.paused import Paused
from kestrelmq.engine.registry import QueueEntry, QueueRegistry, declaration
from kestrelmq.errors import JournalError
from kestrelmq.journal.files import DiskDirectory
from tests.support.crashing_directory import CrashingDirectory
from tests.support.fake_clock import FakeClock
from tests.support.held_worker import HeldWorker
from tests.support.local_queues import LocalQueues

FILE = "~~queues"
READS = QueueEntry(Paused.READS)
CONTENT = (
    b'{"kestrelmq": "queues", "version": 1, "crc32": 3512753993}\n'
    b'{"name": "jobs", "paused": "reads"}\n'
    b'{"name": "caf\xc3\xa9", "paused": "all", "declared": {"max_items": 5, "keep_journal": '
    b"false}}\n"
)


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
        CONTENT[:-1],
        CONTENT[:20],
        CONTENT.replace(b"reads", b"write"),
        CONTENT.replace(b'"version": 1', b'"version": 2'),
        b"[" * 100_000,
        registry.encode([b"not JSON\n"]),
        registry.encode([b"[]\n"]),
        registry.encode([b'{"paused": "reads"}\n']),
        registry.encode([b'{"name": "../jobs", "paused": "reads"}\n']),
        registry.encode([b'{"name": "jobs", "paused": "some"}\n']),
        registry.encode([b'{"name": "jobs", "paused": 1}\n']),
        registry.encode([b'{"name": "jobs", "other": 1}\n']),
        registry.encode([b'{"name": "jobs", "declared": {"max_size": 1}}\n']),
        registry.encode([b'{"name": "jobs", "declared": {"max_items": -1}}\n']),
        registry.encode([b'{"name": "jobs", "declared": 5}\n']),
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
    assert b"jobs" not in (tmp_path / FILE).read_bytes()
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
