"""Items with what their records cannot hold. A compiled module cannot have a class of bytes."""


class AnnotatedItem(bytes):
    """An item with what its ADDX record cannot hold.

    Attributes:
        xid: the xid that it keeps when it is opened, because ADD_XID added it; None for most.
        deliveries: how often it was handed out before.
    """

    xid: int | None
    deliveries: int

    @classmethod
    def of(cls, record: bytes, *, xid: int | None = None, deliveries: int = 0) -> "AnnotatedItem":
        """Return `record` with these annotations, whatever it had before."""
        annotated = cls(record)
        annotated.xid = xid
        annotated.deliveries = deliveries
        return annotated
