"""`kestrelmq put`, `get`, `peek` and `monitor`: put items into queues and read them.

An item is written to standard output byte for byte, or as printable text if that is a terminal. It
is confirmed only after it has been written.
"""

import itertools
import json
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from io import BufferedReader
from typing import Annotated, Final

import typer

from kestrelmq.cli.servers import QueueArgument, Servers, check_exists
from kestrelmq.cli.tables import print_count
from kestrelmq.cli.terminal import (
    counting,
    item_for_output,
    os_error_reason,
    standard_input,
    standard_output,
    write_out,
)
from kestrelmq.cli.values import duration
from kestrelmq.client import Client
from kestrelmq.errors import ClientError, InvalidRequest, KestrelError, ServerRefused
from kestrelmq.tools.export_rows import data_fields

_CHUNK: Final = 1024 * 1024

TimeoutFlag = Annotated[
    float | None,
    typer.Option(
        parser=duration, metavar="TIME", help="Wait this long for an item, such as 5 or 500ms."
    ),
]
DelimiterFlag = Annotated[
    str | None,
    typer.Option(
        help="Text to write after each item; by default a line end on a terminal, or if there may "
        "be several items."
    ),
]

JsonLinesFlag = Annotated[
    bool, typer.Option("--json", help="Write each item as a line of JSON, with its queue.")
]
CreateFlag = Annotated[
    bool,
    typer.Option(
        "--create",
        help="Create the queue if it does not exist, such as a fanout queue before its first item.",
    ),
]


def put(  # noqa: PLR0913 # one parameter a flag
    queue: QueueArgument,
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA", help="The item; - or nothing reads standard input."),
    ] = None,
    *,
    lines: Annotated[
        bool, typer.Option("--lines", help="Each line of standard input is an item of its own.")
    ] = False,
    expiry: Annotated[
        float | None,
        typer.Option(
            parser=duration,
            metavar="TIME",
            help="Drop the item if it is not read in this time, such as 1h.",
        ),
    ] = None,
    delay: Annotated[
        float | None,
        typer.Option(
            parser=duration,
            metavar="TIME",
            help="Hold the item back for this time, such as 10s; --expiry counts after it.",
        ),
    ] = None,
    producer: Annotated[
        str | None,
        typer.Option(
            help="Who numbers the items, so that the command may be repeated; needs --sequence."
        ),
    ] = None,
    sequence: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="The number of the first item; only those above the producer's last are stored.",
        ),
    ] = None,
    retry_unknown: Annotated[
        bool,
        typer.Option(
            "--retry-unknown",
            help="Send an item again if its reply was lost, at the risk of storing it twice.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --lines: print the number of items as JSON.")
    ] = False,
    servers: Servers,
) -> None:
    """Add one or many items to a queue.

    \b
    kestrelmq put work hello
    kestrelmq put work - < picture.png
    kestrelmq put work --lines --expiry 1h < jobs.txt
    kestrelmq put work --lines --producer import --sequence 1 < jobs.txt

    With --lines, the items do not include the line ends, and the number of items is printed.
    Exit status 1: the queue is full, or no server could be used; the message says how many items
    were put.
    """  # noqa: D301 # \b is for the help
    if lines and data not in {None, "-"}:
        raise typer.BadParameter("--lines reads standard input, and takes no DATA")
    with servers.connect() as client:
        if lines:
            stream = standard_input()

            def put_many(batch: list[bytes], before: int) -> list[bool]:
                return client.put_many(
                    queue,
                    batch,
                    expiry,
                    delay=delay,
                    producer=producer,
                    sequence=None if sequence is None else sequence + before,
                    retry_unknown=retry_unknown,
                )

            count = _put_lines(queue, stream, put_many)
            print_count(count, "items put", as_json=as_json)
            return
        item = standard_input().read() if data is None or data == "-" else os.fsencode(data)
        if not client.put(
            queue,
            item,
            expiry,
            delay=delay,
            producer=producer,
            sequence=sequence,
            retry_unknown=retry_unknown,
        ):
            raise ServerRefused(f"queue {queue!r} is full, or the item is too large")


def get(  # one parameter a flag
    queue: QueueArgument,
    *,
    timeout: TimeoutFlag = None,
    count: Annotated[
        int, typer.Option(min=0, help="Read up to this many items; 0 reads all of them.")
    ] = 1,
    confirm: Annotated[
        bool,
        typer.Option(
            help="Confirm an item after it is written; without, it is removed when it is sent."
        ),
    ] = True,
    create: CreateFlag = False,
    delimiter: DelimiterFlag = None,
    as_json: JsonLinesFlag = False,
    servers: Servers,
) -> None:
    """Remove items from a queue and write them to standard output, byte for byte.

    On a terminal, characters that are not printable text are escaped.

    \b
    kestrelmq get work
    kestrelmq get work --timeout 5 > picture.png
    kestrelmq get work --count 0 | wc -l

    Each item is read with /open and confirmed after it is written, so an item that could not be
    written goes back to its queue. Exit status 1 with no output: there was no item. It is an error
    if the queue does not exist; the queue is not created.
    """  # noqa: D301 # \b is for the help
    write = _writer(queue, delimiter, several=count != 1, as_json=as_json)
    taken = 0
    with servers.connect() as client:
        if not create:
            check_exists(client, queue)
        with closing(_items(client, queue, timeout, count, confirm=confirm)) as items:
            for item in items:
                write(item)
                taken += 1
    if not taken:
        raise typer.Exit(1)


def peek(
    queue: QueueArgument,
    *,
    timeout: TimeoutFlag = None,
    as_json: JsonLinesFlag = False,
    servers: Servers,
) -> None:
    """Write the next item of a queue to standard output, and leave it in the queue.

    In a cluster it is the next item of one of the servers. Exit status 1: there was no item. It is
    an error if the queue does not exist; the queue is not created.
    """
    with servers.connect() as client:
        check_exists(client, queue)
        item = client.peek(queue, timeout)
    if item is None:
        raise typer.Exit(1)
    _writer(queue, None, several=False, as_json=as_json)(item)


def monitor(  # one parameter a flag
    queue: QueueArgument,
    seconds: Annotated[
        float,
        typer.Argument(parser=duration, metavar="TIME", help="How long, such as 30 or 5m."),
    ],
    max_items: Annotated[
        int | None, typer.Argument(metavar="MAX", min=1, help="Stop after this many items.")
    ] = None,
    *,
    create: CreateFlag = False,
    delimiter: DelimiterFlag = None,
    as_json: JsonLinesFlag = False,
    servers: Servers,
) -> None:
    """Read the items that arrive within TIME, write them, and confirm them together.

    \b
    kestrelmq monitor work 30
    kestrelmq monitor work 5m 1000

    They are written when the time is over or MAX is reached. If writing fails, all of them go back
    to the queue. Exit status 1: no item came, or there is no such queue.
    """  # noqa: D301 # \b is for the help
    write = _writer(queue, delimiter, several=True, as_json=as_json)
    with servers.connect() as client:
        if not create:
            check_exists(client, queue)
        with client.monitor(queue, seconds, max_items) as items:
            for item in items:
                write(item)
    if not items:
        raise typer.Exit(1)


def _items(
    client: Client, queue: str, wait: float | None, count: int, *, confirm: bool
) -> Generator[bytes, None, None]:
    """Yield up to `count` items, or all if it is 0.

    With `confirm`, each is confirmed when the next is requested; otherwise it is removed at once.
    """
    if confirm:
        yield from client.consume(queue, idle_timeout=wait or 0.0, max_items=count or None)
        return
    for _ in range(count) if count else itertools.count():
        if (item := client.get(queue, wait)) is None:
            return
        yield item


def _writer(
    queue: str, delimiter: str | None, *, several: bool, as_json: bool
) -> Callable[[bytes], None]:
    """Return what writes an item to standard output."""
    if as_json:
        return lambda item: write_out(
            json.dumps({"queue": queue} | data_fields(item)).encode() + b"\n"
        )
    if delimiter is None:
        after = b"\n" if several or standard_output().isatty() else b""
    else:
        after = os.fsencode(delimiter).replace(b"\\n", b"\n").replace(b"\\0", b"\0")
    return lambda item: write_out(item_for_output(item) + after)


def _put_lines(
    queue: str, stream: BufferedReader, put_many: Callable[[list[bytes], int], list[bool]]
) -> int:
    """Put each line; `put_many` is also given how many lines came before."""
    stored = 0
    with counting("put") as show:
        try:
            for batch in _line_batches(stream):
                stored += _put_batch(queue, batch, stored, put_many)
                show(stored)
        except OSError as error:
            message = f"standard input: {os_error_reason(error)}; {stored} items put"
            raise KestrelError(message) from error
    return stored


def _put_batch(
    queue: str, batch: list[bytes], before: int, put_many: Callable[[list[bytes], int], list[bool]]
) -> int:
    """Put some lines, and return how many; `before` were put before them."""
    try:
        outcomes = put_many(batch, before)
    except InvalidRequest:
        raise  # nothing was sent
    except ClientError as error:
        stored = before + error.stored.count(True)
        unknown = error.stored.count(None)
        message = f"{error}; {stored} items put"
        if unknown:
            message += f", {unknown} more may or may not be stored"
        raise ClientError(message) from error
    if not all(outcomes):
        stored = before + outcomes.count(True)
        message = f"queue {queue!r} is full, or an item too large: {stored} items put"
        raise ServerRefused(f"{message}, {outcomes.count(False)} refused")
    return len(outcomes)


def _line_batches(stream: BufferedReader) -> Iterator[list[bytes]]:
    """Yield lines as soon as they arrive, so that the lines of a slow writer are not held back."""
    rest: list[bytes] = []  # the parts of a line that may be very long
    while chunk := stream.read1(_CHUNK):
        first, *others = chunk.split(b"\n")
        rest.append(first)
        if others:
            yield [b"".join(rest), *others[:-1]]
            rest = [others[-1]]
    if last := b"".join(rest):
        yield [last]
