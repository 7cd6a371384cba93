"""How often an item was handed out: counts, dead letters and retries."""

import logging
from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.errors import ConfigError
from kestrelmq.format.notes import DeadLetter, dead_letter
from kestrelmq.format.records import ADDX_HEADER, Item, item_data, item_deliveries
from kestrelmq.journal.memory_budget import OVERHEAD
from kestrelmq.library import PersistentQueue
from kestrelmq.queue.queue import Queue
from kestrelmq.queue.waiters import ReadMode, Waiter
from kestrelmq.scheduling.durability import GroupCommit
from tests.support.crashing_directory import CrashingDirectory
from tests.support.fake_clock import FakeClock
from tests.support.local_queues import LocalQueues, queue_settings
from tests.support.open_reads import open_read

pytestmark = pytest.mark.compiled

DEAD = "dead"


class Spool(LocalQueues):
    """A queue `jobs` with a dead-letter queue."""

    def __init__(self, path: Path, dead: QueueConfig | None = None, **jobs: object) -> None:
        settings = {"max_deliveries": 3, "dead_letter_queue": DEAD} | jobs
        self.path = path
        super().__init__(
            ServerConfig(
                queue_path=path,
                queues={
                    "jobs": QueueConfig.model_validate(settings),
                    DEAD: dead or QueueConfig(),
                },
            )
        )

    def fail(self) -> bytes:
        """Open a read and give it back, as a worker that fails does; return the item."""
        xid = self.open_read()
        data = item_data(self.queue().reads.open[xid].item)
        assert self.queue().returns.give_back([xid])
        self.commit()
        return data


def counts(spool: LocalQueues, name: str = "jobs") -> list[int]:
    """Return how often the waiting items were handed out."""
    return [item_deliveries(record) for record in spool.queue(name).backlog.browse(100)]


def plain(path: Path, **settings: object) -> LocalQueues:
    """Return queues with the same settings for all."""
    return LocalQueues(queue_settings(path, **settings))


def give_back(spool: LocalQueues, *, counted: bool = True) -> None:
    """Hand an item out, and take it back."""
    spool.queue().returns.give_back((spool.open_read(),), counted=counted)
    spool.commit()


def test_what_comes_back_is_counted(tmp_path: Path) -> None:
    """Once for each delivery that failed; also when the server was killed, or a retry is due."""
    spool = Spool(tmp_path, retry_delay=10)
    spool.add(b"a", b"b")
    give_back(spool, counted=False)
    assert spool.queue().counts.redelivered == 0
    spool.queue().returns.give_back([spool.open_read()], delay=0)
    spool.fail()
    assert spool.queue().counts.redelivered == 1
    spool.advance(20)
    assert spool.queue().counts.redelivered == 2
    spool.fail()
    assert (spool.items(DEAD), spool.queue().counts.redelivered) == ([b"a"], 2)
    spool.open_read()
    spool.kill()
    assert spool.queue().counts.redelivered == 1
    spool.close()


@pytest.mark.parametrize("dialect", ["documented", "kestrel-2"])
def test_each_delivery_counts(tmp_path: Path, dialect: str) -> None:
    """Over a restart, and over a packing that leaves nothing of the history."""
    spool = plain(tmp_path, journal_dialect=dialect)
    spool.add(b"a", b"b")
    give_back(spool)
    give_back(spool)
    assert counts(spool) == [2, 0]
    spool.restart()
    assert counts(spool) == [2, 0]
    queue = spool.queue()
    assert queue._upkeep is not None
    queue._upkeep._rewrite()
    spool.restart()
    assert counts(spool) == [2, 0]
    give_back(spool)
    assert counts(spool) == [3, 0]
    spool.close()


@pytest.mark.parametrize("dialect", ["documented", "kestrel-2"])
@pytest.mark.parametrize("limit", [1, 1 << 20])
def test_a_dead_letter_keeps_its_origin(tmp_path: Path, dialect: str, limit: int) -> None:
    """Beyond memory and in it, over restarts, deliveries, and a packing while it is open or not."""
    settings = {"journal_dialect": dialect, "max_memory_size": limit}
    dead = QueueConfig.model_validate(settings)
    spool = Spool(tmp_path, dead, max_deliveries=1)
    spool.add(b"a", b"b", b"c")
    for _ in range(3):
        give_back(spool)
    letters = [DeadLetter("jobs", spool.clock.now(), "it was given back")] * 3

    def check(*counted: int) -> None:
        for restarts in (False, True):
            if restarts:
                spool.restart()
            found = [spool.open_read(DEAD) for _ in letters]
            records = [spool.queue(DEAD).reads.open[xid].item for xid in found]
            assert [dead_letter(one) for one in records] == letters
            assert [item_deliveries(one) for one in records] == list(counted)
            spool.queue(DEAD).returns.give_back(found, counted=False)
            spool.commit()

    check(1, 1, 1)
    xid = spool.open_read(DEAD)
    spool.queue(DEAD).returns.give_back((xid,))
    spool.commit()
    check(2, 1, 1)
    for opens in (False, True):
        held = [spool.open_read(DEAD)] if opens else []
        upkeep = spool.queue(DEAD)._upkeep
        assert upkeep is not None
        upkeep._rewrite()
        spool.queue(DEAD).returns.give_back(held, counted=False)
        spool.commit()
        check(2, 1, 1)
    spool.close()


@pytest.mark.parametrize("dialect", ["documented", "kestrel-2"])
def test_an_open_read_counts_at_a_restart(tmp_path: Path, dialect: str) -> None:
    """Whether the journal was packed while it was open, or not."""
    spool = plain(tmp_path, journal_dialect=dialect)
    spool.add(b"a", b"b")
    give_back(spool)
    spool.open_read()
    spool.restart()
    assert counts(spool) == [2, 0]
    spool.open_read()
    queue = spool.queue()
    assert queue._upkeep is not None
    queue._upkeep._rewrite()
    spool.restart()
    assert counts(spool) == [3, 0]
    spool.close()


def test_an_item_that_was_open_while_the_journal_was_rewritten_is_opened_again(
    tmp_path: Path,
) -> None:
    """Under the next xid, as any other: after a restart, too, a confirm must mean this item."""
    spool = plain(tmp_path)
    spool.add(b"a", b"b")
    _, second = spool.open_read(), spool.open_read()
    spool.queue().reads.confirm(second)
    spool.commit()
    upkeep = spool.queue()._upkeep
    assert upkeep is not None
    upkeep._rewrite()
    spool.restart()
    give_back(spool)
    again = spool.open_read()
    assert again == second + 2
    assert spool.queue().reads.confirm(again)
    spool.commit()
    spool.restart()
    assert not len(spool.queue())
    spool.close()


def test_a_delivery_that_was_none_does_not_count(tmp_path: Path) -> None:
    """Not after a restart either."""
    spool = plain(tmp_path)
    spool.add(b"a")
    give_back(spool, counted=False)
    assert counts(spool) == [0]
    give_back(spool)
    give_back(spool, counted=False)
    spool.restart()
    assert counts(spool) == [1]
    spool.close()


def test_counts_of_items_on_disk(tmp_path: Path) -> None:
    """An item that another queue moved here may be read back from the disk later."""
    spool = Spool(tmp_path, QueueConfig(max_memory_size=10), max_deliveries=1)
    spool.add(b"first item", name=DEAD)
    for data in (b"x" * 20, b"y" * 20):
        spool.add(data)
        assert spool.fail() == data
    spool.add(b"last item", name=DEAD)
    assert spool.queue(DEAD).backlog.read_behind
    for _ in range(2):
        assert [counts(spool, DEAD), len(spool.queue(DEAD))] == [[0], 4]
        spool.restart()
    found = []
    while (head := spool.queue(DEAD).line.head()) is not None:
        found.append((item_data(head)[:1], item_deliveries(head)))
        spool.queue(DEAD).line.remove()
        spool.commit()
    assert found == [(b"f", 0), (b"x", 1), (b"y", 1), (b"l", 0)]
    spool.close()


def test_nothing_is_written_for_it_in_a_plain_queue(tmp_path: Path) -> None:
    """Adds, reads, confirms and aborts write what they always wrote."""
    spool = plain(tmp_path)
    spool.add(b"a")
    give_back(spool)
    spool.queue().reads.confirm(spool.open_read())
    spool.close()
    written = (tmp_path / "jobs").read_bytes()
    header, unremove, confirm = 21, 5, 5
    assert len(written) == header + 1 + 1 + unremove + 1 + confirm
    assert {path.name for path in tmp_path.iterdir()} == {"jobs", "~~lock"}


def test_a_write_that_fails_takes_the_count_back(tmp_path: Path) -> None:
    """The read is open as before."""
    disk = CrashingDirectory.within(tmp_path)
    spool = LocalQueues(queue_settings(disk.path), disk)
    spool.add(b"a")
    xid = spool.open_read()
    disk.break_steps("append")
    spool.queue().returns.give_back([xid])
    assert spool.collection.commits.commit()
    disk.mend()
    assert list(spool.queue().reads.open) == [xid]
    spool.queue().returns.give_back([xid])
    spool.commit()
    assert counts(spool) == [1]
    spool.close()


# --- dead letters ---


def test_a_bad_item_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After `max_deliveries` it is in the dead-letter queue, with its count; a line says so."""
    spool = Spool(tmp_path)
    spool.add(b"bad", b"good")
    with caplog.at_level(logging.WARNING):
        assert [spool.fail() for _ in range(3)] == [b"bad"] * 3
    assert spool.drain() == [b"good"]
    assert spool.items(DEAD) == [b"bad"]
    assert counts(spool, DEAD) == [3]
    assert spool.queue().counts.dead_lettered == 1
    assert "an item of 3 bytes goes to dead after 3 deliveries: it was given back" in caplog.text
    fields = {"queue": "jobs", "target": DEAD, "deliveries": 3, "why": "it was given back"}
    assert any(vars(record).items() >= fields.items() for record in caplog.records)
    spool.restart()
    assert counts(spool, DEAD) == [3]
    assert not len(spool.queue())
    spool.close()


def test_the_order_of_the_others_stays(tmp_path: Path) -> None:
    """Several reads that end together: some go, the others are the head in their order."""
    spool = Spool(tmp_path, max_deliveries=2)
    spool.add(b"a", b"b", b"c")
    assert spool.fail() == b"a"
    xids = [spool.open_read() for _ in range(3)]
    assert spool.queue().returns.give_back(xids) == 3
    spool.commit()
    assert spool.items() == [b"b", b"c"]
    assert spool.items(DEAD) == [b"a"]
    spool.close()


def test_a_dead_letter_queue_that_is_full(tmp_path: Path) -> None:
    """The item goes back to the head, and moves when there is room."""
    spool = Spool(tmp_path, QueueConfig(max_items=1), max_deliveries=1)
    spool.add(b"full", name=DEAD)
    spool.add(b"bad", b"good")
    assert [spool.fail(), spool.fail()] == [b"bad", b"bad"]
    assert spool.items() == [b"bad", b"good"]
    assert spool.drain(DEAD) == [b"full"]
    assert spool.fail() == b"bad"
    assert spool.items(DEAD) == [b"bad"]
    assert counts(spool, DEAD) == [3]
    assert spool.items() == [b"good"]
    spool.close()


def test_a_read_that_was_open_when_the_server_was_killed(tmp_path: Path) -> None:
    """It was a delivery, and if it was the last one the item is dead."""
    spool = Spool(tmp_path, max_deliveries=2)
    spool.add(b"bad", b"good")
    for _ in range(2):
        spool.open_read()
        spool.kill()
    assert spool.take() == b"good"
    assert spool.items(DEAD) == [b"bad"]
    spool.close()


def test_a_sweep_moves_it_too(tmp_path: Path) -> None:
    """Nobody needs to read."""
    spool = Spool(tmp_path, max_deliveries=1)
    spool.add(b"bad")
    spool.open_read()
    spool.restart()
    assert spool.queue().needs_sweep
    spool.collection.sweep()
    spool.commit()
    assert (spool.items(), spool.items(DEAD)) == ([], [b"bad"])
    assert not spool.queue().needs_sweep
    spool.close()


def test_a_dead_item_stays_until_its_queue_has_room(tmp_path: Path) -> None:
    """After a restart, too: each sweep tries again, and readers get it meanwhile."""
    spool = Spool(tmp_path, QueueConfig(max_items=1), max_deliveries=1)
    spool.add(b"full", name=DEAD)
    spool.add(b"bad", b"good")
    spool.open_read()
    spool.kill()
    spool.collection.sweep()
    spool.commit()
    assert (spool.items(), spool.queue().needs_sweep) == ([b"bad", b"good"], True)
    assert spool.drain(DEAD) == [b"full"]
    spool.collection.sweep()
    spool.commit()
    assert (spool.items(), spool.items(DEAD)) == ([b"good"], [b"bad"])
    assert not spool.queue().needs_sweep
    spool.close()


def test_a_dead_item_behind_one_that_is_not(tmp_path: Path) -> None:
    """After a restart, too, it is not delivered once more."""
    spool = Spool(tmp_path, max_deliveries=2)
    spool.add(b"a", b"bad", b"c")
    spool.open_read()
    assert spool.fail() == b"bad"
    spool.open_read()
    spool.kill()
    assert counts(spool) == [1, 2, 0]
    spool.collection.tick()
    assert spool.queue().rests_until > spool.clock.now()
    assert (spool.drain(), spool.items(DEAD)) == ([b"a", b"c"], [b"bad"])
    assert counts(spool, DEAD) == [2]
    spool.close()


def test_dead_items_that_are_on_disk_only(tmp_path: Path) -> None:
    """They are read back and moved, as those in memory are."""
    spool = Spool(tmp_path, max_deliveries=1)
    spool.add(b"bad", b"worse", b"good")
    for _ in range(2):
        spool.open_read()
    spool.kill()
    jobs = spool.config.queues["jobs"].model_copy(update={"max_memory_size": 1})
    spool.reload(spool.config.model_copy(update={"queues": {"jobs": jobs}}))
    assert spool.queue().backlog.memory_items == 1
    assert spool.take() == b"good"
    assert spool.items(DEAD) == [b"bad", b"worse"]
    spool.close()


def test_a_dead_letter_that_nobody_has_read(tmp_path: Path) -> None:
    """A restart does not move it on to the next queue, however often it was delivered before."""
    dead = QueueConfig(max_deliveries=2, dead_letter_queue="grave")
    spool = Spool(tmp_path, dead)
    spool.add(b"bad", b"worse", b"worst")
    for _ in range(9):
        spool.fail()
    spool.open_read(DEAD)
    spool.kill()
    spool.collection.sweep()
    spool.commit()
    assert spool.items(DEAD) == [b"worse", b"worst"]
    assert (spool.items("grave"), counts(spool, "grave")) == ([b"bad"], [4])
    spool.close()


def test_very_many_dead_items_move_in_pieces(tmp_path: Path) -> None:
    """Others are served in between."""
    spool = Spool(tmp_path, max_deliveries=1)
    items = [b"%d" % number for number in range(350)]
    spool.add(*items)
    for _ in items:
        spool.open_read()
    spool.kill()
    jobs = spool.queue()
    assert not jobs.line.is_settled
    assert not jobs.line.settle()
    spool.commit()
    assert len(spool.items(DEAD)) == 100
    pieces = sum(1 for _ in spool.collection.sweeping())
    spool.commit()
    assert pieces > 2
    assert spool.items(DEAD) == items
    assert (jobs.line.is_settled, jobs.line.settle()) == (True, True)
    spool.close()


def test_synced_dead_items_move_one_by_one(tmp_path: Path) -> None:
    """Each has to wait for the disk."""
    spool = Spool(tmp_path, max_deliveries=1, sync_journal=0)
    spool.add(b"a", b"b")
    for _ in range(2):
        spool.open_read()
    spool.kill()
    assert not spool.queue().line.settle()
    spool.commit()
    assert spool.items(DEAD) == [b"a"]
    spool.close()


def test_a_dead_item_that_is_moved_does_not_change_the_head(tmp_path: Path) -> None:
    """A reader of the dead-letter queue that reads the other, too, finds nothing there just then.

    The journal says of the head that it was opened, and the head is still the dead item.
    """
    spool = Spool(tmp_path, max_deliveries=1)
    spool.add(b"bad", b"worse", b"good")
    for _ in range(2):
        spool.open_read()
    spool.kill()
    found: list[object] = []

    def read_the_other(_record: Item | None, _xid: int) -> None:
        found.append(open_read(spool.queue()))

    spool.queue(DEAD).waiters.add(Waiter(ReadMode.PEEK, read_the_other, lambda _error: None))
    spool.collection.sweep()
    spool.commit()
    assert found == [None]
    spool.kill()
    assert (spool.items(), spool.items(DEAD)) == ([b"good"], [b"bad", b"worse"])
    spool.close()


def test_a_dead_item_stays_until_its_queue_is_on_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With `sync_journal`, its removal may be on disk at once: so it may rather come twice."""
    disk = CrashingDirectory.within(tmp_path)
    jobs = QueueConfig(max_deliveries=1, dead_letter_queue=DEAD, sync_journal=0)
    spool = LocalQueues(ServerConfig(queue_path=disk.path, queues={"jobs": jobs}), disk)
    spool.add(b"bad")
    disk.break_steps(f"sync {DEAD}")
    give_back(spool)
    assert (spool.items(), spool.queue().counts.dead_lettered) == ([b"bad"], 0)
    assert "cannot go to dead: queue dead: " in caplog.text
    disk.mend()
    spool.collection.tick()  # rewrites the journal whose sync failed
    give_back(spool)
    assert (spool.items(), spool.queue().counts.dead_lettered) == ([], 1)
    assert spool.items(DEAD) == [b"bad"] * 2
    spool.close()


def test_a_queue_by_itself_keeps_its_dead_items(caplog: pytest.LogCaptureFixture) -> None:
    """There is none to which they could go."""
    config = QueueConfig(max_deliveries=1, dead_letter_queue=DEAD)
    queue = Queue("jobs", config, FakeClock(), GroupCommit())
    queue.add(b"bad")
    opened = open_read(queue)
    assert opened is not None
    assert queue.returns.give_back([opened[0]])
    assert [item_data(record) for record in queue.backlog.browse(9)] == [b"bad"]
    assert "cannot go to dead: there is no other queue" in caplog.text


def test_a_queue_cannot_be_its_own_dead_letter_queue(tmp_path: Path) -> None:
    """One that is by inheritance keeps its items."""
    with pytest.raises(ValueError, match="dead_letter_queue is the queue itself"):
        ServerConfig(queues={"jobs": QueueConfig(max_deliveries=1, dead_letter_queue="jobs")})
    spool = plain(tmp_path, max_deliveries=1, dead_letter_queue="jobs")
    spool.add(b"bad")
    give_back(spool)
    assert spool.items() == [b"bad"]
    spool.close()


def test_max_deliveries_needs_a_dead_letter_queue(tmp_path: Path) -> None:
    """In any layer; and a queue by itself can have none."""
    with pytest.raises(ValueError, match="default: max_deliveries needs a dead_letter_queue"):
        ServerConfig(default=QueueConfig(max_deliveries=1))
    with pytest.raises(ValueError, match=r"queues\.jobs: max_deliveries needs"):
        ServerConfig(queues={"jobs": QueueConfig(max_deliveries=1)})
    inherited = ServerConfig(
        default=QueueConfig(dead_letter_queue=DEAD), queues={"jobs": QueueConfig(max_deliveries=1)}
    )
    assert inherited.queues["jobs"].max_deliveries == 1
    with pytest.raises(ConfigError, match="dead_letter_queue needs other queues"):
        PersistentQueue("jobs", tmp_path, QueueConfig(max_deliveries=1, dead_letter_queue=DEAD))


# --- retries ---


def test_an_item_waits_before_it_is_tried_again(tmp_path: Path) -> None:
    """It holds nobody up, and each time it waits longer, up to a limit."""
    spool = Spool(tmp_path, max_deliveries=9, retry_delay=10, max_retry_delay=35)
    spool.add(b"bad", b"good")
    assert spool.fail() == b"bad"
    queue = spool.queue()
    assert (queue.delayed, queue.reads.held, spool.take()) == (1, 0, b"good")
    for delay in (10, 20, 35, 35):
        spool.advance(delay - 0.5)
        assert spool.take() is None
        spool.advance(0.5)
        assert (queue.delayed, spool.items()) == (0, [b"bad"])
        assert spool.fail() == b"bad"
    assert counts(spool) == []
    spool.advance(35)
    assert counts(spool) == [5]
    spool.close()


def test_waits_without_a_limit(tmp_path: Path) -> None:
    """They grow with each delivery, however long they are by now."""
    spool = Spool(tmp_path, max_deliveries=99, retry_delay=10, max_retry_delay=None)
    spool.add(b"bad")
    for doubled in range(15):
        assert spool.fail() == b"bad"
        spool.advance(10 * 2**doubled - 0.5)
        assert spool.take() is None
        spool.advance(0.5)
    spool.close()


def test_a_waiting_reader_gets_it_when_it_is_due(tmp_path: Path) -> None:
    """As any item that arrives."""
    spool = plain(tmp_path, retry_delay=10)
    spool.add(b"bad")
    give_back(spool)
    got: list[Item | None] = []
    spool.queue().waiters.add(
        Waiter(ReadMode.REMOVE, lambda record, _xid: got.append(record), lambda _error: None)
    )
    spool.clock.advance(10)
    spool.collection.check_deadlines()
    spool.commit()
    assert [item_data(record) for record in got if record is not None] == [b"bad"]
    spool.close()


def test_a_restart_cuts_the_wait_short(tmp_path: Path) -> None:
    """And the delivery is counted once."""
    spool = plain(tmp_path, retry_delay=10)
    spool.add(b"bad")
    give_back(spool)
    spool.restart()
    assert (counts(spool), spool.queue().delayed) == ([1], 0)
    spool.close()


def test_its_reader_has_it_no_more(tmp_path: Path) -> None:
    """It can neither be given back again nor be found among those that are held."""
    spool = plain(tmp_path, retry_delay=10)
    spool.add(b"bad")
    queue = spool.queue()
    xid = spool.open_read()
    read = queue.reads.open[xid]
    assert queue.returns.give_back([xid])
    assert not queue.returns.give_back([xid])
    assert not queue.reads.is_held(xid)
    assert not queue.reads.is_open(read)
    spool.close()


def test_one_that_is_confirmed_while_it_waits_is_over(tmp_path: Path) -> None:
    """By a client that still knows its xid, alone or with others."""
    spool = plain(tmp_path, retry_delay=10)
    spool.add(b"first", b"second", b"third", b"fourth")
    queue = spool.queue()
    xids = [spool.open_read() for _ in range(4)]
    queue.returns.give_back(xids[:3])
    spool.commit()
    assert queue.delayed == 3
    queue.reads.confirm_all([xids[0], xids[3]])
    assert queue.reads.confirm(xids[1])
    spool.commit()
    size = len(queue.reads.open[xids[2]].record) - ADDX_HEADER + OVERHEAD
    assert (queue.delayed, queue.reads.retrying_bytes) == (1, size)
    spool.advance(10)
    assert (spool.items(), queue.delayed, queue.reads.held) == ([b"third"], 0, 0)
    spool.restart()
    assert spool.items() == [b"third"]
    spool.close()


def test_many_that_wait_do_not_take_all_memory(tmp_path: Path) -> None:
    """Beyond a quarter of what memory may hold, an item is the head again at once."""
    spool = plain(tmp_path, retry_delay=10)
    size = 1 << 20
    spool.add(bytes(size), bytes(size))
    xids = [spool.open_read() for _ in range(2)]
    spool.reload(queue_settings(tmp_path, retry_delay=10, max_memory_size=size))
    spool.queue().returns.give_back(xids[:1])
    spool.queue().returns.give_back(xids[1:])
    assert (spool.queue().delayed, len(spool.queue())) == (0, 2)
    spool.commit()
    spool.close()


def test_a_flush_drops_those_that_wait(tmp_path: Path) -> None:
    """They are items of the queue that nobody has."""
    spool = plain(tmp_path, retry_delay=10)
    spool.add(b"bad", b"good")
    give_back(spool)
    assert spool.queue().flush() == 2
    spool.commit()
    assert (spool.queue().delayed, spool.queue().reads.retrying_bytes) == (0, 0)
    spool.restart()
    assert spool.items() == []
    spool.close()


def test_a_retry_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    """It counts once, and the wait is a second longer."""
    disk = CrashingDirectory.within(tmp_path)
    spool = LocalQueues(queue_settings(disk.path, retry_delay=10), disk)
    spool.add(b"bad")
    give_back(spool)
    disk.break_steps("append")
    spool.clock.advance(10)
    spool.collection.check_deadlines()
    spool.collection.commits.commit()
    assert (spool.queue().delayed, len(spool.queue())) == (1, 0)
    disk.mend()
    spool.clock.advance(1)
    spool.collection.check_deadlines()
    spool.commit()
    assert (counts(spool), spool.queue().delayed) == ([1], 0)
    spool.close()
