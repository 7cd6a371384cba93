"""Journals that end within the records that finish the reads of a tag."""

from pathlib import Path

import pytest

from kestrelmq.format.records import AddX, ConfirmRemove, RemoveTentative
from kestrelmq.journal.open_read import ReserveTerms
from kestrelmq.journal.reserved_reads import done_note, reserved_note
from kestrelmq.spark.replay.read_plans import (
    ReplayedQueue,
    replay_in_order,
    replay_in_parallel,
    summarise,
)
from kestrelmq.spark.storage.spool import list_files
from tests.spark.spools import NOW, adds, load
from tests.support.journal_bytes import encode

READS = (1, 2, 3)
OPENED = b"".join(map(encode, [*adds([b"a", b"b", b"c", b"d", b"e"]), *[RemoveTentative()] * 4]))
RESERVED = reserved_note(7, ReserveTerms(600_000, tag="sink:1:0"), READS, 4)
DONE = done_note("sink:1:0", len(READS), 4)
CONFIRMED = b"".join(encode(ConfirmRemove(xid)) for xid in READS)


def replayed(spool: Path) -> list[ReplayedQueue]:
    """Replay the only queue of a queue path, in both ways."""
    files = list_files(str(spool))
    parallel = replay_in_parallel([files], lambda tasks: [summarise(task) for task in tasks])
    return [replay_in_order(files), *parallel]


@pytest.mark.parametrize("rotated", [False, True])
def test_reads_are_finished_wherever_the_journal_is_cut(tmp_path: Path, *, rotated: bool) -> None:
    """Spark has the open reads that a server loads; the finished ones are known as such."""
    whole = OPENED + RESERVED + DONE + CONFIRMED
    begin = len(OPENED + RESERVED)
    for end in range(begin, len(whole) + 1):
        torn = (end - begin) % 5
        if rotated and torn:
            continue  # a server rotates a file only where it is whole
        (tmp_path / ("q.5" if rotated else "q")).write_bytes(whole[:end])
        if rotated:
            (tmp_path / "q").write_bytes(b"")
        expected = [one.xid for one in load(tmp_path)["q"] if one.xid is not None]
        confirmed = max(0, end - begin - len(DONE)) // 5

        for queue in replayed(tmp_path):
            assert sorted(queue.end.open) == expected
            assert sorted(queue.finished) == list(range(confirmed, 4 - len(expected)))


def test_later_records_and_other_journals_are_no_such_end(tmp_path: Path) -> None:
    """Whatever follows, all reads that are open are open; also where an item looks like a note."""
    for tail in (CONFIRMED + encode(AddX(NOW, 0, b"later")), CONFIRMED):
        (tmp_path / "q").write_bytes(OPENED + RESERVED + DONE + tail)
        for queue in replayed(tmp_path):
            assert (dict(queue.end.open), queue.finished) == ({4: 3}, ())
    for last in (encode(AddX(NOW, 0, DONE)), encode(AddX(NOW, 0, DONE[:20])), DONE[:-5]):
        (tmp_path / "q").write_bytes(OPENED + last)
        for queue in replayed(tmp_path):
            assert (sorted(queue.end.open), queue.finished) == ([1, 2, 3, 4], ())
