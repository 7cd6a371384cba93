"""Each row of `journal.life`: what follows, what is written, and how it is taken back."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from kestrelmq.format.describing import describe_records
from kestrelmq.format.records import item_data
from kestrelmq.journal.life import (
    ASIDE,
    CONFIRM,
    CONFIRM_KEPT,
    DROP,
    GIVE_BACK,
    GONE,
    HEAD_AGAIN,
    HELD,
    LEAVING,
    LIFE,
    LOSE,
    NEVER,
    PUT_ASIDE,
    READ,
    REMOVE,
    RESERVE,
    RESERVED,
    RETRYING,
    UNDO,
    WAITING,
    Row,
)
from kestrelmq.journal.open_read import OpenRead, ReserveTerms
from kestrelmq.queue.queue import Queue
from tests.support.crashing_directory import CrashingDirectory
from tests.support.local_queues import LocalQueues, queue_settings

pytestmark = pytest.mark.compiled


def held(queue: Queue) -> None:
    """Open a read."""
    queue.open_read()


def reserved(queue: Queue) -> None:
    """Reserve an item."""
    queue.reserve(ReserveTerms(60_000), 1, 1, 1)


def retrying(queue: Queue) -> None:
    """Open a read, and give it back with a delay."""
    queue.open_read()
    queue.give_back(list(queue.open), delay=60)


def aside(queue: Queue) -> None:
    """Set an item aside."""
    queue.put_aside(queue.backlog.take())


def leaving(queue: Queue) -> None:
    """Set an item aside, and begin to write it for another queue."""
    queue.put_aside(queue.backlog.take()).state = LEAVING


BEGIN: Final[dict[int, Callable[[Queue], object]]] = {
    WAITING: len,
    HELD: held,
    RESERVED: reserved,
    RETRYING: retrying,
    ASIDE: aside,
    LEAVING: leaving,
}
TAKE: Final[dict[int, Callable[[Queue], object]]] = {
    REMOVE: Queue.remove,
    DROP: lambda queue: queue.drop_taken(queue.backlog.take()),
    READ: held,
    PUT_ASIDE: aside,
}
END: Final[dict[tuple[int, int], Callable[[Queue, OpenRead], object]]] = {
    (CONFIRM, GONE): lambda queue, read: queue.confirm(read.xid),
    (CONFIRM_KEPT, GONE): lambda queue, read: queue.confirm(read.xid, kept=True),
    (GIVE_BACK, WAITING): lambda queue, read: queue.retry(read, counted=True),
    (LOSE, RETRYING): lambda queue, read: queue.retry(read, 60, counted=False),
    (LOSE, ASIDE): lambda queue, read: queue.take_over(read, counted=False),
}
# An item is reserved in the turn that opens it: see test_reserved_reads.
CASES: Final = [
    (state, row)
    for row in LIFE
    for state in row.states
    if row.undo != NEVER and row.event != RESERVE
]


def state_of(queue: Queue) -> int:
    """Return what has become of the item."""
    if queue.open:
        (read,) = queue.open.values()
        return read.state
    return WAITING if [item_data(one) for one in queue.browse(9)] == [b"a", b"b"] else GONE


@pytest.mark.parametrize(("state", "row"), CASES)
def test_a_row_of_the_table(tmp_path: Path, state: int, row: Row) -> None:
    """Whether or not what happens can be written."""
    disk = CrashingDirectory.within(tmp_path)
    spool = LocalQueues(queue_settings(disk.path), disk)
    spool.add(b"a")
    spool.add(b"b")
    queue = spool.queue()
    for fails in (True, False):
        BEGIN[state](queue)
        spool.commit()
        assert state_of(queue) == state
        if state == WAITING:
            TAKE[row.event](queue)
        else:
            (read,) = queue.open.values()
            if state == LEAVING and row.event != CONFIRM:
                queue.reads.forget_aside(read)
            END[row.event, row.next](queue, read)
        assert state_of(queue) == row.next
        written = [line.split()[0] for line in describe_records(b"".join(queue.changes.pending))]
        expected = row.records.replace(",", "").rpartition(")")[2].split()
        assert [one for one in written if one != "SAVE_XID"] == [
            one for one in expected if one != "HELD_BACK"
        ]
        if not fails:
            spool.commit()
            assert state_of(queue) == row.next
            break
        disk.break_steps("append")
        assert spool.collection.commits.commit()
        disk.mend()
        if UNDO[row.event] == HEAD_AGAIN:
            assert state_of(queue) == WAITING
            continue
        # Nobody moves an item any more whose read has lost its reader for that.
        back = HELD if state == LEAVING and row.event != CONFIRM else state
        assert state_of(queue) == back
        queue.check_deadlines()
        spool.commit()
        is_given_back = row.is_forgotten and back in {HELD, RETRYING}
        assert state_of(queue) == (WAITING if is_given_back else back)
        for xid in list(queue.open):
            queue.reads.forget_aside(queue.open[xid])
            queue.retry(queue.open[xid], counted=False)
        spool.commit()
    spool.close()


def test_an_event_is_taken_back_in_one_way() -> None:
    """Wherever it happens, so that what is taken back need not say where that was."""
    assert {(row.event, row.undo) for row in LIFE} == set(UNDO.items())
