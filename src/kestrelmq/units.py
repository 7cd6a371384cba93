"""Sizes, durations and times as text.

They are parsed from what people write; sizes and durations are printed so that they parse back
exactly.

Sizes are in bytes, and every unit is a power of 1024: `16MB` and `16 MiB` are the same. Durations
are in seconds. Arithmetic is exact: text that is not a whole number of bytes is refused, not
rounded.
"""

import math
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Final

_QUANTITY: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(\D*?)\s*", re.ASCII)

_SIZE_UNITS: Final = {
    name: Fraction(1024**power)
    for power, names in enumerate(
        (
            ("", "b", "byte", "bytes"),
            ("k", "kb", "kib", "kilobyte", "kilobytes"),
            ("m", "mb", "mib", "megabyte", "megabytes"),
            ("g", "gb", "gib", "gigabyte", "gigabytes"),
            ("t", "tb", "tib", "terabyte", "terabytes"),
        )
    )
    for name in names
}
_SIZES_PRINTED: Final = ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))
_SIZE_EXAMPLES: Final = "a size is a number of bytes or text such as '512k', '16 MiB' or '1 GB'"

_DURATION_UNITS: Final = {
    name: Fraction(scale)
    for scale, names in (
        (Fraction(1, 1_000_000_000), ("ns", "nanosecond", "nanoseconds")),
        # Unicode has two characters that look like mu; both mean micro here.
        (Fraction(1, 1_000_000), ("us", "\u00b5s", "\u03bcs", "microsecond", "microseconds")),
        (Fraction(1, 1000), ("ms", "msec", "msecs", "millisecond", "milliseconds")),
        (1, ("", "s", "sec", "secs", "second", "seconds")),
        (60, ("m", "min", "mins", "minute", "minutes")),
        (3600, ("h", "hr", "hrs", "hour", "hours")),
        (86_400, ("d", "day", "days")),
        (604_800, ("w", "week", "weeks")),
    )
    for name in names
}
_DURATIONS_PRINTED: Final = tuple(
    (_DURATION_UNITS[unit], unit) for unit in ("d", "h", "m", "s", "ms", "us")
)
_DURATION_EXAMPLES: Final = (
    "a duration is a number of seconds or text such as '100ms', '1s', '30 minutes' or '1d'"
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DATE_DIGITS: Final = 8
_TIME_EXAMPLES: Final = (
    "a time is text such as '2026-01-31T10:00' (UTC) or '2026-01-31T10:00+01:00', or a number of"
    " milliseconds since 1970"
)


def parse_size(value: int | str) -> int:
    """Return `value` in bytes; it is a number of bytes, or text such as `"16 MiB"` or `"1.5k"`.

    Raises:
        TypeError: `value` is neither an int nor a str.
        ValueError: it is negative, not a size, or not a whole number of bytes.
    """
    if isinstance(value, str):
        size = _quantity(value, _SIZE_UNITS, _SIZE_EXAMPLES)
        if size.denominator != 1:
            raise ValueError(f"not a whole number of bytes; {_SIZE_EXAMPLES}")
        return size.numerator
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(_SIZE_EXAMPLES)
    if value < 0:
        raise ValueError(f"must not be negative; {_SIZE_EXAMPLES}")
    return value


def parse_duration(value: float | str) -> float:
    """Return `value` in seconds; it is a number of seconds, or text such as `"30 minutes"`.

    Raises:
        TypeError: `value` is neither a number nor a str.
        ValueError: it is negative, not finite, or not a duration.
    """
    try:
        if isinstance(value, str):
            return float(_quantity(value, _DURATION_UNITS, _DURATION_EXAMPLES))
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(_DURATION_EXAMPLES)
        seconds = float(value)
    except OverflowError:
        raise ValueError(f"too long; {_DURATION_EXAMPLES}") from None
    if not math.isfinite(seconds):
        raise ValueError(f"must be finite; {_DURATION_EXAMPLES}")
    if seconds < 0:
        raise ValueError(f"must not be negative; {_DURATION_EXAMPLES}")
    return abs(seconds)  # -0.0 is 0


def parse_time(value: datetime | int | str) -> int:
    """Return `value` in milliseconds since the epoch; it is a time, that number, or either as text.

    A time without a zone is UTC. Text of eight digits is a date, such as `"20260131"`.

    Raises:
        ValueError: it is not a time, or not one that fits into 64 bits.
    """
    try:
        if isinstance(value, str):
            is_number = value.isdecimal() and len(value) != _DATE_DIGITS
            value = int(value) if is_number else datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(_TIME_EXAMPLES) from None
    if isinstance(value, datetime):
        zoned = value if value.tzinfo else value.replace(tzinfo=UTC)
        value = (zoned - _EPOCH) // timedelta(milliseconds=1)
    if not -(2**63) <= value < 2**63:
        raise ValueError(_TIME_EXAMPLES)
    return value


def format_size(size: int) -> str:
    """Return `size` bytes in the largest unit that divides it, such as `"16 MiB"`."""
    for scale, unit in _SIZES_PRINTED:
        if size and size % scale == 0:
            return f"{size // scale} {unit}"
    return f"{size} B"


def format_time(seconds: float) -> str:
    """Return a time since the epoch as RFC 3339 writes it, in UTC, with milliseconds.

    Raises:
        ValueError, OverflowError, OSError: no calendar has that time.
    """
    time = datetime.fromtimestamp(seconds, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_duration(seconds: float) -> str:
    """Return `seconds` in the largest unit that gives a whole number, such as `"30m"` or `"100ms"`.

    A duration that is not a whole number of any unit is printed in seconds with all its digits.
    """
    for scale, unit in _DURATIONS_PRINTED:
        count = round(Fraction(seconds) / scale)
        if count and float(count * scale) == seconds:
            return f"{count}{unit}"
    return f"{Decimal(repr(float(seconds))).normalize():f}s"


def _quantity(text: str, units: dict[str, Fraction], examples: str) -> Fraction:
    match = _QUANTITY.fullmatch(text.lower())
    if match is None:
        raise ValueError(examples)
    scale = units.get(match[2])
    if scale is None:
        raise ValueError(f"unknown unit {match[2]!r}; {examples}")
    return Fraction(match[1]) * scale
