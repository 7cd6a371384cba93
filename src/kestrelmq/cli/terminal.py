"""Escaping of text from servers and files, so that it cannot control the user's terminal."""

import sys


def printable(text: str) -> str:
    """Return a line of text with every non-printable character escaped, such as ESC."""
    if text.isprintable():
        return text
    return "".join(map(_escaped, text))


def item_for_output(item: bytes) -> bytes:
    """Return an item as it is to be written to standard output: unchanged, unless on a terminal.

    For a terminal, everything but printable text, line ends and tabs is escaped.
    """
    if not sys.stdout.isatty():
        return item
    text = item.decode(errors="backslashreplace")
    return "".join(one if one in "\n\t" else _escaped(one) for one in text).encode()


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()
