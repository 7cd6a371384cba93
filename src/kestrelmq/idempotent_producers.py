"""What identifies an item that a producer adds, so that it may repeat the add."""

from dataclasses import dataclass
from typing import Final

MAX_PRODUCER: Final = 64
"""Most bytes of a producer's name; with so many, it takes 97 bytes of a journal written anew."""
MAX_SEQUENCE: Final = 10**18 - 1
"""The greatest number of an item."""
_BY_MASTER: Final = b"/"
"""Before the name of a producer that adds to the fanout master; no name has it."""


@dataclass(slots=True, init=False)
class PutMark:
    """What identifies an item that a producer adds.

    It is not changed. It is not frozen, and its `__init__` is written out, because each item of a
    producer has its own: mypyc does not compile what a dataclass makes, and that takes three times
    as long to run, or ten times if it is frozen.

    Attributes:
        producer: the producer's name.
        sequence: the item's number, greater than those of the producer's items before it.
        after: the number of an item that must have been added before; -1 for none. With it, a
            producer need not wait for each answer: after a refusal, the items behind are refused.
    """

    producer: bytes
    sequence: int
    after: int = -1

    def __init__(self, producer: bytes, sequence: int, after: int = -1) -> None:
        self.producer = producer
        self.sequence = sequence
        self.after = after

    def by_master(self) -> "PutMark":
        """Return the mark under which a fanout child adds what its master was given.

        A producer may add to the child, too, and then counts separately. A child may have refused
        what came before.
        """
        return PutMark(_BY_MASTER + self.producer, self.sequence)

    def of_next(self, count: int) -> "PutMark":
        """Return the mark of the item `count` places behind, numbered without gaps."""
        if not count:
            return self
        return PutMark(self.producer, self.sequence + count, self.sequence + count - 1)


def check_mark(mark: PutMark) -> None:
    """Raise ValueError, which says why, if no producer can number an item so."""
    name = mark.producer
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise ValueError("a producer's name is UTF-8") from None
    if not 0 < len(name) <= MAX_PRODUCER:
        raise ValueError(f"a producer's name has 1 to {MAX_PRODUCER} bytes")
    if not text.isprintable() or " " in text or "/" in text:
        raise ValueError("a producer's name has no spaces, slashes or control characters")
    if not 0 <= mark.sequence <= MAX_SEQUENCE:
        raise ValueError(f"a sequence number is from 0 to {MAX_SEQUENCE}")


def put_mark(producer: object, sequence: object) -> PutMark | None:
    """Return the mark of an item that is number `sequence` of `producer`; None if both are None.

    Raises:
        ValueError: only one of the two is given, they are no text and no whole number, or no
            producer can have that mark.
    """
    if producer is None and sequence is None:
        return None
    if producer is None or sequence is None:
        raise ValueError("a producer and a sequence number go together")
    if not isinstance(producer, str):
        raise ValueError(f"a producer's name is text, not {type(producer).__name__}")  # noqa: TRY004 # one error for whatever is wrong
    if not isinstance(sequence, int):
        raise ValueError("a sequence number is a whole number")  # noqa: TRY004 # likewise
    mark = PutMark(producer.encode(errors="surrogatepass"), sequence)
    check_mark(mark)
    return mark
