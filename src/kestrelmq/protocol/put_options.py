"""The options of an add, which the memcache and text protocols take behind the name of the queue.

    NAME/OPTION=VALUE/...

    delay=MS        the item waits in the queue only from so many milliseconds on
    producer=NAME   whose item it is; with it comes
    seq=N           the item's number; it is stored only if N is above the producer's last, so the
                    add may be repeated. Several items of one request are numbered from N on
    after=N         refuse the item if the producer's item number N is not stored

To add an option, write a field of `PutOptions`, and an entry of `_NUMBERS` if it is a number.
"""

from dataclasses import dataclass
from typing import Final

from kestrelmq.marks import PutMark, check_mark
from kestrelmq.protocol.faults import ClientFault
from kestrelmq.protocol.words import printable

MOST_DIGITS: Final = 18
"""Most digits of a number in an option."""
_NUMBERS: Final = {b"delay": "milliseconds", b"seq": "a number", b"after": "a number"}


@dataclass(frozen=True, slots=True)
class PutOptions:
    """The options of an add.

    Attributes:
        delay: milliseconds after which the items wait in the queue; 0 for at once.
        mark: that of the first item, if a producer is named.
    """

    delay: int = 0
    mark: PutMark | None = None


NO_OPTIONS: Final = PutOptions()


def parse_name(word: bytes) -> tuple[bytes, PutOptions]:
    """Return the name of the queue, unchecked, and the options behind it.

    Raises:
        ClientFault: an option is unknown, comes twice or has a bad value.
    """
    name, *words = word.split(b"/")
    if not words:
        return name, NO_OPTIONS
    numbers: dict[bytes, int] = {}
    producer: bytes | None = None
    for option in words:
        key, _, value = option.partition(b"=")
        if key in numbers or (key == b"producer" and producer is not None):
            raise ClientFault(f"/{key.decode()} is given twice", closes=False)
        if key == b"producer":
            producer = value
        elif key in _NUMBERS:
            numbers[key] = _number(key, value)
        else:
            raise ClientFault(f"unknown option /{printable(option)}", closes=False)
    return name, PutOptions(numbers.get(b"delay", 0), _mark(producer, numbers))


def _number(option: bytes, value: bytes) -> int:
    if not value.isdigit() or len(value) > MOST_DIGITS:
        raise ClientFault(f"{option.decode()}= takes {_NUMBERS[option]}", closes=False)
    return int(value)


def _mark(producer: bytes | None, numbers: dict[bytes, int]) -> PutMark | None:
    if producer is None and b"seq" not in numbers and b"after" not in numbers:
        return None
    if producer is None or b"seq" not in numbers:
        raise ClientFault("producer= and seq= go together", closes=False)
    mark = PutMark(producer, numbers[b"seq"], numbers.get(b"after", -1))
    try:
        check_mark(mark)
    except ValueError as error:
        raise ClientFault(str(error), closes=False) from None
    return mark
