"""`kestrelmq stats` and `kestrelmq queues`: statistics as tables for people, JSON for scripts."""

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final

import typer
from rich.cells import cell_len

from kestrelmq.cli.servers import Servers, no_queue
from kestrelmq.cli.terminal import printable, shortened, standard_output
from kestrelmq.client import Client, QueueStats
from kestrelmq.client.statistics import (
    damaged_queues,
    number,
    over_servers,
    paused_over_servers,
    queue_stats,
)

COLUMNS: Final = (
    "items",
    "bytes",
    "age_msec",
    "waiters",
    "open_transactions",
    "total_items",
    "expired_items",
    "discarded",
    "mem_items",
    "mem_bytes",
    "logsize",
)
"""The statistics in the table of queues."""
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]


class SortColumn(StrEnum):
    """What the table of queues is sorted by."""

    NAME = "name"
    ITEMS = "items"
    BYTES = "bytes"
    AGE = "age"


def stats(
    queue: Annotated[
        str | None, typer.Argument(metavar="QUEUE", help="Only the statistics of this queue.")
    ] = None,
    *,
    as_json: JsonFlag = False,
    servers: Servers,
) -> None:
    """Print every statistic of every server, or those of one queue.

    \b
    kestrelmq stats
    kestrelmq stats work --json

    Exit status 1: there is no such queue, or a server did not answer; the others are printed.
    """  # noqa: D301 # \b is for the help
    with servers.asking_each(lambda client: _stats_of(client, queue)) as found:
        answers = {server: values for one in found for server, values in one.items()}
        if answers and as_json:
            print(json.dumps(answers, indent=2))
        elif answers:
            names = dict.fromkeys(name for values in answers.values() for name in values)
            columns = answers.values()
            rows = [[name, *(str(values.get(name, "")) for values in columns)] for name in names]
            print_table(["", *answers], rows)
    if not answers:
        raise no_queue(queue)


def _stats_of(client: Client, queue: str | None) -> dict[str, dict[str, int | str]]:
    if queue is not None:
        return {one.server: dict(one.values) for one in client.queues(queue)}
    return {
        server: {name: as_number(value) for name, value in values.items()}
        for server, values in client.stats().items()
    }


def queues(
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="PATTERN", help="Only the queues that match, such as 'orders_*'."),
    ] = None,
    *,
    sort: Annotated[
        SortColumn, typer.Option(help="Names from a to z, numbers from the largest.")
    ] = (SortColumn.NAME),
    by_server: Annotated[
        bool, typer.Option("--by-server", help="A line for each queue of each server.")
    ] = False,
    as_json: JsonFlag = False,
    servers: Servers,
) -> None:
    """List the queues: items and bytes waiting, the age of the last item read, what is paused.

    \b
    kestrelmq queues --sort items
    kestrelmq queues 'orders_*'
    kestrelmq queues --json | jq '.[] | select(.items > 1000)'

    Over several servers, numbers are sums; the age, in milliseconds, is the largest. A warning
    names each queue that a server could not load. Exit status 1: a server did not answer; the
    others are printed. A terminal shows the columns that fit, and long names shortened.
    """  # noqa: D301 # \b is for the help
    with servers.asking_each(Client.stats) as answers:
        told = {server: pairs.items() for answer in answers for server, pairs in answer.items()}
        for server, pairs in told.items():
            for name, reason in damaged_queues(pairs).items():
                if fnmatchcase(name, pattern or "*"):
                    print(f"kestrelmq: warning: {server}: {printable(reason)}", file=sys.stderr)
        found = [
            queue
            for server, pairs in told.items()
            for queue in queue_stats(server, pairs)
            if fnmatchcase(queue.name, pattern or "*")
        ]
        rows = _sorted([queue_row([q]) for q in found] if by_server else rows_by_queue(found), sort)
        if as_json:
            print(json.dumps(rows, indent=2))
            return
        heads = ["queue", *(["server"] if by_server else []), *COLUMNS, "paused"]
        texts = [{head: printable(str(row[head])) for head in heads} for row in rows]
        if standard_output().isatty():
            heads = _fit(heads, texts, shutil.get_terminal_size().columns)
        print_table(heads, [[row[head] for head in heads] for row in texts])


def _fit(heads: list[str], rows: list[dict[str, str]], room: int) -> list[str]:
    """Return the columns that fit in `room` cells, and shorten the names of `rows` accordingly."""
    paused = [head for head in heads if head == "paused" and any(row[head] for row in rows)]
    widths = {
        head: max(cell_len(text) for text in [head, *(row[head] for row in rows)]) for head in heads
    }
    named = min(widths["queue"], max(len("queue"), room // 3))
    left = room - named
    shown = ["queue"]
    for head in [*paused, *(head for head in heads[1:] if head != "paused")]:
        if left < 2 + widths[head]:
            break
        left -= 2 + widths[head]
        shown.append(head)
    for row in rows:
        row["queue"] = shortened(row["queue"], named + left)
    return shown


def rows_by_queue(found: Iterable[QueueStats]) -> list[dict[str, Any]]:
    """Return one row for each queue name, summed over the servers that have the queue."""
    names: dict[str, list[QueueStats]] = {}
    for queue in found:
        names.setdefault(queue.name, []).append(queue)
    return [queue_row(same) for same in names.values()]


def queue_row(same: Sequence[QueueStats]) -> dict[str, Any]:
    """Return the row of one queue, on one server or on several."""
    row: dict[str, Any] = {"queue": same[0].name, "server": ", ".join(q.server for q in same)}
    row |= {stat: over_servers(stat, same) for stat in COLUMNS}
    return row | {"paused": paused_over_servers(same)}


def print_rows(heads: Sequence[str], rows: Sequence[Sequence[object]], *, as_json: bool) -> None:
    """Print rows of text and numbers as a table, or as a list of objects in JSON."""
    if as_json:
        print(json.dumps([dict(zip(heads, row, strict=True)) for row in rows], indent=2))
    else:
        print_table(heads, [list(map(str, row)) for row in rows])


def print_count(count: int, what: str, *, as_json: bool) -> None:
    """Print a line such as `3 items put`, or in JSON an object whose only name is the last word."""
    print(json.dumps({what.rsplit(maxsplit=1)[-1]: count}) if as_json else f"{count} {what}")


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns, the first aligned to the left and numbers to the right."""
    heads = list(map(printable, heads))
    rows = [list(map(printable, row)) for row in rows]
    widths = [max(cell_len(line[i]) for line in [heads, *rows]) for i in range(len(heads))]
    numeric = [all(_is_number(row[i]) for row in rows) for i in range(len(heads))]
    for line in [heads, *rows]:
        cells = [
            cell.rjust(width) if right else cell + " " * (width - cell_len(cell))
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        print("  ".join(cells).rstrip())


def _sorted(rows: list[dict[str, Any]], sort: SortColumn) -> list[dict[str, Any]]:
    rows.sort(key=lambda row: (row["queue"], row["server"]))
    match sort:
        case SortColumn.NAME:
            pass
        case SortColumn.ITEMS | SortColumn.BYTES:
            rows.sort(key=lambda row: -row[sort.value])
        case SortColumn.AGE:
            rows.sort(key=lambda row: -row["age_msec"])
    return rows


def _is_number(text: str) -> bool:
    return str(number(text)) == text


def as_number(text: str) -> int | str:
    """Return what a server sends as a statistic: a number, unless it is text."""
    return number(text) if _is_number(text) else text
