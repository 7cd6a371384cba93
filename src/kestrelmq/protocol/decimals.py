"""The decimal texts of consecutive numbers, made from a table: much faster than one by one."""

from typing import Final

_ENDINGS: Final = [b"%03d" % number for number in range(1000)]
_SPACED: Final = b" ".join(_ENDINGS)


def consecutive(first: int, count: int) -> list[tuple[bytes, list[bytes]]]:
    """Return the texts of `count` numbers from `first` on, up to a thousand at a time.

    Returns:
        For each group of numbers, what all of them begin with, and what comes behind in each.
    """
    groups = []
    end = first + count
    while first < end:
        if first < 1000:
            stop = min(end, 1000)
            groups.append((b"", [b"%d" % number for number in range(first, stop)]))
        else:
            thousands, place = divmod(first, 1000)
            stop = min(end, first - place + 1000)
            groups.append((b"%d" % thousands, _ENDINGS[place : place + stop - first]))
        first = stop
    return groups


def joined(first: int, count: int, separator: bytes) -> bytes:
    """Return the texts of `count` numbers from `first` on, at least one, with `separator` between.

    If all begin alike, this takes half as long as to join what `consecutive` returns.
    """
    thousands, place = divmod(first, 1000)
    if thousands > 0 and place + count <= 1000:
        begin = b"%d" % thousands
        return begin + _SPACED[4 * place : 4 * (place + count) - 1].replace(b" ", separator + begin)
    groups = consecutive(first, count)
    return separator.join([begin + ending for begin, endings in groups for ending in endings])
