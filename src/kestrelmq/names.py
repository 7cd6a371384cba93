"""Queue names: which are allowed, and which queue a fanout child belongs to.

A name becomes part of a file name in the queue path, so a name that passes here can never leave
that directory, hide there as a temporary, or be read back as another queue's rotated file.
"""

import re
import unicodedata

MAX_NAME_BYTES = 200
# Printable ASCII but for what is reserved and the plus: no other rule concerns such a name.
_PLAIN = re.compile(rf"[!-*,\-0-}}]{{1,{MAX_NAME_BYTES}}}")
_RESERVED = frozenset("/~.")
# Line and paragraph separators and control characters; surrogates have no UTF-8 form at all.
_FORBIDDEN_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})


def queue_name_error(name: str | bytes) -> str | None:
    """Return why `name` cannot name a queue, or None when it can."""
    if isinstance(name, bytes):
        try:
            text = name.decode()
        except UnicodeDecodeError:
            return "a queue name must be valid UTF-8"
    else:
        text = name
    if _PLAIN.fullmatch(text) is not None:
        return None
    return _length_error(text) or _character_error(text) or _fanout_error(text)


def master_of(name: str) -> str | None:
    """Return the master of fanout child `name`, or None when `name` is not a fanout child."""
    return name[: name.index("+")] if "+" in name else None


def _length_error(text: str) -> str | None:
    if not text:
        return "a queue name must not be empty"
    # A lone surrogate is counted here and refused as a character.
    length = len(text.encode(errors="surrogatepass"))
    if length > MAX_NAME_BYTES:
        return f"a queue name has at most {MAX_NAME_BYTES} bytes, this one has {length}"
    return None


def _character_error(text: str) -> str | None:
    for character in text:
        if character in _RESERVED:
            return f"a queue name must not contain {character!r}"
        if character.isspace():
            return f"a queue name must not contain whitespace ({character!r})"
        if unicodedata.category(character) in _FORBIDDEN_CATEGORIES:
            return f"a queue name must not contain control characters ({character!r})"
    return None


def _fanout_error(text: str) -> str | None:
    if text.count("+") > 1:
        return "a queue name has at most one '+'"
    if text.startswith("+") or text.endswith("+"):
        return "a fanout queue name needs a name on each side of the '+'"
    return None
