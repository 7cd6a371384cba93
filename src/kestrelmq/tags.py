"""Tags of reserved reads: `NAME:EPOCH:PART`, such as that of a sink, a step of it and its part."""

from typing import Final, NamedTuple

from kestrelmq.errors import TagRefused

MAX_TAG: Final = 200
"""Most bytes of a tag."""
MAX_EPOCH: Final = 2**63 - 1
"""The greatest epoch."""


class Tag(NamedTuple):
    """The parts of a tag."""

    name: str
    epoch: int
    part: str


def parse_tag(text: str) -> Tag:
    """Return the parts of a tag. Raises TagRefused, which says what is wrong."""
    name, _, rest = text.partition(":")
    epoch, _, part = rest.partition(":")
    if not name or not part or ":" in part or not (epoch.isascii() and epoch.isdigit()):
        raise TagRefused("a tag is NAME:EPOCH:PART, and the epoch a whole number")
    if not text.isprintable() or " " in text:
        raise TagRefused("a tag has no spaces or control characters")
    if len(text.encode()) > MAX_TAG:
        raise TagRefused(f"a tag has at most {MAX_TAG} bytes")
    if int(epoch) > MAX_EPOCH:
        raise TagRefused(f"an epoch is at most {MAX_EPOCH}")
    return Tag(name, int(epoch), part)
