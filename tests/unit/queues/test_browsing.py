"""Looking at items anywhere in a queue: the same in memory and on disk, whatever upkeep does."""

import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kestrelmq.config import ServerConfig
from kestrelmq.errors import JournalError, QueueUnavailable
from kestrelmq.format.records import item_data
from kestrelmq.queues import browsing
from kestrelmq.queues.browsing import Look, Tour, View
from tests.support.examples import examples
from tests.support.local_queues import LocalQueues, queue_settings

pytestmark = pytest.mark.compiled


def seen(
    spool: LocalQueues, offset: int, most: int = 1000, most_bytes: int = 1 << 20
) -> list[bytes]:
    """Return the items of a view."""
    view = View(spool.queue(), offset, most, most_bytes)
    try:
        found = view.read(lambda _seconds: None)
    finally:
        view.close()
    assert view.is_current
    return [item_data(record) for record in found]


@settings(max_examples=examples(60), deadline=None)
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=60),
    memory=st.sampled_from([20, 200, 10_000]),
    journal=st.sampled_from([100, 10_000]),
    taken=st.integers(0, 30),
    given_back=st.booleans(),
    offset=st.integers(0, 70),
    most=st.integers(0, 70),
)
def test_a_view_is_a_part_of_what_would_be_read(
    sizes: list[int],
    memory: int,
    journal: int,
    taken: int,
    given_back: bool,  # noqa: FBT001 # drawn
    offset: int,
    most: int,
) -> None:
    """Wherever the items are; and nothing has changed by it."""
    with TemporaryDirectory() as path:
        spool = LocalQueues(
            queue_settings(Path(path), max_memory_size=memory, max_journal_size=journal)
        )
        items = [b"%d " % number + b"x" * size for number, size in enumerate(sizes)]
        spool.add(*items)
        for _ in range(taken):
            spool.take()
        del items[:taken]
        if given_back and items:
            spool.queue().returns.give_back([spool.open_read()])
            spool.commit()
        assert seen(spool, offset, most) == items[offset : offset + most]
        assert spool.drain() == items
        spool.close()


def toured(
    spool: LocalQueues,
    most: int,
    most_bytes: int = 1 << 20,
    between: Callable[[], object] = lambda: None,
) -> list[bytes]:
    """Return the items of a tour; `between` is called after each of its looks."""
    found: list[bytes] = []
    for look in Tour(spool.queue(), most, most_bytes).looks():
        for view in look.views():
            view.load()
        assert 0 < len(look.records) <= most
        found += map(item_data, look.records)
        between()
    return found


@settings(max_examples=examples(60), deadline=None)
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=60),
    memory=st.sampled_from([20, 200, 10_000]),
    journal=st.sampled_from([100, 10_000]),
    most=st.integers(1, 70),
    most_bytes=st.integers(1, 500),
    steps=st.lists(st.sampled_from(["add", "take", "give back", "sync", "pack"]), max_size=20),
)
def test_a_tour_passes_each_item_once(
    sizes: list[int],
    memory: int,
    journal: int,
    most: int,
    most_bytes: int,
    steps: list[str],
) -> None:
    """Those that wait from its begin to its end; whatever is done in between."""
    with TemporaryDirectory() as path:
        spool = LocalQueues(
            queue_settings(Path(path), max_memory_size=memory, max_journal_size=journal)
        )
        items = [b"%d " % number + b"x" * size for number, size in enumerate(sizes)]
        spool.add(*items)
        left, gone = list(steps), []

        def between() -> None:
            match left.pop() if left else None:
                case "add":
                    spool.add(b"new")
                case "take":
                    gone.append(spool.take())
                case "give back" if len(spool.queue()):
                    spool.queue().returns.give_back([spool.open_read()])
                    spool.commit()
                case "pack":
                    upkeep = spool.queue()._upkeep
                    assert upkeep is not None
                    upkeep._rewrite()

        found = toured(spool, most, most_bytes, between)
        assert found == sorted(set(found), key=items.index)
        assert set(items) - set(gone) <= set(found)
        spool.close()


def test_a_tour_reads_on_where_it_was(tmp_path: Path) -> None:
    """It does not pass over the same items on disk again and again."""
    spool = LocalQueues(queue_settings(tmp_path, max_memory_size=100))
    items = [b"%09d" % number for number in range(100)]
    spool.add(*items)
    queue = spool.queue()
    tour = Tour(queue, 10, 1 << 20)
    found: list[bytes] = []
    kept = []
    for look in tour.looks():
        for view in look.views():
            assert not view._skip
            view.load()
        found += map(item_data, look.records)
        kept.append(tour._reader is not None)
    assert found == items
    assert kept == [False, *[True] * 9]
    assert tour._reader is None
    spool.close()


def test_a_tour_goes_on_behind_what_was_taken(tmp_path: Path) -> None:
    """Before it, and before its place or beyond that during it; what is added then is left out."""
    spool = LocalQueues(queue_settings(tmp_path))
    spool.add(*(b"%d" % number for number in range(10)))
    for _ in range(3):
        spool.take()
    takes = iter([4, 0, 0])

    def between() -> None:
        spool.add(b"new")
        for _ in range(next(takes)):
            spool.take()

    assert toured(spool, 2, between=between) == [b"3", b"4", b"7", b"8", b"9"]
    spool.close()


def test_a_tour_ends_at_what_is_not_written_yet(tmp_path: Path) -> None:
    """It does not look for that again and again."""
    spool = LocalQueues(queue_settings(tmp_path, max_memory_size=10))
    items = [b"12345", b"67890", b"abcde"]
    spool.add(*items)
    assert spool.queue().add(b"later")
    found: list[list[bytes]] = []
    for look in islice(Tour(spool.queue(), 10, 1 << 20).looks(), 9):
        for view in look.views():
            view.load()
        found.append([item_data(record) for record in look.records])
    assert found == [items, []]
    spool.commit()
    spool.close()


def test_a_tour_of_a_queue_that_is_closed_fails(tmp_path: Path) -> None:
    """There was more to look at; the file that it was reading is released."""
    spool = LocalQueues(queue_settings(tmp_path, max_memory_size=100))
    spool.add(*(b"%09d" % number for number in range(100)))
    queue = spool.queue()
    tour = Tour(queue, 30, 1 << 20)
    looks = tour.looks()
    for _ in range(2):
        for view in next(looks).views():
            view.load()
    assert tour._reader is not None
    spool.close()
    with pytest.raises(QueueUnavailable, match="queue jobs was deleted or closed meanwhile"):
        next(looks)
    assert tour._reader is None


def test_a_view_ends_when_it_has_enough_bytes(tmp_path: Path) -> None:
    """With the item that makes it enough; in memory and on disk."""
    for memory in (10, 1000):
        spool = LocalQueues(queue_settings(tmp_path / str(memory), max_memory_size=memory))
        spool.add(b"12345", b"67890", b"abcde", b"fghij")
        assert seen(spool, 0, 9, 6) == [b"12345", b"67890"]
        assert seen(spool, 2, 9, 1) == [b"abcde"]
        assert seen(spool, 1, 9, 11) == [b"67890", b"abcde", b"fghij"]
        spool.close()


def test_a_view_has_no_more_items_than_were_asked_for(tmp_path: Path) -> None:
    """Also if it takes several reads to get them."""
    spool = LocalQueues(queue_settings(tmp_path, max_memory_size=10))
    items = [b"%d" % number * 200_000 for number in range(9)]
    spool.add(*items)
    for most in (5, 6):
        assert seen(spool, 0, most, 1 << 30) == items[:most]
    spool.close()


def test_what_is_not_written_yet_is_not_seen(tmp_path: Path) -> None:
    """A view reads from disk up to there, or passes over no more; then it has that item, too."""
    spool = LocalQueues(queue_settings(tmp_path, max_memory_size=10))
    items = [b"12345", b"67890", b"abcde"]
    spool.add(*items)
    assert spool.queue().add(b"later")
    assert (seen(spool, 0), seen(spool, 3)) == (items, [])
    spool.commit()
    assert (seen(spool, 0), seen(spool, 3)) == ([*items, b"later"], [b"later"])
    spool.close()


@pytest.mark.parametrize("offset", [0, 2000])
def test_a_file_that_another_program_emptied(tmp_path: Path, offset: int) -> None:
    """That items are missing is an error, wherever one looks; no short answer."""
    spool = LocalQueues(queue_settings(tmp_path, max_memory_size=100))
    spool.add(*(b"%1024d" % number for number in range(3000)))  # more than is read ahead
    for file in tmp_path.glob("jobs*"):
        os.truncate(file, 0)
    with pytest.raises(JournalError, match="fewer items on disk than were counted"):
        seen(spool, offset, 3000, 1 << 30)
    spool.close()


def test_a_view_of_a_queue_without_a_journal(tmp_path: Path) -> None:
    """It is all in memory."""
    spool = LocalQueues(queue_settings(tmp_path, keep_journal=False))
    spool.add(b"one", b"two")
    assert (seen(spool, 1), seen(spool, 2)) == ([b"two"], [])
    spool.close()


def test_numbers_that_no_queue_reaches(tmp_path: Path) -> None:
    """They are those of the end."""
    spool = LocalQueues(queue_settings(tmp_path))
    spool.add(b"one", b"two")
    assert (seen(spool, 1, 10**19), seen(spool, 10**19, 10**19)) == ([b"two"], [])
    spool.close()


@pytest.mark.parametrize("change", ["rotated", "packed", "deleted"])
def test_a_view_is_not_current_after_the_files_were_replaced(tmp_path: Path, change: str) -> None:
    """What it reads may then be wrong, and is not used."""
    spool = LocalQueues(
        queue_settings(
            tmp_path, max_memory_size=100, max_journal_size=2000, min_journal_compact_delay=0
        )
    )
    spool.add(*[b"%d" % number for number in range(200)])
    view = View(spool.queue(), 100, 10, 1000)
    assert (view.is_on_disk, view.is_current) == (True, True)
    if change == "rotated":
        spool.add(*[b"x"] * 100)
    elif change == "packed":
        while not spool.queue().journal.rewrites:
            view.close()
            view = View(spool.queue(), 50, 10, 1000)
            assert view.is_on_disk
            spool.take()
    else:
        spool.collection.delete("jobs")
    assert not view.is_current
    view.close()
    spool.close()


def test_passing_over_too_many_items_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than reading for minutes."""
    monkeypatch.setattr(browsing, "_LONGEST", -1.0)
    spool = LocalQueues(queue_settings(tmp_path, max_memory_size=10))
    spool.add(*[b"%d" % number for number in range(100)])
    with pytest.raises(QueueUnavailable, match="look nearer to the head"):
        seen(spool, 50)
    spool.close()


def test_paused_and_expired_items_are_seen(tmp_path: Path) -> None:
    """Looking is not reading: it drops nothing."""
    spool = LocalQueues(ServerConfig(queue_path=tmp_path))
    spool.add(b"old", expiry=spool.clock.now() + 10)
    spool.clock.advance(1)
    assert seen(spool, 0) == [b"old"]
    assert spool.queue().counts.expired_items == 0
    spool.close()


def on_disk(path: Path) -> LocalQueues:
    """Return a queue of which most is on disk."""
    spool = LocalQueues(queue_settings(path, max_memory_size=100, min_journal_compact_delay=0))
    spool.add(*[b"%d" % number for number in range(200)])
    return spool


def test_a_look_is_repeated_when_a_file_was_replaced_meanwhile(tmp_path: Path) -> None:
    """What was read before is not used, even if it could not be read."""
    spool = on_disk(tmp_path)
    look = Look(spool.queue(), 150, 2, 1000)
    seen_views: list[View] = []
    for view in look.views():
        view.load()
        if not seen_views:
            view.failure = OSError("gone")
            spool.add(*[b"x"] * 100)
        seen_views.append(view)
    assert len(seen_views) == 2
    assert (look.total, list(map(item_data, look.records))) == (300, [b"150", b"151"])
    spool.close()


def test_a_look_gives_up(tmp_path: Path) -> None:
    """When files are replaced again and again, when they cannot be read, and without a queue."""
    spool = on_disk(tmp_path)
    look = Look(spool.queue(), 150, 2, 1000)

    def looked(each: Callable[[View], None]) -> None:
        for view in look.views():
            each(view)

    with pytest.raises(QueueUnavailable, match="being rewritten; try again"):
        looked(lambda _view: spool.add(*[b"x"] * 100))
    with pytest.raises(QueueUnavailable, match="cannot be read: gone"):
        looked(lambda view: setattr(view, "failure", OSError("gone")))
    queue = spool.queue()
    spool.collection.delete("jobs")
    assert queue.state.is_closed
    with pytest.raises(QueueUnavailable):
        list(Look(queue, 0, 1, 1000).views())
    spool.close()


def test_what_cannot_be_read_is_kept_with_the_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asked decides later whether that matters."""
    spool = on_disk(tmp_path)
    view = View(spool.queue(), 150, 2, 1000)

    def fail(_view: View) -> list[bytes]:
        raise OSError("gone")

    monkeypatch.setattr(View, "read", fail)
    view.load()
    assert (str(view.failure), view.records) == ("gone", [])
    view.close()
    spool.close()
