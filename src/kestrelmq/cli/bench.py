"""`kestrelmq bench`: load tests against a running server; each accounts for every item."""

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
)

from kestrelmq.cli.servers import Access
from kestrelmq.cli.tables import JsonFlag
from kestrelmq.cli.terminal import progress_bar
from kestrelmq.cli.values import wrong
from kestrelmq.client.address import parse_address
from kestrelmq.errors import InvalidRequest
from kestrelmq.loadtests import flood as flood_test
from kestrelmq.loadtests import leaky_reader as leaky_reader_test
from kestrelmq.loadtests import many_clients as many_clients_test
from kestrelmq.loadtests import packing as packing_test
from kestrelmq.loadtests import put_many as put_many_test
from kestrelmq.loadtests.common import Outcome, Target, connector
from kestrelmq.loadtests.connections import WireProtocol
from kestrelmq.loadtests.workers import Show
from kestrelmq.names import queue_name_error

app = typer.Typer(
    help="Put load on a server, and verify that every item arrives: none lost, none twice.",
    no_args_is_help=True,
)


_WHERE = "Which server"


@dataclass(frozen=True)
class TargetFlags(Access):
    """The flags that say which server is tested, and how."""

    protocol: Annotated[
        WireProtocol, typer.Option(help="The protocol to use.", rich_help_panel=_WHERE)
    ] = WireProtocol.MEMCACHE
    server: Annotated[
        str,
        typer.Option(
            metavar="HOST[:PORT]|unix:PATH",
            help="The server; PORT defaults to that of the protocol: 22133, 2222 or 2229.",
            rich_help_panel=_WHERE,
        ),
    ] = "127.0.0.1"
    queue: Annotated[
        str,
        typer.Option(
            "--queue", "-q", help="The queue, which must be empty.", rich_help_panel=_WHERE
        ),
    ] = "spam"
    flush: Annotated[
        bool,
        typer.Option("--flush", help="Flush the queue if it is not empty.", rich_help_panel=_WHERE),
    ] = False
    as_json: JsonFlag = False

    @property
    def addresses(self) -> str:
        """The server, whose address may say a user and TLS."""
        return self.server

    def target(self) -> Target:
        """Return the target of a load test."""
        try:
            address = parse_address(self.server, self.protocol.default_port)
        except InvalidRequest as error:
            raise wrong("--server", error) from error
        if (problem := queue_name_error(self.queue)) is not None or "+" in self.queue:
            raise wrong("--queue", f"{self.queue!r}: {problem or 'a fanout queue'}")
        connect = connector(self.protocol, address, self.credentials, self.tls_context)
        return Target(connect, self.queue, secrets.token_hex(4), _show_progress, self.flush)


@app.command("put-many")
def put_many(*, options: put_many_test.Options, where: TargetFlags) -> None:
    """Have many clients put items into one queue at the same time, and read the items back."""
    _end(put_many_test.run(where.target(), options), where)


@app.command("many-clients")
def many_clients(*, options: many_clients_test.Options, where: TargetFlags) -> None:
    """Have many clients wait for items that one client puts."""
    _end(many_clients_test.run(where.target(), options), where)


@app.command("flood")
def flood(*, options: flood_test.Options, where: TargetFlags) -> None:
    """Have producers and consumers move items through one queue as fast as they can."""
    _end(flood_test.run(where.target(), options), where)


@app.command("packing")
def packing(*, options: packing_test.Options, where: TargetFlags) -> None:
    """Fill and drain a queue again and again, and show the speed at each backlog."""
    _end(packing_test.run(where.target(), options), where)


@app.command("leaky-reader")
def leaky_reader(*, options: leaky_reader_test.Options, where: TargetFlags) -> None:
    """Have readers give back some of their open reads: every item must still arrive."""
    _end(leaky_reader_test.run(where.target(), options), where)


def _end(outcome: Outcome, where: TargetFlags) -> None:
    verdict = outcome.verdict
    if where.as_json:
        found = asdict(outcome)
        found["verdict"]["is_good"] = verdict.is_good
        print(json.dumps(found, indent=2))
    else:
        print(*outcome.lines, verdict, sep="\n")
    if not verdict.is_good:
        raise typer.Exit(1)


@contextmanager
def _show_progress(phase: str, items: int) -> Iterator[Show]:
    """Show the progress of a phase on standard error, if that is a terminal."""
    with progress_bar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    ) as progress:
        task = progress.add_task(phase, total=items, note="")

        def show(done: int, note: str) -> None:
            fields: dict[str, Any] = {"note": note} if note else {}
            progress.update(task, completed=done, **fields)

        yield show
