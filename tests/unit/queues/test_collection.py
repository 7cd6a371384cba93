"""What is done to all queues of a collection, and what the trouble of one means to the others."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelmq.config import AliasConfig, QueueConfig, ServerConfig
from kestrelmq.errors import InvalidQueueName, JournalError, QueueUnavailable
from kestrelmq.scheduling.worker import run_to_end
from tests.support.crashing_directory import CrashingDirectory
from tests.support.local_queues import LocalQueues

pytestmark = pytest.mark.compiled


class Spool(LocalQueues):
    """Queues on a disk that fails when the test wants it, and an alias `all` of three of them."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.disk = CrashingDirectory.within(path)
        super().__init__(self.settings(**settings), self.disk)

    def settings(self, **settings: object) -> ServerConfig:
        """Return settings that all queues have."""
        return ServerConfig(
            queue_path=self.disk.path,
            default=QueueConfig.model_validate(settings),
            aliases={"all": AliasConfig(destination_queues=["a", "b", "c"])},
        )

    def have_bug(self, name: str) -> None:
        """Let steps on files of that name end with an error that nobody expects."""

        def fail(point: str) -> bool:
            if name in point.split():
                raise ValueError("a bug")
            return False

        self.disk.fail = fail

    def contents(self, *names: str) -> list[list[bytes]]:
        """Return the items of queues."""
        return [self.items(name) for name in names]


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    """Queues with an item each, by way of the alias."""
    opened = Spool(tmp_path)
    opened.add(b"x", name="all")
    yield opened
    opened.disk.mend()
    opened.close()


def test_a_file_that_is_not_a_journal_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file whose name no journal has is told of once, and stays."""
    (tmp_path / "queues").mkdir()
    other = tmp_path / "queues" / "jobs.backup"
    other.write_bytes(b"mine")
    Spool(tmp_path).close()
    assert caplog.messages == [f"{other} is not a journal; it is left alone"]
    assert other.read_bytes() == b"mine"


def test_a_queue_whose_journal_cannot_be_opened_is_damaged(tmp_path: Path) -> None:
    """It is known, and refused; its files are as they were, and the others serve."""
    spool = Spool(tmp_path)
    spool.add(b"x", name="all")
    spool.close()
    before = (spool.disk.path / "b").read_bytes()
    spool.disk.break_steps("open b")
    spool.open()
    assert sorted(spool.collection.queues) == ["a", "c"]
    with pytest.raises(QueueUnavailable, match=r"queue b cannot be loaded: .*No space"):
        spool.collection.add("b", b"y")
    spool.disk.mend()
    assert (spool.disk.path / "b").read_bytes() == before
    spool.close()


def test_a_queue_that_cannot_be_created_is_not_there(spool: Spool) -> None:
    """Whoever wants it gets an error, and may try again."""
    spool.disk.break_steps("open new")
    with pytest.raises(QueueUnavailable, match=r"queue new cannot be created: .*No space"):
        spool.collection.add("new", b"x")
    assert "new" not in spool.collection.queues
    creates = spool.collection.creates
    spool.disk.mend()
    spool.add(b"x", name="new")
    assert (spool.items("new"), spool.collection.creates) == ([b"x"], creates + 1)


def test_an_alias_is_no_queue(spool: Spool) -> None:
    """It cannot be read, holds nothing that could be dropped, and cannot be deleted."""
    with pytest.raises(InvalidQueueName, match="all is an alias"):
        spool.queue("all")
    expired = run_to_end(spool.collection.expiring("all"))
    assert (spool.collection.flush("all"), expired) == (0, 0)
    assert not spool.collection.delete("all")
    assert spool.contents("a", "b", "c") == [[b"x"]] * 3


def test_an_alias_adds_where_it_can(spool: Spool) -> None:
    """A destination that is not available is an error, but keeps no other from the item."""
    spool.collection.delete("b")
    spool.disk.break_steps("open b")
    with pytest.raises(QueueUnavailable, match="queue b cannot be created"):
        spool.collection.add("all", b"y")
    spool.commit()
    assert spool.contents("a", "c") == [[b"x", b"y"]] * 2


def test_all_queues_are_flushed_though_one_cannot_be_written(spool: Spool) -> None:
    """What could not be dropped is still there, and the error says so."""
    spool.disk.break_steps("append to b")
    with pytest.raises(JournalError, match=r"queue b: .*No space"):
        run_to_end(spool.collection.flushing())
    assert spool.contents("a", "b", "c") == [[], [b"x"], []]


def test_what_goes_meanwhile_is_passed_over(spool: Spool) -> None:
    """A queue that is deleted while others are flushed, or looked after, in turn."""
    flushing = spool.collection.flushing()
    next(flushing)
    spool.collection.delete("b")
    run_to_end(flushing)
    assert spool.contents("a", "c") == [[], []]
    ticking = spool.collection.ticking()
    next(ticking)
    spool.collection.delete("c")
    assert run_to_end(ticking) is None
    assert sorted(spool.collection.queues) == ["a"]


def test_a_queue_that_goes_while_others_are_reloaded_keeps_its_settings(spool: Spool) -> None:
    """It is closed by then; those behind it have theirs."""
    reloading = spool.collection.reloading(spool.settings(max_items=5))
    next(reloading)
    gone = spool.queue("b")
    next(reloading)
    spool.collection.delete("b")
    assert run_to_end(reloading) == []
    found = [queue.config.max_items for queue in (spool.queue("a"), gone, spool.queue("c"))]
    assert found == [5, None, 5]


def test_one_queue_after_the_other_is_rid_of_what_expired(spool: Spool) -> None:
    """Only the head of the queue that was asked for."""
    now = spool.clock.now()
    for name in ("a", "b"):
        spool.collection.flush(name)
        spool.add(b"old", b"older", name=name, expiry=now + 1000)
        spool.add(b"live", name=name)
    spool.clock.advance(2)
    assert run_to_end(spool.collection.expiring("a")) == 2
    spool.commit()
    assert spool.contents("a", "b") == [[b"live"], [b"old", b"older", b"live"]]
    assert run_to_end(spool.collection.expiring("nothing")) == 0


def fill_behind(spool: Spool, name: str) -> Path:
    """Fill a queue with expired items, of which one is in memory; return a file of the others."""
    expiry = spool.clock.now() + 1000
    spool.add(b"1" * 50, b"2" * 50, b"3" * 50, name=name, expiry=expiry)
    (journal,) = spool.disk.path.glob(f"{name}.*")
    return journal


def test_a_queue_that_cannot_be_read_is_the_only_one_that_keeps_expired_items(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error is that of `flush_all_expired`; the sweep logs it, and goes on with the others."""
    spool = Spool(tmp_path, max_memory_size=60)
    journal = fill_behind(spool, "b")
    for name in ("a", "c"):
        spool.add(b"old", name=name, expiry=spool.clock.now() + 1000)
    journal.rename(tmp_path / "away")
    spool.clock.advance(2)
    with pytest.raises(QueueUnavailable, match=r"queue b cannot be read: .*No such file"):
        run_to_end(spool.collection.expiring())
    spool.commit()
    for name in ("a", "c"):
        spool.add(b"old", name=name, expiry=1)
    spool.collection.sweep()
    spool.commit()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert caplog.messages[0].startswith("queue b: queue b cannot be read: ")
    assert [len(spool.queue(name)) for name in ("a", "b", "c")] == [0, 2, 0]
    (tmp_path / "away").rename(journal)
    spool.collection.sweep()
    spool.commit()
    assert len(spool.queue("b")) == 0
    spool.close()


def test_what_is_wrong_with_a_queue_is_logged_while_others_load(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It has nothing to do with their loading."""
    spool = Spool(tmp_path, max_memory_size=60)
    journal = fill_behind(spool, "b")
    journal.rename(tmp_path / "away")
    spool.clock.advance(2)
    spool.collection.loading.expect("late")
    spool.collection.sweep()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    spool.close()


def test_a_bug_that_one_queue_shows_does_not_stop_what_is_done_to_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The others get their overdue reads back, are swept, and their journals looked after."""
    spool = Spool(tmp_path, open_transaction_timeout=5)
    spool.add(b"x", name="all")
    names = ("a", "b", "c")
    for name in names:
        spool.open_read(name)
    spool.have_bug("b")
    spool.clock.advance(6)
    spool.collection.check_deadlines()
    assert caplog.messages == ["what was due in a queue could not be done"]
    assert [spool.queue(name).reads.held for name in names] == [0, 1, 0]
    spool.disk.mend()
    spool.clock.advance(1)
    spool.collection.check_deadlines()
    assert spool.contents(*names) == [[b"x"]] * 3
    for name in names:
        spool.open_read(name)
    caplog.clear()
    spool.have_bug("b")
    spool.clock.advance(6)
    spool.collection.sweep()
    assert caplog.messages == ["queue b was not swept"]
    assert [spool.queue(name).reads.held for name in names] == [0, 1, 0]
    spool.close()


def test_an_operation_that_shows_a_bug_is_taken_back(
    spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    """It alone: what follows is written again, and is there at the next start."""
    spool.have_bug("b")
    spool.collection.add("all", b"refused")
    failures = spool.collection.commits.commit()
    assert [str(error) for error in failures.values()] == ["internal error: ValueError('a bug')"]
    assert caplog.messages == ["a queue was not committed"]
    spool.disk.mend()
    spool.add(b"y", name="all")
    spool.restart()
    assert spool.contents("a", "b") == [[b"x", b"refused", b"y"], [b"x", b"y"]]


def test_a_journal_whose_upkeep_fails_keeps_no_other_from_it(
    spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    """Not for a bug, either."""
    spool.disk.break_steps("append")
    spool.collection.add("all", b"refused")
    assert len(spool.collection.commits.commit()) == 3
    caplog.clear()
    spool.have_bug(f"b~~next-{spool.clock.now()}")
    spool.collection.tick()
    assert caplog.messages == ["the upkeep of the journal of queue b failed"]
    assert [spool.queue(name).core.failure is None for name in ("a", "b", "c")] == [
        True,
        False,
        True,
    ]
    spool.disk.mend()


def test_an_item_refused_before_it_arrives_counts_where_it_was_to_go(spool: Spool) -> None:
    """For each destination that is there, and each fanout child; it creates none."""
    spool.queue("a+audit")
    spool.collection.delete("c")
    spool.collection.count_too_large("all")
    queues = spool.collection.queues
    counted = {name: queue.refusals.too_large for name, queue in queues.items()}
    assert counted == {"a": 1, "a+audit": 1, "b": 1}


def test_a_queue_that_an_alias_masks_keeps_what_expires(spool: Spool) -> None:
    """Nobody can read it meanwhile; the sweep goes on when the alias is gone."""
    spool.add(b"old", name="jobs", expiry=spool.clock.now() + 1000)
    queue = spool.queue("jobs")
    aliases = {"jobs": AliasConfig(destination_queues=["a"])}
    shown = spool.config
    assert spool.reload(shown.model_copy(update={"aliases": aliases})) == []
    spool.clock.advance(2)
    spool.collection.sweep()
    assert (len(queue), queue.counts.expired_items) == (1, 0)
    assert spool.reload(shown) == []
    spool.collection.sweep()
    spool.commit()
    assert (len(queue), queue.counts.expired_items) == (0, 1)
