"""Items with what their records cannot hold. A compiled module cannot have a class of bytes."""


class AnnotatedItem(bytes):
    """An item with what its ADDX record cannot hold.

    Attributes:
        xid: the xid of its ADD_XID, which it has when it is opened for the first time; or None.
        deliveries: how often it was handed out before.
        letter: if it is a dead letter, where it came from, when and why, as `notes.DeadLetter`
            packs it; otherwise empty.
    """

    xid: int | None
    deliveries: int
    letter: bytes

    @classmethod
    def of(
        cls, record: bytes, *, xid: int | None = None, deliveries: int = 0, letter: bytes = b""
    ) -> "AnnotatedItem":
        """Return `record` with these annotations, whatever it had before."""
        annotated = cls(record)
        annotated.xid = xid
        annotated.deliveries = deliveries
        annotated.letter = letter
        return annotated
