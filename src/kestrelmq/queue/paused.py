"""What of a queue is paused."""

from enum import Flag


class Paused(Flag):
    """The operations of clients that a queue does not serve at present."""

    NOTHING = 0
    READS = 1
    WRITES = 2
    ALL = 3

    @classmethod
    def parse(cls, word: str) -> "Paused":
        """Return what `word` names: `reads`, `writes` or `all`.

        Raises:
            ValueError: it names something else; the message lists the allowed words.
        """
        for paused in (cls.READS, cls.WRITES, cls.ALL):
            if word == str(paused):
                return paused
        raise ValueError("allowed: reads, writes, all")

    def __str__(self) -> str:
        """`reads`, `writes` or `all`; empty for nothing."""
        return (self.name or "").lower() if self else ""
