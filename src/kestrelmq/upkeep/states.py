"""What upkeep is doing to a journal: its states, drawn at the top of `upkeep`."""

from dataclasses import dataclass
from typing import Final

from kestrelmq.journal.replacement import Replacement
from kestrelmq.queue.changes import Checkpoint


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A replacement of all files, and numbers of the queue when it began.

    Attributes:
        replacement: replaces the files.
        memory_items: items in memory.
        read_items: items read back so far.
        waiting: waiting items.
        total_items: items added so far.
        given_back: reads given back so far.
        cures: whether the journal was suspect. The replacement cures it: everything that a failed
            sync should have covered is written anew, and synced.
    """

    replacement: Replacement
    memory_items: int
    read_items: int
    waiting: int
    total_items: int
    given_back: int
    cures: bool


@dataclass(frozen=True, slots=True)
class Pack:
    """A replacement of the files up to a checkpoint."""

    replacement: Replacement
    checkpoint: Checkpoint


Work = Rewrite | Pack


@dataclass(frozen=True, slots=True, eq=False)
class Replaced:
    """Files that were replaced at `at` (monotonic seconds), and are still there.

    `cures` as of the `Rewrite` that replaced them.
    """

    replacement: Replacement
    at: float
    cures: bool


class Idle:
    """Nothing is being done."""

    __slots__ = ()


IDLE: Final = Idle()


class Syncing:
    """The worker syncs the current file, so that a rotation need not do it."""


@dataclass(frozen=True, slots=True, eq=False)
class Placing:
    """The worker writes the new file and puts it in place."""

    work: Work


@dataclass(frozen=True, slots=True, eq=False)
class Clearing:
    """New files have replaced the old ones, which the worker removes, the oldest first."""

    replaced: tuple[Replaced, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A step failed; at `at` (monotonic seconds), the state `then` is entered."""

    at: float
    then: Idle | Placing | Clearing


@dataclass(frozen=True, slots=True)
class Removing:
    """The journal is being removed, and nothing else is done to it.

    Attributes:
        given_up: the state of the replacement that this interrupted, if any.
    """

    given_up: Placing | Clearing | None


State = Idle | Syncing | Placing | Clearing | Waiting | Removing
