"""The options of an add, which the memcache and text protocols take behind the name of the queue.

    NAME/OPTION=VALUE/...

    delay=MS   the item waits in the queue only from so many milliseconds on

To add an option, write a field of `PutOptions` and a case in `parse_name`.
"""

from dataclasses import dataclass
from typing import Final

from kestrelmq.protocol.faults import ClientFault

_MOST_DIGITS: Final = 18


@dataclass(frozen=True, slots=True)
class PutOptions:
    """The options of an add.

    Attributes:
        delay: milliseconds after which the items wait in the queue; 0 for at once.
    """

    delay: int = 0


NO_OPTIONS: Final = PutOptions()


def parse_name(word: bytes) -> tuple[bytes, PutOptions]:
    """Return the name of the queue, unchecked, and the options behind it.

    Raises:
        ClientFault: an option is unknown, comes twice or has a bad value.
    """
    name, *words = word.split(b"/")
    if not words:
        return name, NO_OPTIONS
    values: dict[bytes, int] = {}
    for option in words:
        key, _, value = option.partition(b"=")
        if key in values:
            raise ClientFault(f"/{key.decode()} is given twice", closes=False)
        match key:
            case b"delay":
                values[key] = _milliseconds("delay", value)
            case _:
                shown = ascii(option[:40].decode(errors="replace"))[1:-1]
                raise ClientFault(f"unknown option /{shown}", closes=False)
    return name, PutOptions(delay=values[b"delay"])


def _milliseconds(option: str, value: bytes) -> int:
    if not value.isdigit() or len(value) > _MOST_DIGITS:
        raise ClientFault(f"{option}= takes milliseconds", closes=False)
    return int(value)
