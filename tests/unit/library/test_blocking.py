"""`PersistentQueue`: a durable queue for threads."""

import math
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import Mock

import pytest

from kestrelmq import (
    ConfigError,
    DamagedJournal,
    InvalidQueueName,
    Item,
    JournalError,
    PersistentQueue,
    QueueCollection,
    QueueConfig,
    QueuePathLocked,
    QueueUnavailable,
)
from kestrelmq.journal.writer import FileJournal
from kestrelmq.library import Expiry
from tests.support.fake_clock import FakeClock
from tests.support.forks import in_a_fork
from tests.support.limits import largest_file
from tests.support.patience import PATIENCE, until
from tests.support.zones import NoZone

pytestmark = pytest.mark.compiled

LONG = PATIENCE
"""Seconds that nothing here takes unless it is broken."""


def wait_until_waiting(queue: PersistentQueue, count: int) -> None:
    """Return once `count` threads wait for an item."""
    until(lambda: len(queue._queue().waiters) >= count, pause=0.001)


def data(item: Item | None) -> bytes | None:
    """Return an item's data."""
    return None if item is None else item.data


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    """Add, open a read, give it back, hold it again, and confirm it."""
    with PersistentQueue("work", tmp_path, QueueConfig(max_items=1000)) as queue:
        assert queue.add(b"hello")
        item = queue.remove(transaction=True)
        assert item is not None
        assert item.xid != 0
        assert queue.unremove(item.xid)
        with queue.reserve(timeout=0.5) as held:
            assert held is not None
            assert held.data == b"hello"
        assert queue.peek() is None


def test_constructor_touches_nothing(tmp_path: Path) -> None:
    """Only `setup` makes the directory; until then the queue counts as closed."""
    queue = PersistentQueue("work", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    closed = [queue.is_closed]
    with pytest.raises(QueueUnavailable, match="not set up"):
        queue.add(b"x")
    queue.setup()
    queue.setup()
    closed.append(queue.is_closed)
    queue.close()
    queue.close()
    closed.append(queue.is_closed)
    assert closed == [True, False, True]
    with pytest.raises(QueueUnavailable, match="closed"):
        queue.remove()


def test_items_outlive_the_object(tmp_path: Path) -> None:
    """What was added and not taken is there again; an open read is back at the head."""
    clock = FakeClock()
    with PersistentQueue("work", tmp_path, clock=clock) as queue:
        for text in (b"a", b"b", b"c"):
            queue.add(text, expiry=60 if text == b"b" else None)
        assert data(queue.remove(transaction=True)) == b"a"
        assert (len(queue), queue.bytes) == (2, 2)
        assert queue.journal_size == (tmp_path / "work").stat().st_size
    with PersistentQueue("work", tmp_path, clock=clock) as queue:
        now = clock.now()
        assert queue.remove() == Item(b"a", now, None)
        assert queue.peek() == Item(b"b", now, now + 60_000)
        assert data(queue.remove()) == b"b"
        assert queue.flush() == 1
        assert len(queue) == 0
        assert queue


def test_an_item_tells_how_often_it_came_back(tmp_path: Path) -> None:
    """Over a restart, and a read that is open then is one more."""
    with PersistentQueue("work", tmp_path) as queue:
        queue.add(b"a")
        item = queue.remove(transaction=True)
        assert item is not None
        assert item.deliveries == 0
        assert queue.unremove(item.xid)
        item = queue.remove(transaction=True)
        assert item is not None
        assert item.deliveries == 1
    with PersistentQueue("work", tmp_path) as queue:
        item = queue.peek()
        assert item is not None
        assert item.deliveries == 2


@pytest.mark.parametrize(
    ("expiry", "seconds"),
    [
        (2, 2),
        (0.5, 0.5),
        (timedelta(minutes=1), 60),
        (datetime.fromtimestamp(1_700_000_100, UTC), 100),
    ],
)
def test_expiry(tmp_path: Path, expiry: Expiry, seconds: float) -> None:
    """An expiry is seconds from now, a time span or a point in time."""
    clock = FakeClock()
    with PersistentQueue("work", tmp_path, clock=clock) as queue:
        queue.add(b"x", expiry)
        clock.advance(seconds - 0.001)
        assert data(queue.peek()) == b"x"
        clock.advance(0.001)
        assert queue.peek() is None


@pytest.mark.parametrize(
    ("given", "stored"), [("\u00e4rger", "\u00e4rger".encode()), (bytearray(b"a"), b"a")]
)
def test_an_item_may_be_text(tmp_path: Path, given: Any, stored: bytes) -> None:
    """It is stored as UTF-8, as by the client; and what can be read as bytes is bytes."""
    with (
        PersistentQueue("work", tmp_path / "one") as queue,
        QueueCollection(tmp_path / "all") as several,
    ):
        assert queue.add(given)
        assert several.add("work", given)
        assert data(queue.remove()) == data(several.queue("work").remove()) == stored


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (7, TypeError, "bytes or text, not int"),
        (None, TypeError, "bytes or text, not NoneType"),
        ("a\udc80", ValueError, "UTF-8: surrogates not allowed at character 1"),
    ],
)
def test_what_is_no_item_is_refused(
    tmp_path: Path, given: Any, error: type[Exception], says: str
) -> None:
    """The error says what is wanted."""
    with (
        PersistentQueue("work", tmp_path / "one") as queue,
        QueueCollection(tmp_path / "all") as several,
    ):
        for add in (queue.add, lambda item: several.add("work", item)):
            with pytest.raises(error, match=says):
                add(given)
        assert len(queue) == 0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"producer": "p", "sequence": 1.5}, "a whole number"),
        ({"producer": 7, "sequence": 1}, "text, not int"),
        ({"producer": "\udc80", "sequence": 1}, "UTF-8"),
        ({"expiry": math.nan}, "at most 1000"),
        ({"expiry": -math.inf}, "at most 1000"),
        ({"expiry": 1e30}, "at most 1000"),
        ({"delay": math.inf}, "at most 1000"),
    ],
)
def test_an_add_that_makes_no_sense_changes_nothing(
    tmp_path: Path, given: dict[str, Any], says: str
) -> None:
    """It is refused before the queue has it."""
    with PersistentQueue("work", tmp_path) as queue:
        with pytest.raises(ValueError, match=says):
            queue.add(b"x", **given)
        assert len(queue) == 0
    with PersistentQueue("work", tmp_path) as queue:
        assert len(queue) == 0


def test_times_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    """A wait that would never end, and a deadline that no other can be compared with."""
    with PersistentQueue("work", tmp_path) as queue:
        queue.add(b"x")
        item = queue.remove(transaction=True)
        assert item is not None
        for wrong in (math.nan, -1, math.inf):
            with pytest.raises(ValueError, match="by 0 to"):
                queue.extend(item.xid, wrong)
        for wait in (queue.wait_remove, queue.wait_peek):
            with pytest.raises(ValueError, match="a timeout is a number"):
                wait(math.nan)
        queue.unremove(item.xid)
        assert data(queue.wait_remove(math.inf)) == b"x"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda queue: queue.add(b"y", "5"), "an expiry or a delay is a number, not str"),
        (lambda queue: queue.wait_remove("5"), "a timeout is a number, not str"),
        (lambda queue: queue.release(1, "5"), "the delay is a number, not str"),
        (lambda queue: queue.extend(1, "5"), "an extension is a number, not str"),
        (lambda queue: queue.reserve_many(1, "5"), "a lease is a number, not str"),
        (lambda queue: queue.reserve_many(1.5, 5), "a number of items is a whole number, not 1.5"),
        (lambda queue: queue.browse(1.5), "an offset is a whole number, not 1.5"),
        (lambda queue: queue.search("x", count="5"), "a number of items is a whole number"),
        (lambda queue: next(queue.consume(max_items=1.5)), "max_items is a whole number, not 1.5"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_named(
    tmp_path: Path, call: Callable[[PersistentQueue], object], says: str
) -> None:
    """The queue stays as it was."""
    with PersistentQueue("work", tmp_path) as queue:
        queue.add(b"x")
        with pytest.raises(TypeError, match=says):
            call(queue)
        assert len(queue) == 1


def test_a_queue_is_named_by_text_and_set_up_by_its_settings(tmp_path: Path) -> None:
    """Bytes would be taken for a file name of their own."""
    for wrong in (None, 5, b"work"):
        name: Any = wrong
        with pytest.raises(InvalidQueueName, match="a queue name is text, not"):
            PersistentQueue(name, tmp_path)
    settings: Any = {"max_items": 1}
    with pytest.raises(ConfigError, match="are a QueueConfig"):
        PersistentQueue("work", tmp_path, settings)
    with QueueCollection(tmp_path) as queues:
        calls: tuple[Callable[[Any], object], ...] = (
            queues.queue,
            queues.flush,
            queues.delete,
            queues.pause,
            queues.resume,
            queues.redrive,
            lambda wrong: queues.add(wrong, b"x"),
            lambda wrong: queues.move("work", wrong),
            lambda wrong: queues.declare(wrong, QueueConfig()),
        )
        for call in calls:
            with pytest.raises(InvalidQueueName, match="a queue name is text, not bytes"):
                call(b"work")
        with pytest.raises(ConfigError, match="are a QueueConfig"):
            queues.declare("work", settings)


def test_a_past_time_is_no_item_for_ever(tmp_path: Path) -> None:
    """Not even the epoch, for which the journal would have the 0 of never."""
    with PersistentQueue("work", tmp_path) as queue:
        queue.add(b"x", datetime(1970, 1, 1, tzinfo=UTC))
        assert queue.peek() is None


def test_naive_expiry_is_refused(tmp_path: Path) -> None:
    """A point in time without a time zone could mean anything."""
    with PersistentQueue("work", tmp_path) as queue:
        with pytest.raises(ValueError, match="time zone"):
            queue.add(b"x", datetime(2030, 1, 1))  # noqa: DTZ001 # the mistake
        with pytest.raises(ValueError, match="time zone"):
            queue.add(b"x", datetime(2030, 1, 1, tzinfo=NoZone()))
        assert len(queue) == 0


def test_limits_and_unknown_xids_say_false(tmp_path: Path) -> None:
    """A full queue, an item too large and an xid that is not open are answers, not errors."""
    with PersistentQueue("work", tmp_path, QueueConfig(max_items=1, max_item_size=2)) as queue:
        assert not queue.add(b"xxx")
        assert queue.add(b"x")
        assert not queue.add(b"y")
        assert not queue.unremove(17)
        assert not queue.confirm_remove(17)


def test_journal_that_cannot_be_written(tmp_path: Path) -> None:
    """The add fails, nothing is added, and the queue works again when the disk does."""
    with PersistentQueue("work", tmp_path) as queue:
        queue.add(b"before")
        with largest_file(1 << 20), pytest.raises(JournalError, match="work"):
            queue.add(bytes(2 << 20))
        assert len(queue) == 1
        assert queue.add(b"after")
    with PersistentQueue("work", tmp_path) as queue:
        assert [data(queue.remove()) for _ in range(3)] == [b"before", b"after", None]


def test_reads_that_cannot_be_ended_now(tmp_path: Path) -> None:
    """One that was to be confirmed may be so later; one that was given back comes back."""
    with PersistentQueue("work", tmp_path) as queue:
        queue.add(bytes(100))
        first = queue.remove(transaction=True)
        assert first is not None
        with largest_file(100), pytest.raises(JournalError):
            queue.unremove(first.xid)
        again = queue.remove(transaction=True)
        assert again is not None
        with largest_file(100), pytest.raises(JournalError):
            queue.confirm_remove(again.xid)
        assert queue.peek() is None
        assert queue.confirm_remove(again.xid)
    with PersistentQueue("work", tmp_path) as queue:
        assert queue.peek() is None


def test_waiting_thread_stays_unserved_when_the_add_fails(tmp_path: Path) -> None:
    """A reader is never handed an item that is in no journal."""
    with PersistentQueue("work", tmp_path) as queue, ThreadPoolExecutor(1) as threads:
        reader = threads.submit(queue.wait_remove, LONG)
        wait_until_waiting(queue, 1)
        with largest_file(1 << 20), pytest.raises(JournalError):
            queue.add(bytes(2 << 20))
        with pytest.raises(JournalError):
            reader.result(LONG)
        assert len(queue) == 0


def test_a_read_that_cannot_be_given_back_goes_to_a_thread_that_waits(tmp_path: Path) -> None:
    """It comes back when the disk works again, though nobody uses the queue meanwhile."""
    with PersistentQueue("work", tmp_path) as queue, ThreadPoolExecutor(2) as threads:
        queue.add(b"x")
        item = queue.remove(transaction=True)
        assert item is not None
        readers = [threads.submit(queue.wait_remove, LONG) for _ in range(2)]
        wait_until_waiting(queue, 2)
        with largest_file(queue.journal_size), pytest.raises(JournalError):
            queue.unremove(item.xid)
        errors = [reader.exception(LONG) for reader in readers]
        assert [type(error) for error in errors].count(JournalError) == 1  # whose turn it was
        assert [data(reader.result()) for reader in readers if not reader.exception()] == [b"x"]


def test_waiting_threads_are_served_in_order(tmp_path: Path) -> None:
    """Who waits first gets the first item; a peek takes none away."""
    with PersistentQueue("work", tmp_path) as queue, ThreadPoolExecutor(4) as threads:
        results = []
        for number, wait in enumerate(
            [queue.wait_remove, queue.wait_peek, queue.wait_remove], start=1
        ):
            results.append(threads.submit(wait, LONG))
            wait_until_waiting(queue, number)
        queue.add(b"1")
        queue.add(b"2")
        assert [data(result.result(LONG)) for result in results] == [b"1", b"2", b"2"]


def test_wait_that_times_out_takes_nothing(tmp_path: Path) -> None:
    """The reader leaves the line, so that a later item is not lost with it."""
    with PersistentQueue("work", tmp_path) as queue:
        assert queue.wait_remove(0) is None
        assert queue.wait_remove(0.01, transaction=True) is None
        assert queue.wait_peek(0.01) is None
        queue.add(b"x")
        assert data(queue.remove()) == b"x"


def test_close_ends_waits(tmp_path: Path) -> None:
    """A thread that waits for as long as it takes hears that the queue was closed."""
    with ThreadPoolExecutor(1) as threads:
        queue = PersistentQueue("work", tmp_path)
        queue.setup()
        reader = threads.submit(queue.wait_remove)
        wait_until_waiting(queue, 1)
        queue.close()
        with pytest.raises(QueueUnavailable, match="closed"):
            reader.result(LONG)


def test_an_interrupted_add_still_wakes_who_got_the_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its read is written, so the thread that waits has the item, whatever becomes of the sync."""
    config = QueueConfig(sync_journal=0)
    with PersistentQueue("work", tmp_path, config) as queue, ThreadPoolExecutor(1) as threads:
        reader = threads.submit(queue.wait_remove)
        wait_until_waiting(queue, 1)
        with monkeypatch.context() as patched:
            patched.setattr(queue._access, "_wait_for", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                queue.add(b"x")
        assert data(reader.result(LONG)) == b"x"


def test_a_wait_that_fails_keeps_an_item_that_came_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that is closed just after the thread was served does not lose the item."""
    with PersistentQueue("work", tmp_path) as queue:

        def closed(*_: object) -> None:
            queue.add(b"x")
            queue.close()
            raise QueueUnavailable

        monkeypatch.setattr(queue, "_longest_sleep", closed)
        assert data(queue.wait_remove()) == b"x"


def test_an_interrupted_wait_holds_no_item(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An item that came just before goes back, and is not held for ever."""
    with PersistentQueue("work", tmp_path) as queue:

        def interrupted(*_: object) -> None:
            queue.add(b"x")
            raise KeyboardInterrupt

        monkeypatch.setattr(queue, "_longest_sleep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue.wait_remove(transaction=True)
        assert data(queue.remove()) == b"x"


def test_overdue_read_is_given_back(tmp_path: Path) -> None:
    """`open_transaction_timeout` holds without anything running in the background."""
    clock = FakeClock()
    config = QueueConfig(open_transaction_timeout=30)
    with PersistentQueue("work", tmp_path, config, clock=clock) as queue:
        queue.add(b"x")
        item = queue.remove(transaction=True)
        assert item is not None
        clock.advance(29)
        assert len(queue) == 0
        clock.advance(1)
        assert len(queue) == 1
        assert not queue.confirm_remove(item.xid)


def test_overdue_read_reaches_a_waiting_thread(tmp_path: Path) -> None:
    """A thread that waits gets the item of a read opened after it began, once that is overdue."""
    config = QueueConfig(open_transaction_timeout=0.05)
    with PersistentQueue("work", tmp_path, config) as queue, ThreadPoolExecutor(2) as threads:
        holder = threads.submit(queue.wait_remove, LONG, transaction=True)
        wait_until_waiting(queue, 1)
        reader = threads.submit(queue.wait_remove, LONG)
        wait_until_waiting(queue, 2)
        queue.add(b"x")
        assert data(holder.result(LONG)) == b"x"
        assert data(reader.result(LONG)) == b"x"


@pytest.mark.parametrize("sync_journal", [None, 0])
def test_many_threads(tmp_path: Path, sync_journal: float | None) -> None:
    """Every item that threads add arrives at exactly one of the threads that take."""
    config = QueueConfig(sync_journal=sync_journal)
    with PersistentQueue("work", tmp_path, config) as queue:
        taken: list[list[bytes]] = [[] for _ in range(4)]

        def produce(number: int) -> None:
            for index in range(100):
                queue.add(b"%d-%d" % (number, index))

        def consume(into: list[bytes]) -> None:
            while (item := queue.wait_remove(LONG, transaction=True)) is not None:
                queue.confirm_remove(item.xid)
                if item.data == b"stop":
                    return
                into.append(item.data)

        producers = [Thread(target=produce, args=(number,)) for number in range(4)]
        consumers = [Thread(target=consume, args=(into,)) for into in taken]
        for thread in (*consumers, *producers):
            thread.start()
        for thread in producers:
            thread.join()
        for _ in consumers:
            queue.add(b"stop")
        for thread in consumers:
            thread.join()
        assert sorted(one for into in taken for one in into) == sorted(
            b"%d-%d" % (n, i) for n in range(4) for i in range(100)
        )
        for into in taken:
            for number in range(4):
                mine = [int(one.split(b"-")[1]) for one in into if one.startswith(b"%d-" % number)]
                assert mine == sorted(mine)


def test_queues_of_one_path_work_side_by_side(tmp_path: Path) -> None:
    """Each queue has its own files and its own lock."""
    with PersistentQueue("a", tmp_path) as first, PersistentQueue("b", tmp_path) as second:
        first.add(b"1")
        second.add(b"2")
        assert (data(first.remove()), data(second.remove())) == (b"1", b"2")


def test_queue_in_use_is_refused(tmp_path: Path) -> None:
    """A second user of a queue is told who has it; afterwards it is free."""
    with PersistentQueue("work", tmp_path) as queue:
        queue.add(b"x")
        with pytest.raises(QueuePathLocked, match=r"queue work in .* is in use already \(process"):
            PersistentQueue("work", tmp_path).setup()
    with PersistentQueue("work", tmp_path) as queue:
        assert len(queue) == 1


def test_two_processes_do_not_share_a_queue(tmp_path: Path) -> None:
    """Another process is refused the queue, not the path, and harms nothing."""
    program = (
        "import sys; from kestrelmq import PersistentQueue\n"
        "with PersistentQueue(sys.argv[1], sys.argv[2]) as queue: queue.add(b'theirs')"
    )
    with PersistentQueue("work", tmp_path) as queue:
        queue.add(b"ours")
        refused, allowed = (
            subprocess.run(
                [sys.executable, "-c", program, name, str(tmp_path)],
                capture_output=True,
                text=True,
                check=False,
            )
            for name in ("work", "other")
        )
        assert refused.returncode == 1
        assert "QueuePathLocked: queue work in" in refused.stderr
        assert allowed.returncode == 0
        assert len(queue) == 1
    with PersistentQueue("other", tmp_path) as queue:
        assert data(queue.remove()) == b"theirs"


def test_a_fork_of_the_process_does_not_share_its_queues(tmp_path: Path) -> None:
    """It has copies of them, which it cannot use, nor close; it may use others."""
    with PersistentQueue("work", tmp_path / "one") as queue:
        queue.add(b"x")
        for use in (queue.remove, queue.setup, queue.peek, lambda: queue.add(b"y")):
            assert in_a_fork(use) == "QueueUnavailable"
        assert in_a_fork(queue.close) == "None"
        assert data(queue.remove()) == b"x"
    with QueueCollection(tmp_path / "all") as queues:
        queues.add("work", b"x")
        for ask in (queues.queue("work").remove, queues.names, queues.sweep):
            assert in_a_fork(ask) == "QueueUnavailable"
        assert in_a_fork(queues.close) == "None"
        assert data(queues.queue("work").remove()) == b"x"
    assert in_a_fork(queue.setup) == "None"


def test_queue_without_a_journal(tmp_path: Path) -> None:
    """`keep_journal = false` leaves no file, and needs no directory."""
    config = QueueConfig(keep_journal=False)
    with PersistentQueue("work", tmp_path / "none", config) as queue:
        queue.add(b"x")
        assert queue.journal_size == 0
        assert data(queue.remove()) == b"x"
    assert not (tmp_path / "none").exists()


def test_damaged_journal_is_refused_and_released(tmp_path: Path) -> None:
    """`setup` says where the damage is, changes no file, and keeps no lock."""
    (tmp_path / "work").write_bytes(b"\x01\xff\x01")
    for _ in range(2):
        with pytest.raises(DamagedJournal, match="byte 1"):
            PersistentQueue("work", tmp_path).setup()
    assert (tmp_path / "work").read_bytes() == b"\x01\xff\x01"


@pytest.mark.parametrize("name", ["", "a/b", "../a", "a~b", "a b"])
def test_a_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    """A name that no queue can have is refused at once."""
    with pytest.raises(InvalidQueueName):
        PersistentQueue(name, tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        QueueConfig(expire_to_queue="x"),
        QueueConfig(fanout_only=True),
        QueueConfig(max_deliveries=5),
    ],
)
def test_settings_that_need_other_queues(tmp_path: Path, config: QueueConfig) -> None:
    """What one queue cannot do alone is refused, not ignored."""
    with pytest.raises(ConfigError, match="QueueCollection"):
        PersistentQueue("work", tmp_path, config)


def test_periodic_sync_runs_and_stops(tmp_path: Path) -> None:
    """A `sync_journal` period forces the journal to disk with nobody asking; so does close."""
    with PersistentQueue("work", tmp_path, QueueConfig(sync_journal=0.005)) as queue:
        journal = queue._queue().journal
        for number in range(2):
            assert journal.syncs == number  # what was written was synced, once
            queue.add(b"x")
            until(lambda: journal.syncs > number, pause=0.001)  # noqa: B023 # called at once
        before = journal.syncs
    assert journal.syncs > before


def test_failed_sync_is_loud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `sync_journal = 0` an add whose fsync failed raises, until all is written anew."""

    def fail(_: object) -> None:
        raise OSError(5, "Input/output error")

    with PersistentQueue("work", tmp_path, QueueConfig(sync_journal=0)) as queue:
        queue.add(b"x")
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", fail)
            with pytest.raises(JournalError, match="Input/output"):
                queue.add(b"y")
        journal = queue._queue().journal
        assert isinstance(journal, FileJournal)
        queue._do_upkeep()
        until(lambda: not journal.suspect, pause=0.001)
        assert queue.add(b"z")


@pytest.mark.parametrize("transaction", [False, True])
def test_a_read_whose_sync_failed_has_its_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, transaction: bool
) -> None:
    """Nobody else would get it. Nothing more is added or taken until all is written anew."""

    def fail(_: object) -> None:
        raise OSError(5, "Input/output error")

    with PersistentQueue("work", tmp_path, QueueConfig(sync_journal=0)) as queue:
        for data in (b"x", b"y"):
            queue.add(data)
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", fail)
            item = queue.remove(transaction=transaction)
            assert item is not None
            assert item.data == b"x"
            for transacted in (False, True):
                with pytest.raises(JournalError, match="earlier sync failed"):
                    queue.remove(transaction=transacted)
            with pytest.raises(JournalError, match="earlier sync failed"):
                queue.wait_remove(timeout=LONG)
            with pytest.raises(JournalError, match="earlier sync failed"):
                queue.add(b"z")
            with pytest.raises(JournalError, match="earlier sync failed"):
                queue.add(b"z", delay=1)
            head = queue.peek()
            assert head is not None
            assert head.data == b"y"
        journal = queue._queue().journal
        assert isinstance(journal, FileJournal)
        queue._do_upkeep()
        until(lambda: not journal.suspect, pause=0.001)
        if transaction:
            assert queue.confirm_remove(item.xid)
        queue.add(b"z")
    with PersistentQueue("work", tmp_path) as queue:
        assert [item.data for item in queue.browse()] == [b"y", b"z"]
