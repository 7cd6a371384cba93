"""`kestrelmq reserve`, `finish`, `release`, `extend`, `retire`, `owners`: reserved reads."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Final

import typer

from kestrelmq.cli.client import TimeoutFlag
from kestrelmq.cli.servers import QueueArgument, Servers
from kestrelmq.cli.tables import JsonFlag, print_count, print_table
from kestrelmq.cli.terminal import OutputError, standard_output, write_out
from kestrelmq.cli.values import duration
from kestrelmq.client.commands import ReservedCount, ReservedRead
from kestrelmq.errors import KestrelError
from kestrelmq.tools.export_rows import data_fields

ReadsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="READ", help="What `reserve` printed as `read`."),
]
TagFlag = Annotated[
    str, typer.Option(metavar="NAME:EPOCH:PART", help="The step that the items belong to.")
]
LeaseArgument = Annotated[
    float,
    typer.Argument(
        parser=duration, metavar="LEASE", help="How long from now they are reserved, as 30s."
    ),
]
OwnerFlag = Annotated[str, typer.Option(metavar="NAME", help="Whose the items are.")]

_HEADS: Final = ("server", "owner", "reads", "queues", "tags", "age", "connections")
_DONE: Final = 3
"""The exit status of a `reserve` whose tag is done."""


def reserve(  # noqa: PLR0913 # one parameter a flag
    queues: Annotated[
        list[str], typer.Argument(metavar="QUEUE...", help="The queues, asked in this order.")
    ],
    *,
    lease: Annotated[
        float,
        typer.Option(
            parser=duration,
            metavar="TIME",
            help="How long the items are reserved, such as 30s; 0 is without end.",
        ),
    ],
    count: Annotated[int, typer.Option(min=1, max=1000, help="Up to this many items.")] = 1,
    timeout: TimeoutFlag = None,
    tag: TagFlag = "",
    owner: OwnerFlag = "",
    grace: Annotated[
        float,
        typer.Option(
            parser=duration,
            metavar="TIME",
            show_default="5s",
            help="How long they stay reserved after the owner's last connection.",
        ),
    ] = 5.0,
    again: Annotated[
        bool, typer.Option("--again", help="Only what the tag has already: take nothing.")
    ] = False,
    nodata: Annotated[
        bool, typer.Option("--nodata", help="Print how much was reserved of each queue instead.")
    ] = False,
    servers: Servers,
) -> None:
    """Reserve items for a time, and print each as a line of JSON.

    \b
    kestrelmq reserve work --count 10 --lease 5m
    kestrelmq finish work 17-0f3c2b1a99e0d4c7

    An item goes back to its queue when its lease ends, unless it was finished. With --owner, it
    goes back soon after this command has ended, unless the owner has other connections. Exit status
    1 with no output: there was no item. Exit status 3: the items of the tag were finished before.
    Items that could not be printed are given back, except those of a tag.
    """  # noqa: D301 # \b is for the help
    standard_output()  # if it is closed, nothing is reserved
    with servers.connect() as client:
        reserve_some = client.hold_many if nodata else client.reserve_many
        found: Sequence[ReservedRead | ReservedCount] | None = reserve_some(
            queues,
            count,
            lease,
            timeout,
            tag=tag,
            owner=owner,
            grace=grace,
            again=again,
        )
        printed = 0
        try:
            for one in found or ():
                write_out(_line(one))
                printed += 1
        except OutputError:
            if not tag:  # who asks for the tag again gets the same items
                unprinted = (found or [])[printed:]
                for one in reversed(unprinted):  # each becomes the head
                    if isinstance(one, ReservedRead):
                        client.release(one.queue, one, counted=False, server=one.server)
            raise
    if not found:
        raise typer.Exit(_DONE if found is None else 1)


def _line(one: ReservedRead | ReservedCount) -> bytes:
    if isinstance(one, ReservedCount):
        return f"{json.dumps(asdict(one), ensure_ascii=False)}\n".encode()
    fields: dict[str, object] = {"server": one.server, "queue": one.queue}
    fields |= {"read": one.read, "deliveries": one.deliveries}
    fields |= data_fields(one.data) | {"add_time": one.add_time, "expiry": one.expiry}
    return f"{json.dumps(fields, ensure_ascii=False)}\n".encode(errors="surrogateescape")


def finish(
    queue: QueueArgument,
    reads: ReadsArgument = None,
    *,
    tag: TagFlag = "",
    as_json: JsonFlag = False,
    servers: Servers,
) -> None:
    """Confirm reserved items, or those of a tag: they are gone.

    Exit status 1: one of them was not reserved any more, and may be delivered again.
    """
    with servers.connect() as client:
        _report("finished", client.finish(queue, reads or None, tag=tag), reads, as_json=as_json)


def release(  # noqa: PLR0913 # one parameter a flag
    queue: Annotated[
        str, typer.Argument(metavar="QUEUE", help="The queue; with --owner, by default all.")
    ] = "",
    reads: ReadsArgument = None,
    *,
    tag: TagFlag = "",
    owner: OwnerFlag = "",
    delay: Annotated[
        float | None,
        typer.Option(
            parser=duration,
            metavar="TIME",
            help="Only after this time may the items be read again.",
        ),
    ] = None,
    uncounted: Annotated[
        bool, typer.Option("--uncounted", help="As if the items had never been delivered.")
    ] = False,
    dead: Annotated[
        bool, typer.Option("--dead", help="Move the items to the dead-letter queue now.")
    ] = False,
    as_json: JsonFlag = False,
    servers: Servers,
) -> None:
    """Give reserved items back, or those of a tag or an owner.

    \b
    kestrelmq release --owner sink-7

    Exit status 1: one of them was not reserved any more.
    """  # noqa: D301 # \b is for the help
    if not queue and not owner:
        raise typer.BadParameter("give a queue, or --owner")
    with servers.connect() as client:
        if queue:
            count = client.release(
                queue,
                reads or None,
                tag=tag,
                owner=owner,
                delay=delay,
                counted=not uncounted,
                dead=dead,
            )
        else:
            count = client.release_owner(owner, delay=delay, counted=not uncounted, dead=dead)
        _report("released", count, reads, as_json=as_json)


def extend(
    queue: QueueArgument,
    lease: LeaseArgument,
    reads: ReadsArgument = None,
    *,
    tag: TagFlag = "",
    as_json: JsonFlag = False,
    servers: Servers,
) -> None:
    """Let the leases of reserved items, or of those of a tag, begin anew.

    Exit status 1: one of them was not reserved any more.
    """
    with servers.connect() as client:
        count = client.extend(queue, lease, reads or None, tag=tag)
        _report("extended", count, reads, as_json=as_json)


def extend_owner(
    owner: Annotated[str, typer.Argument(metavar="NAME", help="Whose the items are.")],
    lease: LeaseArgument,
    *,
    as_json: JsonFlag = False,
    servers: Servers,
) -> None:
    """Let the leases of all reserved items of an owner, in all queues, begin anew.

    Unless the owner has other connections, the leases shrink again to its grace when this command
    has ended.
    """
    with servers.connect() as client:
        _report("extended", client.extend_owner(owner, lease), as_json=as_json)


def owners(
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="Of their names, as of files in a shell.")
    ] = "*",
    *,
    as_json: JsonFlag = False,
    servers: Servers,
) -> None:
    """List the owners of reserved items: how many they hold, under how many tags, for how long.

    The age is how long, in seconds, an owner has held items without a break.
    """
    with servers.asking_each(lambda client: client.owners(pattern)) as answers:
        found = [asdict(one) for answer in answers for one in answer]
        if as_json:
            print(json.dumps(found, indent=2))
        else:
            print_table(_HEADS, [[str(one[head]) for head in _HEADS] for one in found])


def retire(
    queue: QueueArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name in the tags.")],
    epoch: Annotated[int, typer.Argument(metavar="EPOCH", min=0, help="Their last epoch.")],
    *,
    as_json: JsonFlag = False,
    servers: Servers,
) -> None:
    """Forget the tags of a name up to an epoch, and refuse them from now on.

    Items that are reserved under them go back to the queue, as if never delivered.
    """
    with servers.connect() as client:
        _report("retired", client.retire(queue, name, epoch), as_json=as_json)


def _report(what: str, count: int, reads: list[str] | None = None, *, as_json: bool) -> None:
    """Print how many there were. Raises KestrelError if there were fewer than `reads`."""
    print_count(count, what, as_json=as_json)
    missing = len(set(reads or ())) - count
    if missing > 0:
        print(end="", flush=True)
        raise KestrelError(f"{missing} of {len(set(reads or ()))} were not reserved any more")
