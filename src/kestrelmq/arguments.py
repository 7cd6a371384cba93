"""What a caller gives: data, which may be text, numbers, counts, times, hosts, paths, names."""

import math
from collections.abc import Iterable
from datetime import datetime
from numbers import Integral, Real
from typing import Any, Final

_MAX_CLIENT_NAME: Final = 64
"""Most bytes of the name of a client."""


def given_bytes(data: object, what: str) -> bytes:
    """Return what a caller gives as bytes; text is encoded as UTF-8.

    Args:
        data: what is given.
        what: what it is, for the error, such as "an item".

    Raises:
        TypeError: it is neither bytes nor text.
        ValueError: the text cannot be encoded.
    """
    if isinstance(data, bytes):
        return data
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{what} cannot be encoded as UTF-8: {error.reason} at character {error.start}; "
                "encode it yourself, and give bytes"
            ) from None
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"{what} is bytes or text, not {type(data).__name__}")


def item_bytes(data: object) -> bytes:
    """Return the data of an item that is to be added. Raises as `given_bytes`."""
    return given_bytes(data, "an item")


def given_number(number: object, what: str) -> float:
    """Return a number that a caller gives; one that is too large for a float is infinite.

    Args:
        number: what is given.
        what: what it is, for the error, such as "a timeout".

    Raises:
        TypeError: it is not a number.
    """
    if not isinstance(number, Real):
        raise TypeError(f"{what} is a number, not {type(number).__name__}")
    try:
        return float(number)
    except OverflowError:
        huge: Any = number
        return math.inf if huge > 0 else -math.inf


def given_time(time: datetime) -> float:
    """Return a time in seconds since the epoch. Raises ValueError: it has no time zone."""
    if time.utcoffset() is None:
        raise ValueError("a time needs a time zone, such as datetime.UTC")
    return time.timestamp()


def given_list(given: Any, *kinds: type) -> list[Any]:
    """Return what a caller gives as a list: what is of these kinds, or no list, stands for itself.

    Whether its elements are what they should be is still to be checked.
    """
    if isinstance(given, (bytes, *kinds)) or not isinstance(given, Iterable):
        return [given]
    return list(given)


def given_count(count: object, what: str) -> int:
    """Return a whole number from 0 on that a caller gives. `what` is as for `given_number`.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is below 0.
    """
    if not isinstance(count, Integral):
        raise TypeError(f"{what} is a whole number, not {count!r}")
    if count < 0:
        raise ValueError(f"{what} is not below 0, as {count} is")
    return int(count)


def is_host(text: str) -> bool:
    """Whether `text` may be the name or the address of a host; one like `a..b` has an empty part.

    The system is never asked for another: to encode it raises a UnicodeError, not an OSError.
    """
    try:
        text.encode("idna")
    except UnicodeError:
        return False
    return bool(text) and text.isprintable() and " " not in text


def is_node_path(path: str) -> bool:
    """Whether `path` names a node of ZooKeeper: from the root on, without parts "." and ".."."""
    return path.startswith("/") and path.isprintable() and not {".", ".."} & {*path.split("/")}


def client_name_error(name: str) -> str | None:
    """Return why `name` cannot name a client, or None when it can."""
    if not name.isprintable() or " " in name:
        return "a client's name has no spaces and only printable characters"
    length = len(name.encode())
    if not 0 < length <= _MAX_CLIENT_NAME:
        return f"a client's name has 1 to {_MAX_CLIENT_NAME} bytes, this one has {length}"
    return None
