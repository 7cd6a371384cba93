"""Parallel replay: any cut of any journal gives what sequential replay gives."""

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kestrelmq.format.records import (
    Add,
    AddX,
    AddXid,
    ConfirmRemove,
    Continue,
    Record,
    Remove,
    RemoveTentative,
    RemoveTentativeXid,
    SaveXid,
    StateDump,
    Unremove,
    added_item,
    item_data,
)
from kestrelmq.format.scanning import scan
from kestrelmq.journal import life
from kestrelmq.journal.replay import Replay
from kestrelmq.spark.replay.segments import (
    EMPTY_START,
    LiveItems,
    RunSet,
    SegmentStart,
    SegmentSummary,
    last_xids,
    reference_of,
    replay,
    xid_of,
)
from kestrelmq.spark.replay.summarising import Summariser, record_run
from kestrelmq.spark.storage.scanning import FileView
from tests.support.examples import examples
from tests.support.journal_bytes import encode
from tests.support.open_reads import data_by_xid

EXAMPLES = examples(600)
NOW = 1_700_000_000_000
EDGE = 2**31 - 1

xids = st.one_of(st.integers(-3, 6), st.sampled_from([EDGE, EDGE - 1, -EDGE - 1]))
shared = [
    st.just("add"),
    st.just("add"),
    st.just("starling add"),
    st.builds(Remove),
    st.builds(SaveXid, xids),
    st.builds(Unremove, xids),
    st.builds(ConfirmRemove, xids),
    st.tuples(st.just("add xid"), xids),
]
documented = st.one_of(*shared, st.builds(RemoveTentative), st.builds(StateDump, xids, xids))
released = st.one_of(
    *shared, st.builds(RemoveTentativeXid, xids), st.tuples(st.just("continue"), xids)
)
steps = st.one_of(
    st.lists(documented, max_size=40),
    st.lists(released, max_size=40),
    st.lists(st.one_of(documented, released), max_size=40),
)
cuts = st.lists(st.integers(0, 40), max_size=6)


def journal(steps: Sequence[object]) -> list[bytes]:
    """Make records of steps; the n-th item's data is n."""
    records = []
    items = 0
    for step in steps:
        record: Record
        data = str(items).encode()
        match step:
            case "add":
                record = AddX(NOW, 0, data)
            case "starling add":
                record = Add(0, data)
            case ("add xid", int(xid)):
                record = AddXid(xid, NOW, 0, data)
            case ("continue", int(xid)):
                record = Continue(xid, NOW, 0, data)
            case _:
                record = step  # type: ignore[assignment]
        items += isinstance(record, Add | AddX | AddXid | Continue)
        records.append(encode(record))
    return records


def cut(records: list[bytes], at: Sequence[int]) -> list[bytes]:
    """Join records to the bytes of segments that end before the records of these indexes."""
    bounds = sorted({0, *(min(index, len(records)) for index in at), len(records)})
    return [b"".join(records[low:high]) for low, high in pairwise(bounds)]


def summarise(segment: bytes, start: SegmentStart | None, last_xid: int = 0) -> SegmentSummary:
    """Summarise the bytes of a segment."""
    view = FileView(segment, len(segment), last=True)
    summariser = Summariser(start, last_xid=last_xid)
    for chunk in view.chunks():
        summariser.feed(record_run(view, chunk))
    return summariser.result()


def in_parallel(segments: list[bytes], *, guess: bool) -> tuple[LiveItems, int]:
    """Return the live items and the last-used xid, from segments summarised on their own."""
    summaries = [
        summarise(segment, None if index else EMPTY_START) for index, segment in enumerate(segments)
    ]
    if guess:
        guesses = last_xids(summaries)
        summaries = [
            summarise(segment, None if index else EMPTY_START, guesses[index])
            for index, segment in enumerate(segments)
        ]
    _, end = replay(summaries, lambda index, start: summarise(segments[index], start))
    return end.live(), end.last_xid


def in_sequence(segments: list[bytes]) -> tuple[LiveItems, int]:
    """Return the same from the fold that the server loads with."""
    state = Replay()
    ordinals: dict[int, int] = {}  # by the items' data: those behind a STATE_DUMP do not count
    for segment in segments:
        starts: list[int] = []
        end = scan(segment, 0, len(segment), starts)
        state.feed(segment, starts, end)
        for start, stop in pairwise([*starts, end]):
            item = added_item(segment, start, stop)
            if item is not None:
                ordinals[int(item_data(item))] = len(ordinals)
    open_reads = tuple(
        (ordinals[int(data)], xid) for xid, data in sorted(data_by_xid(state.open).items())
    )
    queue = [ordinals[int(item_data(item))] for item in state.memory]
    first = items = len(ordinals)
    while queue and queue[-1] == first - 1:
        first = queue.pop()
    return LiveItems(open_reads, tuple(queue), first, items), state.last_xid


def flat(live: LiveItems) -> list[int]:
    """Return the items in order."""
    given_back = [item for item, _ in live.given_back]
    return [*given_back, *live.head, *range(live.first, live.end)]


@settings(max_examples=EXAMPLES)
@given(steps=steps, cuts=cuts, guess=st.booleans())
def test_segments_agree_with_sequential_replay(
    steps: list[object],
    cuts: list[int],
    guess: bool,  # noqa: FBT001
) -> None:
    """However a journal is cut, the fold of its segments is the state of sequential replay."""
    segments = cut(journal(steps), cuts)

    live, last_xid = in_parallel(segments, guess=guess)
    expected, expected_last_xid = in_sequence(segments)

    assert flat(live) == flat(expected)
    assert live.given_back == expected.given_back
    assert last_xid == expected_last_xid


@pytest.mark.parametrize("seed", range(8))
def test_long_journals_of_one_writer_need_few_second_looks(seed: int) -> None:
    """In a journal as a server writes it, a guess of the xids leaves nothing to summarise anew."""
    rng = random.Random(seed)
    written: list[object] = []
    waiting, last, reads = 0, 0, []
    for _ in range(3000):
        choice = rng.random()
        if choice < 0.5 or not waiting:
            written.append("add")
            waiting += 1
        elif choice < 0.6:
            written.append(Remove())
            waiting -= 1
        elif choice < 0.8:
            written.append(RemoveTentative())
            last += 1
            reads.append(last)
            waiting -= 1
        elif reads:
            xid = reads.pop(rng.randrange(len(reads)))
            given_back = rng.random() < 0.2
            waiting += given_back
            written.append(Unremove(xid) if given_back else ConfirmRemove(xid))
    segments = cut(journal(written), range(0, 3000, 100))
    guesses = last_xids([summarise(segment, None) for segment in segments])
    summaries = [
        summarise(segment, None, guess) for segment, guess in zip(segments, guesses, strict=True)
    ]
    again = []

    def remember(index: int, start: SegmentStart) -> SegmentSummary:
        again.append(index)
        return summarise(segments[index], start)

    _, end = replay(summaries, remember)

    assert flat(end.live()) == flat(in_sequence(segments)[0])
    assert again == []


def test_a_trace_tells_what_became_of_items() -> None:
    """Removes, opened reads, confirms and items given back are told, by reference and event."""
    records = journal(["add", Remove(), RemoveTentative(), Unremove(1), RemoveTentative()])
    records += journal([ConfirmRemove(2), ConfirmRemove(7)])
    segment = b"".join(records)
    told: list[tuple[int, int, int]] = []
    view = FileView(segment, len(segment), last=False)
    start = SegmentStart(length=1, open=frozenset({7}), last_xid=0)
    summariser = Summariser(start, trace=lambda *fate: told.append(fate))
    for chunk in view.chunks():
        summariser.feed(record_run(view, chunk))

    assert told == [
        (life.REMOVE, 0, 0),
        (life.READ, 1, 1),
        (life.GIVE_BACK, 1, 2),
        (life.READ, 1, 3),
        (life.CONFIRM, 1, 4),
        (life.CONFIRM, reference_of(7), 5),
    ]


@given(st.integers(-(2**31), EDGE))
def test_references_to_open_reads_are_negative_and_reversible(xid: int) -> None:
    """O(xid) is below every T(i), and gives its xid back."""
    assert reference_of(xid) < 0
    assert xid_of(reference_of(xid)) == xid


def test_runs_hold_what_was_put_in() -> None:
    """Runs are a set: they contain what was appended, in a run or not, and nothing else."""
    runs = RunSet()
    for number in [5, 6, 7, -2, 9, 6]:
        runs.append(number)

    assert [number for number in range(-5, 12) if number in runs] == [-2, 5, 6, 7, 9]
