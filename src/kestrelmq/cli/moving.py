"""`kestrelmq browse`: look at items and leave them in their queues."""

import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from kestrelmq.cli.servers import (
    PathPrefixFlag,
    QueueArgument,
    ServersFlag,
    ZookeeperFlag,
    check_exists,
    connect,
)
from kestrelmq.cli.terminal import printable
from kestrelmq.client import BrowsedItem, Client
from kestrelmq.journal.exchange import ExportRow, to_json

_SHOWN = 200
"""Characters of an item that a line shows."""


def browse(  # noqa: PLR0913 # one parameter a flag
    queue: QueueArgument,
    *,
    offset: Annotated[int, typer.Option(min=0, help="Pass over so many items.")] = 0,
    count: Annotated[
        int, typer.Option(min=0, help="Show up to this many items; 0 shows all of them.")
    ] = 20,
    search: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only items that contain this text.")
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Only items that match this regular expression."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print whole items as JSON lines, as an export does.")
    ] = False,
    servers: ServersFlag = None,
    zookeeper: ZookeeperFlag = None,
    path_prefix: PathPrefixFlag = None,
) -> None:
    """Show items of a queue and leave them there: place, size, and the beginning of the data.

    \b
    kestrelmq browse work --offset 1000 --count 5
    kestrelmq browse work --count 0 --search customer-17

    Items in memory and on disk are shown alike. Exit status 1: no server has the queue.
    """  # noqa: D301 # \b is for the help
    if search is not None and pattern is not None:
        raise typer.BadParameter("give either --search or --pattern")
    with connect(servers, zookeeper, path_prefix) as client:
        check_exists(client, queue)
        for item in found_items(client, queue, offset, count, search, pattern):
            if as_json:
                print(to_json(ExportRow(queue, item.place, item.data, item.add_time, item.expiry)))
            else:
                text = printable(item.data[: 4 * _SHOWN].decode(errors="replace"))[:_SHOWN]
                print(f"{item.place}\t{len(item.data)}\t{text}")
    sys.stdout.flush()


def found_items(
    client: Client,
    queue: str,
    offset: int = 0,
    count: int = 0,
    text: str | None = None,
    pattern: str | None = None,
) -> Iterator[BrowsedItem]:
    """Yield up to `count` items of each server, or all of them if it is 0."""
    pages = client.browse(queue, offset, _page(count), text=text, pattern=pattern)
    for server, first in pages.items():
        page, left = first, count or -1
        with Client(server) as one:
            while True:
                for item in page.items:
                    yield item
                    left -= 1
                if left == 0 or page.next_offset is None:
                    break
                following = one.browse(
                    queue, page.next_offset, _page(left), text=text, pattern=pattern
                )
                if server not in following:
                    break  # the queue was deleted
                page = following[server]


def _page(count: int) -> int:
    return min(count, 1000) if count > 0 else 1000
