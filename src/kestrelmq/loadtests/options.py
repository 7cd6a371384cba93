"""Options that several load tests have; each is a flag of `kestrelmq bench`, with its help."""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from kestrelmq.loadtests.items import MIN_ITEM_BYTES
from kestrelmq.units import parse_duration, parse_size

T = TypeVar("T")


def _parsed(parse: Callable[[Any], T], text: object) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {error}") from error


def _item_size(text: int | str) -> int:
    size = _parsed(parse_size, text)
    if size < MIN_ITEM_BYTES:
        raise typer.BadParameter(f"an item has at least {MIN_ITEM_BYTES} bytes")
    return size


def seconds(text: float | str) -> float:
    """Parse a duration; return it in seconds. Raises typer.BadParameter."""
    return _parsed(parse_duration, text)


Clients = Annotated[int, typer.Option("--clients", "-c", min=1, help="How many clients.")]
Items = Annotated[int, typer.Option("--items", "-n", min=1, help="How many items in all.")]
Size = Annotated[
    int,
    typer.Option(
        "--bytes",
        "-b",
        parser=_item_size,
        metavar="SIZE",
        show_default="1KB",
        help="Bytes of an item, such as 512 or 1KB.",
    ),
]
Rollup = Annotated[int, typer.Option("--rollup", "-r", min=1, help="Items put in each round trip.")]
