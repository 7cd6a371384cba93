"""The thrift protocol: decodes requests and encodes answers; no sockets.

`thrift_service` has the table of methods from which both follow, `thrift_wire` how values are
written. A frame is a big-endian i32 length and a message in the binary protocol (with or without
its version header) or the compact protocol; the answer uses the protocol of the request. Finagle's
request header, a struct, may come before the message; only the id of the client is read of it.

The length gives the end of a frame, however malformed its content is. So only two errors close the
connection: an invalid length, and a message whose header cannot be read, which cannot be answered.
Any other error makes a `RefusedRequest`, which is answered with its exception.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Any, Final, TypeAlias

from kestrelmq.protocol import thrift_wire as wire
from kestrelmq.protocol.faults import ClientFault
from kestrelmq.protocol.thrift_service import (
    EXCEPTION,
    ITEM,
    METHODS,
    REQUEST_HEADER,
    Answer,
    Item,
    RefusalReason,
    RefusedRequest,
    Request,
)
from kestrelmq.protocol.thrift_wire import BinaryReader, BinaryWriter, Part

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
"""The longest frame that is accepted."""
BEGINNING: Final = 2048
"""Bytes of a frame that suffice for its length and the header of its message."""
LARGE_FRAME: Final = 256 << 10
"""A frame with so many bytes, or more, is a memoryview: a copy of one may take 50 ms."""

_LENGTH: Final = Struct(">i")
_CALL: Final = 1
_REPLY: Final = 2
_EXCEPTION: Final = 3
_ONEWAY: Final = 4

EncodedItem: TypeAlias = list[Part]
"""An item that `encode_item` has encoded."""


class Dialect(Enum):
    """How a message is encoded: what reads it, and what writes it."""

    BINARY = wire.BinaryReader, wire.BinaryWriter
    OLD_BINARY = wire.OldBinaryReader, wire.OldBinaryWriter
    COMPACT = wire.CompactReader, wire.CompactWriter

    def __init__(self, reader: type[BinaryReader], writer: type[BinaryWriter]) -> None:
        self.reader = reader
        self.writer = writer


@dataclass(frozen=True, slots=True)
class MessageHeader:
    """A message's header, which the answer repeats; a `oneway` message gets no answer.

    `client_id` is how a client of Finagle calls itself.
    """

    dialect: Dialect
    name: str
    seqid: int
    oneway: bool = False
    client_id: str | None = None


class ThriftParser:
    """Splits what a client sends into frames; buffers what has not been returned as a frame.

    Attributes:
        is_cut: whether the next frame, or the one that was just returned, is only its beginning.
    """

    __slots__ = ("_buffer", "_skipped", "is_cut")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skipped = 0
        self.is_cut = False

    def receive(self, data: bytes) -> None:
        """Add received bytes; `next_frame` returns the frames in them."""
        skipped = min(self._skipped, len(data))
        self._skipped -= skipped
        self._buffer += data[skipped:] if skipped else data

    def cut(self) -> None:
        """Drop the frame that has begun to arrive, but for what tells how to answer it."""
        self._skipped = self.missing
        del self._buffer[BEGINNING:]
        _LENGTH.pack_into(self._buffer, 0, len(self._buffer) - _LENGTH.size)
        self.is_cut = True

    def next_frame(self) -> bytes | memoryview | None:
        """Return the next frame without its length, or None when more input is needed.

        It is a memoryview if it is large.

        Raises:
            ClientFault: the length is not valid for a frame.
        """
        buffer = self._buffer
        if len(buffer) < _LENGTH.size or self._skipped:
            return None
        length: int = _LENGTH.unpack_from(buffer)[0]
        if not 0 < length <= MAX_FRAME_BYTES:
            raise ClientFault(f"a frame has 1 to {MAX_FRAME_BYTES} bytes", closes=True)
        end = _LENGTH.size + length
        if len(buffer) < end:
            return None
        if length >= LARGE_FRAME:
            self._buffer = buffer[end:]
            return memoryview(buffer)[_LENGTH.size : end].toreadonly()
        frame = bytes(memoryview(buffer)[_LENGTH.size : end])
        del buffer[:end]
        return frame

    @property
    def arriving_size(self) -> int:
        """Bytes of the frame that arrives, if its header is there; otherwise 0."""
        has_header = len(self._buffer) >= BEGINNING and not self._skipped
        return len(self._buffer) + self.missing if has_header else 0

    @property
    def missing(self) -> int:
        """How many bytes of the next frame have not arrived; 0 when that is not known."""
        if self._skipped:
            return self._skipped
        if len(self._buffer) < _LENGTH.size:
            return 0
        length: int = _LENGTH.unpack_from(self._buffer)[0]
        return max(_LENGTH.size + length - len(self._buffer), 0)

    def take_back(self) -> bytes:
        """Return the input after the last frame, and clear the buffer; `receive` it again later."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest


def decode(
    frame: bytes | memoryview, pause: Callable[[], None] | None = None
) -> tuple[MessageHeader, Request | RefusedRequest]:
    """Return the header and the request of a message.

    If the frame is a memoryview, so are large items: parts of it. Decoding one may take long, and
    calls `pause` now and then, to let others run.

    Raises:
        ClientFault: the header cannot be read, so the message cannot be answered.
    """
    try:
        header, message_type, reader = _read_header(frame, pause)
    except ValueError:
        raise ClientFault("no thrift message", closes=True) from None
    if message_type not in (_CALL, _ONEWAY):
        return header, RefusedRequest(
            RefusalReason.INVALID_MESSAGE_TYPE, f"message type {message_type}"
        )
    method = METHODS.get(header.name)
    if method is None:
        return header, RefusedRequest(RefusalReason.UNKNOWN_METHOD, f"unknown method {header.name}")
    try:
        return header, method.request(*reader.struct(method.arguments))
    except UnicodeDecodeError:
        return header, RefusedRequest(RefusalReason.PROTOCOL_ERROR, "a string that is not UTF-8")
    except ValueError as error:
        return header, RefusedRequest(RefusalReason.PROTOCOL_ERROR, str(error))


def encode(header: MessageHeader, answer: Answer | list[EncodedItem]) -> list[Part]:
    """Return the parts of the frame with the answer to the request of `header`.

    Data in a memoryview is large, and is a part of its own.
    """
    result = METHODS[header.name].result
    return _encode(header, _REPLY, result, (answer,) if result else ())


def encode_item(header: MessageHeader, item: Item) -> EncodedItem:
    """Return an item as `encode` takes it.

    An answer may have thousands of items, and so a few can be encoded at a time.
    """
    writer = header.dialect.writer()
    writer.value(ITEM, item)
    return writer.parts()


def encode_refusal(header: MessageHeader, refused: RefusedRequest) -> bytes:
    """Return the frame with the exception that says why the request of `header` was refused."""
    values = refused.message, refused.reason.value
    return b"".join(_encode(header, _EXCEPTION, EXCEPTION, values))


def header_of(frame: bytes) -> MessageHeader:
    """Return the header of a frame that `encode` returned."""
    return _read_header(frame[_LENGTH.size :])[0]


def encode_call(name: str, *arguments: object) -> bytes:
    """Return the frame with which a client calls a method, in the binary protocol."""
    header = MessageHeader(Dialect.BINARY, name, 0)
    return b"".join(_encode(header, _CALL, METHODS[name].arguments, arguments))


def decode_reply(frame: bytes | memoryview) -> Any:
    """Return what the method returned that a client called; or a RefusedRequest.

    Raises:
        ValueError: the frame is no reply of the service.
    """
    header, message_type, reader = _read_header(frame)
    if message_type == _EXCEPTION:
        message, reason = reader.struct(EXCEPTION)
        return RefusedRequest(RefusalReason(reason), message)
    if message_type != _REPLY or header.name not in METHODS:
        raise ValueError("no thrift reply")
    values = reader.struct(METHODS[header.name].result)
    return values[0] if values else None


def _read_header(
    frame: bytes | memoryview, pause: Callable[[], None] | None = None
) -> tuple[MessageHeader, int, BinaryReader]:
    """Return the header and the type of a message, and what reads the rest. Raises ValueError."""
    first = frame[0] if frame else 0
    client_id = None
    if 0 < first <= wire.LIST:  # the type of a field, and no version
        before = BinaryReader(frame, pause)
        (client_id,) = before.struct(REQUEST_HEADER)
        frame = before.rest
        first = frame[0] if frame else 0
    if first == wire.COMPACT_ID:
        dialect = Dialect.COMPACT
    else:  # without a version, it begins with the length of the name
        dialect = Dialect.BINARY if first & 0x80 else Dialect.OLD_BINARY
    reader = dialect.reader(frame, pause)
    name, message_type, seqid = reader.message_begin()
    header = MessageHeader(dialect, name, seqid, message_type == _ONEWAY, client_id)
    return header, message_type, reader


def _encode(
    header: MessageHeader,
    message_type: int,
    fields: tuple[wire.Field, ...],
    values: tuple[object, ...],
) -> list[Part]:
    """Return the parts of the frame with a message."""
    writer = header.dialect.writer()
    writer.message_begin(header.name, message_type, header.seqid)
    writer.struct(fields, values)
    parts = writer.parts()
    return [_LENGTH.pack(sum(map(len, parts))), *parts]
