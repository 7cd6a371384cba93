"""`kestrelmq clients`: who is connected to the servers; `clients kill` disconnects one."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from kestrelmq.cli.servers import Servers
from kestrelmq.cli.tables import JsonFlag, print_table
from kestrelmq.client import Client, ConnectedClient
from kestrelmq.errors import KestrelError

_HEADS: Final = (
    "server",
    "id",
    "address",
    "protocol",
    "name",
    "user",
    "since",
    "commands",
    "state",
    "queue",
    "open reads",
)

app = typer.Typer()


@app.callback(invoke_without_command=True)
def clients(context: typer.Context, *, as_json: JsonFlag = False, servers: Servers) -> None:
    """List the clients that are connected to the servers, or disconnect one.

    \b
    kestrelmq clients
    kestrelmq clients --json | jq '.[] | select(.state == "stalled")'
    kestrelmq clients kill 7

    Times are in UTC. The state is idle, waiting (for an item of the queue), working (on a request
    that takes several turns) or stalled (it does not read its replies).
    """  # noqa: D301 # \b is for the help
    if context.invoked_subcommand is not None:
        if as_json or servers.are_named:
            raise typer.BadParameter(f"give flags after {context.invoked_subcommand}")
        return
    with servers.asking_each(Client.clients) as answers:
        found = [one for answer in answers for one in answer]
        if as_json:
            print(json.dumps([asdict(one) for one in found], indent=2))
        else:
            print_table(_HEADS, [_row(one) for one in found])


@app.command()
def kill(
    number: Annotated[int, typer.Argument(metavar="ID", min=0, help="Its id in the list.")],
    *,
    servers: Servers,
) -> None:
    """Disconnect a client of one server; its open reads go back to their queues.

    Reads over thrift do not belong to a connection: they stay open until their time is up. Exit
    status 1: there is no such client.
    """
    with servers.connect() as client:
        if not client.kill_client(number):
            raise KestrelError(f"there is no client {number}")


def _row(client: ConnectedClient) -> list[str]:
    since = datetime.fromtimestamp(client.since / 1000, UTC)
    reads = " ".join(f"{queue}/{count}" for queue, count in client.open_reads.items())
    return [
        client.server,
        str(client.id),
        client.address,
        client.protocol,
        client.name or "",
        client.user or "",
        f"{since:%Y-%m-%d %H:%M:%S}",
        str(client.commands),
        client.state,
        client.queue or "",
        reads,
    ]
