"""Requests about whole queues, about clients and about the server, for every protocol."""

from dataclasses import dataclass, field
from typing import Final, Literal

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
        place: the place to begin at, which an earlier page ended with; empty for `offset`.
    """

    queue: str
    offset: int
    count: int
    search: bytes = b""
    is_pattern: bool = False
    place: str = ""


@dataclass(frozen=True, slots=True)
class Move:
    """Move or copy the first items of a queue to another one.

    Attributes:
        queue: the name of the queue.
        target: where they go; None is back to where these dead letters came from.
        count: how many; None is all.
        copies: whether they stay in the queue, too.
        redrives: whether they are dead letters, which fanout children do not get again.
    """

    queue: str
    target: str | None
    count: int | None
    copies: bool = False
    redrives: bool = False


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
class SignIn:
    """Sign in as a user: text's `auth` and thrift's `login`."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ListClients:
    """List the clients that are connected."""


@dataclass(frozen=True, slots=True)
class KillClient:
    """Disconnect the client with a number that `clients` lists."""

    id: int


@dataclass(frozen=True, slots=True)
class NameClient:
    """Give the client of this connection a name, which `clients` lists."""

    name: str


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
