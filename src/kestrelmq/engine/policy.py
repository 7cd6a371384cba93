"""When a journal is rotated, rewritten or packed: a pure decision.

The rules, of which the first that applies is taken:

- The queue is empty and its journal larger than `default_journal_size`: begin a new file.
- A checkpoint was passed in read-behind, what comes before it takes at least twice the room of
  what would stand in its place, and packing it frees an eighth of the journal: pack it.
- The journal is larger than `max_journal_size`: rewrite it, at most once a
  `min_journal_compact_delay`, and only if that frees a good part of it.
- The same, unless `disable_aggressive_rewrites`, for a queue that is wholly in memory, when the
  journal is larger than `default_journal_size` and 15 parts in 16 of it are dead: a queue that is
  being drained is mostly empty soon, and copying a good part of it would be in vain.
- The current file is larger than `max_memory_size`: rotate it. In read-behind what counts is what
  was written since the last checkpoint, which large items may have spread over several files.

No rule copies more than three times what it frees, and so all of them together cost no more than a
fixed multiple of the writing of the journal, whatever the sizes: no number of open reads leads to a
rewrite at every operation. (A rewrite beyond `max_journal_size` copies three parts to free one, the
others at most as much as they free; a rotation copies nothing.)

No rule counts files, for their sizes bound their number. A file that is rotated for its length
holds more than `max_memory_size`. What a queue in memory holds fits into about that, and so beyond
16 such files, or beyond `default_journal_size` if that is more, 15 parts in 16 are dead.
"""

from dataclasses import dataclass
from enum import Enum, auto

from kestrelmq.config import QueueConfig


class Action(Enum):
    """What is to be done with a journal."""

    NOTHING = auto()
    START_EMPTY = auto()
    """Begin a new file with the open reads only, and drop all others."""
    ROTATE = auto()
    """Begin a new file; in read-behind, remember where the queue stood."""
    PACK = auto()
    """Replace the files before the newest checkpoint that was passed."""
    REWRITE = auto()
    """Replace all files by one that holds what is live."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings that matter; sizes in bytes, the delay in seconds."""

    default_journal_size: int
    max_journal_size: int
    max_memory_size: int
    min_compact_delay: float
    aggressive: bool

    @classmethod
    def of(cls, config: QueueConfig) -> "Limits":
        """Return those of a queue."""
        return cls(
            default_journal_size=config.default_journal_size,
            max_journal_size=config.max_journal_size,
            max_memory_size=config.max_memory_size,
            min_compact_delay=config.min_journal_compact_delay or 0.0,
            aggressive=not config.disable_aggressive_rewrites,
        )


@dataclass(frozen=True, slots=True)
class JournalState:
    """What a decision rests on; sizes in bytes.

    Attributes:
        size: of all files.
        current_size: of the current file.
        live: of a file that holds the live items and open reads and nothing else.
        is_empty: whether no item waits.
        read_behind: whether items are on disk only.
        since_rewrite: seconds since the last rewrite began; None before the first.
        packable: of the files before the newest checkpoint that was passed.
        packed: about what would stand in their place.
        unmarked: of older files that hold what came after the newest checkpoint.
    """

    size: int
    current_size: int
    live: int
    is_empty: bool = False
    read_behind: bool = False
    since_rewrite: float | None = None
    packable: int = 0
    packed: int = 0
    unmarked: int = 0


def decide(state: JournalState, limits: Limits) -> Action:
    """Return what is to be done now."""
    dead = state.size - state.live
    if state.is_empty and state.size > limits.default_journal_size and 2 * dead >= state.size:
        return Action.START_EMPTY
    freed = state.packable - state.packed
    if state.packable and freed >= state.packed and 8 * freed >= state.size:
        return Action.PACK
    if _may_rewrite(state, limits):
        # What is on disk only must be read to be rewritten, so more of it has to be dead.
        if state.size > limits.max_journal_size and (
            2 * dead >= state.size if state.read_behind else 4 * dead >= state.size
        ):
            return Action.REWRITE
        if (
            limits.aggressive
            and not state.read_behind
            and state.size > limits.default_journal_size
            and 16 * dead >= 15 * state.size
        ):
            return Action.REWRITE
    grown = state.current_size + (state.unmarked if state.read_behind else 0)
    if grown > limits.max_memory_size:
        return Action.ROTATE
    return Action.NOTHING


def _may_rewrite(state: JournalState, limits: Limits) -> bool:
    return state.since_rewrite is None or state.since_rewrite >= limits.min_compact_delay
