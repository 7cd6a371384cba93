"""When journals are rotated, rewritten and packed."""

from dataclasses import replace

import pytest

from kestrelmq.config import QueueConfig
from kestrelmq.upkeep.policy import Action, JournalState, decide

MIB = 1 << 20
LIMITS = QueueConfig(
    default_journal_size=16 * MIB,
    max_journal_size=1024 * MIB,
    max_memory_size=128 * MIB,
    min_journal_compact_delay=60,
    disable_aggressive_rewrites=False,
)


def state(size: int, live: int = 0, **others: object) -> JournalState:
    """Return a state in which the current file was just begun; sizes in MiB."""
    return replace(
        JournalState(size=size * MIB, current_size=0, live=live * MIB),
        **others,  # type: ignore[arg-type] # any attribute
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (state(16, is_empty=True), Action.NOTHING),
        (state(17, is_empty=True), Action.START_EMPTY),
        (state(17, is_empty=True, since_rewrite=0.0), Action.START_EMPTY),
        (state(17, 8, is_empty=True), Action.START_EMPTY),
        (state(17, 9, is_empty=True), Action.NOTHING),
        (state(1025, 900, is_empty=True), Action.NOTHING),
        (state(1, is_empty=True, gives_back=True), Action.START_EMPTY),
        (state(1, gives_back=True), Action.NOTHING),
        (state(2, 1, is_empty=True, gives_back=True), Action.NOTHING),
        (JournalState(4096, 0, 0, is_empty=True, gives_back=True), Action.START_EMPTY),
        (JournalState(4095, 0, 0, is_empty=True, gives_back=True), Action.NOTHING),
    ],
)
def test_an_empty_queue_begins_a_new_file_beyond_the_default_size(
    found: JournalState, expected: Action
) -> None:
    """And not before half of the journal is dead, so that open reads aren't copied for ever."""
    assert decide(found, LIMITS) is expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (state(1024, 700), Action.NOTHING),
        (state(1025, 700), Action.REWRITE),
        (state(1025, 700, since_rewrite=59.9), Action.NOTHING),
        (state(1025, 700, since_rewrite=60.0), Action.REWRITE),
        (state(1025, 800), Action.NOTHING),
        (state(1025, 700, read_behind=True), Action.NOTHING),
        (state(1500, 700, read_behind=True), Action.REWRITE),
        (state(1500, 700, read_behind=True, since_rewrite=1.0), Action.NOTHING),
    ],
)
def test_a_full_journal_is_rewritten_when_that_frees_enough(
    found: JournalState, expected: Action
) -> None:
    """At most once a delay; a quarter must be dead, in read-behind a half."""
    assert decide(found, LIMITS) is expected


def test_a_mostly_dead_journal_is_rewritten_early_unless_that_is_disabled() -> None:
    """15 parts in 16 must be dead, and the delay over."""
    calm = LIMITS.model_copy(update={"disable_aggressive_rewrites": True})
    assert decide(state(160, 10), LIMITS) is Action.REWRITE
    assert decide(state(160, 11), LIMITS) is Action.NOTHING
    assert decide(state(160, 10, since_rewrite=5.0), LIMITS) is Action.NOTHING
    assert decide(state(160, 10), calm) is Action.NOTHING
    assert decide(state(1025, 10), calm) is Action.REWRITE


@pytest.mark.parametrize("read_behind", [False, True])
@pytest.mark.parametrize("is_empty", [False, True])
def test_a_file_longer_than_memory_is_rotated(read_behind: bool, is_empty: bool) -> None:  # noqa: FBT001 # drawn
    """In read-behind or not, whether items wait or not."""
    long = state(900, 800, read_behind=read_behind, current_size=128 * MIB + 1)
    long = replace(long, is_empty=is_empty)
    assert decide(long, LIMITS) is Action.ROTATE
    assert decide(replace(long, current_size=128 * MIB), LIMITS) is Action.NOTHING


@pytest.mark.parametrize("aggressive", [True, False])
@pytest.mark.parametrize("live", [1, 30, 128])
@pytest.mark.parametrize("default", [16, 1000])
def test_a_steady_load_in_memory_has_few_files(default: int, live: int, aggressive: bool) -> None:  # noqa: FBT001 # drawn
    """However long it lasts; and what is copied is at most three times what is written."""
    limits = LIMITS.model_copy(
        update={
            "default_journal_size": default * MIB,
            "disable_aggressive_rewrites": not aggressive,
            "min_journal_compact_delay": 0,
        }
    )
    files = [0.0]
    copied, most = 0.0, 0
    for _ in range(20_000):
        files[-1] += 1
        found = state(int(sum(files)), live, current_size=int(files[-1]) * MIB)
        match decide(found, limits):
            case Action.ROTATE:
                files.append(0.0)
            case Action.REWRITE:
                copied += live
                files = [live, 0.0]
            case Action.NOTHING:
                pass
            case other:
                raise AssertionError(other)
        most = max(most, len(files))
    assert copied <= 3 * 20_000
    allowed = 1024 if not aggressive else max(default, 17 * live)
    assert most <= allowed / 128 + 3


def test_older_files_are_packed_when_that_halves_them() -> None:
    """Packing comes before rewriting, which costs more."""
    passed = state(1600, 500, read_behind=True, packable=400 * MIB, packed=200 * MIB)
    assert decide(passed, LIMITS) is Action.PACK
    assert decide(replace(passed, packed=201 * MIB), LIMITS) is Action.REWRITE
    assert decide(replace(passed, size=1601 * MIB), LIMITS) is Action.REWRITE


@pytest.mark.parametrize("reads", [0, 10_000, 2_000_000])
def test_rewriting_never_costs_more_than_three_times_what_was_written(reads: int) -> None:
    """However many reads stay open, the bytes copied are bounded by the bytes written."""
    limits = LIMITS.model_copy(update={"min_journal_compact_delay": 0})
    live = reads * 1000
    size = live
    written = copied = 0
    for _ in range(20_000):
        size += MIB
        written += MIB
        found = JournalState(size=size, current_size=size, live=live, is_empty=True)
        if decide(found, limits) not in {Action.NOTHING, Action.ROTATE}:
            size = live
            copied += live
    assert copied <= 3 * written
    assert size <= max(2 * live, 17 * MIB) + MIB
