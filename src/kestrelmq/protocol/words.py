"""The words of a request line, which the memcache and text protocols have in common.

Each function raises ClientFault with what is wrong, and the connection survives.
"""

from collections.abc import Callable, Collection
from typing import Final

from kestrelmq.protocol.faults import ClientFault

NameParser = Callable[[bytes], str]
"""Returns the name of a queue that a word is; raises ClientFault if it is none."""
MAX_DIGITS: Final = 19
"""Most digits of a number that `number` takes: those of the greatest in 64 bits."""


def number(word: bytes) -> int | None:
    """Return the decimal number in `word`; None if it is not one or has more than 19 digits."""
    digits = word[1:] if word[:1] in {b"-", b"+"} else word
    if not digits.isdigit() or len(digits) > MAX_DIGITS:
        return None
    return int(word)


def count(word: bytes, verb: str) -> int:
    """Return the whole number in `word`, from 0 on; `verb` is the command, for the error."""
    value = number(word)
    if value is None or value < 0:
        raise ClientFault(f"{verb} takes whole numbers", closes=False)
    return value


def printable(word: bytes) -> str:
    """Return the beginning of `word`, for an error."""
    return ascii(word[:40].decode(errors="replace"))[1:-1]


def split_options(
    words: list[bytes], names: Collection[bytes]
) -> tuple[dict[bytes, bytes], list[bytes]]:
    """Return the words NAME=VALUE, by name, and the other words."""
    found: dict[bytes, bytes] = {}
    others = []
    for word in words:
        name, equals, value = word.partition(b"=")
        if not equals:
            others.append(word)
        elif name not in names or name in found:
            raise ClientFault(f"unknown or repeated option {printable(word)}", closes=False)
        else:
            found[name] = value
    return found, others


def milliseconds(word: bytes, what: str) -> int:
    """Return the number in `word`, of `what`, for the error."""
    value = number(word)
    if value is None:
        raise ClientFault(f"{what} takes milliseconds", closes=False)
    return value
