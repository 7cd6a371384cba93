"""Requests about whole queues, about clients and about the server, for every protocol.

Each request checks itself: making one that asks for what no server does raises ValueError, whose
message is for the client. Names of queues are checked elsewhere. `PARSERS` reads the requests from
the words of a line, for memcache and text:

    browse Q OFFSET COUNT [text=TEXT | pattern=PATTERN]     percent-encoded
    move Q TARGET [COUNT]
    copy Q TARGET [COUNT]
    redrive Q [TARGET]
    declare Q [fanout_only] [journal=yes|no] [expires=MS] [max_age=MS] [max_items=N]
    pause Q reads|writes|all
    resume Q [reads|writes|all]
    clients
    client kill ID
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import unquote_to_bytes

from kestrelmq.protocol.faults import ClientFault
from kestrelmq.protocol.words import NameParser, count, printable

MAX_SEARCH: Final = 1000
"""The longest text or regular expression to search for, in bytes."""
Operations = Literal["reads", "writes", "all"]
"""What of a queue may be paused."""


@dataclass(frozen=True, slots=True)
class Browse:
    """Return items from an offset on, which stay in the queue.

    Attributes:
        queue: its name.
        offset: how many items to pass over.
        count: the most items to return.
        search: what the items must contain; empty for anything.
        is_pattern: whether `search` is a regular expression.
    """

    queue: str
    offset: int
    count: int
    search: bytes = b""
    is_pattern: bool = False

    def __post_init__(self) -> None:
        """Check it. Raises ValueError."""
        if self.offset < 0 or self.count < 0:
            raise ValueError("browse takes whole numbers")
        if len(self.search) > MAX_SEARCH:
            raise ValueError(f"what to search for has at most {MAX_SEARCH} bytes")


@dataclass(frozen=True, slots=True)
class Move:
    """Move or copy the first items of a queue to another one.

    Attributes:
        queue: the name of the queue.
        target: where they go; None is back to the queue of these dead letters.
        count: how many; None is all.
        copies: whether they stay in the queue, too.
    """

    queue: str
    target: str | None
    count: int | None
    copies: bool = False

    def __post_init__(self) -> None:
        """Check it. Raises ValueError."""
        if self.count is not None and self.count < 0:
            raise ValueError("a number of items is not below 0")


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause or resume operations of a queue."""

    queue: str
    operations: Operations
    resume: bool


@dataclass(frozen=True, slots=True)
class Declare:
    """Create a queue with settings of its own, or give it others.

    Attributes:
        queue: its name.
        fanout_only: whether items go to its fanout children only.
        journal: whether it keeps a journal; None as other queues do.
        expires, max_age: in milliseconds; None as for other queues.
        max_items: the most items; None as for other queues.
    """

    queue: str
    fanout_only: bool = False
    journal: bool | None = None
    expires: int | None = None
    max_age: int | None = None
    max_items: int | None = None

    @property
    def settings(self) -> dict[str, object]:
        """The settings, by their names in the configuration."""
        given: dict[str, object | None] = {
            "fanout_only": self.fanout_only or None,
            "keep_journal": self.journal,
            "max_queue_age": None if self.expires is None else self.expires / 1000,
            "max_age": None if self.max_age is None else self.max_age / 1000,
            "max_items": self.max_items,
        }
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Flush:
    """Drop the items that wait in a queue.

    Attributes:
        queue: its name.
        noreply: whether the client expects no reply, as only one of memcache can say.
    """

    queue: str
    noreply: bool = False


@dataclass(frozen=True, slots=True)
class FlushAll:
    """Drop the items that wait in every queue."""

    noreply: bool = False


@dataclass(frozen=True, slots=True)
class FlushExpired:
    """Drop the expired items of a queue; None is every queue."""

    queue: str | None


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a queue with its items."""

    queue: str
    noreply: bool = False


@dataclass(frozen=True, slots=True)
class ListClients:
    """List the clients that are connected, but for the first `offset` of them."""

    offset: int = 0

    def __post_init__(self) -> None:
        """Check it. Raises ValueError."""
        if self.offset < 0:
            raise ValueError("an offset is not below 0")


@dataclass(frozen=True, slots=True)
class KillClient:
    """Disconnect the client with a number that `clients` lists."""

    id: int


@dataclass(frozen=True, slots=True)
class GetStatus:
    """Return the server's status."""


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Change the server's status to the one with the name `status`."""

    status: str


@dataclass(frozen=True, slots=True)
class Version:
    """Return the server's version."""


@dataclass(frozen=True, slots=True)
class Reload:
    """Read the configuration again."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Stop the server."""


@dataclass(frozen=True, slots=True)
class Quit:
    """Close the connection."""


@dataclass(frozen=True, slots=True)
class Confirm:
    """Confirm the `count` oldest open reads of the connection; thrift names reads by their ids."""

    queue: str
    count: int


Manage = Browse | Move | Pause | Declare | Flush | FlushAll | FlushExpired | Delete
"""Requests about queues, which are answered later."""
ManagingRequest = Manage | ListClients | KillClient


def _browse(words: list[bytes], queue: NameParser) -> Browse:
    if len(words) not in {3, 4}:
        reason = "browse takes a queue, an offset, a count, and perhaps text= or pattern="
        raise ClientFault(reason, closes=False)
    name = queue(words[0])
    offset, most = count(words[1], "browse"), count(words[2], "browse")
    if len(words) == 3:
        return Browse(name, offset, most)
    kind, _, encoded = words[3].partition(b"=")
    search = unquote_to_bytes(encoded)
    if kind not in {b"text", b"pattern"} or not 0 < len(search) <= MAX_SEARCH:
        reason = f"browse takes text= or pattern=, of 1 to {MAX_SEARCH} bytes, percent-encoded"
        raise ClientFault(reason, closes=False)
    return Browse(name, offset, most, search, is_pattern=kind == b"pattern")


def _move(words: list[bytes], queue: NameParser) -> Move:
    return _transfer(words, queue, "move", copies=False)


def _copy(words: list[bytes], queue: NameParser) -> Move:
    return _transfer(words, queue, "copy", copies=True)


def _transfer(words: list[bytes], queue: NameParser, verb: str, *, copies: bool) -> Move:
    if len(words) not in {2, 3}:
        raise ClientFault(f"{verb} takes two queues, and perhaps a count", closes=False)
    most = count(words[2], verb) if len(words) == 3 else None
    return Move(queue(words[0]), queue(words[1]), most, copies)


def _redrive(words: list[bytes], queue: NameParser) -> Move:
    if len(words) not in {1, 2}:
        raise ClientFault("redrive takes a queue, and perhaps a target", closes=False)
    return Move(queue(words[0]), queue(words[1]) if len(words) == 2 else None, None)


def _declare(words: list[bytes], queue: NameParser) -> Declare:
    if not words:
        raise ClientFault("declare takes a queue, and its settings", closes=False)
    declared = queue(words[0])
    fanout_only, journal = False, None
    numbers: dict[bytes, int] = {}
    for word in words[1:]:
        name, _, text = word.partition(b"=")
        if word == b"fanout_only" and not fanout_only:
            fanout_only = True
        elif name == b"journal" and text in {b"yes", b"no"} and journal is None:
            journal = text == b"yes"
        elif name in {b"expires", b"max_age", b"max_items"} and name not in numbers:
            numbers[name] = count(text, name.decode())
        else:
            raise ClientFault(
                f"{printable(word)}: declare takes, each once: fanout_only, journal=no,"
                " expires=MS, max_age=MS, max_items=N",
                closes=False,
            )
    return Declare(
        declared,
        fanout_only,
        journal,
        numbers.get(b"expires"),
        numbers.get(b"max_age"),
        numbers.get(b"max_items"),
    )


def _pause(words: list[bytes], queue: NameParser) -> Pause:
    if len(words) != 2:
        raise ClientFault("pause takes a queue, and reads, writes or all", closes=False)
    return Pause(queue(words[0]), _operations(words[1]), resume=False)


def _resume(words: list[bytes], queue: NameParser) -> Pause:
    if len(words) not in {1, 2}:
        reason = "resume takes a queue, and perhaps reads, writes or all"
        raise ClientFault(reason, closes=False)
    operations = _operations(words[1]) if len(words) > 1 else "all"
    return Pause(queue(words[0]), operations, resume=True)


def _operations(word: bytes) -> Operations:
    if word == b"reads":
        return "reads"
    if word == b"writes":
        return "writes"
    if word == b"all":
        return "all"
    reason = f"only reads, writes or all can be paused, not {printable(word)}"
    raise ClientFault(reason, closes=False)


def _clients(words: list[bytes], _queue: NameParser) -> ListClients:
    if words:
        raise ClientFault("clients takes nothing", closes=False)
    return ListClients()


def _client(words: list[bytes], _queue: NameParser) -> KillClient:
    if len(words) != 2 or words[0].lower() != b"kill":
        raise ClientFault("client takes kill and an id", closes=False)
    return KillClient(count(words[1], "client kill"))


PARSERS: Final[dict[bytes, Callable[[list[bytes], NameParser], ManagingRequest]]] = {
    b"browse": _browse,
    b"move": _move,
    b"copy": _copy,
    b"redrive": _redrive,
    b"declare": _declare,
    b"pause": _pause,
    b"resume": _resume,
    b"clients": _clients,
    b"client": _client,
}
"""Reads the words behind a command into its request, by the command. Raise ClientFault."""
