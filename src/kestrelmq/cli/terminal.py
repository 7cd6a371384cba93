"""What servers and files hold, shown to people: none of it may command their terminal."""

import sys


def printable(text: str) -> str:
    """Return a line of text with each character escaped that is not shown as itself, as ESC."""
    if text.isprintable():
        return text
    return "".join(map(_escaped, text))


def shown(item: bytes) -> bytes:
    """Return an item as it is written to standard output: unchanged, unless that is a terminal.

    There its text is shown, in as many lines as it has, and all else in it is escaped.
    """
    if not sys.stdout.isatty():
        return item
    text = item.decode(errors="backslashreplace")
    return "".join(one if one in "\n\t" else _escaped(one) for one in text).encode()


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()
