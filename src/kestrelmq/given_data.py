"""The data that a caller gives for an item: bytes, or text that is encoded."""


def item_bytes(data: object) -> bytes:
    """Return the data of an item that is to be added; text is encoded as UTF-8.

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
                f"the item cannot be encoded as UTF-8: {error.reason} at character {error.start}; "
                "encode it yourself, and add bytes"
            ) from None
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"an item is bytes or text, not {type(data).__name__}")
