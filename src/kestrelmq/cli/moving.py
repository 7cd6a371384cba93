"""`kestrelmq browse`, `move`, `copy`, `redrive`, `export`, `import`: look at items, move them."""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import typer

from kestrelmq.cli.servers import QueueArgument, Servers, check_exists, no_queue
from kestrelmq.cli.tables import JsonFlag, print_count
from kestrelmq.cli.terminal import counting, printable, standard_input, standard_output
from kestrelmq.cli.values import wrong
from kestrelmq.client import BrowsedItem, Client, Moved
from kestrelmq.client.commands import export_line
from kestrelmq.errors import KestrelError

_SHOWN: Final = 200
"""Characters of an item that a line shows."""
_COUNTED_EVERY: Final = 1000
"""Lines between two updates of how many were done."""


def browse(  # one parameter a flag
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
    servers: Servers,
) -> None:
    """Show items of a queue and leave them there: place, size, and the beginning of the data.

    \b
    kestrelmq browse work --offset 1000 --count 5
    kestrelmq browse work --count 0 --search customer-17

    Items in memory and on disk are shown alike. Exit status 1: no server has the queue.
    """  # noqa: D301 # \b is for the help
    if search is not None and pattern is not None:
        raise typer.BadParameter("give either --search or --pattern")
    text, regex = (None if flag is None else os.fsencode(flag) for flag in (search, pattern))
    if regex is not None:
        try:
            re.compile(regex)
        except (re.error, RecursionError, OverflowError) as error:
            raise wrong("--pattern", f"no regular expression: {error}") from error
    with servers.connect() as client:
        check_exists(client, queue)
        for item in _found_items(servers, client, queue, offset, count, text, regex):
            if as_json:
                print(export_line(queue, item))
            else:
                shown = printable(item.data[: 4 * _SHOWN].decode(errors="replace"))[:_SHOWN]
                print(f"{item.place}\t{len(item.data)}\t{shown}{_letter(item)}")
    standard_output().flush()


def _letter(item: BrowsedItem) -> str:
    """Return where a dead letter came from, as the end of its line; empty for other items."""
    letter = item.dead_letter
    if letter is None:
        return ""
    died = datetime.fromtimestamp(letter.died / 1000, UTC)
    return printable(
        f"\t(from {letter.origin}, {letter.deliveries} deliveries, {died:%Y-%m-%d %H:%M:%S} UTC:"
        f" {letter.why})"
    )


def _found_items(
    servers: Servers,
    client: Client,
    queue: str,
    offset: int,
    count: int,
    text: bytes | None,
    pattern: bytes | None,
) -> Iterator[BrowsedItem]:
    """Yield up to `count` items of each server, or all of them if it is 0."""
    pages = client.browse(queue, offset, _page(count), text=text, pattern=pattern)
    for server, first in pages.items():
        page, left = first, count or -1
        with Client(server, options=servers.options()) as one:
            while True:
                for item in page.items:
                    yield item
                    left -= 1
                if left == 0 or page.next_offset is None:
                    break
                following = one.browse(
                    queue, count=_page(left), text=text, pattern=pattern, place=page.place
                )
                if server not in following:
                    break  # the queue was deleted
                page = following[server]


def _page(count: int) -> int:
    return min(count, 1000) if count > 0 else 1000


TargetArgument = Annotated[str, typer.Argument(metavar="TARGET", help="Where the items go.")]
CountFlag = Annotated[
    int | None, typer.Option(min=0, help="How many of the first items; otherwise all that wait.")
]


def move(
    queue: QueueArgument,
    target: TargetArgument,
    *,
    count: CountFlag = None,
    as_json: JsonFlag = False,
    servers: Servers,
) -> None:
    """Move items from the head of a queue to another one, on every server, in order.

    An item is in TARGET before it leaves QUEUE: if the server crashes, it may be in both. Exit
    status 1: TARGET refused an item, which is still in QUEUE; or no server has the queue.
    """
    with servers.connect() as client:
        _report(queue, "moved", client.move(queue, target, count), as_json=as_json)


def copy(
    queue: QueueArgument,
    target: TargetArgument,
    *,
    count: CountFlag = None,
    as_json: JsonFlag = False,
    servers: Servers,
) -> None:
    """Copy items from the head of a queue to another one, on every server, in order.

    What is read from QUEUE meanwhile may make it leave out or repeat some items. Exit status 1:
    TARGET refused an item, or no server has the queue.
    """
    with servers.connect() as client:
        _report(queue, "copied", client.copy(queue, target, count), as_json=as_json)


def redrive(
    queue: QueueArgument,
    target: Annotated[
        str | None,
        typer.Argument(metavar="TARGET", help="Otherwise the queues that they came from."),
    ] = None,
    *,
    as_json: JsonFlag = False,
    servers: Servers,
) -> None:
    """Move all items of a dead-letter queue back to where they came from, on every server.

    Exit status 1: an item was refused, or stays because its queue is unknown or gone; or no server
    has the dead-letter queue.
    """
    with servers.connect() as client:
        _report(queue, "moved", client.redrive(queue, target), as_json=as_json)


def _report(queue: str, done: str, results: Mapping[str, Moved], *, as_json: bool) -> None:
    if not results:
        raise no_queue(queue)
    if as_json:
        print(json.dumps({server: asdict(one) for server, one in results.items()}, indent=2))
    else:
        print(f"{sum(moved.count for moved in results.values())} items {done}")
    stopped = [f"{server}: {one.stopped}" for server, one in results.items() if one.stopped]
    if stopped:
        raise KestrelError("; ".join(stopped))


def export(queue: QueueArgument, *, servers: Servers) -> None:
    """Print the items of a queue as JSON lines, and leave them there.

    \b
    kestrelmq export work > work.jsonl
    kestrelmq import work.jsonl

    The lines are those of `kestrelmq journal export`. Items of open reads are not included. What is
    read from the queue meanwhile may make it leave out or repeat some items.
    """  # noqa: D301 # \b is for the help
    with servers.connect() as client:
        check_exists(client, queue)
        with counting("exported", also=not standard_output().isatty()) as show:
            for number, line in enumerate(client.export(queue), 1):
                print(line)
                if number % _COUNTED_EVERY == 0:
                    show(number)
    standard_output().flush()


def import_items(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="JSON lines; - reads standard input.")
    ] = "-",
    *,
    queue: Annotated[
        str | None, typer.Option(help="Add all items to this queue, whatever the lines say.")
    ] = None,
    as_json: JsonFlag = False,
    servers: Servers,
) -> None:
    """Add the items of JSON lines, as an export prints them, to their queues.

    They are new items: they keep their expiry, to the second, but not the time when they were
    added. Those that have expired meanwhile are left out; those that are not due are delayed. Exit
    status 1: a line is wrong, or an item was refused; the message says how many were added.
    """
    connected = servers.connect()
    with connected as client, _lines(file) as lines, counting("read") as show:
        added = client.import_items(_counted(lines, show), queue=queue)
    print_count(added, "items added", as_json=as_json)


def _counted(lines: Iterable[bytes], show: Callable[[int], None]) -> Iterator[bytes]:
    """Yield `lines`, and show how many were read."""
    for number, line in enumerate(lines, 1):
        yield line
        if number % _COUNTED_EVERY == 0:
            show(number)


def _lines(file: str) -> AbstractContextManager[BinaryIO]:
    if file == "-":
        return nullcontext(standard_input())
    return Path(file).open("rb")
