"""`kestrelmq flush`, `delete`, `declare`, `pause`, `reload` and others: commands to all servers.

If a server cannot be reached, the command still goes to the others, and the exit status is 1.
"""

import json
from enum import StrEnum
from typing import Annotated

import typer

from kestrelmq.cli.servers import (
    QueueArgument,
    Servers,
    YesFlag,
    ask_to_confirm,
    check_exists,
    no_queue,
)
from kestrelmq.cli.tables import JsonFlag
from kestrelmq.cli.terminal import printable
from kestrelmq.cli.values import duration
from kestrelmq.client import Client


class Operations(StrEnum):
    """What can be paused."""

    READS = "reads"
    WRITES = "writes"
    ALL = "all"


class NewStatus(StrEnum):
    """What the status of a server can be set to."""

    UP = "up"
    WRITEAVOID = "writeavoid"
    READONLY = "readonly"
    QUIESCENT = "quiescent"


OperationsArgument = Annotated[Operations, typer.Argument(help="Which operations.")]


def flush(
    queue: Annotated[str | None, typer.Argument(metavar="QUEUE", help="The queue's name.")] = None,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Discard the items of every queue.")
    ] = False,
    yes: YesFlag = False,
    servers: Servers,
) -> None:
    """Drop all waiting items of a queue, on every server. The queue stays.

    \b
    kestrelmq flush work
    kestrelmq flush --all --yes

    On a terminal you are asked first. Exit status 1: the answer was no, or no server has the queue.
    """  # noqa: D301 # \b is for the help
    if everything == (queue is not None):
        raise typer.BadParameter("give a QUEUE, or --all for every queue")
    with servers.connect() as client:
        if queue is not None:
            check_exists(client, queue)
            ask_to_confirm(f"Discard the items of queue {queue!r}?", yes=yes)
            client.flush(queue)
        else:
            ask_to_confirm("Discard the items of every queue?", yes=yes)
            client.flush_all()


def delete(queue: QueueArgument, *, yes: YesFlag = False, servers: Servers) -> None:
    """Delete a queue with its items and its journal, on every server.

    A fanout queue, such as work+audit, stops receiving the items put into its master. On a terminal
    you are asked first. Exit status 1: the answer was no, or no server has the queue.
    """
    with servers.connect() as client:
        check_exists(client, queue)
        ask_to_confirm(f"Delete queue {queue!r} and its items?", yes=yes)
        client.delete(queue)


def declare(  # one parameter a flag
    queue: QueueArgument,
    *,
    fanout_only: Annotated[
        bool, typer.Option("--fanout-only", help="Items go to its fanout children only.")
    ] = False,
    journal: Annotated[
        bool | None, typer.Option("--journal/--no-journal", help="Whether items are on disk.")
    ] = None,
    expires: Annotated[
        float | None,
        typer.Option(
            parser=duration, metavar="TIME", help="Delete it when it is empty and older than this."
        ),
    ] = None,
    max_age: Annotated[
        float | None,
        typer.Option(
            parser=duration,
            metavar="TIME",
            help="The longest time that an item may wait, such as 5m.",
        ),
    ] = None,
    max_items: Annotated[
        int | None, typer.Option(min=0, help="The most items that it may hold.")
    ] = None,
    servers: Servers,
) -> None:
    """Create a queue with settings of its own on every server, or give it others.

    \b
    kestrelmq declare replies-7 --no-journal --expires 10m
    kestrelmq declare broadcast --fanout-only

    What is not given is as for other queues; what was declared before is replaced. The settings are
    kept over a restart, until the queue is deleted. A table `queues.NAME` in a server's
    configuration file wins over them.
    """  # noqa: D301 # \b is for the help
    with servers.connect() as client:
        client.declare(
            queue,
            fanout_only=fanout_only,
            journal=journal,
            expires=expires,
            max_age=max_age,
            max_items=max_items,
        )


def pause(
    queue: QueueArgument,
    operations: OperationsArgument = Operations.ALL,
    *,
    servers: Servers,
) -> None:
    """Pause the reads or the writes of a queue, on every server, until `kestrelmq resume`.

    \b
    kestrelmq pause work reads
    kestrelmq resume work

    Readers find a queue whose reads are paused empty, or go on waiting. Adding to one whose writes
    are paused is refused. Open reads can still be finished. What is paused survives a restart, and
    `kestrelmq queues` shows it. Exit status 1: no server has the queue.
    """  # noqa: D301 # \b is for the help
    with servers.connect() as client:
        if not client.pause(queue, operations.value):
            raise no_queue(queue)


def resume(
    queue: QueueArgument,
    operations: OperationsArgument = Operations.ALL,
    *,
    servers: Servers,
) -> None:
    """Resume the reads or the writes of a queue, on every server: the opposite of `pause`.

    Exit status 1: no server has the queue.
    """
    with servers.connect() as client:
        if not client.resume(queue, operations.value):
            raise no_queue(queue)


def status(
    new: Annotated[
        NewStatus | None,
        typer.Argument(
            metavar="NEW", case_sensitive=False, help="up, writeavoid, readonly or quiescent."
        ),
    ] = None,
    *,
    as_json: JsonFlag = False,
    servers: Servers,
) -> None:
    """Print the status of each server, or change it on all of them.

    \b
    kestrelmq status
    kestrelmq status readonly

    A read-only server serves reads but accepts no items. A quiescent server does neither; open
    reads can still be finished. The status survives a restart.
    """  # noqa: D301 # \b is for the help
    if new is not None:
        with servers.connect() as client:
            client.set_status(new.value)
        return
    with servers.asking_each(Client.status) as answers:
        found = {server: now for answer in answers for server, now in answer.items()}
        if as_json:
            print(json.dumps(found, indent=2))
            return
        for server, now in found.items():
            print(f"{server}\t{printable(now)}")


def reload(*, servers: Servers) -> None:
    """Have every server reload its configuration file: the settings of queues and aliases.

    If the file has an error, nothing changes, and the message says what is wrong. What takes a
    restart is printed.
    """
    with servers.connect() as client:
        for server, not_in_force in client.reload().items():
            if not_in_force:
                print(f"{server}\t{printable(not_in_force)}")


def shutdown(*, servers: Servers) -> None:
    """Stop every server cleanly. Items stay in the journals."""
    with servers.connect() as client:
        client.shutdown()
