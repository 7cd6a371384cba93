"""Each row of `journal.life`: memory, the bytes that are written, what reads them, and the undo.

The bytes are replayed, and told by `journal dump` and by Spark's history of items.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.errors import JournalError
from kestrelmq.format.records import (
    Add,
    AddX,
    AddXid,
    Continue,
    Record,
    RemoveTentative,
    RemoveTentativeXid,
    item_data,
    item_deliveries,
)
from kestrelmq.format.scanning import scan
from kestrelmq.journal import life
from kestrelmq.journal.life import (
    ADD,
    ASIDE,
    CONFIRM,
    CONFIRM_KEPT,
    DELAY,
    DELAYED,
    DELAYED_AGAIN,
    DROP,
    EVENTS,
    FINISH,
    FLUSH,
    GIVE_BACK,
    HEAD_AGAIN,
    HELD,
    HOLD_BACK,
    JOIN,
    LEAVING,
    LIFE,
    LOSE,
    NEXT,
    NOWHERE,
    OLD_TERMS,
    OPEN_AGAIN,
    PUT_ASIDE,
    READ,
    REFUSE,
    REMOVE,
    RENEW,
    RESERVE,
    RESERVED,
    RESTART,
    RETIRE,
    RETRYING,
    STATES,
    UNADDED,
    UNDO,
    UNDOES,
    UNRESERVED,
    WAITING,
    WITH_READ,
    WRITE,
    Row,
    noted_row,
)
from kestrelmq.journal.open_read import OpenRead, ReserveTerms
from kestrelmq.journal.replay import Replay
from kestrelmq.queue.paused import Paused
from kestrelmq.queue.queue import Queue
from kestrelmq.scheduling.worker import LARGE_ITEM
from kestrelmq.spark.replay.item_history import add_times, item_events, trace_tasks
from kestrelmq.spark.replay.read_plans import replay_in_order
from kestrelmq.spark.storage.spool import list_files
from kestrelmq.tools.dump import describe, entries
from kestrelmq.tools.journal_files import select
from tests.support.crashing_directory import CrashingDirectory
from tests.support.held_worker import HeldWorker
from tests.support.journal_bytes import NUMBERED_SINCE as NOW
from tests.support.journal_bytes import journal
from tests.support.local_queues import LocalQueues, queue_settings
from tests.support.open_reads import open_read

pytestmark = pytest.mark.compiled

TERMS: Final = ReserveTerms(60_000, tag="step:1:0")
OTHER_TERMS: Final = ReserveTerms(50_000, tag="step:1:0")


def held(queue: Queue) -> None:
    """Open a read."""
    open_read(queue)


def reserved(queue: Queue) -> None:
    """Reserve an item."""
    queue.reserved.reserve(TERMS, 1, 1, 1)


def retrying(queue: Queue) -> None:
    """Open a read, and give it back with a delay."""
    open_read(queue)
    queue.returns.give_back(list(queue.reads.open), delay=60)


def aside(queue: Queue) -> None:
    """Set an item aside."""
    queue.reads.put_aside(queue.backlog.take())


def leaving(queue: Queue) -> None:
    """Set an item aside that was delivered, and begin to write it for another queue."""
    open_read(queue)
    queue.reads.take_over(*queue.reads.open.values(), counted=True).state = LEAVING


def delayed(queue: Queue) -> None:
    """Add an item that is due in a minute."""
    queue.add(b"a", due=queue.state.clock.now() + 60_000)


BEGIN: Final[dict[int, Callable[[Queue], object]]] = {
    NOWHERE: len,
    DELAYED: delayed,
    WAITING: len,
    HELD: held,
    RESERVED: reserved,
    RETRYING: retrying,
    ASIDE: aside,
    LEAVING: leaving,
}
TAKE: Final[dict[int, Callable[[Queue], object]]] = {
    ADD: lambda queue: queue.add(b"a"),
    DELAY: delayed,
    JOIN: lambda queue: queue.adding.join_next(queue.backlog.delayed),  # type: ignore[arg-type]
    REMOVE: lambda queue: queue.line.remove(),
    DROP: lambda queue: queue.changes.drop(queue.backlog.take()),
    READ: held,
    PUT_ASIDE: aside,
    RESERVE: reserved,
    HOLD_BACK: lambda queue: queue.reads.hold_back((queue.line.hold_head(),)),
    RENEW: lambda queue: queue.reserved.again(OTHER_TERMS),
    FINISH: lambda queue: queue.reserved.finish(TERMS.tag),
    RETIRE: lambda queue: queue.reserved.retire("step", 1),
}
END: Final[dict[tuple[int, int], Callable[[Queue, OpenRead, Row], object]]] = {
    (CONFIRM, NOWHERE): lambda queue, read, _: queue.reads.confirm(read.xid),
    (CONFIRM_KEPT, NOWHERE): lambda queue, read, _: queue.reads.confirm(read.xid, kept=True),
    (GIVE_BACK, WAITING): lambda queue, read, row: queue.reads.retry(read, counted=row.counted),
    (LOSE, RETRYING): lambda queue, read, row: queue.reads.retry(read, 60, counted=row.counted),
    (LOSE, ASIDE): lambda queue, read, row: queue.reads.take_over(read, counted=row.counted),
}
CASES: Final = [(state, row) for row in LIFE for state in row.states]
WRITTEN: Final = [one for one in CASES if one[1].records and one[1].event not in {RESTART, FLUSH}]
UNWRITTEN: Final = [one for one in CASES if one[1].event == LOSE and not one[1].records]
IN_ONE_TURN: Final = {RESERVE, HOLD_BACK}
"""Events that come in the turn that opens the read."""
NOTES: Final = {
    "was delayed, as number": "JOINED",
    "is delayed until": "DELAYED",
    "delayed items are dropped": "FLUSHED",
    "does not count": "UNCOUNTED",
    "are reserved": "RESERVED",
    "not reserved any more": "UNRESERVED",
    "are held back": "HELD_BACK",
    "is done": "DONE",
    "are retired": "RETIRED",
}
"""The kind of each note, by what `journal dump` says of it."""
FATES: Final = {
    "REMOVE": REMOVE,
    "REMOVE_TENTATIVE": READ,
    "REMOVE_TENTATIVE_XID": READ,
    "CONFIRM_REMOVE": CONFIRM,
    "UNREMOVE": GIVE_BACK,
}
"""What Spark tells of an item for each record."""


def opened(
    tmp_path: Path, state: int, row: Row, dialect: str = "documented"
) -> tuple[LocalQueues, CrashingDirectory]:
    """Return queues and their disk: an item `a` is in this state; `b` waits, unless of a flush."""
    disk = CrashingDirectory.within(tmp_path)
    spool = LocalQueues(queue_settings(disk.path, journal_dialect=dialect), disk)
    if state not in {NOWHERE, DELAYED}:
        spool.add(b"a")
    if row.event != FLUSH:
        spool.add(b"b")
    if row.event not in IN_ONE_TURN:
        BEGIN[state](spool.queue())
        if state == LEAVING and not row.counted:
            spool.queue().reads.hold_back(list(spool.queue().reads.open))
        spool.commit()
    return spool, disk


def replayed(records: bytes) -> Replay:
    """Return what the records of a file replay to."""
    state, starts = Replay(), list[int]()
    end = scan(records, 0, len(records), starts)
    state.feed(records, starts, end)
    state.end()
    return state


def do(queue: Queue, state: int, row: Row) -> None:
    """Do what a row says."""
    if row.event in TAKE:
        TAKE[row.event](queue)
        return
    (read,) = queue.reads.open.values()
    if state == LEAVING and row.event != CONFIRM:
        queue.reads.forget_aside(read)
    END[row.event, row.next](queue, read, row)


def state_of(queue: Queue) -> int:
    """Return what has become of the item."""
    if queue.reads.open:
        (read,) = queue.reads.open.values()
        return read.state
    if queue.delayed_items:
        return DELAYED
    return WAITING if b"a" in waiting_in(queue) else NOWHERE


def waiting_in(queue: Queue) -> list[bytes]:
    """Return the items that wait."""
    return [item_data(one) for one in queue.backlog.browse(9)]


def told_by_dump(path: Path) -> list[str]:
    """Return the operations of a journal, as `journal dump` tells them."""
    told = []
    for entry in entries(select([path])[0]):
        line = describe(entry)
        kind = [kind for text, kind in NOTES.items() if text in line]
        if kind:
            told += kind
        elif not line.startswith("SAVE_XID"):
            told.append(line.split()[0])
    return told


def told_by_spark(path: Path) -> list[int]:
    """Return what has happened to items according to Spark."""
    files = list_files(str(path))
    tasks = trace_tasks(files, replay_in_order(files).starts, [add_times(file) for file in files])
    return [
        event
        for task in tasks
        for batch in item_events(task)
        for event in batch["fate"].to_pylist()
    ]


def state_replayed(state: Replay) -> int:
    """Return what has become of the item according to a journal."""
    for read in state.open.values():
        return read.state
    if state.delayed is not None and len(state.delayed):
        return DELAYED
    return WAITING if b"a" in map(item_data, state.memory) else NOWHERE


def check_journal(path: Path, row: Row, before: bytes, dialect: str = "documented") -> None:
    """Check what was written since `before`, and what reads it."""
    content = (path / "jobs").read_bytes()
    assert content.startswith(before)
    records = ["REMOVE_TENTATIVE"] * (row.event in IN_ONE_TURN) + list(row.records)
    if dialect == "kestrel-2":
        records = [name.replace("TENTATIVE", "TENTATIVE_XID") for name in records]
    earlier = path.parent / "earlier"
    earlier.mkdir()
    (earlier / "jobs").write_bytes(before)
    assert told_by_dump(path) == told_by_dump(earlier) + records
    fates = [FATES[name] for name in records if name in FATES]
    assert told_by_spark(path) == told_by_spark(earlier) + fates
    last = row.records[-1]
    becomes = noted_row(last).next if last in NOTES.values() else row.next
    state = replayed(content)
    assert state_replayed(state) == becomes
    if last in {"HELD_BACK", "UNRESERVED", "RESERVED"}:
        assert [read.is_counted for read in state.open.values()] == [row.counted]
    elif last == "UNREMOVE":
        assert item_deliveries(state.memory[0]) == row.counted


@pytest.mark.parametrize("dialect", ["documented", "kestrel-2"])
@pytest.mark.parametrize(("state", "row"), WRITTEN)
def test_a_row_is_done(tmp_path: Path, state: int, row: Row, dialect: str) -> None:
    """Memory has what follows, the journal what is written, and all readers know it."""
    spool, disk = opened(tmp_path, state, row, dialect)
    queue = spool.queue()
    assert state_of(queue) == (WAITING if row.event in IN_ONE_TURN else state)
    before = (disk.path / "jobs").read_bytes()
    do(queue, state, row)
    assert state_of(queue) == row.next
    spool.commit()
    assert state_of(queue) == row.next
    for read in queue.reads.open.values():
        assert read.is_counted == row.counted
    if row.next == WAITING and state not in {NOWHERE, DELAYED}:
        assert waiting_in(queue) == [b"a", b"b"]
        assert [item_deliveries(one) for one in queue.backlog.browse(9)] == [row.counted, 0]
    check_journal(disk.path, row, before, dialect)
    spool.close()


@pytest.mark.parametrize(("state", "row"), WRITTEN)
def test_a_row_is_taken_back(tmp_path: Path, state: int, row: Row) -> None:
    """When it cannot be written; if the reader knows its read no more, that is given back."""
    spool, disk = opened(tmp_path, state, row)
    queue = spool.queue()
    do(queue, state, row)
    assert state_of(queue) == row.next
    disk.break_steps("append")
    assert spool.collection.commits.commit()
    disk.mend()
    # Nobody moves an item any more whose read has lost its reader for that.
    back = HELD if state == LEAVING and row.event != CONFIRM else state
    assert state_of(queue) == (WAITING if row.event in IN_ONE_TURN else back)
    assert UNDO[row.event] in {
        NOWHERE: {UNADDED},
        WAITING: {HEAD_AGAIN},
        DELAYED: {DELAYED_AGAIN},
    }.get(state, {OPEN_AGAIN, UNRESERVED, WITH_READ, OLD_TERMS})
    if UNDO[row.event] == OLD_TERMS:
        assert queue.reads.reserved.by_tag[TERMS.tag].terms == TERMS
    if UNDO[row.event] == HEAD_AGAIN:
        assert waiting_in(queue) == [b"a", b"b"]
    if row.event not in IN_ONE_TURN:
        queue.check_deadlines()
        spool.commit()
        is_given_back = row.is_forgotten and back in {HELD, RETRYING}
        assert state_of(queue) == (WAITING if is_given_back else back)
    if state_of(queue) == state or row.event in IN_ONE_TURN:
        do(queue, state, row)
        spool.commit()
        assert state_of(queue) == row.next
    spool.close()


@pytest.mark.parametrize(("state", "row"), UNWRITTEN)
def test_a_row_without_records(tmp_path: Path, state: int, row: Row) -> None:
    """For the journal, nothing happens."""
    spool, disk = opened(tmp_path, state, row)
    before = (disk.path / "jobs").read_bytes()
    do(spool.queue(), state, row)
    assert state_of(spool.queue()) == row.next
    spool.commit()
    assert (disk.path / "jobs").read_bytes() == before
    spool.close()


def test_a_large_item_leaves(tmp_path: Path) -> None:
    """It is set aside, leaves, and is aside again if it is refused; nothing is written of that."""
    settings = {"jobs": QueueConfig(expire_to_queue="late")}
    spool = LocalQueues(ServerConfig(queue_path=tmp_path, queues=settings))
    spool.collection.commits.writer = writer = HeldWorker()
    spool.add(bytes(LARGE_ITEM), expiry=spool.clock.now() + 1000)
    found = []
    for refuses in (True, False):
        while writer.step():
            spool.commit()
        spool.clock.advance(2)
        spool.collection.sweep()
        spool.commit()
        found.append(state_of(spool.queue()))
        begun = (tmp_path / "jobs").read_bytes()
        spool.queue("late").pause(Paused.WRITES if refuses else Paused.NOTHING)
        while writer.step():
            spool.commit()
        found.append(state_of(spool.queue()))
        assert ((tmp_path / "jobs").read_bytes() == begun) == refuses
        spool.queue("late").pause(Paused.NOTHING)
    assert found == [NEXT[one] for one in (WRITE, REFUSE, WRITE, CONFIRM)]
    spool.close()


@pytest.mark.parametrize(("state", "row"), [one for one in CASES if one[1].event == FLUSH])
def test_a_flush(tmp_path: Path, state: int, row: Row) -> None:
    """It is done when it is written, and not before."""
    spool, disk = opened(tmp_path, state, row)
    queue = spool.queue()
    before = (disk.path / "jobs").read_bytes()
    disk.break_steps("append")
    with pytest.raises(JournalError):
        queue.flush()
    disk.mend()
    assert state_of(queue) == state
    queue.flush()
    assert state_of(queue) == row.next
    check_journal(disk.path, row, before)
    spool.close()


@pytest.mark.parametrize(("state", "row"), [one for one in CASES if one[1].event == RESTART])
def test_a_restart(tmp_path: Path, state: int, row: Row) -> None:
    """The first write says what it has done."""
    spool, disk = opened(tmp_path, state, row)
    (read,) = spool.queue().reads.open.values()
    spool.restart()
    before = (disk.path / "jobs").read_bytes()
    assert state_of(spool.queue()) == row.next
    assert [item_deliveries(one) for one in spool.queue().backlog.browse(9)] == [read.is_counted, 0]
    spool.queue().core.write_now()
    check_journal(disk.path, row._replace(counted=read.is_counted), before)
    spool.close()


@pytest.mark.parametrize(
    "record",
    [Add(0, b"a"), AddX(NOW, 0, b"a"), AddXid(7, NOW, 0, b"a"), Continue(7, NOW, 0, b"a")],
)
def test_records_that_also_add_an_item(record: Record) -> None:
    """Other servers have written them; a CONTINUE also ends a read."""
    state = replayed(journal(record))
    assert (state_replayed(state), len(state.open)) == (WAITING, 0)
    state = replayed(journal("b", RemoveTentative(), record))
    assert (state.items, len(state.open)) == (1, 1)
    state = replayed(journal("b", RemoveTentativeXid(7), record))
    assert (state.items, len(state.open)) == (1, not isinstance(record, Continue))


def test_an_event_is_taken_back_in_one_way() -> None:
    """Wherever it happens, so that what is taken back need not say where that was."""
    assert {(row.event, row.undo) for row in LIFE if row.records} == set(UNDO.items())


def test_an_event_is_followed_by_one_state() -> None:
    """As far as the journal knows: so replay need not look at the state before."""
    followed = {(row.event, row.next) for row in LIFE if row.event not in {FLUSH, LOSE}}
    assert followed == {(event, NEXT[event]) for event in NEXT if event not in {FLUSH, LOSE}}


def test_each_number_has_its_name() -> None:
    """The names and meanings stand in the order of the numbers."""
    for number, (name, _) in enumerate(STATES):
        assert getattr(life, name.upper()) == number
    events = {row.event for row in LIFE}
    assert events == set(range(len(EVENTS)))
    assert {row.undo for row in LIFE} == set(range(len(UNDOES)))
