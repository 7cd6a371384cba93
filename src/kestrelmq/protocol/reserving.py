"""Requests about reserved reads, for every protocol, and how a read is written.

Each request checks itself: making one that asks for what no server does raises ValueError, whose
message is for the client. Names of queues are checked elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kestrelmq.protocol.decimals import joined
from kestrelmq.tags import MAX_EPOCH, MAX_TAG, parse_tag

MAX_RESERVED: Final = 1000
"""The most items of one `reserve`."""
MAX_RESERVED_QUEUES: Final = 100
"""The most queues of one `reserve`."""
MAX_OWNER: Final = MAX_TAG
"""The most bytes of an owner, or of the name in a tag."""
MAX_MILLISECONDS: Final = 2**53
"""The longest lease, wait, delay or grace."""
MAX_DIGITS: Final = 19
"""The most digits of a number in a request: those of the greatest in 64 bits."""
_SUFFIX: Final = 17
"""Bytes of a read from the hyphen before its nonce on."""
_HEX_DIGITS: Final = b"0123456789abcdef"

Reads = tuple[tuple[int, Sequence[int]], ...]
"""Reserved reads, those of one reservation after the other: its nonce, and the xids of the reads.
On the wire, a read is `XID-NONCE`."""


@dataclass(slots=True)
class Reserve:
    """Reserve items, of the first of several queues that have any.

    It is not changed. It is not frozen, because that would triple the time to make one.

    Attributes:
        queues: their names; one that is repeated is asked once.
        count: the most items.
        lease: how long they are reserved (ms); 0 is without end, whatever becomes of the owner.
        timeout: milliseconds to wait for an item.
        tag: the step that they belong to; may be empty.
        owner: whose they are; may be empty.
        grace: how long they stay reserved after the owner's last connection has ended (ms).
        again: whether only what the tag has already is wanted: nothing is taken.
        nodata: whether the answer only says how much was reserved. Such items may be held for long,
            so half of the memory for reserved items is left to others.
    """

    queues: tuple[str, ...]
    count: int
    lease: int
    timeout: int = 0
    tag: str = ""
    owner: str = ""
    grace: int = 5000
    again: bool = False
    nodata: bool = False

    def __post_init__(self) -> None:
        """Check it. Raises ValueError."""
        if not 1 <= len(self.queues) <= MAX_RESERVED_QUEUES:
            raise ValueError(f"reserve takes 1 to {MAX_RESERVED_QUEUES} queues")
        if not 1 <= self.count <= MAX_RESERVED:
            raise ValueError(f"reserve takes a count of 1 to {MAX_RESERVED}")
        _check_milliseconds(lease=self.lease, t=self.timeout, grace=self.grace)
        _check_tag(self.tag)
        _check_owner(self.owner)
        if self.again and not self.tag:
            raise ValueError("again needs a tag")
        if self.again and self.timeout:
            raise ValueError("again takes no t")


@dataclass(slots=True, init=False)
class Finish:
    """Confirm reserved reads, or those of a tag, which is done from then on.

    It is not changed either; and its `__init__` is written out, as in `PutMark`.
    """

    queue: str
    reads: Reads
    tag: str

    def __init__(self, queue: str, reads: Reads, tag: str = "") -> None:
        """Check it. Raises ValueError."""
        _check_whose("finish", reads, tag)
        self.queue = queue
        self.reads = reads
        self.tag = tag


@dataclass(frozen=True, slots=True)
class Release:
    """Give reserved reads back, or those of a tag, or those of an owner.

    Attributes:
        queue: the queue's name; with an owner it may be empty, which is every queue.
        reads: the reads.
        tag, owner: whose reads instead.
        delay: milliseconds until the items may be read again; None for the queue's setting.
        uncounted: whether this is no delivery; then there is no delay unless one is given.
        dead: whether the items go to the dead-letter queue; the others say what becomes of those
            that it cannot take.
    """

    queue: str
    reads: Reads
    tag: str = ""
    owner: str = ""
    delay: int | None = None
    uncounted: bool = False
    dead: bool = False

    def __post_init__(self) -> None:
        """Check it. Raises ValueError."""
        if self.tag and self.owner:
            raise ValueError("release takes a tag or an owner, not both")
        _check_milliseconds(delay=self.delay or 0)
        _check_owner(self.owner)
        if not self.queue and not self.owner:
            raise ValueError("release takes a queue")
        _check_whose("release", self.reads, self.tag, self.owner)


@dataclass(frozen=True, slots=True)
class Extend:
    """Let the leases of reserved reads, or of those of a tag, end so many milliseconds from now."""

    queue: str
    milliseconds: int
    reads: Reads
    tag: str = ""

    def __post_init__(self) -> None:
        """Check it. Raises ValueError."""
        _check_milliseconds(extend=self.milliseconds)
        _check_whose("extend", self.reads, self.tag)


@dataclass(frozen=True, slots=True)
class ExtendOwner:
    """Let the leases of all reads of an owner end so many milliseconds from now."""

    owner: str
    milliseconds: int

    def __post_init__(self) -> None:
        """Check it. Raises ValueError."""
        _check_milliseconds(extend=self.milliseconds)
        _check_text("owner", self.owner)


@dataclass(frozen=True, slots=True)
class Retire:
    """Refuse the tags of a name up to an epoch from now on, and forget those that are done."""

    queue: str
    name: str
    epoch: int

    def __post_init__(self) -> None:
        """Check it. Raises ValueError."""
        _check_text("name", self.name)
        if ":" in self.name:
            raise ValueError("the name of a tag has no colon")
        if not 0 <= self.epoch <= MAX_EPOCH:
            raise ValueError("an epoch is a whole number")


@dataclass(frozen=True, slots=True)
class ListOwners:
    """List the owners of reserved reads whose names are of a pattern, as of files in a shell."""

    pattern: str = "*"

    def __post_init__(self) -> None:
        """Check it. Raises ValueError."""
        _check_text("pattern", self.pattern)


EndsReads = Finish | Release | Extend | ExtendOwner | Retire
"""Requests about reads that are reserved."""


def read_text(xid: int, nonce: int) -> str:
    """Return a read as clients know it."""
    return f"{xid}-{nonce_text(nonce)}"


def nonce_text(nonce: int) -> str:
    """Return what the reads of one reservation end with, as clients know them."""
    return f"{nonce:016x}"


def parse_reads(words: Sequence[bytes]) -> Reads:
    """Return the reads that `words` name. Raises ValueError: one is not a read id."""
    xids: list[int] = []
    reads: list[tuple[int, list[int]]] = []
    suffix = b""
    for word in words:
        if word[-_SUFFIX:] != suffix:
            suffix, xids = word[-_SUFFIX:], []
            reads.append((_nonce(suffix, word), xids))
        xids.append(_xid(word))
    return tuple([(nonce, tuple(some)) for nonce, some in reads])


def parse_run(text: bytes) -> Reads | None:
    """Return the reads in `text` if they are consecutive ones of a reservation; None if not.

    Most requests that name reads have such a text. To write it is much faster than to read it.
    """
    space = text.find(b" ")
    word = text if space < 0 else text[:space]
    count, is_uneven = divmod(len(text) + 1, len(word) + 1)
    if is_uneven:  # some xids have more digits than others
        count = text.count(b" ") + 1
    suffix, xid = word[-_SUFFIX:], word[:-_SUFFIX]
    is_long_enough = len(text) >= count * (_SUFFIX + 2) - 1
    if not (is_long_enough and xid.isdigit() and len(xid) <= MAX_DIGITS and suffix[:1] == b"-"):
        return None
    first = int(xid)
    if joined(first, count, suffix + b" ") + suffix != text:
        return None
    xids = range(first, first + count) if count > 1 else (first,)
    return ((_nonce(suffix, word), xids),)


def _nonce(suffix: bytes, word: bytes) -> int:
    """Return the nonce of the read `word`, which ends in `suffix`."""
    digits = suffix[1:]
    if suffix[:1] != b"-" or len(suffix) != _SUFFIX or digits.translate(None, _HEX_DIGITS):
        raise _no_read(word)
    return int(digits, 16)


def _xid(word: bytes) -> int:
    """Return the xid of the read `word`."""
    xid = word[:-_SUFFIX]
    digits = xid[1:] if xid[:1] == b"-" else xid
    if not digits.isdigit() or len(digits) > MAX_DIGITS:
        raise _no_read(word)
    return int(xid)


def _no_read(word: bytes) -> ValueError:
    return ValueError(f"{word[:100].decode('ascii', 'backslashreplace')} is not a read id")


def _check_milliseconds(**numbers: int) -> None:
    for what, value in numbers.items():
        if not 0 <= value <= MAX_MILLISECONDS:
            raise ValueError(f"{what} takes milliseconds")


def _check_tag(tag: str) -> None:
    if tag:
        _check_text("tag", tag)
        parse_tag(tag)


def _check_owner(owner: str) -> None:
    if owner:
        _check_text("owner", owner)


def _check_text(what: str, text: str) -> None:
    if not text or not text.isprintable() or " " in text or len(text.encode()) > MAX_OWNER:
        raise ValueError(f"{what} takes at most {MAX_OWNER} bytes of text")


def _check_whose(verb: str, reads: Reads, tag: str, owner: str = "") -> None:
    _check_tag(tag)
    if bool(reads) == bool(tag or owner):
        raise ValueError(f"{verb} takes reads, or says whose")


def listed_name(name: bytes) -> bytes:
    """Return the name of a queue as it is written in a list of queues, which has commas."""
    return name.replace(b"%", b"%25").replace(b",", b"%2C")


def parse_listed(word: bytes) -> bytes:
    """Return the name of a queue that was written by `listed_name`."""
    if b"%" not in word:
        return word
    return word.replace(b"%2C", b",").replace(b"%2c", b",").replace(b"%25", b"%")
