"""Deciding what to do with a queue's journal, from its sizes alone."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from kestrelmq.config import QueueConfig

BLOCK: Final = 4096
"""Bytes of a block of the disk: about what the shortest file takes of it."""


class Action(Enum):
    """What to do with a journal."""

    NOTHING = auto()
    START_EMPTY = auto()
    """Begin a new file with the open reads only, and drop all others."""
    ROTATE = auto()
    """Begin a new file; in read-behind, make a checkpoint."""
    PACK = auto()
    """Replace the files up to the newest passed checkpoint by one."""
    REWRITE = auto()
    """Replace all files by one that holds what is live."""


ROTATES: Final = frozenset({Action.START_EMPTY, Action.ROTATE, Action.REWRITE})


@dataclass(frozen=True, slots=True)
class JournalState:
    """What a decision depends on; sizes in bytes.

    Attributes:
        size: of all files.
        current_size: of the current file.
        live: of a file that would hold only the live items and open reads.
        is_empty: whether no item waits.
        gives_back: whether files of a queue that holds nothing are to go at once.
        read_behind: whether items are on disk only.
        since_rewrite: seconds since the last rewrite began; None before the first.
        packable: of the files up to the newest passed checkpoint.
        packed: about that of the pack that would replace them.
    """

    size: int
    current_size: int
    live: int
    is_empty: bool = False
    gives_back: bool = False
    read_behind: bool = False
    since_rewrite: float | None = None
    packable: int = 0
    packed: int = 0


def decide(state: JournalState, config: QueueConfig) -> Action:
    """Return what to do now: the first of these rules that applies decides.

    - The queue is empty, its journal is larger than `default_journal_size`, and at least half of
      that is dead: begin a new file.
    - It is empty, its files are to go at once, and the new one is a block at most: the same.
    - In read-behind, a checkpoint was passed, the files up to it are at least twice as large as
      their pack would be, and packing frees at least an eighth of the journal: pack them.
    - The journal is larger than `max_journal_size`: rewrite it, at most once in each
      `min_journal_compact_delay`, and only if that frees a good part of it.
    - The same, unless `disable_aggressive_rewrites`, if the queue is wholly in memory, the journal
      is larger than `default_journal_size`, and 15/16 of it are dead. A queue that is being drained
      will soon be mostly empty, and copying a good part of it would be in vain.
    - The current file is larger than `max_memory_size`: rotate it.

    No rule copies more than three times what it frees. So together they cost at most a fixed
    multiple of writing the journal, whatever the sizes, and no number of open reads leads to a
    rewrite at every operation. (A rewrite beyond `max_journal_size` copies up to three bytes to
    free one, the others copy at most as much as they free, and a rotation copies nothing.)

    No rule counts files, because their sizes limit their number. A file that is rotated for its
    size holds more than `max_memory_size`. The contents of a queue in memory fit in about that. So
    beyond 16 such files, or beyond `default_journal_size` if that is more, 15/16 are dead.
    """
    dead = state.size - state.live
    if state.is_empty and state.size > config.default_journal_size and 2 * dead >= state.size:
        return Action.START_EMPTY
    if state.is_empty and state.gives_back and state.live <= BLOCK <= dead:
        return Action.START_EMPTY
    freed = state.packable - state.packed
    if state.packable and freed >= state.packed and 8 * freed >= state.size:
        return Action.PACK
    if _may_rewrite(state, config):
        # Items that are on disk only must be read for a rewrite, so more of the journal has to be
        # dead.
        if state.size > config.max_journal_size and (
            2 * dead >= state.size if state.read_behind else 4 * dead >= state.size
        ):
            return Action.REWRITE
        if (
            not config.disable_aggressive_rewrites
            and not state.read_behind
            and state.size > config.default_journal_size
            and 16 * dead >= 15 * state.size
        ):
            return Action.REWRITE
    if state.current_size > config.max_memory_size:
        return Action.ROTATE
    return Action.NOTHING


def _may_rewrite(state: JournalState, config: QueueConfig) -> bool:
    delay = config.min_journal_compact_delay or 0.0
    return state.since_rewrite is None or state.since_rewrite >= delay
