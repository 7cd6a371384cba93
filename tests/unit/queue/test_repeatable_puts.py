"""Adds that a producer may repeat: each of its items is stored once."""

from pathlib import Path

import pytest

from kestrelmq.clock import SystemClock
from kestrelmq.config import ServerConfig
from kestrelmq.disk.directories import DiskDirectory
from kestrelmq.errors import QueueUnavailable
from kestrelmq.format.records import Item, item_data
from kestrelmq.idempotent_producers import PutMark
from kestrelmq.journal.packing import pack
from kestrelmq.journal.producers import MAX_PRODUCERS
from kestrelmq.queue.paused import Paused
from kestrelmq.queue.waiters import ReadMode, Waiter
from kestrelmq.scheduling.durability import sync_now
from kestrelmq.tools.journal_files import select
from tests.support.crashing_directory import CrashingDirectory
from tests.support.local_queues import LocalQueues, queue_settings

pytestmark = pytest.mark.compiled

DAY = 86_400
WEEK = 7 * DAY


class Spool(LocalQueues):
    """Queues with a producer."""

    def once(
        self,
        data: bytes,
        sequence: int,
        *,
        name: str = "jobs",
        producer: bytes = b"p",
        after: int = -1,
        delay: int = 0,
    ) -> bool:
        """Add an item of a producer, and commit; return whether it was accepted."""
        due = self.clock.now() + delay * 1000 if delay else 0
        accepted = self.collection.add(name, data, due=due, mark=PutMark(producer, sequence, after))
        self.commit()
        return accepted

    def rewrite(self, name: str = "jobs") -> None:
        """Rewrite the journal of a queue now."""
        queue = self.queue(name)
        queue.core.write_now()
        assert queue._upkeep is not None
        queue._upkeep._rewrite()


def spool(path: Path, **settings: object) -> Spool:
    """Return queues on an empty queue path."""
    return Spool(queue_settings(path, **settings))


def test_an_item_is_stored_once(tmp_path: Path) -> None:
    """Its number must be above the last one of the same producer in the same queue."""
    queues = spool(tmp_path)
    assert queues.once(b"a", 5)
    assert queues.once(b"a", 5)
    assert queues.once(b"older", 4)
    assert queues.once(b"b", 9)
    assert queues.once(b"other", 0, producer=b"q")
    assert queues.once(b"elsewhere", 5, name="other")
    for _ in range(2):
        assert queues.items() == [b"a", b"b", b"other"]
        assert queues.items("other") == [b"elsewhere"]
        queues.restart()
        assert queues.once(b"b", 9)
    assert queues.drain() == [b"a", b"b", b"other"]
    queues.restart()
    assert queues.once(b"b", 9)
    assert queues.items() == []
    queues.close()


@pytest.mark.parametrize("dialect", ["documented", "kestrel-2"])
def test_marks_outlast_their_items(tmp_path: Path, dialect: str) -> None:
    """Whatever rewrites the journal: upkeep, from memory or from files, and the tool."""
    queues = spool(tmp_path, journal_dialect=dialect)
    for number in range(3):
        queues.once(b"%d" % number, number)
        queues.once(b"delayed", number, producer=b"late", delay=number + 1)
    queues.open_read()
    queues.rewrite()
    assert queues.once(b"3", 3)
    queues.restart()
    queues.advance(10)
    queues.advance(10)
    queues.rewrite()
    queues.restart()
    assert queues.drain() == [b"0", b"1", b"2", b"3", *[b"delayed"] * 3]
    queues.close()
    for selected in select([tmp_path]):
        pack(DiskDirectory(tmp_path), selected.all_files, "documented", SystemClock())
    queues.open()
    for number in range(4):
        assert queues.once(b"again", number)
        assert queues.once(b"again", min(number, 2), producer=b"late")
    assert queues.items() == []
    queues.close()


def test_a_queue_in_read_behind(tmp_path: Path) -> None:
    """Files up to a checkpoint are packed, later ones follow; the marks of both count."""
    queues = spool(
        tmp_path, max_memory_size=1000, default_journal_size=2000, max_journal_size=10**9
    )
    for number in range(200):
        assert queues.once(b"%3d" % number + bytes(50), number)
        assert queues.once(b"%3d" % number + bytes(50), number)
    rewrites = 0
    for number in range(200):
        taken = queues.take()
        assert taken is not None
        assert taken[:3] == b"%3d" % number
        queues.collection.tick()
        queues.commit()
        if number % 60 == 59:
            rewrites += queues.queue().journal.rewrites
            queues.restart()
            assert queues.once(b"again", 199)
    assert rewrites
    assert queues.drain() == []
    queues.close()


def test_a_refusal_is_no_mark(tmp_path: Path) -> None:
    """The item can be added with the same number later; what comes `after` it is refused, too."""
    queues = spool(tmp_path, max_items=2)
    assert queues.once(b"a", 1)
    assert queues.once(b"b", 2, after=1)
    assert not queues.once(b"c", 3, after=2)
    assert queues.take() == b"a"
    assert not queues.once(b"d", 4, after=3)
    assert queues.once(b"c", 3, after=2)
    assert queues.once(b"c", 3, after=2)
    assert queues.items() == [b"b", b"c"]
    queues.collection.pause("jobs", Paused.WRITES)
    with pytest.raises(QueueUnavailable, match="paused"):
        queues.once(b"d", 4)
    queues.close()


def test_limits_and_ages(tmp_path: Path) -> None:
    """An item of a producer is like any other: it may expire, and make room."""
    queues = spool(tmp_path, max_items=2, discard_old_when_full=True, max_age=10)
    for number in range(4):
        assert queues.once(b"%d" % number, number)
    assert queues.items() == [b"2", b"3"]
    queues.advance(11)
    assert queues.take() is None
    queues.restart()
    assert queues.once(b"3", 3)
    assert queues.take() is None
    queues.close()


def test_what_cannot_be_written_was_never_added(tmp_path: Path) -> None:
    """Neither the item nor the mark; also when the producer was known before."""
    for name in ("queues", "links"):
        (tmp_path / name).mkdir()
    directory = CrashingDirectory(tmp_path / "queues", tmp_path / "links")
    queues = Spool(queue_settings(tmp_path / "queues"), directory)
    assert queues.once(b"a", 1)
    directory.break_steps("append")
    for producer in (b"p", b"new"):
        with pytest.raises(AssertionError):
            queues.once(b"b", 2, producer=producer)
    directory.mend()
    assert queues.once(b"b", 2)
    assert queues.once(b"b", 2)
    assert queues.once(b"n", 2, producer=b"new")
    assert queues.items() == [b"a", b"b", b"n"]
    queues.close()


def test_fanout(tmp_path: Path) -> None:
    """A child that got the item already does not get it again; one that did not does."""
    queues = spool(tmp_path)
    first = queues.queue("jobs+first")
    queues.queue("jobs+second")
    assert queues.once(b"a", 1)
    assert queues.once(b"own", 1, name="jobs+first")
    assert queues.once(b"own", 1, name="jobs+first")
    first.pause(Paused.WRITES)
    assert queues.once(b"b", 2)
    first.pause(Paused.NOTHING)
    queues.restart()
    assert queues.once(b"b", 2)
    assert queues.once(b"a", 1)
    assert queues.items() == [b"a", b"b"]
    assert queues.items("jobs+first") == [b"a", b"own", b"b"]
    assert queues.items("jobs+second") == [b"a", b"b"]
    queues.close()


def test_only_the_children_take_items(tmp_path: Path) -> None:
    """Then only their marks count."""
    queues = spool(tmp_path, fanout_only=True)
    queues.reload(
        ServerConfig.model_validate(
            {
                "queue_path": tmp_path,
                "queues": {"jobs": {"fanout_only": True}, "jobs+c": {"fanout_only": False}},
            }
        )
    )
    queues.queue("jobs+c")
    for _ in range(2):
        assert queues.once(b"a", 1)
    assert queues.items("jobs+c") == [b"a"]
    assert queues.items() == []
    queues.close()


def test_delayed_items(tmp_path: Path) -> None:
    """With a delay and without, a producer counts its items together."""
    queues = spool(tmp_path)
    assert queues.once(b"late", 1, delay=60)
    assert queues.once(b"late", 1, delay=60)
    assert queues.once(b"late", 1)
    assert queues.once(b"soon", 2)
    assert queues.once(b"soon", 2, delay=60)
    assert not queues.once(b"never", 9, after=8, delay=5)
    queues.restart()
    assert queues.queue().delayed == 1
    for number in (1, 2):
        assert queues.once(b"again", number)
    queues.advance(61)
    assert queues.items() == [b"soon", b"late"]
    for _ in range(3):
        queues.advance(10)
    queues.restart()
    assert queues.once(b"late", 1, delay=60)
    assert queues.once(b"soon", 2, delay=60)
    assert queues.queue().delayed == 0
    assert queues.drain() == [b"soon", b"late"]
    queues.close()


def names(queues: Spool) -> list[bytes]:
    """Return the names of the producers that the queue remembers."""
    return [name for name, _ in queues.queue().backlog.producers.snapshot()]


def test_a_producer_is_forgotten(tmp_path: Path) -> None:
    """A week after its last item, also over restarts; its notes are not written anew."""
    queues = spool(tmp_path)
    queues.once(b"a", 7)
    queues.advance(DAY)
    queues.once(b"b", 3, producer=b"q")
    queues.advance(WEEK - DAY - 1)
    assert queues.once(b"again", 7)
    queues.advance(2)
    queues.rewrite()
    assert names(queues) == [b"q"]
    queues.restart()
    assert queues.once(b"again", 3, producer=b"q")
    assert queues.once(b"c", 1)
    queues.advance(DAY)
    queues.collection.tick()
    assert names(queues) == [b"p"]
    assert queues.drain() == [b"a", b"b", b"c"]
    queues.close()


@pytest.mark.parametrize("days", [-8, 8, -19_000, 40_000])
@pytest.mark.parametrize("delay", [0, DAY])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_clock_that_is_wrong_for_a_while(
    tmp_path: Path, days: int, delay: int, *, restarts: bool
) -> None:
    """It forgets nobody early, and keeps nobody for longer."""
    queues = spool(tmp_path)
    queues.once(b"before", 1, producer=b"q")
    queues.clock.step(days * DAY * 1000)
    queues.once(b"a", 7, delay=delay)
    if restarts:
        queues.restart()
    queues.clock.step(-days * DAY * 1000)
    for seconds in (1, WEEK - 5):
        queues.advance(seconds)
        assert queues.once(b"before", 1, producer=b"q")
        assert queues.once(b"a", 7, delay=delay)
        assert sorted(queues.items()) in ([b"before"], [b"a", b"before"])
    queues.advance(5)
    queues.collection.tick()
    assert not len(queues.queue().backlog.producers)
    queues.close()


def test_a_shorter_ttl(tmp_path: Path) -> None:
    """It is a setting of the queue."""
    queues = spool(tmp_path, producer_ttl=60)
    queues.once(b"a", 7)
    queues.once(b"late", 7, producer=b"q", delay=DAY)
    queues.advance(61)
    assert queues.once(b"b", 7)
    assert queues.once(b"late", 7, producer=b"q", delay=DAY)
    assert queues.queue().delayed == 2
    assert queues.items() == [b"a", b"b"]
    queues.close()


def test_too_many_producers(tmp_path: Path) -> None:
    """A new one is refused, and those that are known go on; a full child is left out."""
    queues = spool(tmp_path)
    child = queues.queue("jobs+child")
    for queue in (queues.queue(), child):
        for number in range(MAX_PRODUCERS):
            queue.backlog.producers.set(PutMark(b"p%d" % number, 1), queues.clock.now() // 1000)
    full = f"items of {MAX_PRODUCERS} producers"
    with pytest.raises(QueueUnavailable, match=full):
        queues.once(b"y", 1, producer=b"new")
    assert queues.once(b"z", 2, producer=b"p0")
    assert queues.items() == [b"z"]
    assert queues.items("jobs+child") == []
    queues.close()


def test_flushing_keeps_the_marks(tmp_path: Path) -> None:
    """Deleting the queue does not."""
    queues = spool(tmp_path)
    queues.once(b"a", 1)
    queues.once(b"b", 2, delay=60)
    assert queues.queue().flush() == 2
    queues.restart()
    for number in (1, 2):
        assert queues.once(b"again", number)
    assert queues.items() == []
    assert queues.collection.delete("jobs")
    assert queues.once(b"a", 1)
    assert queues.items() == [b"a"]
    queues.close()


def test_without_a_journal(tmp_path: Path) -> None:
    """The marks are in memory."""
    queues = spool(tmp_path, keep_journal=False)
    queues.once(b"a", 1)
    queues.once(b"a", 1)
    assert queues.items() == [b"a"]
    queues.once(b"b", 2)
    assert queues.items() == [b"a", b"b"]
    queues.close()


def test_a_waiting_reader_is_served(tmp_path: Path) -> None:
    """As by any other add."""
    queues = spool(tmp_path)
    served: list[Item | None] = []
    waiter = Waiter(
        ReadMode.REMOVE,
        lambda record, _: served.append(record),
        lambda error: pytest.fail(str(error)),
    )
    queues.queue().waiters.add(waiter)
    for _ in range(2):
        assert queues.once(b"a", 1)
    assert [item_data(record) for record in served if record is not None] == [b"a"]
    assert queues.items() == []
    queues.close()


def test_a_repeated_add_waits_for_the_disk(tmp_path: Path) -> None:
    """If the first one was not synced yet, the second answer must not come before it is."""
    queues = spool(tmp_path, sync_journal=0)
    queue = queues.queue()
    assert queues.once(b"a", 1)
    assert queues.once(b"b", 2, delay=5)
    syncs = queues.collection.commits.syncs
    assert syncs.take_unsynced() == {queue}
    for number in (1, 2):
        assert queues.once(b"again", number)
        assert queue in syncs.take_unsynced()
    assert sync_now(queue) is None
    queues.close()
