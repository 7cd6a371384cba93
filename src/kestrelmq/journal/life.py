"""The life of an item, in one table.

`LIFE` has a row for everything that may happen to an item. What is not a row cannot happen. What
follows from that is derived from the rows: how a change is taken back if its records cannot be
written, what replay makes of a record or a note, what Spark tells of an item, and the tables of
states in the documentation.

Where a row has no records, the journal does not tell its states from each other. All open reads but
the reserved ones are given back when the server starts.
"""

from typing import Final, NamedTuple

from kestrelmq.format.records import OPERATIONS

# States. The first five are those of an open read.
HELD: Final = 0
RESERVED: Final = 1
RETRYING: Final = 2
ASIDE: Final = 3
LEAVING: Final = 4
WAITING: Final = 5
DELAYED: Final = 6
NOWHERE: Final = 7
STATES: Final = (
    ("held", "a reader has the item"),
    ("reserved", "the item belongs to a name, until its lease ends"),
    ("retrying", "it was given back, and waits for its retry delay; no reader has it"),
    ("aside", "it is to go to another queue, which could not take it yet; no reader has it"),
    ("leaving", "as aside, and it is just being written for that queue"),
    ("waiting", "it is in its queue: in front if it was taken before, or else behind all others"),
    ("delayed", "it is not due yet"),
    ("nowhere", "it was not added yet, or it was removed"),
)
"""The name of each, and what it means."""

# Events.
ADD: Final = 0
DELAY: Final = 1
JOIN: Final = 2
REMOVE: Final = 3
DROP: Final = 4
READ: Final = 5
PUT_ASIDE: Final = 6
HOLD_BACK: Final = 7
RESERVE: Final = 8
RENEW: Final = 9
CONFIRM: Final = 10
CONFIRM_KEPT: Final = 11
FINISH: Final = 12
GIVE_BACK: Final = 13
RETIRE: Final = 14
LOSE: Final = 15
WRITE: Final = 16
REFUSE: Final = 17
FLUSH: Final = 18
RESTART: Final = 19
EVENTS: Final = (
    "it is added",
    "it is added with a delay",
    "it is due, or makes room for others",
    "a reader takes it for good",
    "it expires, has moved to another queue, or makes room for others",
    "a reader opens it",
    "it expires, or is found dead, and cannot leave at once",
    "it is held for a move, just after it was opened",
    "the read becomes one of a name, just after it was opened",
    "its reservation is repeated on other terms",
    "the read is finished, or its item has moved to another queue",
    "the reader finishes it, and keeps it if that cannot be written",
    "the reads of its tag are finished",
    "the read is given back, its time is up, or its retry delay is over",
    "the epoch of its tag is retired",
    "it is given back with a delay, or is dead and cannot leave at once",
    "it is written for its new queue",
    "the new queue does not take it",
    "the queue is flushed",
    "the server starts",
)

# How a change is taken back if its records cannot be written.
NEVER: Final = 0
UNADDED: Final = 1
HEAD_AGAIN: Final = 2
DELAYED_AGAIN: Final = 3
OPEN_AGAIN: Final = 4
UNRESERVED: Final = 5
WITH_READ: Final = 6
OLD_TERMS: Final = 7
UNDOES: Final = (
    "nothing is to be taken back: it is done when it is written",
    "it is not in the queue",
    "it is the head again",
    "it is delayed again",
    "the read goes on as it was",
    "the read is one of a reader again",
    "the read was opened in the same write, so that it ends, too",
    "the terms are the old ones again",
)


class Row(NamedTuple):
    """What may happen to an item.

    Attributes:
        states: where this may happen.
        event: what happens.
        next: what follows.
        records: what is written in the documented dialect: records, and notes by their kind.
        undo: how it is taken back.
        counted: whether it counts as a delivery when the item is given back, now or later.
        also: records that say the same in kestrel-2, or where other servers have written it.
        is_forgotten: whether nobody knows the read any more when this was taken back: then it is
            overdue at once.
    """

    states: tuple[int, ...]
    event: int
    next: int
    records: tuple[str, ...] = ()
    undo: int = NEVER
    counted: bool = True
    also: tuple[str, ...] = ()
    is_forgotten: bool = False


_NOBODY: Final = (RETRYING, ASIDE, LEAVING)
_OPEN: Final = (HELD, RESERVED, *_NOBODY)
_BACK: Final = (HELD, RESERVED, RETRYING, LEAVING)
_UNCOUNTED: Final = ("UNCOUNTED", "UNREMOVE")
_OPENS: Final = "REMOVE_TENTATIVE"
LIFE: Final = (
    Row((NOWHERE,), ADD, WAITING, ("ADDX",), UNADDED, also=("ADD", "ADD_XID", "CONTINUE")),
    Row((NOWHERE,), DELAY, DELAYED, ("DELAYED",), UNADDED),
    Row((DELAYED,), JOIN, WAITING, ("JOINED", "ADDX"), DELAYED_AGAIN),
    Row((WAITING,), REMOVE, NOWHERE, ("REMOVE",), HEAD_AGAIN),
    Row((WAITING,), DROP, NOWHERE, ("REMOVE",), HEAD_AGAIN),
    Row((WAITING,), READ, HELD, (_OPENS,), HEAD_AGAIN, also=("REMOVE_TENTATIVE_XID",)),
    Row((WAITING,), PUT_ASIDE, ASIDE, (_OPENS, "HELD_BACK"), HEAD_AGAIN, counted=False),
    Row((HELD,), RESERVE, RESERVED, ("RESERVED",), UNRESERVED, is_forgotten=True),
    Row((RESERVED,), RENEW, RESERVED, ("RESERVED",), OLD_TERMS),
    Row(
        _OPEN,
        CONFIRM,
        NOWHERE,
        ("CONFIRM_REMOVE",),
        OPEN_AGAIN,
        also=("CONTINUE",),
        is_forgotten=True,
    ),
    Row((HELD,), CONFIRM_KEPT, NOWHERE, ("CONFIRM_REMOVE",), OPEN_AGAIN),
    Row((RESERVED,), FINISH, NOWHERE, ("DONE", "CONFIRM_REMOVE"), OPEN_AGAIN),
    Row(_BACK, GIVE_BACK, WAITING, ("UNREMOVE",), OPEN_AGAIN, is_forgotten=True),
    Row(_BACK, GIVE_BACK, WAITING, _UNCOUNTED, OPEN_AGAIN, counted=False, is_forgotten=True),
    Row((RESERVED,), RETIRE, WAITING, ("RETIRED", *_UNCOUNTED), OPEN_AGAIN, counted=False),
    # What replay makes of a note is the first row that begins with it.
    Row((RESERVED,), LOSE, RETRYING, ("UNRESERVED",), OPEN_AGAIN, is_forgotten=True),
    Row((HELD, LEAVING), LOSE, RETRYING),
    Row(
        (HELD, RESERVED),
        LOSE,
        RETRYING,
        ("HELD_BACK",),
        OPEN_AGAIN,
        counted=False,
        is_forgotten=True,
    ),
    Row((HELD,), HOLD_BACK, HELD, ("HELD_BACK",), WITH_READ, counted=False),
    Row((RESERVED,), LOSE, ASIDE, ("UNRESERVED",), OPEN_AGAIN, is_forgotten=True),
    Row((HELD,), LOSE, ASIDE),
    Row(
        (HELD, RESERVED),
        LOSE,
        ASIDE,
        ("HELD_BACK",),
        OPEN_AGAIN,
        counted=False,
        is_forgotten=True,
    ),
    Row((ASIDE,), WRITE, LEAVING),
    Row((LEAVING,), REFUSE, ASIDE),
    Row((WAITING,), FLUSH, NOWHERE, ("REMOVE",)),
    Row((RETRYING,), FLUSH, NOWHERE, ("CONFIRM_REMOVE",)),
    Row((DELAYED,), FLUSH, NOWHERE, ("FLUSHED",)),
    Row((HELD, *_NOBODY), RESTART, WAITING, ("UNREMOVE",)),
)

UNDO: Final = {row.event: row.undo for row in LIFE if row.records}
"""How a change is taken back, by event; the same in all states."""
NEXT: Final = {row.event: row.next for row in reversed(LIFE)}
"""What follows, by event. Only LOSE may also have another: for a journal, the two are one."""
FORGOTTEN: Final = frozenset(row.event for row in LIFE if row.is_forgotten)
"""The events after which nobody knows the read any more when they were taken back."""


def opcodes(event: int) -> frozenset[int]:
    """Return the opcodes of the records that say that `event` has happened."""
    names = [name for row in LIFE if row.event == event for name in row.records + row.also]
    return frozenset(opcode for opcode, name in enumerate(OPERATIONS) if name in names)


def noted_row(kind: str) -> Row:
    """Return what a note of this kind says of the reads that it names."""
    return next(row for row in LIFE if row.records[:1] == (kind,))


def _replayed(opcode: int) -> int:
    found = [event for event in (REMOVE, READ, CONFIRM, GIVE_BACK) if opcode in opcodes(event)]
    return found[0] if found else NOTHING


NOTHING: Final = -1
REPLAYED: Final = tuple(map(_replayed, range(len(OPERATIONS))))
"""By opcode: what has happened to the head, or to the read whose xid the record has, if anything.

That a record also adds an item is another event, ADD.
"""
