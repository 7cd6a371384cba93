"""Planning the batches of a stream of journals, on files as servers and crashes leave them."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kestrelmq.errors import DamagedJournal, JournalError
from kestrelmq.format.records import (
    AddX,
    AddXid,
    Continue,
    Record,
    RemoveTentativeXid,
    SaveXid,
    StateDump,
)
from kestrelmq.spark.sources.journal_options import JournalStreamOptions
from kestrelmq.spark.sources.queue_choice import QueueChoice
from kestrelmq.spark.sources.spool_follower import (
    EVERYTHING,
    Backlog,
    FileRange,
    JournalDataLost,
    SpoolFollower,
)
from kestrelmq.spark.sources.stream_offsets import from_offset
from kestrelmq.spark.storage.opening import open_view
from kestrelmq.spark.storage.spool import QueueKey
from tests.spark.spools import NOW, adds, write
from tests.support.fake_clock import FakeClock
from tests.support.journal_bytes import encode

ONE = len(encode(AddX(NOW, 0, b"1")))


def items(ranges: Sequence[FileRange]) -> list[bytes]:
    """Return the data of the items in ranges, each of one byte, with their files' names."""
    found = []
    for one in ranges:
        view = one.open()
        for chunk in view.chunks(begin=one.file.begin):
            found += [view.bytes[end - 1 : end].tobytes() for end in chunk.ends[chunk.adds]]
    return found


class Stream:
    """A stream without Spark."""

    def __init__(self, pattern: Path | str, **options: Any) -> None:
        self.follower = SpoolFollower(JournalStreamOptions(str(pattern), wait=0, **options))
        self.offset = self.follower.initial_offset()

    def batch(self, room: int = EVERYTHING) -> list[bytes]:
        """Read a batch."""
        end = self.follower.latest_offset(self.offset, room)
        ranges = self.follower.ranges(self.offset, end) if end != self.offset else []
        self.offset = end
        return items(ranges)

    def again(self, pattern: Path | str, **options: Any) -> "Stream":
        """Return a stream that continues this one, in a process of its own."""
        other = Stream(pattern, **options)
        other.offset = self.offset
        return other


def append(path: Path, *records: Record, tail: bytes = b"") -> None:
    """Append to a file."""
    with path.open("ab") as file:
        file.write(b"".join(map(encode, records)) + tail)


def test_a_record_that_is_being_written_waits(tmp_path: Path) -> None:
    """It comes once it is whole; so does what a crash leaves of it never."""
    stream = Stream(tmp_path)
    record = encode(AddX(NOW, 0, b"2"))
    write(tmp_path / "q", adds([b"1"]), tail=record[:10])
    assert stream.batch() == [b"1"]
    assert stream.batch() == []
    append(tmp_path / "q", tail=record[10:])
    assert stream.batch() == [b"2"]


def test_batches_are_shared_fairly(tmp_path: Path) -> None:
    """A queue with much to read does not hold up the others; at least one record of each comes."""
    write(tmp_path / "a", adds([b"%d" % (number % 10) for number in range(50)]))
    for name in "bcd":
        write(tmp_path / name, adds([name.encode()]))
    stream = Stream(tmp_path)
    assert sorted(stream.batch(10 * ONE)) == sorted(
        [*(b"%d" % n for n in range(7)), b"b", b"c", b"d"]
    )
    assert stream.follower.backlog == Backlog(43 * ONE, 1, 1)
    assert len(stream.batch(1)) == 1
    assert len(stream.batch()) == 42
    assert stream.follower.backlog == Backlog()


def test_many_files_in_one_batch(tmp_path: Path) -> None:
    """Those that are small enough are not searched; the last one that fits in part is cut."""
    for number in range(5):
        write(tmp_path / f"q.{1000 + number}", adds([b"%d" % number] * 2))
    write(tmp_path / "q", adds([b"9"]))
    stream = Stream(tmp_path)
    assert stream.batch(5 * ONE) == [b"0", b"0", b"1", b"1", b"2"]
    assert stream.follower.backlog == Backlog(6 * ONE, 4, 1)
    assert stream.batch() == [b"2", b"3", b"3", b"4", b"4", b"9"]


def test_what_follows_a_state_dump_is_no_operation(tmp_path: Path) -> None:
    """It repeats open reads. The STATE_DUMP waits until its file is over."""
    stream = Stream(tmp_path)
    write(tmp_path / "q", adds([b"1"]))
    append(tmp_path / "q", StateDump(1, 1), AddXid(1, NOW, 0, b"x"))
    assert stream.batch() == [b"1"]
    assert stream.batch() == []
    (tmp_path / "q").rename(tmp_path / "q.1000")
    write(tmp_path / "q", adds([b"2"]))
    assert stream.batch(1) == []  # the STATE_DUMP itself
    assert stream.batch(1) == [b"2"]


def test_latest_is_where_the_stream_began(tmp_path: Path) -> None:
    """A first batch without rows notes it, so a query that starts again does not skip anything."""
    write(tmp_path / "q.1000", adds([b"1"]))
    write(tmp_path / "q", adds([b"2"]), tail=b"\x02")
    stream = Stream(tmp_path, starting="latest")
    first = stream.offset
    assert stream.batch() == []
    assert stream.offset != first
    assert stream.batch() == []
    append(tmp_path / "q", tail=encode(AddX(NOW, 0, b"3"))[1:])
    write(tmp_path / "new", adds([b"4"]))
    assert sorted(stream.again(tmp_path, starting="latest").batch()) == [b"3", b"4"]


@pytest.mark.parametrize(
    ("since", "expected"),
    [(0, "123456"), (NOW + 1, "23456"), (NOW + 10, "3456"), (NOW + 25, "6"), (NOW + 99, "")],
)
def test_from_a_time_on(tmp_path: Path, since: int, expected: str) -> None:
    """Files that ended before are skipped; then it begins at the first item of that time."""
    write(tmp_path / f"q.{NOW + 5}", adds([b"1", b"2"]))
    write(tmp_path / f"q.{NOW + 15}", [SaveXid(1), *adds([b"3", b"4"], at=NOW + 10)])
    write(tmp_path / f"q.{NOW + 23}", adds([b"5"], at=NOW + 20))
    write(tmp_path / "q", adds([b"6"], at=NOW + 30))
    assert b"".join(Stream(tmp_path, starting=since).batch()).decode() == expected


def test_from_a_time_on_in_files_that_are_only_numbered(tmp_path: Path) -> None:
    """A number that can be no time does not say that a file is old."""
    write(tmp_path / "q.1", adds([b"1", b"2"]))
    write(tmp_path / "q.2", adds([b"3"], at=NOW + 10))
    assert Stream(tmp_path, starting=NOW + 1).batch() == [b"2", b"3"]


def test_a_file_means_its_queue(tmp_path: Path) -> None:
    """Also while it has another name, or none; and a glob means the queues of the files."""
    spool = tmp_path / "spool"
    write(spool / "jobs", adds([b"1"]))
    write(spool / "more", adds([b"2"]))
    one, some = Stream(spool / "jobs"), Stream(spool / "job?")
    assert (one.batch(), some.batch()) == ([b"1"], [b"1"])
    (spool / "jobs").rename(spool / "jobs.1000")
    assert (one.batch(), some.batch()) == ([], [])
    write(spool / "jobs", adds([b"3"]))
    assert (one.batch(), some.batch()) == ([b"3"], [b"3"])


@pytest.mark.parametrize("starting", ["earliest", 0])
def test_queues_are_chosen(tmp_path: Path, starting: str | int) -> None:
    """What was begun is read on, whatever is chosen later."""
    for name in ("a1", "a2", "b"):
        write(tmp_path / name, adds([name[-1:].encode()]))
    stream = Stream(tmp_path, queues=QueueChoice.parse("a*"), starting=starting)
    assert sorted(stream.batch()) == [b"1", b"2"]
    write(tmp_path / "a3", adds([b"3"]))
    append(tmp_path / "a1", AddX(NOW, 0, b"4"))
    other = stream.again(tmp_path, queues=QueueChoice.parse("b"), starting=starting)
    assert sorted(other.batch()) == [b"4", b"b"]
    assert sorted(stream.batch()) == [b"3", b"4"]


@pytest.mark.parametrize("pattern", ["a", "[ab]"])
def test_a_stream_that_ends_by_itself_goes_on_in_files_with_new_names(
    tmp_path: Path, pattern: str
) -> None:
    """It reads what is there when it begins, also of queues no file of which has an old name."""
    write(tmp_path / "a", adds([b"1"]))
    write(tmp_path / "ab", adds([b"0"]))
    stream = Stream(tmp_path / pattern)
    assert stream.batch() == [b"1"]
    write(tmp_path / "b", adds([b"7"]))
    append(tmp_path / "a", AddX(NOW, 0, b"2"))
    (tmp_path / "a").rename(tmp_path / "a.1000")

    stream = stream.again(tmp_path / pattern)
    stream.follower.limit_to_present()

    assert stream.batch(ONE) == ([b"2"] if pattern == "a" else [b"2", b"7"])
    write(tmp_path / "a", adds([b"3"]))
    assert stream.batch() == []
    (tmp_path / "a").unlink()
    (tmp_path / "a.1000").unlink()
    (tmp_path / "b").unlink()
    (tmp_path / "ab").unlink()
    stream = stream.again(tmp_path / pattern)
    stream.follower.limit_to_present()
    with pytest.raises(JournalDataLost, match="the queue path is gone"):
        stream.batch()


def test_a_copy_continues_the_stream(tmp_path: Path) -> None:
    """Under another path, with other inode numbers; several queue paths, too."""
    for name in ("x", "y"):
        write(tmp_path / "a" / name / "q", adds([name.encode()]))
    stream = Stream(tmp_path / "a" / "*")
    assert sorted(stream.batch()) == [b"x", b"y"]
    for name in ("x", "y"):
        write(tmp_path / "b" / name / "q", adds([name.encode()]))
        append(tmp_path / "b" / name / "q", AddX(NOW, 0, name.upper().encode()))
    assert sorted(stream.again(tmp_path / "b" / "*").batch()) == [b"X", b"Y"]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_batch_is_read_again_beside_a_pack(tmp_path: Path, is_first: bool) -> None:  # noqa: FBT001
    """One that began with a file that is replaced by now, also where data was lost before."""
    stream = Stream(tmp_path, fails_on_loss=False)
    if not is_first:
        write(tmp_path / "q", adds([b"gone"]))
        stream.batch()
    write(tmp_path / "q", adds([b"1", b"2"]))
    start = stream.offset
    assert stream.batch() == [b"1", b"2"]
    (tmp_path / "q").rename(tmp_path / "q.2000")
    write(tmp_path / "q.2000.pack", adds([b"2"], at=NOW + 1))
    write(tmp_path / "q", adds([b"3"]))
    again = Stream(tmp_path).follower
    assert items(again.ranges(start, stream.offset)) == [b"1", b"2"]


def test_a_pack_that_another_replaces_is_read_on(tmp_path: Path) -> None:
    """A stream that is in it, or was just behind it, goes on in the files after it."""
    write(tmp_path / "q.1000", adds([b"0"]))
    write(tmp_path / "q.2000", adds([b"1"]))
    write(tmp_path / "q.2000.pack", adds([b"2", b"3"]))
    write(tmp_path / "q", adds([b"4"]))
    within, behind, whole = Stream(tmp_path), Stream(tmp_path), Stream(tmp_path)
    start = whole.offset
    assert within.batch(ONE) == [b"2"]
    assert behind.batch(2 * ONE) == [b"2", b"3"]
    assert whole.batch() == [b"2", b"3", b"4"]
    (tmp_path / "q").rename(tmp_path / "q.3000")
    write(tmp_path / "q.3000.pack", adds([b"5"]))
    write(tmp_path / "q", adds([b"6"]))
    (tmp_path / "q.1000").unlink()
    (tmp_path / "q.2000").unlink()
    assert within.batch() == [b"3", b"4", b"6"]
    assert behind.batch() == [b"4", b"6"]
    assert items(Stream(tmp_path).follower.ranges(start, whole.offset)) == [b"2", b"3", b"4"]


def test_a_queue_path_that_is_gone_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One of several that a glob matched; not so a queue that was deleted."""
    for name in ("x", "y"):
        write(tmp_path / name / "q", adds([name.encode()]))
        (tmp_path / name / "~~lock").touch()
    stream = Stream(tmp_path / "*")
    stream.batch()
    (tmp_path / "x" / "q").unlink()
    assert stream.batch() == []
    assert [*from_offset(stream.offset)] == [QueueKey("y", "q")]
    assert "x/q was deleted" in caplog.text
    (tmp_path / "y").rename(tmp_path.parent / "elsewhere")
    with pytest.raises(JournalDataLost, match="y/q was lost: the queue path is gone"):
        stream.batch()
    assert stream.again(tmp_path / "*", fails_on_loss=False).batch() == []


@pytest.mark.parametrize("pattern", ["spool", "spool/q", "sp*"])
def test_a_stream_that_may_lose_data_goes_on_without_its_queue_path(
    tmp_path: Path, pattern: str
) -> None:
    """As long as that is gone, although it knows no queue any more; and with what comes then."""
    write(tmp_path / "spool" / "q", adds([b"1"]))
    stream = Stream(tmp_path / pattern, fails_on_loss=False)
    assert stream.batch() == [b"1"]
    (tmp_path / "spool" / "q").unlink()
    (tmp_path / "spool").rmdir()
    for _ in range(2):
        assert stream.batch() == []
        stream = stream.again(tmp_path / pattern, fails_on_loss=False)
    write(tmp_path / "spool" / "q", adds([b"2"]))
    assert stream.batch() == [b"2"]


@pytest.mark.parametrize("pattern", ["spool", "spool/q", "sp*"])
def test_a_queue_path_that_is_away_for_a_while(tmp_path: Path, pattern: str) -> None:
    """Its queues do not count as deleted: when it is back, the stream goes on."""
    write(tmp_path / "spool" / "q", adds([b"1"]))
    stream = Stream(tmp_path / pattern)
    assert stream.batch() == [b"1"]
    (tmp_path / "spool").rename(tmp_path / "away")
    with pytest.raises(JournalDataLost, match="queue path is gone"):
        stream.batch()
    (tmp_path / "spool").mkdir()
    with pytest.raises(JournalDataLost, match="queue path is gone"):
        stream.batch()
    (tmp_path / "spool").rmdir()
    (tmp_path / "away").rename(tmp_path / "spool")
    append(tmp_path / "spool" / "q", AddX(NOW, 0, b"2"))
    assert stream.batch() == [b"2"]


def test_records_that_were_taken_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A server that could not write all cuts its file; the next records are new."""
    caplog.set_level(logging.WARNING)
    write(tmp_path / "q", adds([bytes(5000) + b"1", b"2"]))
    stream = Stream(tmp_path)
    assert stream.batch() == [b"1", b"2"]
    with (tmp_path / "q").open("r+b") as file:
        file.truncate((tmp_path / "q").stat().st_size - ONE)
    (tmp_path / "q").rename(tmp_path / "q.1000")
    write(tmp_path / "q", adds([b"3"]))
    assert stream.batch() == [b"3"]
    assert "taken back" in caplog.text


def test_damage_ends_a_file_wherever_the_batch_does(tmp_path: Path) -> None:
    """Whoever reads the range finds it, and the rest is not read as records."""
    write(
        tmp_path / "q.1000", adds([b"1", b"2"]), tail=b"\x63 no opcode" + encode(AddX(NOW, 0, b"3"))
    )
    write(tmp_path / "q", adds([b"4"]))
    stream = Stream(tmp_path)
    assert stream.batch(1) == [b"1"]
    end = stream.follower.latest_offset(stream.offset, 10 * ONE)
    bad, good = stream.follower.ranges(stream.offset, end)
    assert items([good]) == [b"4"]
    with pytest.raises(JournalError):
        items([bad])
    assert bad.file.begin == ONE


def test_a_continue_that_is_cut_short_is_no_state_dump(tmp_path: Path) -> None:
    """What says so is the dialect of the file, also of what was read of it before."""
    cut = encode(Continue(1, NOW, 0, b"put back"))[:12]
    write(tmp_path / "q.1000", [RemoveTentativeXid(1), *adds([b"1", b"2"])], tail=cut)
    write(tmp_path / "q", adds([b"3"]))
    stream = Stream(tmp_path)
    assert stream.batch(5 + ONE) == [b"1"]
    bad, _ = stream.follower.ranges(
        stream.offset, stream.follower.latest_offset(stream.offset, EVERYTHING)
    )
    with pytest.raises(DamagedJournal, match="cut short"):
        items([bad])


def test_a_file_that_is_replaced_between_plan_and_task(tmp_path: Path) -> None:
    """It is not read as what it was, even if it has the same inode number."""
    write(tmp_path / "q.1000", adds([b"1"]))
    stream = Stream(tmp_path)
    (one,) = stream.follower.ranges(stream.offset, stream.follower.latest_offset(stream.offset, 99))
    (tmp_path / "q.1000").write_bytes(encode(AddX(NOW, 0, b"2")))
    assert open_view(one.file).size == ONE
    with pytest.raises(JournalError, match="packed away"):
        one.open()


def test_a_thousand_queues_have_a_short_entry_each(tmp_path: Path) -> None:
    """However many files they have had; and those that are deleted have none."""
    tmp_path = tmp_path / "spool"
    for number in range(1000):
        write(tmp_path / f"queue{number}", adds([b"1"]))
    stream = Stream(tmp_path)
    assert len(stream.batch()) == 1000
    assert len(from_offset(stream.offset)) == 1000
    assert len(str(stream.offset)) < 150 * 1000
    for number in range(1000):
        (tmp_path / f"queue{number}").unlink()
    (tmp_path / "~~lock").touch()
    assert stream.batch() == []
    assert stream.offset == {"version": 1, "spools": {}}


def test_an_offset_of_another_source_is_refused() -> None:
    """Whatever it looks like."""
    for offset in ({}, {"version": 2, "spools": {}}, {"version": 1, "spools": {"a": {"q": 1}}}):
        with pytest.raises(ValueError, match=r"offset"):
            from_offset(offset)


class TickingClock(FakeClock):
    """A clock that goes on by `tick` seconds whenever it is looked at."""

    tick = 0.0

    def monotonic(self) -> float:
        """Return seconds since the clock was made."""
        self.advance(self.tick)
        return super().monotonic()


def test_how_often_the_driver_looks(tmp_path: Path) -> None:
    """Several times in the time that it waits; less often if a look takes long."""
    clock, pauses = TickingClock(), list[float]()
    write(tmp_path / "q", adds([b"1"]))
    options = JournalStreamOptions(str(tmp_path), wait=1.0)
    follower = SpoolFollower(options, clock=clock, pause=pauses.append)
    offset = follower.latest_offset(follower.initial_offset(), EVERYTHING)
    assert not pauses
    assert follower.latest_offset(offset, EVERYTHING) == offset
    assert pauses == [0.25] * 4
    clock.tick = 0.1
    assert follower.latest_offset(offset, EVERYTHING) == offset
    assert pauses[4:] == [pytest.approx(2.0)]
