"""Listing, opening and following journals in a store, as against the file system."""

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from kestrelmq.errors import ConfigError, JournalError, StorageError
from kestrelmq.format.records import AddX
from kestrelmq.spark.replay.noted_replay import delayed_items, finished_reads
from kestrelmq.spark.replay.read_plans import live_items, replay_in_order
from kestrelmq.spark.sources.journal_options import JournalStreamOptions
from kestrelmq.spark.sources.spool_follower import EVERYTHING, JournalDataLost, SpoolFollower
from kestrelmq.spark.storage.filesystems import JournalPath
from kestrelmq.spark.storage.locations import Location, located
from kestrelmq.spark.storage.opening import ENDS, open_copy, open_view
from kestrelmq.spark.storage.spool import SpoolFile, by_queue, check_apart, list_files
from tests.spark.spools import NOW, adds, random_spool
from tests.support.fake_clock import FakeClock
from tests.support.journal_bytes import encode
from tests.support.object_store import SECRET_KEY, ObjectStore


def location(store: ObjectStore, uri: str) -> Location:
    """Return a location in the store."""
    found = located(uri, store.options)
    assert isinstance(found, Location)
    return found


def data(*items: bytes) -> bytes:
    """Return a journal that adds items."""
    return b"".join(map(encode, adds(items)))


def read(file: SpoolFile) -> bytes:
    """Return the bytes that a task reads of a file that was listed."""
    return open_view(file).bytes.tobytes()


def told(files: Sequence[SpoolFile]) -> list[tuple[object, ...]]:
    """Return what does not depend on where files are."""
    return [(one.queue, one.name, one.size, one.last, one.is_current, one.newest) for one in files]


@pytest.fixture
def spool(store: ObjectStore, tmp_path: Path) -> tuple[Path, Location]:
    """Return a random spool, and its copy in the store."""
    random_spool(random.Random(5), tmp_path / "spool", 12)
    uri = store.copy(tmp_path / "spool", f"{tmp_path.name}/spool")
    return tmp_path / "spool", location(store, uri)


def test_a_spool_is_listed_as_on_a_disk(spool: tuple[Path, Location]) -> None:
    """With the same names, sizes and order; and every file has the same bytes."""
    local, stored = spool

    here, there = list_files(str(local)), list_files(stored)

    assert told(there) == told(here)
    assert [read(file) for file in there] == [read(file) for file in here]
    assert {file.spool for file in there} == {stored.uri}
    assert [file.path for file in there if file.queue.isalnum()] == [
        f"{stored.uri}/{Path(file.path).name}" for file in here if file.queue.isalnum()
    ]
    assert {file.location.path.rpartition("/")[0] for file in there if file.location} == {
        stored.path
    }


def test_queues_in_a_store_hold_what_those_on_a_disk_hold(spool: tuple[Path, Location]) -> None:
    """Item for item, by a plan that shows no secret."""
    local, stored = spool

    def replayed(place: JournalPath) -> list[tuple[object, ...]]:
        found: list[tuple[object, ...]] = []
        for files in by_queue(list_files(place)):
            plans = replay_in_order(files).plans()
            assert SECRET_KEY not in f"{plans}"
            for plan in plans:
                for view, items, ordinals in live_items(plan):
                    starts = zip(items.starts.tolist(), items.ends.tolist(), strict=True)
                    bytes_ = [view.bytes[begin:end].tobytes() for begin, end in starts]
                    found.append((plan.file.queue, plan.file.name, ordinals.tolist(), bytes_))
        return found

    assert replayed(stored) == replayed(str(local))


def test_a_file_is_a_path_and_a_glob_is_listed_level_by_level(
    store: ObjectStore, tmp_path: Path
) -> None:
    """As in the file system: also names that look like a glob, and hidden ones."""
    names = ["one/q", "one/q.1000", "two/q", "two/r", "two/q~~pack-1", ".hidden/q", "x[1]/q"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
        store.put(f"{tmp_path.name}/{name}", name.encode())
    root = f"s3://bucket/{tmp_path.name}"

    patterns = [
        "one",
        "one/q",
        "one/q.1000",
        "*",
        "*/q",
        "t*/[qr]",
        "*/q*",
        ".h*",
        "x[1]",
        "x[[]1]",
    ]
    for pattern in patterns:
        there = list_files(location(store, f"{root}/{pattern}"))
        assert told(there) == told(list_files(f"{tmp_path}/{pattern}")), pattern
        assert {file.spool.removeprefix(root) for file in there} == {
            file.spool.removeprefix(str(tmp_path)).replace("[", "%5B").replace("]", "%5D")
            for file in list_files(f"{tmp_path}/{pattern}")
        }


def test_what_is_not_there_is_a_missing_file(store: ObjectStore, tmp_path: Path) -> None:
    """A directory, a file, a glob without matches, a bucket; and a file with no journal's name."""
    root = f"s3://bucket/{tmp_path.name}"
    store.put(f"{tmp_path.name}/a.b.c", b"")

    for path in (f"{root}/none", f"{root}/n*/q", "s3://no-such-bucket/spool"):
        with pytest.raises(FileNotFoundError, match="no file or directory matches 's3://"):
            list_files(location(store, path))
    with pytest.raises(FileNotFoundError, match=r"a\.b\.c' does not have a journal's name"):
        list_files(location(store, f"{root}/a.b.c"))


def test_a_store_that_does_not_answer_is_no_missing_file(store: ObjectStore) -> None:
    """The error has the URI and the reason, and no secret."""
    options = {**store.options, "endpoint_override": "127.0.0.1:1"}

    with pytest.raises(StorageError, match=r"s3://bucket/spool: .*Failed to connect") as caught:
        list_files(located("s3://bucket/spool", options))

    assert SECRET_KEY not in str(caught.value)


def test_an_output_must_be_apart_in_a_store_too(store: ObjectStore, tmp_path: Path) -> None:
    """Not the queue path, in it, or around it; one of the file system always is."""
    root = f"s3://bucket/{tmp_path.name}"
    spool = location(store, f"{root}/spool")
    store.put(f"{tmp_path.name}/spool/q", b"")

    for path in ("spool", "spool/report", ""):
        with pytest.raises(ConfigError, match="must be apart from the journals in s3://"):
            check_apart(spool, location(store, f"{root}/{path}"))
    with pytest.raises(ConfigError, match="must be apart from the journals in s3://"):
        check_apart(spool, f"s3a{spool.uri[2:]}/report")  # as Spark has it
    check_apart(spool, location(store, f"{root}/report"))
    check_apart(spool, str(tmp_path / "spool"))


def test_a_file_that_grew_is_read_up_to_its_listed_size(store: ObjectStore, tmp_path: Path) -> None:
    """A shipper puts a longer object in its place."""
    store.put(f"{tmp_path.name}/q", b"listed")
    (file,) = list_files(location(store, f"s3://bucket/{tmp_path.name}"))
    store.put(f"{tmp_path.name}/q", b"listed and more")

    assert read(file) == b"listed"


def test_a_file_that_was_rotated_is_found_by_its_new_name(
    store: ObjectStore, tmp_path: Path
) -> None:
    """Not what has its name now, though that is longer, or gone; nor a file that is newer still."""
    name = tmp_path.name
    store.put(f"{name}/q.1000", b"older")
    store.put(f"{name}/q", b"listed")
    _, file = list_files(location(store, f"s3://bucket/{name}"))
    store.put(f"{name}/q.2000", b"listed, and more since")
    store.put(f"{name}/q.3000", b"another one")
    store.put(f"{name}/q", b"not listed")

    assert read(file) == b"listed"
    store.delete(f"{name}/q")
    assert read(file) == b"listed"
    store.put(f"{name}/q", b"not listed")
    store.delete(f"{name}/q.1000")  # there is a pack of it, and of what came next
    store.put(f"{name}/q.2000", b"pack of both")
    with pytest.raises(JournalError, match="packed away"):
        read(file)


def test_a_file_that_was_packed_away_is_an_error(store: ObjectStore, tmp_path: Path) -> None:
    """As in the file system; a pack that got its last name is found."""
    name = tmp_path.name
    store.put(f"{name}/q.1000.pack", b"pack")
    store.put(f"{name}/q.2000", b"gone")
    store.put(f"{name}/r", b"cut short")
    pack, gone, current = list_files(location(store, f"s3://bucket/{name}"))
    store.delete(f"{name}/q.1000.pack")
    store.put(f"{name}/q.1000", b"pack")
    store.delete(f"{name}/q.2000")
    store.put(f"{name}/r", b"cut")

    assert read(pack) == b"pack"
    with pytest.raises(JournalError, match=r"s3://bucket/.*/q\.2000: was packed away while"):
        read(gone)
    with pytest.raises(JournalError, match=r"/r: shrank from 9 to 3 bytes while it was read"):
        read(current)


def test_only_what_is_wanted_of_a_file_is_read(store: ObjectStore, tmp_path: Path) -> None:
    """And both ends of it; a copy on this machine has all of it."""
    store.put(f"{tmp_path.name}/q.5", b"x" * 100_000)
    (file,) = list_files(location(store, f"s3://bucket/{tmp_path.name}"))

    view = open_view(file, 90_000, begin=50_000)

    assert view.bytes.tobytes() == b"x" * ENDS + bytes(50_000 - ENDS) + b"x" * 40_000
    with os.fdopen(open_copy(file), "rb") as copy:
        assert copy.read() == b"x" * 100_000


class Followed:
    """A stream of a spool in a store, without Spark."""

    def __init__(self, place: JournalPath, *, fails_on_loss: bool = True) -> None:
        options = JournalStreamOptions(place, fails_on_loss=fails_on_loss, wait=0)
        self.follower = SpoolFollower(options, clock=FakeClock())
        self.offset = self.follower.initial_offset()

    def batch(self, room: int = EVERYTHING) -> list[bytes]:
        """Read a batch: items of one byte."""
        end = self.follower.latest_offset(self.offset, room)
        ranges = self.follower.ranges(self.offset, end) if end != self.offset else []
        self.offset = end
        found = []
        for one in ranges:
            view = one.open()
            for chunk in view.chunks(begin=one.file.begin):
                found += [view.bytes[end - 1 : end].tobytes() for end in chunk.ends[chunk.adds]]
        return found


def test_a_stream_follows_appends_rotation_packs_and_other_places(
    store: ObjectStore, tmp_path: Path
) -> None:
    """Each record once, over another reader that goes on at its offset, and on a disk."""
    name = tmp_path.name
    place = location(store, f"s3://bucket/{name}")
    torn = encode(AddX(NOW, 0, b"3"))
    store.put(f"{name}/q", data(b"1", b"2") + torn[:5])
    stream = Followed(place)

    assert stream.batch() == [b"1", b"2"]
    assert stream.batch() == []
    store.put(f"{name}/q", data(b"1", b"2") + torn + data(b"4"))
    assert stream.batch(1) == [b"3"]
    store.put(f"{name}/q.1000", data(b"1", b"2") + torn + data(b"4", b"5"))
    store.put(f"{name}/q", data(b"6"))
    again = Followed(place)
    again.offset = stream.offset
    assert again.batch() == stream.batch() == [b"4", b"5", b"6"]
    store.put(f"{name}/q.1000", data(b"5"))  # a pack
    store.put(f"{name}/q", data(b"6", b"7"))
    store.put(f"{name}/new", data(b"8"))
    assert sorted(stream.batch()) == [b"7", b"8"]

    for file in ("q", "new"):
        (tmp_path / file).write_bytes(store.get(f"{name}/{file}") + data(b"9"))
    (tmp_path / "q.1000").write_bytes(store.get(f"{name}/q.1000"))
    elsewhere = Followed(str(tmp_path))
    elsewhere.offset = stream.offset
    assert elsewhere.batch() == [b"9", b"9"]


def test_a_batch_that_is_read_again_is_the_same(store: ObjectStore, tmp_path: Path) -> None:
    """After a restart, though the files have other names by now; or it is lost, and says so."""
    name = tmp_path.name
    place = location(store, f"s3://bucket/{name}")
    store.put(f"{name}/q", data(b"1", b"2", b"3"))
    first = Followed(place)
    begin = first.offset
    first.batch()
    store.put(f"{name}/q.1000", data(b"1", b"2", b"3", b"4"))
    store.put(f"{name}/q", data(b"5"))

    (again,) = Followed(place).follower.ranges(begin, first.offset)
    assert (again.file.name, again.open().size) == ("q.1000", len(data(b"1", b"2", b"3")))

    store.delete(f"{name}/q.1000")
    with pytest.raises(JournalDataLost, match=f"{place.uri}: data of queue q was lost"):
        Followed(place).follower.ranges(begin, first.offset)
    store.delete(f"{name}/q")
    with pytest.raises(JournalDataLost, match="the queue path is gone"):
        first.batch()


def test_a_range_is_found_after_its_file_was_rotated(store: ObjectStore, tmp_path: Path) -> None:
    """A task may read it long after it was planned."""
    name = tmp_path.name
    store.put(f"{name}/q", data(b"1"))
    stream = Followed(location(store, f"s3://bucket/{name}")).follower
    begin = stream.initial_offset()
    (planned,) = stream.ranges(begin, stream.latest_offset(begin, EVERYTHING))
    store.put(f"{name}/q.1000", data(b"1", b"2"))
    store.put(f"{name}/q", data(b"3", b"4"))

    assert planned.open().bytes.tobytes() == data(b"1")

    store.delete(f"{name}/q.1000")
    with pytest.raises(JournalError, match="packed away"):
        planned.open()


def test_delayed_items_and_finished_reads_need_the_notes(
    store: ObjectStore, tmp_path: Path
) -> None:
    """They are replayed with the notes, from copies of the files."""
    from tests.spark.test_delayed import delayed_spool  # noqa: PLC0415 # needs Spark

    delayed_spool(tmp_path)
    place = location(store, store.copy(tmp_path, tmp_path.name))

    own, stored = (list(by_queue(list_files(path))) for path in (str(tmp_path), place))

    assert [_shown(files) for files in stored] == [_shown(files) for files in own]
    assert [finished_reads(files) for files in stored] == [finished_reads(files) for files in own]


def _shown(files: list[SpoolFile]) -> tuple[object, ...]:
    found = delayed_items(files)
    return found.records, [(file.name, at) for file, at in found.places], found.in_line
