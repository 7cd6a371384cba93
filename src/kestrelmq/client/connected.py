"""Read the lines of `clients`: who is connected to a server, and what each client does."""

from collections.abc import Mapping
from dataclasses import dataclass

from kestrelmq.client.statistics import number


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """A client that is connected to a server.

    Attributes:
        server: the server's address.
        id: its number on that server; a later client has a higher one.
        address: where it connected from, as `HOST:PORT`, or `unix:PID` on a Unix socket.
        protocol: `memcache`, `text` or `thrift`.
        since: when it connected, in milliseconds since the epoch.
        replies: how many replies it was given, about one for each command.
        state: `idle`; `waiting` for an item; `working`: a request takes several turns; or
            `stalled`: it does not read its replies.
        queue: the queue that its present request reads or adds to, if it takes time; written as
            the list of a `reserve`, which may wait on several.
        open_reads: how many reads it holds open, by queue; of more than a thousand only the first.
    """

    server: str
    id: int
    address: str
    protocol: str
    since: int
    replies: int
    state: str
    queue: str | None
    open_reads: Mapping[str, int]


def connected_client(server: str, line: str) -> ConnectedClient:
    """Return the client in the fields of a `CLIENT` line; unknown fields are ignored."""
    fields: dict[str, str] = {}
    open_reads: dict[str, int] = {}
    for word in line.split(" "):
        name, _, content = word.partition("=")
        if name == "open":
            queue, _, count = content.rpartition("/")
            open_reads[queue] = number(count)
        else:
            fields[name] = content
    return ConnectedClient(
        server=server,
        id=number(fields.get("id", "")),
        address=fields.get("address", ""),
        protocol=fields.get("protocol", ""),
        since=number(fields.get("since", "")),
        replies=number(fields.get("replies", "")),
        state=fields.get("state", ""),
        queue=fields.get("queue"),
        open_reads=open_reads,
    )
