"""Reserved reads: leases, owners, tags, and what a restart finds of them."""

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.errors import QueueUnavailable, ReservedMemoryFull, TagRefused
from kestrelmq.format.records import (
    ADDX_HEADER,
    MAX_XID,
    MIN_XID,
    Item,
    add_xid,
    item,
    item_data,
    item_deliveries,
    save_xid,
)
from kestrelmq.journal.life import RESERVE
from kestrelmq.journal.memory_budget import OVERHEAD
from kestrelmq.journal.open_read import Reservation, ReserveTerms
from kestrelmq.journal.read_table import ReadTable
from kestrelmq.journal.reserved_reads import reserved_note
from kestrelmq.queue.changes import ReadsChanged
from kestrelmq.queue.reserving import MAX_TAG_NAMES, MAX_TAGS, RESERVED_MEMORY
from kestrelmq.queue.waiters import ReadMode, Waiter
from kestrelmq.queues.collection import QueueCollection
from tests.support.crashing_directory import CrashingDirectory
from tests.support.local_queues import LocalQueues, queue_settings
from tests.support.open_reads import open_read, uncounted

pytestmark = pytest.mark.compiled

TAG = "sink:7:0"
TERMS = ReserveTerms(10_000)
TAGGED = ReserveTerms(10_000, tag=TAG)
OWNED = ReserveTerms(10_000, 2000, "worker")


class Spool(LocalQueues):
    """Queues whose items are reserved."""

    def __init__(
        self, path: Path, directory: CrashingDirectory | None = None, **settings: object
    ) -> None:
        super().__init__(queue_settings(path, **settings), directory)
        self.nonce = 0

    def reserve(
        self,
        most: int = 1,
        terms: ReserveTerms = TERMS,
        name: str = "jobs",
        *,
        commits: bool = True,
    ) -> Reservation | None:
        """Reserve items, and commit."""
        self.nonce += 1
        reservation = self.queue(name).reserved.reserve(terms, self.nonce, most, 1 << 20)
        if commits:
            self.commit()
        return reservation

    def reads(self, most: int = 1, terms: ReserveTerms = TERMS) -> list[tuple[int, int]]:
        """Reserve items, and commit; return xids with the nonce."""
        reservation = self.reserve(most, terms)
        assert reservation is not None
        return [(xid, reservation.nonce) for xid in reservation.xids]

    def again(self, terms: ReserveTerms = TAGGED) -> list[tuple[int, int, bytes, int]] | None:
        """Repeat a reserve with a tag, and commit; return xids, nonce, items and deliveries."""
        queue = self.queue()
        reservation = queue.reserved.again(terms)
        self.commit()
        if reservation is None:
            return None
        return [
            (xid, reservation.nonce, item_data(record), item_deliveries(record) + 1)
            for xid, record in zip(*queue.reserved.reads_of(reservation), strict=True)
        ]

    def found(self, reads: list[tuple[int, int]]) -> list[int]:
        """Return the xids of reads that are reserved."""
        return list(self.queue().reserved.find([(nonce, (xid,)) for xid, nonce in reads]))

    def finish(self, reads: list[tuple[int, int]]) -> int:
        """Confirm reads, and commit; return how many were reserved."""
        xids = self.found(reads)
        for xid in xids:
            assert self.queue().reads.confirm(xid)
        self.commit()
        return len(xids)

    def release(self, reads: list[tuple[int, int]], **how: Any) -> int:
        """Give reads back, and commit; return how many were reserved."""
        count = self.queue().returns.give_back(self.found(reads), **how)
        self.commit()
        return count

    def rewrite(self, name: str = "jobs") -> None:
        """Rewrite the journal."""
        upkeep = self.queue(name)._upkeep
        assert upkeep is not None
        upkeep._rewrite()

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and give back what is due."""
        self.clock.advance(seconds)
        self.collection.check_deadlines()
        self.commit()

    @property
    def now(self) -> float:
        """The time, for the owners."""
        return self.clock.monotonic()


def counts(spool: LocalQueues, name: str = "jobs") -> list[int]:
    """Return how often the waiting items were handed out."""
    return [item_deliveries(record) for record in spool.queue(name).backlog.browse(100)]


@pytest.mark.parametrize("dialect", ["documented", "kestrel-2"])
@pytest.mark.parametrize("rewritten", [False, True])
def test_a_kill_leaves_them_open(tmp_path: Path, dialect: str, *, rewritten: bool) -> None:
    """Under the same READs, however the journal was rewritten; other reads are given back."""
    spool = Spool(tmp_path, journal_dialect=dialect)
    spool.add(b"a", b"b", b"c", b"d")
    reads = spool.reads(2)
    spool.open_read()
    if rewritten:
        spool.rewrite()
    for _ in range(2):
        spool.kill()
        assert spool.items() == [b"c", b"d"]
        assert spool.queue().reads.held == 2
    assert spool.finish([reads[0], reads[0], (reads[1][0], 99), (77, reads[0][1])]) == 1
    assert spool.release(reads) == 1
    spool.kill()
    assert spool.items() == [b"b", b"c", b"d"]
    assert spool.queue().reads.held == 0
    assert counts(spool) == [1, 1, 0]
    spool.close()


def test_a_lease_ends(tmp_path: Path) -> None:
    """After a restart all of it is there again; then the items come back, in order, counted."""
    spool = Spool(tmp_path)
    spool.add(b"a", b"b", b"c")
    reads = spool.reads(2)
    spool.pass_time(9.9)
    spool.restart()
    spool.pass_time(9.9)
    assert spool.items() == [b"c"]
    spool.pass_time(0.1)
    assert (spool.items(), counts(spool)) == ([b"a", b"b", b"c"], [1, 1, 0])
    assert spool.finish(reads) == 0
    assert not spool.queue().reads.has_deadlines
    spool.close()


def test_a_lease_is_extended(tmp_path: Path) -> None:
    """Of some reads or of all, to an earlier time too; nothing is written."""
    spool = Spool(tmp_path)
    spool.add(b"a", b"b", b"c")
    reads = spool.reads(3)
    queue = spool.queue()
    size = queue.journal.size
    spool.pass_time(5)
    queue.reads.extend_leases(spool.found(reads[1:2]), 10)
    queue.reads.extend_leases(spool.found(reads[2:]), 1)
    spool.pass_time(1)
    assert spool.items() == [b"c"]
    spool.pass_time(4)
    assert spool.items() == [b"a", b"c"]
    queue.reads.extend_leases(spool.found(reads), 100)
    spool.pass_time(99)
    assert (spool.items(), queue.reads.held) == ([b"a", b"c"], 1)
    assert queue.journal.size == size + 10
    spool.pass_time(1)
    assert spool.items() == [b"b", b"a", b"c"]
    spool.close()


def test_when_a_lease_ends_is_known(tmp_path: Path) -> None:
    """For each read: the latest of its reservation, what extended it, and its owner."""
    spool = Spool(tmp_path)
    spool.add(b"a", b"b")
    queue = spool.queue()
    first, second = spool.found(spool.reads(2, OWNED))
    leases = queue.reads.reservations
    assert [leases.lease_end(queue.reads.open[xid]) for xid in (first, second)] == [10, 10]
    spool.pass_time(1)
    queue.reads.extend_leases([second], 60)
    assert [leases.lease_end(queue.reads.open[xid]) for xid in (first, second)] == [10, 61]
    spool.collection.owners.extend("worker", 30, spool.now)
    assert [leases.lease_end(queue.reads.open[xid]) for xid in (first, second)] == [31, 31]
    spool.close()


def test_the_reads_of_an_owner_are_counted_by_queue(tmp_path: Path) -> None:
    """Queues in which it has none any more are left out."""
    spool = Spool(tmp_path)
    owners = spool.collection.owners
    assert owners.reads_of("worker") == {}
    for name in ("jobs", "more"):
        spool.add(b"a", b"b", b"c", name=name)
        spool.reserve(2, OWNED, name)
    reads = spool.reads(1, OWNED)
    assert owners.reads_of("worker") == {"jobs": 3, "more": 2}
    spool.finish(reads)
    spool.queue("more").reads.confirm_all(spool.queue("more").reserved.of_owner("worker"))
    assert owners.reads_of("worker") == {"jobs": 2}
    spool.commit()
    spool.close()


def test_an_owner_extends_all_its_leases(tmp_path: Path) -> None:
    """In all queues, by a look at one number."""
    spool = Spool(tmp_path)
    for name in ("jobs", "more"):
        spool.add(b"a", b"b", name=name)
        spool.reserve(2, OWNED, name)
    spool.restart()
    owners = spool.collection.owners
    assert owners.extend("worker", 60, spool.now) == 4
    assert owners.extend("nobody", 60, spool.now) == 0
    spool.pass_time(59)
    assert owners.extend("worker", 3, spool.now) == 4
    spool.pass_time(2.9)
    assert spool.items() == spool.items("more") == []
    spool.pass_time(0.1)
    assert spool.items() == spool.items("more") == [b"a", b"b"]
    assert owners.extend("worker", 60, spool.now) == 0
    assert not owners._states
    spool.close()


def test_an_owner_that_extends_leases_does_so_where_it_has_reads(tmp_path: Path) -> None:
    """In a queue that is loaded later, a lease begins when that is; it was not extended before."""
    spool = Spool(tmp_path)
    for name in ("jobs", "more"):
        spool.add(b"a", name=name)
        spool.reserve(1, OWNED, name)
    spool.close()
    collection = spool.collection = QueueCollection(spool.config, spool.clock)
    first, second = collection.take_path()
    collection.add_loaded(first.queue, collection.load(first))
    assert collection.owners.extend("worker", 60, spool.now) == 1
    collection.add_loaded(second.queue, collection.load(second))
    spool.pass_time(10)
    assert (spool.items(first.queue), spool.items(second.queue)) == ([], [b"a"])
    spool.close()


def test_an_owner_without_connections_has_little_time(tmp_path: Path) -> None:
    """Two connections, and then none: after the grace its items are back."""
    spool = Spool(tmp_path)
    spool.add(b"a", b"b")
    owners = spool.collection.owners
    for _ in range(2):
        owners.connected("worker", spool.now)
    reads = spool.reads(1, OWNED)
    other = spool.reads(1, ReserveTerms(10_000, 4000, "worker"))
    owners.disconnected("worker", spool.now)
    spool.pass_time(5)
    assert spool.items() == []
    owners.disconnected("worker", spool.now)
    spool.pass_time(1.9)
    assert spool.items() == []
    spool.pass_time(0.1)
    assert spool.items() == [b"a"]
    assert spool.finish(reads) == 0
    spool.pass_time(2)
    assert spool.items() == [b"b", b"a"]
    assert spool.finish(other) == 0
    spool.close()


def test_an_owner_that_comes_back_in_time_has_all_of_it(tmp_path: Path) -> None:
    """A lease from then on, at least; and what was extended for longer stays so."""
    spool = Spool(tmp_path)
    spool.add(b"a", b"b")
    owners, queue = spool.collection.owners, spool.queue()
    owners.connected("worker", spool.now)
    spool.reads(1, OWNED)
    longer = spool.reads(1, OWNED)
    queue.reads.extend_leases(spool.found(longer), 100)
    spool.pass_time(9)
    owners.disconnected("worker", spool.now)
    spool.pass_time(0.9)
    owners.connected("worker", spool.now)
    spool.pass_time(9.9)
    assert spool.items() == []
    spool.pass_time(0.1)
    assert spool.items() == [b"a"]
    spool.pass_time(79)
    assert spool.items() == [b"a"]
    spool.pass_time(1.1)
    assert spool.items() == [b"b", b"a"]
    spool.close()


def test_a_connection_of_an_owner_that_was_not_lost_changes_no_lease(tmp_path: Path) -> None:
    """After a restart an owner connects, and its leases begin with the start, not with that."""
    spool = Spool(tmp_path)
    spool.add(b"a")
    spool.reads(1, OWNED)
    spool.restart()
    begun = spool.now
    spool.pass_time(5)
    spool.collection.owners.connected("worker", spool.now)
    (xid,) = spool.queue().reserved.of_owner("worker")
    queue = spool.queue()
    assert queue.reads.reservations.lease_end(queue.reads.open[xid]) == begun + 10
    spool.close()


@pytest.mark.parametrize("terms", [TERMS, OWNED, TAGGED], ids=["lease", "owner", "retired"])
def test_many_leases_that_end_at_once(tmp_path: Path, terms: ReserveTerms) -> None:
    """They come back some at a time, in order; a reader in between gets the oldest."""
    spool = Spool(tmp_path)
    spool.add(*(b"%d" % number for number in range(2500)))
    spool.collection.owners.connected("worker", spool.now)
    for part in range(25):
        spool.reserve(100, replace(terms, tag=f"sink:7:{part}" if terms.tag else ""))
    spool.collection.owners.disconnected("worker", spool.now)
    if terms.tag:
        assert spool.queue().reserved.retire("sink", 99) == 25
    else:
        spool.clock.advance(2 if terms.owner else 60)
    lengths: list[int] = []
    for _ in spool.collection.checking_deadlines():
        lengths.append(len(spool.queue()))
        if lengths[-1] == 1000:
            assert spool.take() == b"0"
    spool.commit()
    assert max(after - before for before, after in pairwise(lengths)) <= 500
    assert spool.items() == [b"%d" % number for number in range(1, 2500)]
    assert len(spool.queue().reads.reservations._heap) < 200
    spool.close()


def test_leases_that_are_extended_when_they_have_ended(tmp_path: Path) -> None:
    """Those that have not come back yet stay, until the new ones end."""
    spool = Spool(tmp_path)
    spool.add(*(b"%d" % number for number in range(2500)))
    for _ in range(25):
        spool.reserve(100)
    spool.clock.advance(60)
    work = spool.collection.checking_deadlines()
    queue = spool.queue()
    while not len(queue):
        next(work)
    held = list(queue.reads.open)
    queue.reads.extend_leases(held, 60)
    for _ in work:
        pass
    spool.commit()
    assert queue.reads.held == len(held)
    spool.pass_time(59)
    assert queue.reads.held == len(held)
    spool.pass_time(1)
    assert spool.items() == [b"%d" % number for number in range(2500)]
    spool.close()


def test_many_reservations_that_end_at_once(tmp_path: Path) -> None:
    """Those of nobody, too, come back about a thousand at a time."""
    spool = Spool(tmp_path)
    spool.add(*(b"%d" % number for number in range(1800)))
    for _ in range(3):
        spool.reserve(600)
    spool.clock.advance(10)
    leases = spool.queue().reads.reservations
    assert [len(leases.take_overdue(spool.now)) for _ in range(3)] == [1200, 600, 0]
    spool.close()


def test_reads_that_end_while_others_come_back(tmp_path: Path) -> None:
    """They are over, though their reservations were to be looked at next."""
    spool = Spool(tmp_path)
    spool.add(*(b"%d" % number for number in range(1500)))
    spool.collection.owners.connected("worker", spool.now)
    for _ in range(15):
        spool.reserve(100, OWNED)
    spool.collection.owners.disconnected("worker", spool.now)
    spool.clock.advance(2)
    work = spool.collection.checking_deadlines()
    queue = spool.queue()
    while not len(queue):
        next(work)
    count = len(queue)
    queue.reads.confirm_all(queue.reserved.of_owner("worker"))
    for _ in work:
        pass
    spool.commit()
    assert (len(queue), queue.reads.held) == (count, 0)
    assert len(set(spool.items())) == count == 500
    spool.close()


def test_the_heap_stays_small(tmp_path: Path) -> None:
    """However many reservations pass while none is due."""
    spool = Spool(tmp_path)
    for _ in range(300):
        spool.add(b"a")
        spool.finish(spool.reads())
    assert len(spool.queue().reads.reservations._heap) < 100
    spool.close()


# --- how reads end ---


def test_a_release_can_leave_it_uncounted(tmp_path: Path) -> None:
    """What was only prefetched is as it was; otherwise it counts."""
    spool = Spool(tmp_path)
    spool.add(b"a")
    spool.release(spool.reads(), counted=False)
    assert counts(spool) == [0]
    spool.release(spool.reads())
    spool.kill()
    assert counts(spool) == [1]
    spool.close()


@pytest.mark.parametrize("dialect", ["documented", "kestrel-2"])
@pytest.mark.parametrize("reserved", [False, True])
@pytest.mark.parametrize("end", ["time", "kill", "rewrite and kill"])
def test_an_uncounted_release_can_have_a_delay(
    tmp_path: Path, dialect: str, end: str, *, reserved: bool
) -> None:
    """It is not counted either when a restart cuts the delay short, however it was rewritten."""
    spool = Spool(tmp_path, journal_dialect=dialect, max_deliveries=2, dead_letter_queue="dead")
    spool.add(b"a", b"b", b"c")
    queue = spool.queue()
    xids = (
        [xid for xid, _ in spool.reads(2)] if reserved else [spool.open_read(), spool.open_read()]
    )
    assert queue.returns.give_back(xids[:1], counted=False, delay=30) == 1
    spool.commit()
    assert (queue.delayed, queue.reads.held, spool.items()) == (1, 1, [b"c"])
    if end == "time":
        queue.returns.give_back(xids[1:], counted=False)
        spool.pass_time(30)
    else:
        queue.returns.give_back(xids[1:])
        spool.commit()
        if end == "rewrite and kill":
            spool.rewrite()
        spool.kill()
        assert not uncounted(spool.queue().reads.open)
    assert spool.items() == [b"a", b"b", b"c"]
    assert counts(spool) == ([0, 0, 0] if end == "time" else [0, 1, 0])
    xid = spool.open_read()
    spool.queue().returns.give_back([xid])
    spool.commit()
    spool.kill()
    assert (spool.items(), counts(spool)[0]) == ([b"a", b"b", b"c"], 1)
    spool.close()


def test_a_dead_letter_may_be_uncounted(tmp_path: Path) -> None:
    """If the dead-letter queue cannot take it, the rest of the request is done."""
    config = ServerConfig(
        queue_path=tmp_path,
        queues={
            "jobs": QueueConfig(dead_letter_queue="dead"),
            "dead": QueueConfig(max_items=1),
        },
    )
    spool = LocalQueues(config)
    spool.add(b"a", b"b", name="jobs")
    queue = spool.queue("jobs")
    for _ in range(2):
        queue.returns.give_back([spool.open_read("jobs")], counted=False, delay=5, is_dead=True)
        spool.commit()
    assert (spool.items("dead"), spool.items("jobs"), queue.delayed) == ([b"a"], [], 1)
    assert counts(spool, "dead") == [0]
    spool.advance(5)
    assert (spool.items("jobs"), counts(spool)) == ([b"b"], [0])
    spool.close()


def test_a_release_can_have_a_delay(tmp_path: Path) -> None:
    """Its own, instead of the retry delay of the queue; a restart cuts it short."""
    spool = Spool(tmp_path, retry_delay=10)
    spool.add(b"a", b"b")
    assert spool.release(spool.reads(), delay=0) == 1
    assert spool.items() == [b"a", b"b"]
    read, other = spool.reads(2)
    assert spool.release([read], delay=30) == 1
    assert spool.release([read]) == spool.finish([read]) == 0
    assert (spool.queue().delayed, spool.queue().reads.held) == (1, 1)
    spool.pass_time(9)
    spool.queue().reads.extend_leases(spool.found([other]), 60)
    spool.pass_time(20)
    assert spool.items() == []
    spool.pass_time(1)
    assert spool.items() == [b"a"]
    assert spool.release(spool.reads()) == 1
    assert spool.queue().delayed == 1
    spool.kill()
    assert (spool.items(), spool.queue().reads.held) == ([b"a"], 1)
    assert spool.finish([other]) == 1
    spool.close()


def test_a_release_can_be_the_last(tmp_path: Path) -> None:
    """The item goes to the dead-letter queue at once; without one it stays."""
    spool = Spool(tmp_path)
    spool.config = ServerConfig(
        queue_path=tmp_path, queues={"jobs": QueueConfig(dead_letter_queue="dead")}
    )
    spool.restart()
    spool.add(b"a", b"b")
    reads = spool.reads(2)
    assert spool.release(reads[:1], is_dead=True) == 1
    assert (spool.items("dead"), counts(spool, "dead")) == ([b"a"], [1])
    spool.config = queue_settings(tmp_path)
    spool.kill()
    assert spool.queue().reads.held == 1
    assert spool.release(reads, is_dead=True) == 1
    assert spool.items() == [b"b"]
    spool.close()


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (MAX_XID - 2, (MAX_XID - 1, MAX_XID, MIN_XID, MIN_XID + 1, MIN_XID + 2)),
        (-3, (-2, -1, 1, 2, 4)),
        (-1, (1, 2, 4, 5, 6)),
        (1, (2, 4, 5, 6, 7)),
        (2, (4, 5, 6, 7, 8)),
        (6, (7, 8, 9, 10, 11)),
    ],
)
def test_reads_get_the_next_xids_that_are_free(
    tmp_path: Path, last: int, expected: tuple[int, ...]
) -> None:
    """They wrap around, leave out 0 and, here, 3, which is open; a restart finds the same."""
    spool = Spool(tmp_path)
    spool.add(*(b"%d" % number for number in range(6)))
    spool.queue().changes.prelude += save_xid(2)
    spool.queue().reads.last_xid = 2
    assert spool.reads(1) == [(3, 1)]
    spool.queue().changes.prelude += save_xid(last)
    spool.queue().reads.last_xid = last
    reads = spool.reads(5, TAGGED)
    assert tuple(xid for xid, _ in reads) == expected
    before = spool.again()
    spool.kill()
    assert spool.again() == before
    assert spool.finish([*reads, (3, 1)]) == 6
    spool.kill()
    assert spool.queue().reads.held == len(spool.items()) == 0
    spool.close()


def test_reads_that_have_ended_are_not_confirmed_again(tmp_path: Path) -> None:
    """What is left of several is confirmed as one change; of none, nothing is written."""
    spool = Spool(tmp_path)
    spool.add(b"a", b"b", b"c")
    queue = spool.queue()
    xids = spool.found(spool.reads(3))
    assert queue.returns.give_back([xids[1]])
    spool.commit()
    queue.reads.confirm_all(xids)
    assert len(queue.changes.undo) == 1
    spool.commit()
    queue.reads.confirm_all(xids)
    assert not queue.changes.pending
    spool.kill()
    assert (spool.items(), spool.queue().reads.held) == ([b"b"], 0)
    spool.close()


def test_readers_that_wait_come_first(tmp_path: Path) -> None:
    """A reader that is served takes one item while others wait behind it."""
    spool = Spool(tmp_path)
    taken: list[int] = []

    def served(_record: Item | None, _xid: int) -> None:
        reservation = spool.reserve(10, commits=False)
        assert reservation is not None
        taken.append(reservation.left)

    for _ in range(2):
        spool.queue().waiters.add(Waiter(ReadMode.PEEK, served, lambda _error: None))
    queue = spool.queue()
    line = queue.waiters.line
    waiting = list(line)
    line.clear()  # so that nobody is served until all items are there
    for data in (b"a", b"b", b"c"):
        queue.add(data)
    line.update(dict.fromkeys(waiting))
    queue.waiters.serve()
    spool.commit()
    assert taken == [1, 2]
    spool.close()


def test_a_reserve_takes_only_so_many_bytes(tmp_path: Path) -> None:
    """At least one item, whatever its size."""
    spool = Spool(tmp_path)
    spool.add(b"x" * 10, b"y" * 10, b"z" * 10)
    queue = spool.queue()
    assert [
        reservation and reservation.left
        for reservation in (
            queue.reserved.reserve(TERMS, 1, 10, 1),
            queue.reserved.reserve(TERMS, 2, 10, 11),
        )
    ] == [1, 2]
    assert queue.reserved.reserve(TERMS, 3, 10, 1) is None
    spool.commit()
    spool.close()


def test_a_reserve_takes_what_comes_before_items_that_cannot_be_read(tmp_path: Path) -> None:
    """The next one gets the error, and takes nothing; the items are there when they can be read."""
    spool = Spool(tmp_path, max_memory_size=2)
    spool.add(b"a", b"b", b"c", b"d")
    (journal,) = tmp_path.glob("jobs.*")
    journal.rename(tmp_path / "away")
    reservation = spool.reserve(10)
    assert reservation is not None
    assert reservation.left == 2
    with pytest.raises(QueueUnavailable, match=r"queue jobs cannot be read: .*No such file"):
        spool.reserve(10)
    assert spool.queue().reads.held == 2
    (tmp_path / "away").rename(journal)
    reservation = spool.reserve(10)
    assert reservation is not None
    assert reservation.left == 2
    spool.close()


# --- tags ---


def test_an_open_tag_always_has_the_same_items(tmp_path: Path) -> None:
    """With the same READs and deliveries, whatever happens, and with a new lease."""
    spool = Spool(tmp_path)
    spool.add(b"a", b"b", b"c")
    spool.release(spool.reads())
    assert spool.again() is None
    (first, nonce), (second, _) = spool.reads(2, TAGGED)
    expected = [(first, nonce, b"a", 2), (second, nonce, b"b", 1)]
    for step in (spool.kill, spool.rewrite, spool.restart, spool.rewrite, spool.kill):
        spool.pass_time(9)
        step()
        assert spool.again() == expected
    assert spool.finish([(first, nonce)]) == 1
    spool.restart()
    assert spool.again() == expected[1:]
    spool.close()


def test_a_tag_moves_to_another_owner(tmp_path: Path) -> None:
    """The one that repeats the step; the first one's end does not matter then."""
    spool = Spool(tmp_path)
    spool.add(b"a")
    first, second = (ReserveTerms(10_000, 1000, name, TAG) for name in ("first", "second"))
    owners = spool.collection.owners
    owners.connected("first", spool.now)
    spool.reads(1, first)
    assert spool.again(second) == spool.again(second)
    owners.disconnected("first", spool.now)
    spool.pass_time(2)
    assert (spool.items(), spool.queue().reserved.of_owner("first")) == ([], [])
    spool.kill()
    assert len(spool.queue().reserved.of_owner("second")) == 1
    spool.close()


def test_a_done_tag_stays_done(tmp_path: Path) -> None:
    """Until its epoch is retired: then it is refused."""
    spool = Spool(tmp_path)
    spool.add(b"a", b"b", b"c")
    queue = spool.queue()
    assert queue.reserved.finish(TAG) == 0
    spool.reads(2, TAGGED)
    assert queue.reserved.finish(TAG) == 2
    spool.commit()
    for step in (spool.kill, spool.rewrite, spool.restart):
        step()
        assert spool.queue().reserved.finish(TAG) == 2
        assert spool.queue().reserved.is_done(TAG)
        assert spool.again() is None
    assert spool.items() == [b"c"]
    spool.reads(1, ReserveTerms(10_000, tag="sink:8:0"))
    assert spool.queue().reserved.retire("sink", 7) == 1
    spool.commit()
    for step in (spool.kill, spool.rewrite, spool.restart):
        step()
        queue = spool.queue()
        assert queue.reserved.retire("sink", 6) == queue.reserved.retire("sink", 7) == 0
        for refused in (
            lambda: spool.queue().reserved.finish(TAG),
            lambda: spool.queue().reserved.again(TAGGED),
            lambda: spool.queue().reserved.reserve(TAGGED, 1, 1, 1),
            lambda: spool.queue().reserved.with_tag("sink:3:5"),
        ):
            with pytest.raises(TagRefused, match="is retired"):
                refused()
        assert list(queue.reserved.with_tag("sink:8:0")) == [3]
    assert queue.reserved.retire("sink", 8) == 1
    spool.commit()
    assert (spool.items(), counts(spool)) == ([b"c"], [0])
    spool.close()


def test_a_lease_without_end(tmp_path: Path) -> None:
    """Whatever becomes of the owner; over a restart, until it gets another one."""
    spool = Spool(tmp_path)
    spool.add(b"a", b"b")
    endless = ReserveTerms(0, 0, "query", TAG)
    spool.reads(1, endless)
    spool.reads(1, ReserveTerms(1000, 0, "query"))
    owners = spool.collection.owners
    owners.connected("query", spool.now)
    assert owners.extend("query", 5, spool.now) == 2
    owners.disconnected("query", spool.now)
    spool.pass_time(0)
    assert spool.items() == [b"b"]
    spool.pass_time(10**9)
    assert len(spool.queue().reserved.with_tag(TAG)) == 1
    for step in (spool.kill, spool.rewrite, spool.restart):
        step()
        spool.pass_time(10**9)
        assert len(spool.queue().reserved.with_tag(TAG)) == 1
    held = [one for one in spool.collection.owners.holding("q*") if one is not None]
    assert [(one.owner, one.reads, one.queues, one.tags) for one in held] == [("query", 1, 1, 1)]
    assert held[0].age == 10**9
    assert spool.again(replace(endless, lease=1000)) is not None
    spool.pass_time(1)
    assert spool.items() == [b"a", b"b"]
    spool.close()


@pytest.mark.parametrize("count", [2, 1200])
@pytest.mark.parametrize("is_killed", [False, True])
def test_what_a_retired_tag_had_was_no_delivery(
    tmp_path: Path, count: int, *, is_killed: bool
) -> None:
    """It goes to no dead-letter queue, however many there were, and wherever that was cut off."""
    spool = Spool(tmp_path, max_deliveries=1, dead_letter_queue="dead")
    spool.add(*[b"%d" % number for number in range(count)])
    spool.reads(count, TAGGED)
    assert spool.queue().reserved.retire("sink", 7) == 1
    spool.commit()
    if is_killed:
        spool.kill()
    spool.pass_time(0)
    while spool.queue().reads.held:
        spool.pass_time(0)
    records = spool.queue().backlog.browse(count + 1)
    assert [item_data(record) for record in records] == [b"%d" % one for one in range(count)]
    assert {item_deliveries(record) for record in records} == {0}
    spool.close()


def test_a_retired_name_is_forgotten(tmp_path: Path) -> None:
    """A month after it was last retired, over restarts, unless it has tags."""
    spool = Spool(tmp_path)
    spool.add(b"a", b"b")
    day = 86_400
    spool.queue().reserved.retire("sink", 7)
    spool.queue().reserved.retire("used", 7)
    spool.commit()
    spool.reads(1, ReserveTerms(0, tag="used:8:0"))
    for step in (spool.restart, spool.rewrite):
        spool.pass_time(10 * day)
        step()
    assert spool.queue().reserved.retire("sink", 7) == 0  # it is in use
    spool.commit()
    spool.kill()
    spool.pass_time(29 * day)
    with pytest.raises(TagRefused, match="is retired"):
        spool.queue().reserved.check_tag(TAG)
    spool.pass_time(2 * day)
    spool.queue().reserved.check_tag(TAG)
    assert spool.queue().reads.reserved.retired == {"used": 7}
    spool.reads(1, TAGGED)
    spool.close()


def test_what_is_answered_again_is_on_disk(tmp_path: Path) -> None:
    """The first answer may still wait for its sync when the same is asked again."""
    spool = Spool(tmp_path, sync_journal=0)
    queue, syncs = spool.queue(), spool.collection.commits.syncs
    spool.add(b"a")
    spool.reserve(1, TAGGED)

    def is_synced(*, known: bool) -> bool:
        return known and syncs.take_unsynced() == {queue}

    assert is_synced(known=True)
    assert is_synced(known=queue.reserved.again(TAGGED) is not None)
    assert queue.reserved.finish(TAG) == 1
    spool.commit()
    assert is_synced(known=True)
    assert is_synced(known=queue.reserved.finish(TAG) == 1)
    assert is_synced(known=queue.reserved.is_done(TAG))
    assert queue.reserved.retire("sink", 7) == 1
    spool.commit()
    assert is_synced(known=True)
    assert is_synced(known=queue.reserved.retire("sink", 7) == 0)
    spool.close()


def test_tags_are_limited(tmp_path: Path) -> None:
    """The error says what to do; nothing is taken."""
    spool = Spool(tmp_path)
    spool.add(b"a", b"b", b"c")
    queue = spool.queue()
    reserved = queue.reads.reserved
    for number in range(MAX_TAGS - 1):
        reserved.set_done(f"a:1:{number}", 1)
    spool.reads(1, ReserveTerms(1000, tag="a:2:x"))
    with pytest.raises(TagRefused, match="queue jobs has 10000 tags; retire epochs that are over"):
        queue.reserved.reserve(ReserveTerms(1000, tag="a:3:x"), 1, 1, 1)
    assert queue.reserved.retire("a", 1) == MAX_TAGS - 1
    spool.reads(1, ReserveTerms(1000, tag="a:3:x"))
    for number in range(MAX_TAG_NAMES - 1):
        reserved.retire(f"name{number}", 1)
    with pytest.raises(TagRefused, match="has retired epochs of 10000 names"):
        queue.reserved.retire("b", 1)
    spool.commit()
    spool.close()


def test_tags_of_an_empty_queue_survive_a_new_file(tmp_path: Path) -> None:
    """The journal begins anew time and again, and is no reason to do that for ever."""
    spool = Spool(tmp_path, default_journal_size=400, min_journal_compact_delay=0)
    spool.add(b"a", b"b")
    spool.reads(1, TAGGED)
    spool.queue().reserved.finish(TAG)
    spool.queue().reserved.retire("sink", 3)
    reads = spool.reads(1, OWNED)
    spool.churn(30)
    spool.restart()
    assert spool.queue().reserved.is_done(TAG)
    assert spool.queue().reads.reserved.retired == {"sink": 3}
    assert spool.finish(reads) == 1
    for number in range(50):
        spool.add(b"a")
        spool.reads(1, ReserveTerms(1000, tag=f"sink:{number + 10}:long" + "x" * 80))
        spool.queue().reserved.finish(f"sink:{number + 10}:long" + "x" * 80)
        spool.commit()
    before = spool.queue().journal.rewrites + spool.queue().journal.rotations
    for _ in range(50):
        spool.add(b"a")
        assert spool.take() == b"a"
    assert spool.queue().journal.rewrites + spool.queue().journal.rotations - before < 20
    spool.close()


def test_a_pack_in_read_behind_carries_them_on(tmp_path: Path) -> None:
    """Files before a checkpoint are packed, while later ones end some of the reads."""
    spool = Spool(tmp_path, max_memory_size=300, default_journal_size=10_000)
    spool.add(*(b"%03d" % number + bytes(50) for number in range(20)))
    spool.reads(1, TAGGED)
    spool.queue().reserved.finish(TAG)
    first = spool.reads(2, OWNED)
    second = spool.reads(1, ReserveTerms(10_000, tag="sink:8:0"))
    spool.add(*(b"%03d" % number + bytes(50) for number in range(20, 40)))
    rewrites = spool.queue().journal.rewrites
    assert spool.finish(first[:1]) == 1
    for _ in range(24):
        spool.take()
        spool.add(b"later" + bytes(50))
    assert spool.queue().journal.rewrites > rewrites
    spool.kill()
    queue = spool.queue()
    assert queue.reserved.is_done(TAG)
    assert spool.found(first) == [first[1][0]]
    assert list(queue.reserved.with_tag("sink:8:0")) == [second[0][0]]
    assert queue.reads.held == 2
    spool.close()


# --- failed writes ---


@pytest.fixture
def broken(tmp_path: Path) -> tuple[Spool, CrashingDirectory]:
    """Queues on a disk that can fail."""
    disk = CrashingDirectory.within(tmp_path)
    return Spool(disk.path, disk), disk


def failing(spool: Spool, disk: CrashingDirectory) -> None:
    """Commit, which fails; then the disk works again."""
    disk.break_steps("append")
    assert spool.collection.commits.commit()
    disk.mend()


def test_a_reserve_that_cannot_be_written(broken: tuple[Spool, CrashingDirectory]) -> None:
    """Nothing is reserved, and the items wait as before."""
    spool, disk = broken
    spool.add(b"a", b"b")
    spool.reserve(2, ReserveTerms(10_000, 1000, "worker", TAG), commits=False)
    failing(spool, disk)
    queue = spool.queue()
    assert (spool.items(), queue.reads.held, queue.reads.reserved.by_tag) == ([b"a", b"b"], 0, {})
    assert (queue.reads.reservations.owners, spool.collection.owners._states) == ({}, {})
    assert queue.reads.reserved.note_bytes == 0
    assert spool.finish(spool.reads(2)) == 2
    spool.close()


def test_an_end_that_cannot_be_written(broken: tuple[Spool, CrashingDirectory]) -> None:
    """The reads are reserved as before, with what is left of their lease, for their owner."""
    spool, disk = broken
    spool.add(b"a", b"b", b"c")
    terms = ReserveTerms(10_000, 1000, "worker", TAG)
    reads = spool.reads(3, terms)
    queue = spool.queue()
    spool.pass_time(5)
    assert spool.collection.owners.extend("worker", 10, spool.now) == 3
    expected = spool.again(terms)
    spool.collection.owners.extend("worker", 10, spool.now)
    for end in (
        lambda: queue.reserved.finish(TAG),
        lambda: queue.returns.give_back(spool.found(reads)),
        lambda: queue.returns.give_back(spool.found(reads), delay=10),
        lambda: queue.returns.give_back(spool.found(reads), counted=False),
        lambda: queue.returns.give_back(spool.found(reads), counted=False, delay=10),
        lambda: queue.reserved.retire("sink", 9),
        lambda: [queue.reads.confirm(xid) for xid, _ in reads[:2]],
    ):
        end()
        failing(spool, disk)
        assert (queue.reads.held, queue.delayed, queue.reserved.is_done(TAG)) == (3, 0, False)
        assert len(queue.reserved.of_owner("worker")) == 3
        assert queue.reads.reserved.retired == {}
        assert not uncounted(queue.reads.open)
    spool.pass_time(9.9)
    assert queue.reads.held == 3
    assert spool.again(terms) == expected
    spool.pass_time(9.9)
    disk.break_steps("append")
    spool.clock.advance(0.1)
    spool.collection.check_deadlines()
    assert spool.collection.commits.commit()
    assert queue.reads.held == 3
    disk.mend()
    spool.pass_time(0.9)
    assert queue.reads.held == 3
    spool.pass_time(0.1)
    assert spool.items() == [b"a", b"b", b"c"]
    spool.close()


def test_tags_are_as_before_after_a_failed_write(broken: tuple[Spool, CrashingDirectory]) -> None:
    """Terms, and epochs that were retired before."""
    spool, disk = broken
    spool.add(b"a", b"b")
    spool.reads(1, TAGGED)
    queue = spool.queue()
    queue.reserved.finish(TAG)
    queue.reserved.retire("sink", 1)
    spool.reads(1, ReserveTerms(1000, 1000, "first", "sink:8:0"))
    queue.reserved.again(ReserveTerms(1000, 1000, "second", "sink:8:0"))
    failing(spool, disk)
    assert len(queue.reserved.of_owner("first")) == 1
    size = queue.reads.reserved.note_bytes
    queue.reserved.retire("sink", 7)
    queue.reserved.retire("other", 7)
    failing(spool, disk)
    assert queue.reserved.is_done(TAG)
    assert queue.reads.reserved.retired == {"sink": 1}
    assert queue.reads.reserved.note_bytes == size
    spool.close()


def test_a_reserve_that_is_written_in_part(broken: tuple[Spool, CrashingDirectory]) -> None:
    """In read-behind its first reads are written before the rest; they come back by themselves."""
    spool, disk = broken
    spool.add(b"a", b"b")
    queue = spool.queue()
    first = open_read(queue)
    assert first is not None
    queue.core.write_now()
    reservation = Reservation(1, TERMS, (first[0],), 100, 1)
    reads = [queue.reads.open[first[0]]]
    queue.reads.reservations.add(reservation, reads, spool.now)
    queue.changes.collect(reserved_note(1, TERMS, reservation.xids, queue.reads.last_xid))
    queue.changes.undo.append(ReadsChanged(RESERVE, reservation.xids, reads, queue.reads.last_xid))
    queue.state.commits.watch_deadlines(queue)
    failing(spool, disk)
    assert (queue.reads.held, queue.reads.reserved.count) == (1, 0)
    spool.pass_time(0)
    assert spool.items() == [b"a", b"b"]
    spool.close()


# --- journals ---


def test_a_queue_without_a_journal(tmp_path: Path) -> None:
    """In memory all of it works."""
    spool = Spool(tmp_path, keep_journal=False)
    spool.add(b"a", b"b", b"c")
    spool.reads(1, TAGGED)
    assert spool.queue().reserved.finish(TAG) == 1
    reads = spool.reads(1, OWNED)
    assert spool.queue().reserved.is_done(TAG)
    assert spool.finish(reads) == 1
    assert spool.items() == [b"c"]
    spool.close()


def test_a_deleted_queue_forgets_its_owners(tmp_path: Path) -> None:
    """And its tags."""
    spool = Spool(tmp_path)
    spool.add(b"a", b"b")
    spool.reads(1, OWNED)
    spool.reads(1, TAGGED)
    assert spool.collection.delete("jobs")
    assert not spool.collection.owners._states
    assert not spool.queue().reserved.with_tag(TAG)
    spool.close()


def test_nothing_is_written_for_it_in_a_plain_queue(tmp_path: Path) -> None:
    """A reserved read takes a note more than an open one; a finish nothing more."""
    spool = Spool(tmp_path)
    spool.add(b"a", b"b")
    size = spool.queue().journal.size
    spool.queue().reads.confirm(spool.open_read())
    spool.commit()
    plain = spool.queue().journal.size - size
    spool.finish(spool.reads())
    note = 5 * 13
    assert spool.queue().journal.size - size == 2 * plain + note
    spool.close()


def test_an_expired_item_that_was_reserved(tmp_path: Path) -> None:
    """It expires once it is given back, after a restart too."""
    spool = Spool(tmp_path)
    spool.add(b"a", expiry=spool.clock.now() + 1000)
    spool.add(b"b")
    reads = spool.reads()
    spool.restart()
    spool.clock.advance(2)
    assert spool.release(reads) == 1
    assert spool.take() == b"b"
    spool.close()


def test_reserved_items_take_only_so_much_memory(tmp_path: Path) -> None:
    """No more are reserved until some are over; a restart forgets nothing of that."""
    spool = Spool(tmp_path, max_memory_size=1000)
    large = b"x" * (RESERVED_MEMORY // 4)
    spool.add(*[large] * 6)
    first = spool.reads(1)
    assert spool.queue().reads.reserved.size == len(large) + ADDX_HEADER + OVERHEAD
    others = [spool.reads(1) for _ in range(3)]
    for _ in range(2):
        with pytest.raises(ReservedMemoryFull, match="max_memory_size"):
            spool.reserve()
        spool.kill()
    while spool.take() is not None:
        pass
    assert spool.reserve() is None
    spool.add(large, large)
    assert spool.finish(first) == 1
    assert spool.reads(1)
    for reads in others:
        assert spool.finish(reads) == 1
    assert spool.reads(1)
    spool.collection.delete("jobs")
    assert spool.queue().reads.reserved.size == 0
    spool.close()


@pytest.mark.parametrize("bytes_left", [0, 1])
def test_half_of_the_memory_is_left_to_others(tmp_path: Path, bytes_left: int) -> None:
    """By those who ask for that, as soon as half of it is taken."""
    spool = Spool(tmp_path, max_memory_size=1000)
    taken = RESERVED_MEMORY // 2 - bytes_left
    spool.add(b"x" * (taken - ADDX_HEADER - OVERHEAD), b"a", b"b")
    reserved = spool.queue().reserved
    assert reserved.reserve(TERMS, 1, 1, 1, leaves_half=True)
    assert spool.queue().reads.reserved.size == taken
    if bytes_left:
        assert reserved.reserve(TERMS, 2, 1, 1, leaves_half=True)
    else:
        with pytest.raises(ReservedMemoryFull, match="half of max_memory_size"):
            reserved.reserve(TERMS, 2, 1, 1, leaves_half=True)
    assert reserved.reserve(TERMS, 3, 1, 1)
    spool.commit()
    spool.close()


def test_the_memory_of_many_reads_comes_back(tmp_path: Path) -> None:
    """At the next upkeep after they ended."""
    spool = Spool(tmp_path)
    queue = spool.queue()
    for _ in range(3000):
        queue.add(b"x")
    reads = [spool.reads(1000) for _ in range(3)]
    tables: list[ReadTable[Any]] = [queue.reads.open]

    def sizes() -> list[int]:
        return [sum(map(sys.getsizeof, table._pages.values())) for table in tables]

    for table in tables:
        list(table)  # makes entries of runs
    assert min(sizes()) > 50_000
    assert [spool.finish(some) for some in reads] == [1000] * 3
    queue.flush()
    spool.commit()
    spool.collection.tick()
    assert max(sizes()) < 1000
    assert len(queue.reads.reservations._heap) == 0


def test_the_deadline_of_a_read_whose_end_is_taken_back(tmp_path: Path) -> None:
    """It counts, although memory was released meanwhile."""
    disk = CrashingDirectory.within(tmp_path)
    spool = Spool(disk.path, disk, open_transaction_timeout=60)
    spool.add(b"x")
    xid = spool.open_read()
    disk.break_steps("append to jobs")
    assert spool.queue().reads.confirm(xid, kept=True)
    spool.queue().tick()
    spool.collection.commits.commit()
    assert list(spool.queue().reads.open) == [xid]
    disk.mend()
    spool.advance(61)
    assert (spool.items(), len(spool.queue().reads.open)) == ([b"x"], 0)
    spool.close()


def test_the_first_reads_of_an_owner(tmp_path: Path) -> None:
    """As many as are asked for, in the order in which they were reserved; or all."""
    spool = Spool(tmp_path)
    spool.add(*(b"%d" % number for number in range(9)))
    terms = ReserveTerms(60_000, owner="worker")
    xids = [xid for _ in range(3) for xid, _ in spool.reads(3, terms)]
    queue = spool.queue()
    for most in (1, 3, 4, 9, 99):
        assert queue.reserved.of_owner("worker", most) == xids[:most]
        assert queue.reserved.youngest_of_owner("worker", most) == xids[-most:]
    assert queue.reserved.of_owner("worker") == xids
    assert (
        queue.reserved.of_owner("nobody", 1) == queue.reserved.youngest_of_owner("nobody", 1) == []
    )


def test_reads_of_a_retired_epoch_come_back_in_order(tmp_path: Path) -> None:
    """Those that were reserved first are the first again."""
    spool = Spool(tmp_path)
    spool.add(*(b"%d" % number for number in range(9)))
    for part in range(3):
        spool.reads(2, ReserveTerms(60_000, tag=f"sink:1:{part}"))
    assert spool.queue().reserved.retire("sink", 1) == 3
    spool.commit()
    assert spool.items() == [b"%d" % number for number in range(9)]
    spool.close()


def test_the_deadline_of_an_earlier_read_is_not_that_of_the_next(tmp_path: Path) -> None:
    """An item that another server added with ADD_XID is opened under an xid that is known."""
    (tmp_path / "jobs").write_bytes(item(1, 0, b"first") + add_xid(1, item(1, 0, b"x")))
    spool = Spool(tmp_path, open_transaction_timeout=60)
    queue = spool.queue()
    xid = spool.open_read()
    assert queue.reads.confirm(xid)
    spool.commit()
    assert [one for one, _ in spool.reads()] == [xid]
    spool.pass_time(10)
    assert (spool.items(), queue.reads.held) == ([b"x"], 0)
    spool.close()


@pytest.mark.parametrize("most", [1, 2])
def test_the_deadline_of_a_read_that_was_not_written(tmp_path: Path, most: int) -> None:
    """The next read has the same xid, but not the deadline."""
    disk = CrashingDirectory.within(tmp_path)
    spool = Spool(disk.path, disk, open_transaction_timeout=60)
    spool.add(b"a", b"b")
    queue = spool.queue()
    if most == 1:
        open_read(queue)
    else:
        assert len(queue.line.open_next(most, 100)) == most
    failing(spool, disk)
    assert [xid for xid, _ in spool.reads(most)] == list(range(1, most + 1))
    spool.pass_time(10)
    assert (spool.items(), queue.reads.held) == ([b"a", b"b"], 0)
    spool.close()


@pytest.mark.parametrize("reserves", [True, False])
def test_the_order_of_leases_whose_end_could_not_be_written(
    tmp_path: Path, *, reserves: bool
) -> None:
    """They end in pieces. Those that could not be written, and those behind them, stay in order."""
    disk = CrashingDirectory.within(tmp_path)
    spool = Spool(disk.path, disk, open_transaction_timeout=10)
    items = [b"%d" % number for number in range(1200)]
    spool.add(*items)
    queue = spool.queue()
    if reserves:
        spool.reads(700)
        spool.reads(500)
    else:
        assert len(queue.line.open_next(1200, 1 << 20)) == 1200
        spool.commit()
    fails = iter((False, True))
    disk.fail = lambda point: "append" in point and next(fails, False)
    spool.clock.advance(10)
    spool.collection.check_deadlines()
    spool.collection.commits.commit()
    assert queue.reads.held == 700
    for _ in range(4):
        spool.pass_time(0.2)
        assert queue.reads.held == 700
    spool.pass_time(0.3)
    assert (spool.items(), queue.reads.held) == (items, 0)
    spool.close()


def test_a_delayed_release_that_was_not_written(broken: tuple[Spool, CrashingDirectory]) -> None:
    """The lease ends when it would have, and not when the delay would have been over."""
    spool, disk = broken
    spool.add(b"x")
    queue = spool.queue()
    reads = spool.reads()
    queue.returns.give_back(spool.found(reads), delay=60)
    failing(spool, disk)
    assert spool.found(reads)
    spool.pass_time(10)
    assert (spool.items(), queue.reads.held) == ([b"x"], 0)
    spool.close()
