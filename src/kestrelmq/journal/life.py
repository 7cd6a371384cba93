"""The life of an item, in one table.

An item waits in its queue, or is open, as an `OpenRead` in one of five states, or is gone. `LIFE`
has a row for everything that may happen to it, and what follows from that is derived from the rows:
how a change is taken back if its records cannot be written, and whether the reader then still knows
its read. What is not a row cannot happen.

The records are those of the documented dialect, with the notes of `format.notes` and
`reserved_reads`. In parentheses: only if there is anything to note, such as that this was no
delivery (HELD_BACK, UNCOUNTED), or that the read was reserved.

Replay knows the same by the records: they say which state is next.
"""

from typing import Final, NamedTuple

# States of an open read.
HELD: Final = 0
"""A reader has the item."""
RESERVED: Final = 1
"""The item belongs to a name, until its lease ends."""
RETRYING: Final = 2
"""It was given back, and waits for its retry delay; no reader has it."""
ASIDE: Final = 3
"""It is to go to another queue, which could not take it yet; no reader has it."""
LEAVING: Final = 4
"""The same, and it is just being written for that queue."""
# What else may have become of an item.
WAITING: Final = 5
"""It is in its queue: in front if it was taken before, and behind all others when it is added."""
GONE: Final = 6
"""It was removed."""

# Events.
REMOVE: Final = 0
"""A reader takes it for good."""
DROP: Final = 1
"""It expires, has moved to another queue, makes room, or is flushed."""
READ: Final = 2
"""A reader opens it."""
PUT_ASIDE: Final = 3
"""It expires, or is found dead, and cannot leave at once."""
RESERVE: Final = 4
"""The read becomes one of a name, in the turn that opened it."""
CONFIRM: Final = 5
"""The read is finished, or its item has moved to another queue."""
CONFIRM_KEPT: Final = 6
"""The reader finishes it, and keeps it if that cannot be written."""
GIVE_BACK: Final = 7
"""The read is given back, its time is up, or its retry delay is over."""
LOSE: Final = 8
"""It is given back with a delay, or is dead and cannot leave at once."""
WRITE: Final = 9
"""Its data is written for its new queue, because it is large."""
REFUSE: Final = 10
"""The new queue does not take it."""
RESTART: Final = 11
"""The server starts."""

# How a change is taken back.
NEVER: Final = 0
"""It has no records of its own."""
HEAD_AGAIN: Final = 1
"""The item is the head again, and waits."""
OPEN_AGAIN: Final = 2
"""The read goes on as it was."""
UNRESERVED: Final = 3
"""The read is one of a reader again."""


class Row(NamedTuple):
    """What may happen to an item.

    Attributes:
        states: where this may happen.
        event: what happens.
        next: what follows.
        records: what is written.
        undo: how it is taken back.
        is_forgotten: whether nobody knows the read any more when this was taken back: then it is
            overdue at once.
    """

    states: tuple[int, ...]
    event: int
    next: int
    records: str
    undo: int
    is_forgotten: bool = False


_NOBODY: Final = (RETRYING, ASIDE, LEAVING)
_LOST: Final = "(HELD_BACK or UNRESERVED)"
LIFE: Final = (
    Row((WAITING,), REMOVE, GONE, "REMOVE", HEAD_AGAIN),
    Row((WAITING,), DROP, GONE, "REMOVE", HEAD_AGAIN),
    Row((WAITING,), READ, HELD, "REMOVE_TENTATIVE", HEAD_AGAIN),
    Row((WAITING,), PUT_ASIDE, ASIDE, "REMOVE_TENTATIVE, HELD_BACK", HEAD_AGAIN),
    Row((HELD,), RESERVE, RESERVED, "RESERVED", UNRESERVED, is_forgotten=True),
    Row((HELD, RESERVED, *_NOBODY), CONFIRM, GONE, "CONFIRM_REMOVE", OPEN_AGAIN, is_forgotten=True),
    Row((HELD,), CONFIRM_KEPT, GONE, "CONFIRM_REMOVE", OPEN_AGAIN),
    Row(
        (HELD, RESERVED, RETRYING, LEAVING),
        GIVE_BACK,
        WAITING,
        "(UNCOUNTED) UNREMOVE",
        OPEN_AGAIN,
        is_forgotten=True,
    ),
    Row((HELD, RESERVED), LOSE, RETRYING, _LOST, OPEN_AGAIN, is_forgotten=True),
    Row((HELD, RESERVED), LOSE, ASIDE, _LOST, OPEN_AGAIN, is_forgotten=True),
    Row((LEAVING,), LOSE, RETRYING, "(HELD_BACK)", OPEN_AGAIN, is_forgotten=True),
    Row((ASIDE,), WRITE, LEAVING, "", NEVER),
    Row((LEAVING,), REFUSE, ASIDE, "", NEVER),
    Row((HELD, *_NOBODY), RESTART, WAITING, "(UNCOUNTED) UNREMOVE", NEVER),
)

UNDO: Final = {row.event: row.undo for row in LIFE}
"""How a change is taken back, by event; the same in all states."""
FORGOTTEN: Final = frozenset([row.event for row in LIFE if row.is_forgotten])
"""The events after which nobody knows the read any more when they were taken back."""
