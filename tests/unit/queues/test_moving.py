"""Moving items between queues: in order, up to the first refusal, and never lost."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kestrelmq.clock import no_pause
from kestrelmq.config import QueueConfig, ServerConfig, config_from_toml
from kestrelmq.errors import InvalidQueueName, JournalError, QueueUnavailable
from kestrelmq.format.notes import DeadLetter, dead_letter
from kestrelmq.format.records import item, item_deliveries
from kestrelmq.queue.adding import Put
from kestrelmq.queue.paused import Paused
from kestrelmq.queues.browsing import Look
from kestrelmq.queues.moving import SLICE_ITEMS, Copy, Move, Moved, Redrive
from kestrelmq.scheduling.worker import LARGE_ITEM, run_to_end
from tests.support.crashing_directory import CrashingDirectory, CrashLoss
from tests.support.local_queues import LocalQueues, items_on_disk, queue_settings
from tests.support.real_directory import SimulatedCrash

pytestmark = pytest.mark.compiled


@pytest.fixture(name="spool")
def local_queues(tmp_path: Path) -> Iterator[LocalQueues]:
    """Queues with default settings; `jobs` has three items."""
    queues = LocalQueues(ServerConfig(queue_path=tmp_path))
    queues.add(b"1", b"2", b"3")
    yield queues
    queues.close()


def move(
    spool: LocalQueues, target: str = "late", count: int | None = None
) -> tuple[int, str | None]:
    """Move items of `jobs`; return how many, and why no more."""
    work = Move(spool.collection, spool.queue(), target, count)
    run_to_end(work.slices())
    spool.commit()
    return work.moved, work.stopped


@pytest.mark.parametrize(("count", "moved"), [(0, 0), (2, 2), (3, 3), (9, 3), (None, 3)])
def test_the_first_items_go_to_the_end_of_the_target(
    spool: LocalQueues, count: int | None, moved: int
) -> None:
    """In order; the others stay; also after a restart."""
    spool.add(b"0", name="late")
    assert move(spool, count=count) == (moved, None)
    items = [b"1", b"2", b"3"]
    for _ in range(2):
        assert spool.items() == items[moved:]
        assert spool.items("late") == [b"0", *items[:moved]]
        spool.restart()


def test_a_refusal_ends_the_move(tmp_path: Path) -> None:
    """The item that was refused is still the head; nothing is counted as delivered."""
    config = config_from_toml(
        '[queues.late]\nmax_items = 2\n[default]\nmax_deliveries = 1\ndead_letter_queue = "dead"\n',
        "test",
    )
    spool = LocalQueues(config.model_copy(update={"queue_path": tmp_path}))
    spool.add(b"1", b"2", b"3")
    assert move(spool) == (2, "late is full, or the item is too large for it")
    assert move(spool) == (0, "late is full, or the item is too large for it")
    assert (spool.items(), spool.items("late")) == ([b"3"], [b"1", b"2"])
    spool.collection.pause("late", Paused.WRITES)
    assert move(spool) == (0, "queue late is paused for writes")
    assert (spool.queue().reads.held, "dead" in spool.collection.queues) == (0, False)
    spool.close()


def test_items_keep_their_expiry_and_expired_ones_stay_behind(spool: LocalQueues) -> None:
    """As if they were read and added."""
    expiry = spool.clock.now() + 5000
    spool.drain()
    spool.add(b"old", expiry=spool.clock.now() + 10)
    spool.add(b"new", expiry=expiry)
    spool.clock.advance(1)
    assert move(spool) == (1, None)
    assert spool.items("late") == [b"new"]
    spool.clock.advance(5)
    assert spool.take("late") is None


def test_a_queue_whose_reads_are_paused_can_be_emptied(spool: LocalQueues) -> None:
    """That is why somebody paused it."""
    spool.collection.pause("jobs", Paused.ALL)
    assert move(spool) == (3, None)
    assert len(spool.queue()) == 0


def test_items_do_not_come_back(tmp_path: Path) -> None:
    """A target that adds to the source is refused; a child of the target gets them, too."""
    toml = "[aliases.both]\ndestination_queues = ['late', 'jobs']\n"
    config = config_from_toml(toml, "test").model_copy(update={"queue_path": tmp_path})
    spool = LocalQueues(config)
    spool.add(b"1", b"2")
    spool.queue("late")
    for name in ("jobs", "both"):
        with pytest.raises(InvalidQueueName, match="comes to jobs, too"):
            move(spool, name)
    spool.queue("master+child")
    spool.queue("master")
    with pytest.raises(InvalidQueueName, match=r"comes to master\+child, too"):
        Move(spool.collection, spool.queue("master+child"), "master")
    assert move(spool, "master", 1) == (1, None)
    assert spool.items("master") == spool.items("master+child") == [b"1"]
    spool.close()


def test_all_queues_of_an_alias_get_an_item_or_none(tmp_path: Path) -> None:
    """So that it is not there twice after the next try."""
    toml = "[aliases.both]\ndestination_queues = ['left', 'right']\n[queues.right]\nmax_items = 1\n"
    config = config_from_toml(toml, "test").model_copy(update={"queue_path": tmp_path})
    spool = LocalQueues(config)
    spool.add(b"1", b"2")
    assert move(spool, "both") == (1, "both is full, or the item is too large for it")
    assert (spool.items(), spool.items("left"), spool.items("right")) == ([b"2"], [b"1"], [b"1"])
    spool.close()


def test_items_on_disk_are_moved(tmp_path: Path) -> None:
    """From and to queues that are longer than memory, over many slices."""
    spool = LocalQueues(queue_settings(tmp_path, max_memory_size=100, max_journal_size=2000))
    items = [b"%d" % number for number in range(3 * SLICE_ITEMS + 7)]
    spool.add(*items)
    assert move(spool) == (len(items), None)
    assert (spool.drain("late"), spool.drain()) == (items, [])
    spool.close()


def test_no_reader_gets_what_is_being_moved(spool: LocalQueues) -> None:
    """While a slice waits to be durable; if it cannot be, its items come back as they were."""
    slices = Move(spool.collection, spool.queue(), "late", 2).slices()
    targets = next(slices)
    assert isinstance(targets, tuple)
    (late,) = targets
    assert (late.name, spool.take(), spool.take()) == ("late", b"3", None)
    with pytest.raises(JournalError, match="lost"):
        slices.throw(JournalError("lost"))
    spool.commit()
    assert spool.drain() == [b"1", b"2"]


def test_a_source_that_is_deleted_meanwhile_ends_the_move(spool: LocalQueues) -> None:
    """Its items are in the target."""
    work = Move(spool.collection, spool.queue(), "late", None)
    slices = work.slices()
    next(slices)
    spool.collection.delete("jobs")
    next(slices, None)
    assert spool.items("late") == [b"1", b"2", b"3"]
    work = Move(spool.collection, spool.queue(), "late", 5)
    spool.collection.delete("jobs")
    with pytest.raises(QueueUnavailable):
        next(work.slices())


@pytest.mark.parametrize("fails", ["late", "jobs"])
def test_a_full_disk_loses_nothing(tmp_path: Path, fails: str) -> None:
    """The error is raised; items are in one queue or in both, and can be read."""
    directory = CrashingDirectory.within(tmp_path)
    spool = LocalQueues(ServerConfig(queue_path=tmp_path / "queues"), directory)
    spool.add(b"1", b"2", b"3")
    spool.queue("late")
    directory.break_steps(f"append to {fails}")
    with pytest.raises(JournalError):
        move(spool)
    spool.collection.commits.commit()
    directory.mend()
    spool.clock.advance(2)
    spool.collection.check_deadlines()
    assert spool.drain() == [b"1", b"2", b"3"]
    assert spool.drain("late") == ([] if fails == "late" else [b"1", b"2", b"3"])
    spool.close()


@pytest.mark.parametrize("loss", [CrashLoss.KILLED, CrashLoss.POWER_LOST])
@pytest.mark.parametrize("dialect", ["documented", "kestrel-2"])
def test_a_crash_at_any_step_leaves_each_item_somewhere(
    tmp_path: Path, loss: CrashLoss, dialect: str
) -> None:
    """In the source, in the target, or in both; in order in each."""
    items = [b"%d" % number for number in range(SLICE_ITEMS + 5)]
    step, crashed = 0, True
    while crashed:
        step += 1
        crashed = False
        root = tmp_path / str(step)
        directory = CrashingDirectory.within(root)
        config = queue_settings(root / "queues", journal_dialect=dialect, max_memory_size=400)
        spool = LocalQueues(config, directory)
        spool.add(*items)
        spool.queue("late")
        for queue in spool.collection.queues.values():
            queue.sync()
        directory.sync()
        slices = Move(spool.collection, spool.queue(), "late").slices()
        try:
            directory.crash_at = directory.steps + step
            for targets in slices:
                assert isinstance(targets, tuple)
                for queue in targets:
                    queue.sync()
            spool.commit()
        except SimulatedCrash:
            crashed = True
        with suppress(SimulatedCrash):
            slices.close()
        directory.survive(loss, root / "left")
        spool.collection._lock.release()
        source = items_on_disk(root / "left", journal_dialect=dialect)
        target = items_on_disk(root / "left", "late", journal_dialect=dialect)
        assert target == items[: len(target)]
        assert source == items[len(items) - len(source) :]
        assert len(source) + len(target) >= len(items)
    assert step > 8


def copy(spool: LocalQueues, target: str = "late", count: int | None = None) -> Moved:
    """Copy items of `jobs`."""
    work = Copy(spool.collection, spool.queue(), target, count)
    for step in work.slices():
        if isinstance(step, Look):
            for view in step.views():
                view.load()
        else:
            assert isinstance(step, tuple)
            assert {queue.name for queue in step} <= {target, "jobs"}
    spool.commit()
    return Moved(work.moved, work.stopped)


@pytest.mark.parametrize(("count", "copied"), [(0, 0), (2, 2), (9, 3), (None, 3)])
def test_a_copy_leaves_the_items_where_they_are(
    spool: LocalQueues, count: int | None, copied: int
) -> None:
    """In order; also after a restart."""
    assert copy(spool, count=count) == Moved(copied, None)
    for _ in range(2):
        assert spool.items() == [b"1", b"2", b"3"]
        if copied:
            assert spool.items("late") == [b"1", b"2", b"3"][:copied]
        spool.restart()


def test_a_refusal_ends_the_copy(tmp_path: Path) -> None:
    """Nothing more is read then."""
    spool = LocalQueues(queue_settings(tmp_path, max_items=SLICE_ITEMS + 5))
    items = [b"%d" % number for number in range(SLICE_ITEMS + 5)]
    spool.add(*items)
    spool.add(*[b"x"] * 3, name="late")
    refusal = "late is full, or the item is too large for it"
    assert copy(spool) == Moved(SLICE_ITEMS + 2, refusal)
    assert (spool.items(), len(spool.items("late"))) == (items, SLICE_ITEMS + 5)
    spool.close()


@pytest.mark.parametrize("target", ["jobs", "a/b", ""])
def test_no_queue_can_have_that_target(spool: LocalQueues, target: str) -> None:
    """Nothing is moved, copied or created."""
    for kind in (Move, Copy):
        with pytest.raises(InvalidQueueName):
            kind(spool.collection, spool.queue(), target)
    assert set(spool.collection.queues) == {"jobs"}


# --- redrive ---

DEAD = QueueConfig(max_deliveries=1, dead_letter_queue="dead")


def dead_letters(path: Path, **queues: QueueConfig) -> LocalQueues:
    """Return queues; all but those in `queues` send what fails once to `dead`."""
    spool = LocalQueues(ServerConfig(queue_path=path, default=DEAD, queues=queues))
    spool.queue("orders+audit")
    spool.queue("orders+billing")
    return spool


def fail(spool: LocalQueues, name: str, *items: bytes) -> None:
    """Add items to a queue only, and let each fail there."""
    for data in items:
        assert spool.queue(name).accept(Put(item(spool.clock.now(), 0, data)), alone=True)
        spool.queue(name).returns.give_back((spool.open_read(name),), why="it is bad")
        spool.commit()


def redrive(spool: LocalQueues, target: str | None = None, *refused: str) -> tuple[int, str | None]:
    """Redrive `dead`, where nothing may be added to the queues `refused`."""

    def check(name: str) -> None:
        if name in refused:
            raise QueueUnavailable(f"no {name}")

    work = Redrive(spool.collection, spool.queue("dead"), target, check)
    for step in work.slices():
        if callable(step):
            step(no_pause)
        spool.commit()
    spool.commit()
    return work.moved, work.stopped


@pytest.mark.parametrize("size", [1, LARGE_ITEM])
def test_each_dead_letter_goes_to_its_own_origin_only(tmp_path: Path, size: int) -> None:
    """Not to fanout children, nor to a master; the settings of many queues may name the same."""
    spool = dead_letters(tmp_path)
    for name in ("work", "orders", "orders+audit"):
        fail(spool, name, name[-1:].encode() * size)
    died = spool.clock.now()
    for _ in range(2):
        found = [dead_letter(one) for one in spool.queue("dead").backlog.browse(9)]
        assert found == [
            DeadLetter(name, died, "it is bad") for name in ("work", "orders", "orders+audit")
        ]
        spool.restart()
    assert redrive(spool) == (3, None)
    for _ in range(2):
        assert {name: spool.items(name) for name in spool.collection.queues} == {
            "dead": [],
            "work": [b"k" * size],
            "orders": [b"s" * size],
            "orders+audit": [b"t" * size],
            "orders+billing": [],
        }
        (again,) = spool.queue("work").backlog.browse(1)
        assert (dead_letter(again), item_deliveries(again)) == (None, 0)
        spool.restart()
    spool.close()


@pytest.mark.parametrize("size", [1, LARGE_ITEM])
def test_a_named_target_gets_them_all_and_its_children_none(tmp_path: Path, size: int) -> None:
    """Those, too, whose origin is not known."""
    spool = dead_letters(tmp_path)
    fail(spool, "work", b"1" * size)
    spool.add(b"2" * size, name="dead")
    assert redrive(spool, "orders") == (2, None)
    assert spool.items("orders") == [b"1" * size, b"2" * size]
    assert spool.items("orders+audit") == spool.items("orders+billing") == []
    spool.close()


def test_letters_whose_origin_cannot_have_them_stay(tmp_path: Path) -> None:
    """In order, and counted; they keep nobody else, and count no delivery."""
    spool = dead_letters(
        tmp_path,
        full=DEAD.model_copy(update={"max_items": 1}),
        shared=DEAD.model_copy(update={"fanout_only": True}),
    )
    fail(spool, "full", b"full")
    spool.add(b"first", name="full")
    for name in ("gone", "forbidden", "work"):
        fail(spool, name, name.encode())
    spool.add(b"unknown", name="dead")
    fail(spool, "work", b"large" * LARGE_ITEM)
    spool.collection.delete("gone")
    moved, stopped = redrive(spool, None, "forbidden")
    assert moved == 2
    assert stopped is not None
    assert stopped.startswith("4 stay: queue gone is gone; no forbidden; where they came from is")
    for _ in range(2):
        assert spool.items("dead") == [b"full", b"gone", b"forbidden", b"unknown"]
        assert [item_deliveries(one) for one in spool.queue("dead").backlog.browse(9)] == [
            1,
            1,
            1,
            0,
        ]
        spool.restart()
    spool.take("full")
    assert redrive(spool, None, "forbidden")[0] == 1
    assert spool.items("full") == [b"full"]
    spool.close()


def test_a_fanout_only_queue_gets_no_letter(tmp_path: Path) -> None:
    """It would keep none, and its children are not to have it again."""
    spool = dead_letters(tmp_path)
    fail(spool, "orders", b"1")
    only = DEAD.model_copy(update={"fanout_only": True})
    spool.reload(spool.config.model_copy(update={"queues": {"orders": only}}))
    assert redrive(spool) == (0, "1 stay: queue orders keeps no items: it is fanout_only")
    assert spool.items("dead") == [b"1"]
    spool.close()


def test_a_redrive_that_was_killed_loses_and_counts_nothing(tmp_path: Path) -> None:
    """Its letters are open reads, which the next start gives back; they are letters still."""
    spool = dead_letters(tmp_path)
    fail(spool, "work", b"1", b"2")
    spool.add(b"unknown", name="dead")
    before = [dead_letter(one) for one in spool.queue("dead").backlog.browse(9)]
    slices = Redrive(spool.collection, spool.queue("dead"), None, bool).slices()
    next(slices)
    spool.commit()
    spool.kill()
    left = list(spool.queue("dead").backlog.browse(9))
    assert [dead_letter(one) for one in left] == before
    assert [item_deliveries(one) for one in left] == [1, 1, 0]
    spool.close()


def test_a_redrive_that_is_given_up_leaves_the_order(tmp_path: Path) -> None:
    """Of those that it had passed over, and of those that it moved and could not confirm."""
    spool = dead_letters(tmp_path)
    fail(spool, "work", b"1")
    spool.add(b"unknown", name="dead")
    fail(spool, "work", b"2")
    slices = Redrive(spool.collection, spool.queue("dead"), None, bool).slices()
    next(slices)
    slices.close()
    spool.commit()
    assert spool.items("dead") == [b"1", b"unknown", b"2"]
    spool.close()


def test_a_move_that_was_killed_counts_no_delivery(spool: LocalQueues) -> None:
    """Its items are open reads, which the next start gives back; nobody got them."""
    slices = Move(spool.collection, spool.queue(), "late").slices()
    next(slices)
    spool.commit()
    spool.kill()
    assert [item_deliveries(record) for record in spool.queue().backlog.browse(9)] == [0, 0, 0]
