"""Data that a caller gives, such as that of an item: bytes, or text that is encoded."""


def given_bytes(data: object, what: str) -> bytes:
    """Return what a caller gives as bytes; text is encoded as UTF-8.

    Args:
        data: what is given.
        what: what it is, for the error, such as "an item".

    Raises:
        TypeError: it is neither bytes nor text.
        ValueError: the text cannot be encoded.
    """
    if isinstance(data, bytes):
        return data
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{what} cannot be encoded as UTF-8: {error.reason} at character {error.start}; "
                "encode it yourself, and give bytes"
            ) from None
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"{what} is bytes or text, not {type(data).__name__}")


def item_bytes(data: object) -> bytes:
    """Return the data of an item that is to be added. Raises as `given_bytes`."""
    return given_bytes(data, "an item")
