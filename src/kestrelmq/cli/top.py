"""`kestrelmq top`: a live view of servers and their busiest queues."""

import json
import shutil
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Annotated, Final

import typer
from rich.console import Console, Group, OverflowMethod, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kestrelmq.cli.servers import Servers
from kestrelmq.cli.tables import as_number
from kestrelmq.cli.terminal import ellipsis, keys_at_once, printable, standard_output
from kestrelmq.cli.values import duration
from kestrelmq.client import Client, ClientOptions, QueueStats
from kestrelmq.client.address import Address
from kestrelmq.client.cluster import FixedMembership, Membership
from kestrelmq.client.statistics import number, over_servers, paused_over_servers
from kestrelmq.errors import ClientError

_WIDE: Final = 200
_TIMEOUTS: Final = ClientOptions(connect_timeout=1.0, operation_timeout=3.0)


@dataclass(frozen=True, slots=True)
class ServerSample:
    """The statistics of one server at one time; `problem` is set if it could not be asked."""

    time: float
    values: Mapping[str, str]
    queues: Mapping[str, QueueStats]
    problem: str = ""

    def number(self, stat: str) -> int:
        """Return one of the server's statistics; 0 if it has none of that name."""
        return number(self.values.get(stat, ""))


Samples = Mapping[Address, ServerSample]


@dataclass(frozen=True, slots=True)
class QueueLine:
    """One queue, summed over all servers; rates are in items per second."""

    name: str
    items: int
    bytes: int
    rate_in: float
    rate_out: float
    age_msec: int
    open_reads: int
    waiters: int
    paused: str = ""


def top(
    *,
    interval: Annotated[
        float,
        typer.Option(
            parser=duration,
            metavar="TIME",
            show_default="2",
            help="Time between updates, such as 2 or 500ms.",
        ),
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print once, after one interval, and exit.")
    ] = False,
    lines: Annotated[int, typer.Option(min=1, help="How many queues to show.")] = 40,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each view as a line of JSON.")
    ] = False,
    servers: Servers,
) -> None:
    """Watch servers and their busiest queues: items, rates, ages, reads, waiters, pauses.

    \b
    kestrelmq top
    kestrelmq top --servers a:22133,b:22133 --interval 500ms
    kestrelmq top --once

    Rates are averages over the interval. End it with q or Ctrl-C. If the output is no terminal,
    each view is printed behind the one before. Exit status 1 with --once: no server could be
    reached.
    """  # noqa: D301 # \b is for the help

    def view_of(before: Samples, after: Samples) -> RenderableType:
        return _json(before, after, lines) if as_json else _view(before, after, lines)

    watched = servers.membership()
    options = servers.options(_TIMEOUTS)
    try:
        is_terminal = standard_output().isatty() and not as_json
        with (
            keys_at_once(also=is_terminal) as pressed,
            closing(
                _views(watched, lambda: _waited(interval or 0.1, pressed), view_of, options)
            ) as views,
        ):
            if is_terminal and not once:
                with Live(auto_refresh=False, screen=True) as live:
                    for view, _ in views:
                        live.update(view, refresh=True)
                return
            console = Console(width=None if is_terminal else _WIDE)
            for view, reached in views:
                print(view) if isinstance(view, str) else console.print(view)
                standard_output().flush()
                if once:
                    raise typer.Exit(0 if reached else 1)
    except KeyboardInterrupt:
        return
    finally:
        watched.close()


def _waited(seconds: float, pressed: Callable[[float], bytes | None]) -> bool:
    """Wait; return False as soon as `q` is pressed or the terminal has gone."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if pressed(left) in {b"q", b"Q", b""}:
            return False
    return True


def queue_lines(
    before: Mapping[Address, ServerSample], after: Mapping[Address, ServerSample]
) -> list[QueueLine]:
    """Return the queues of the later samples, the busiest first."""
    names = sorted({name for sample in after.values() for name in sample.queues})
    lines = [_queue_line(name, before, after) for name in names]
    return sorted(lines, key=lambda line: (-(line.rate_in + line.rate_out), -line.items, line.name))


def _queue_line(
    name: str, before: Mapping[Address, ServerSample], after: Mapping[Address, ServerSample]
) -> QueueLine:
    here = [(a, s.queues[name], s.time) for a, s in after.items() if name in s.queues]
    rate_in = rate_out = 0.0
    for address, queue, when in here:
        earlier = before.get(address)
        if earlier is None or name not in earlier.queues or when <= earlier.time:
            continue
        added, taken = _added_and_read(earlier.queues[name], queue)
        rate_in += added / (when - earlier.time)
        rate_out += taken / (when - earlier.time)
    stats = [queue for _, queue, _ in here]
    return QueueLine(
        name,
        items=over_servers("items", stats),
        bytes=over_servers("bytes", stats),
        rate_in=rate_in,
        rate_out=rate_out,
        age_msec=over_servers("age_msec", stats),
        open_reads=over_servers("open_transactions", stats),
        waiters=over_servers("waiters", stats),
        paused=paused_over_servers(stats),
    )


def _added_and_read(before: QueueStats, after: QueueStats) -> tuple[int, int]:
    """Return how many items were added and read between two samples.

    Both are 0 if the server was restarted in between, because it then counts from 0 again.
    """
    grown = {
        stat: after.number(stat) - before.number(stat)
        for stat in ("items", "total_items", "expired_items", "discarded")
    }
    if grown["total_items"] < 0:
        return 0, 0
    gone = grown["total_items"] - grown["items"] - grown["expired_items"] - grown["discarded"]
    return grown["total_items"], max(0, gone)


def _views(
    watched: Membership,
    wait: Callable[[], bool],
    view_of: Callable[[Samples, Samples], RenderableType],
    options: ClientOptions,
) -> Generator[tuple[RenderableType, bool], None, None]:
    """Take a sample after each wait; yield the view of it, and whether any server was reached.

    It ends when `wait` returns False.
    """
    clients: dict[Address, Client] = {}
    watched.start()
    before = _take_samples(watched, clients, options)
    try:
        while wait():
            after = _take_samples(watched, clients, options)
            yield view_of(before, after), any(not s.problem for s in after.values())
            before = after
    finally:
        for client in clients.values():
            client.close()


def _take_samples(
    watched: Membership, clients: dict[Address, Client], options: ClientOptions
) -> dict[Address, ServerSample]:
    samples = {}
    for address in sorted({*watched.reads(), *watched.writes()}):
        if address not in clients:
            clients[address] = Client(FixedMembership((address,)), options=options)
        samples[address] = _take_sample(clients[address], str(address))
    return samples


def _take_sample(client: Client, server: str) -> ServerSample:
    try:
        values = client.stats()[server]
        queues = client.queues()
    except ClientError as error:
        return ServerSample(time.monotonic(), {}, {}, str(error))
    return ServerSample(time.monotonic(), values, {queue.name: queue for queue in queues})


def _json(before: Samples, after: Samples, most: int) -> str:
    """Return the servers and the busiest queues; a server that is down has a `problem`."""
    servers = {
        str(address): {"problem": sample.problem}
        if sample.problem
        else {name: as_number(value) for name, value in sample.values.items()}
        for address, sample in after.items()
    }
    queues = [asdict(line) for line in queue_lines(before, after)[:most]]
    return json.dumps({"servers": servers, "queues": queues})


def _view(before: Samples, after: Samples, most: int) -> RenderableType:
    servers = _table("server", "up", "connections", "items", "bytes", "set/s", "get/s")
    for address, sample in after.items():
        if sample.problem:
            servers.add_row(_cell(str(address)), "down")
            continue
        numbers = [sample.number(n) for n in ("curr_connections", "curr_items", "bytes")]
        rates = [_rate(before.get(address), sample, stat) for stat in ("cmd_set", "cmd_get")]
        servers.add_row(
            _cell(str(address)),
            _uptime(sample.number("uptime")),
            *(f"{number:,}" for number in numbers),
            *(f"{rate:,.1f}" for rate in rates),
        )
    problems = [
        Text(printable(sample.problem), style="red") for sample in after.values() if sample.problem
    ]
    room = most
    if standard_output().isatty():
        # Other lines on the screen: two headings, an empty line, and the number of hidden queues.
        room = min(most, shutil.get_terminal_size().lines - len(after) - len(problems) - 4)
    return Group(servers, *problems, "", *_queues(queue_lines(before, after), max(1, room)))


def _queues(all_lines: list[QueueLine], most: int) -> list[RenderableType]:
    heads = ["items", "bytes", "in/s", "out/s", "age ms", "open", "waiters"]
    shows_paused = any(line.paused for line in all_lines[:most])
    table = _table("queue", *heads, *(["paused"] if shows_paused else []))
    for line in all_lines[:most]:
        table.add_row(
            _cell(line.name),
            *(f"{number:,}" for number in (line.items, line.bytes)),
            *(f"{rate:,.1f}" for rate in (line.rate_in, line.rate_out)),
            *(f"{number:,}" for number in (line.age_msec, line.open_reads, line.waiters)),
            *([Text(line.paused, style="yellow")] if shows_paused else []),
        )
    left = len(all_lines) - most
    return [table, f"and {left:,} more"] if left > 0 else [table]


def _uptime(seconds: int) -> str:
    """Return an uptime in the largest unit that fits twice."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def _rate(before: ServerSample | None, after: ServerSample, stat: str) -> float:
    if before is None or before.problem or after.time <= before.time:
        return 0.0
    return max(0, after.number(stat) - before.number(stat)) / (after.time - before.time)


def _table(first: str, *others: str) -> Table:
    """Return a table whose first column, not its numbers, shrinks on a narrow terminal."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _cell(name: str) -> Text:
    # Rich's own ellipsis may be a character that the terminal cannot show.
    overflow: OverflowMethod = "crop" if ellipsis() == "~" else "ellipsis"
    return Text(printable(name), no_wrap=True, overflow=overflow)
