"""The thrift protocol: decodes requests and encodes answers; no sockets.

A frame is a big-endian i32 length and a message in the binary protocol (with or without its version
header) or the compact protocol; the answer uses the protocol of the request. `kestrel.thrift`,
beside this file, defines the service. `thrift_shape` checks messages before thriftpy2 decodes them.

The length gives the end of a frame, however malformed its content is. So only two errors close the
connection: an invalid length, and a message whose header cannot be read, which cannot be answered.
Any other error makes a `RefusedRequest`, which is answered with its exception.
"""

import secrets
import struct
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

import thriftpy2
from thriftpy2.protocol import compact, cybin
from thriftpy2.thrift import TApplicationException, TMessageType, TType
from thriftpy2.transport import memory

from kestrelmq.marks import put_mark
from kestrelmq.protocol.faults import ClientFault
from kestrelmq.protocol.managing import (
    Browse,
    Declare,
    Delete,
    Flush,
    FlushAll,
    GetStatus,
    KillClient,
    ListClients,
    Move,
    Operations,
    Pause,
    SetStatus,
    Version,
)
from kestrelmq.protocol.reserving import (
    Extend,
    ExtendOwner,
    Finish,
    Reads,
    Release,
    Reserve,
    Retire,
    parse_reads,
)
from kestrelmq.protocol.thrift_messages import (
    Abort,
    Answer,
    BrowsedItems,
    ClientList,
    Confirm,
    Dialect,
    Get,
    Item,
    MessageHeader,
    MovedItems,
    Peek,
    Put,
    QueueInfo,
    RefusalReason,
    RefusedRequest,
    Request,
    ReservedItems,
    ThriftStatus,
)
from kestrelmq.protocol.thrift_shape import (
    BinaryWalker,
    CompactWalker,
    MalformedError,
    Shape,
    StringList,
)

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
"""The longest frame that is accepted."""

LARGE_FRAME: Final = 256 << 10
"""A frame with so many bytes, or more, is a memoryview: a copy of one may take 50 ms."""
_LARGE_ITEM: Final = 1 << 20
"""An item of a large frame with so many bytes, or more, is a memoryview."""
_MAX_BESIDES_ITEMS: Final = 4 << 20
"""The most bytes of a large frame that are not items."""

MAX_BROWSED: Final = 500
"""The most items of one `browse`: encoding them takes up to 20 us each."""

_LENGTH: Final = struct.Struct(">i")
# An item and a list of items in the binary protocol: a type and a number precede each field, and
# the stop byte of the struct follows the last.
_DATA: Final = struct.Struct(">bhi")
_ID: Final = struct.Struct(">bhqx")
_LIST: Final = struct.Struct(">bhbi")
_MOST_NAME_BYTES: Final = 1024
_VERSION_1: Final = 0x8001
_COMPACT_ID: Final = b"\x82"
_COMPACT_VERSION: Final = 1
_STAND_IN: Final = secrets.token_bytes(16)
"""Stands for data that is not to be copied; nobody outside can know it."""

_IDL: Final = thriftpy2.load(
    str(Path(__file__).with_name("kestrel.thrift")), module_name="kestrelmq.protocol.kestrel_thrift"
)
SERVICE: Final = _IDL.Kestrel
"""The service, for thriftpy2's own client and server classes."""

_METHODS: Final = frozenset(_IDL.Kestrel.thrift_services)


class ThriftParser:
    """Splits what a client sends into frames; buffers what has not been returned as a frame."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def receive(self, data: bytes) -> None:
        """Add received bytes; `next_frame` returns the frames in them."""
        self._buffer += data

    def next_frame(self) -> bytes | memoryview | None:
        """Return the next frame without its length, or None when more input is needed.

        It is a memoryview if it is large.

        Raises:
            ClientFault: the length is not valid for a frame.
        """
        buffer = self._buffer
        if len(buffer) < _LENGTH.size:
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
    def missing(self) -> int:
        """How many bytes of the next frame have not arrived; 0 when that is not known."""
        if len(self._buffer) < _LENGTH.size:
            return 0
        length: int = _LENGTH.unpack_from(self._buffer)[0]
        return max(_LENGTH.size + length - len(self._buffer), 0)

    def take_back(self) -> bytes:
        """Return the input after the last frame, and clear the buffer; `receive` it again later."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest


def decode(frame: bytes | memoryview) -> tuple[MessageHeader, Request | RefusedRequest]:
    """Return the header and the request of a message.

    If the frame is a memoryview, so are large items: parts of it.

    Raises:
        ClientFault: the header cannot be read, so the message cannot be answered.
    """
    try:
        header, message_type, walker = _read_header(frame)
    except (MalformedError, UnicodeDecodeError):
        raise ClientFault("no thrift message", closes=True) from None
    if message_type not in (TMessageType.CALL, TMessageType.ONEWAY):
        return header, RefusedRequest(
            RefusalReason.INVALID_MESSAGE_TYPE, f"message type {message_type}"
        )
    if header.name not in _METHODS:
        return header, RefusedRequest(RefusalReason.UNKNOWN_METHOD, f"unknown method {header.name}")
    begin = walker.at
    try:
        fields = walker.struct()
        return header, _request(header, walker, begin, fields)
    except UnicodeDecodeError:
        return header, RefusedRequest(RefusalReason.PROTOCOL_ERROR, "a string that is not UTF-8")
    except (MalformedError, ValueError) as error:
        return header, RefusedRequest(RefusalReason.PROTOCOL_ERROR, str(error))


def encode(header: MessageHeader, answer: Answer) -> list[bytes | memoryview]:
    """Return the parts of the frame with the answer to the request of `header`.

    Data in a memoryview is large, and is a part of its own.
    """
    if isinstance(answer, list):
        return encode_items(header, [encode_item(header, item) for item in answer])
    result = getattr(_IDL.Kestrel, f"{header.name}_result")()
    large: list[memoryview] = []
    match answer:
        case QueueInfo():
            result.success = _IDL.QueueInfo(
                head_item=None if answer.head_item is None else _small(answer.head_item, large),
                items=answer.items,
                bytes=answer.bytes,
                journal_bytes=answer.journal_bytes,
                age=answer.age,
                waiters=answer.waiters,
                open_transactions=answer.open_transactions,
            )
        case ReservedItems():
            result.success = _IDL.Reserved(
                items=[
                    _IDL.ReservedItem(
                        queue_name=item.queue,
                        read_id=item.read_id,
                        deliveries=item.deliveries,
                        add_time=item.add_time,
                        expiry=item.expiry,
                        data=_small(item.data, large),
                    )
                    for item in answer.items
                ],
                is_done=answer.is_done,
            )
        case BrowsedItems() | MovedItems() | ClientList():
            result.success = _managed(answer, large)
        case ThriftStatus():
            result.success = answer.value
        case int() | str():
            result.success = answer
        case None:
            pass
    content = _with_large(header, _content(header, result), large)
    return [_frame_begin(header, TMessageType.REPLY, sum(map(len, content))), *content]


def _small(data: bytes | memoryview, large: list[memoryview]) -> bytes:
    """Return `data`, or what stands for it while thriftpy2 encodes the answer: it would copy it."""
    if isinstance(data, memoryview):
        large.append(data)
        return _STAND_IN
    return data


def _with_large(
    header: MessageHeader, content: bytes, large: list[memoryview]
) -> list[bytes | memoryview]:
    """Return the parts of an encoded answer, with the large data where `_STAND_IN` stands."""
    if not large:
        return [content]
    begin, *others = content.split(_STAND_IN)
    parts: list[bytes | memoryview] = [begin]
    for data, other in zip(large, others, strict=True):
        before = parts[-1][: -len(_length(header, len(_STAND_IN)))]
        parts[-1] = bytes(before) + _length(header, len(data))
        parts += [data, other]
    return parts


def _managed(answer: BrowsedItems | MovedItems | ClientList, large: list[memoryview]) -> Any:
    """Return thriftpy2's form of the answer to a request about queues."""
    match answer:
        case BrowsedItems(items, total, next_offset):
            browsed = [
                _IDL.BrowsedItem(item.place, item.add_time, item.expiry, _small(item.data, large))
                for item in items
            ]
            return _IDL.Page(browsed, total, next_offset)
        case MovedItems(count, stopped):
            return _IDL.Moved(count, stopped)
        case ClientList(clients):
            return [_IDL.ConnectedClient(*astuple(client)) for client in clients]


def encode_item(header: MessageHeader, item: Item) -> tuple[bytes | memoryview, ...]:
    """Return the encoding of an item for an answer, which `encode_items` builds from many.

    An answer may have thousands of items. They are encoded here and not by thriftpy2, so that a
    few can be encoded at a time.

    Returns:
        One part; data in a memoryview is large, and is a part of its own.
    """
    size = len(item.data)
    if header.dialect is Dialect.COMPACT:
        zigzag = item.id << 1 if item.id >= 0 else ~(item.id << 1)
        begin, end = b"\x18" + _varint(size), b"\x16" + _varint(zigzag) + b"\0"
    else:
        begin, end = _DATA.pack(TType.STRING, 1, size), _ID.pack(TType.I64, 2, item.id)
    if isinstance(item.data, memoryview):
        return begin, item.data, end
    return (b"".join((begin, item.data, end)),)


def encode_items(
    header: MessageHeader, items: Sequence[tuple[bytes | memoryview, ...]]
) -> list[bytes | memoryview]:
    """Return the parts of the frame that answers a `get` with items encoded by `encode_item`."""
    count = len(items)
    if header.dialect is Dialect.COMPACT:
        size = bytes((count << 4 | 12,)) if count < 15 else b"\xfc" + _varint(count)
        begin = b"\x09\0" + size
    else:
        begin = _LIST.pack(TType.LIST, 0, TType.STRUCT, count)
    content = [begin, *chain.from_iterable(items), b"\0"]
    return [_frame_begin(header, TMessageType.REPLY, sum(map(len, content))), *content]


def encode_refusal(header: MessageHeader, refused: RefusedRequest) -> bytes:
    """Return the frame with the exception that says why the request of `header` was refused."""
    error = TApplicationException(refused.reason.value, refused.message)
    content = _content(header, error)
    return _frame_begin(header, TMessageType.EXCEPTION, len(content)) + content


def header_of(frame: bytes) -> MessageHeader:
    """Return the header of a frame that `encode` returned."""
    return _read_header(frame[_LENGTH.size :])[0]


def _read_header(
    frame: bytes | memoryview,
) -> tuple[MessageHeader, int, BinaryWalker | CompactWalker]:
    if frame[:1] == _COMPACT_ID:
        return _read_compact_header(frame)
    walker = BinaryWalker(frame, 0)
    word = walker.integer()
    if word < 0:
        if (word >> 16) & 0xFFFF != _VERSION_1:
            raise MalformedError("unknown version")
        dialect, message_type = Dialect.BINARY, word & 0xFF
        name = _read_name(walker, walker.integer())
    else:
        dialect = Dialect.OLD_BINARY
        name = _read_name(walker, word)
        message_type = walker.byte()
    header = MessageHeader(dialect, name, walker.integer(), message_type == TMessageType.ONEWAY)
    return header, message_type, walker


def _read_compact_header(frame: bytes | memoryview) -> tuple[MessageHeader, int, CompactWalker]:
    walker = CompactWalker(frame, 1)
    version_and_type = walker.byte()
    if version_and_type & 0x1F != _COMPACT_VERSION:
        raise MalformedError("unknown version")
    message_type = version_and_type >> 5
    seqid = walker.varint(32)
    name = _read_name(walker, walker.length())
    header = MessageHeader(Dialect.COMPACT, name, seqid, message_type == TMessageType.ONEWAY)
    return header, message_type, walker


def _read_name(walker: BinaryWalker | CompactWalker, length: int) -> str:
    if length > _MOST_NAME_BYTES:
        raise MalformedError("a long name")
    begin = walker.skip(length)
    return bytes(walker.data[begin : walker.at]).decode()


def _request(
    header: MessageHeader,
    walker: BinaryWalker | CompactWalker,
    begin: int,
    fields: dict[int, Shape],
) -> Request:
    """Return the request whose content begins at `begin`; `walker` has passed its `fields`."""
    arguments = getattr(_IDL.Kestrel, f"{header.name}_args")()
    items: StringList | None = None
    frame = walker.data
    for number, expected in arguments.thrift_spec.items():
        if number in fields and fields[number] != _shape(expected):
            raise MalformedError(f"{expected[1]} has another type")
        if expected[1] == "items" and isinstance(frame, memoryview):
            items = walker.string_lists.get(number)
    content = _content_besides(items, header, frame, begin)
    _, protocol = _open(header.dialect, content)
    protocol.read_struct(arguments)
    if items is not None:
        walker.at = items[1]
        arguments.items = [_string(walker) for _ in range(items[3])]
    for field in vars(arguments):
        if getattr(arguments, field) is None:
            raise MalformedError(f"{field} is missing")
    return _REQUESTS[header.name](arguments)


def _content_besides(
    items: StringList | None, header: MessageHeader, frame: bytes | memoryview, begin: int
) -> bytes:
    """Return a message's content from `begin` on, with no element in the list `items`, if given.

    thriftpy2 would copy the elements twice, and let no other thread run meanwhile.
    """
    at, _, end, _ = items or (len(frame), 0, len(frame), 0)
    if isinstance(frame, memoryview) and len(frame) - (end - at) > _MAX_BESIDES_ITEMS:
        raise MalformedError(f"more than {_MAX_BESIDES_ITEMS} bytes besides items")
    if items is None:
        return bytes(frame[begin:])
    # The compact protocol has the type of the elements in the lower half of the first byte.
    is_compact = header.dialect is Dialect.COMPACT
    none = bytes((frame[at] & 0x0F,)) if is_compact else bytes((frame[at], 0, 0, 0, 0))
    return b"".join((frame[begin:at], none, frame[end:]))


def _string(walker: BinaryWalker | CompactWalker) -> bytes | memoryview:
    """Return the next string; a large one is not copied."""
    size = walker.length()
    begin = walker.skip(size)
    found = walker.data[begin : begin + size]
    return found if size >= _LARGE_ITEM else bytes(found)


def _shape(expected: tuple[Any, ...]) -> Shape:
    """Return the shape of a thriftpy2 field, which is (type, name, [element], required)."""
    ttype = _on_the_wire(expected[0])
    return ttype, _on_the_wire(expected[2]) if ttype in (TType.LIST, TType.SET) else 0


def _on_the_wire(ttype: int) -> int:
    """Return the type of a value in a message: `binary` is a string there."""
    return TType.STRING if ttype == TType.BINARY else ttype


def _get(arguments: Any) -> Get:
    if arguments.auto_abort_msec < 0:
        raise MalformedError("auto_abort_msec is below 0")
    return Get(
        arguments.queue_name,
        arguments.max_items,
        arguments.timeout_msec,
        arguments.auto_abort_msec,
    )


def _put(arguments: Any) -> Put:
    return Put(arguments.queue_name, tuple(arguments.items), arguments.expiration_msec)


def _put_delayed(arguments: Any) -> Put:
    if arguments.delay_msec < 0:
        raise MalformedError("delay_msec is below 0")
    return Put(
        arguments.queue_name,
        tuple(arguments.items),
        arguments.expiration_msec,
        arguments.delay_msec,
    )


def _put_once(arguments: Any) -> Put:
    try:
        count = len(arguments.items)
        mark = put_mark(arguments.producer, arguments.first_sequence, count)
    except ValueError as error:
        raise MalformedError(str(error)) from None
    return replace(_put_delayed(arguments), mark=mark)


def _reserve(arguments: Any) -> Reserve:
    return Reserve(
        tuple(arguments.queue_names),
        arguments.max_items,
        arguments.lease_msec,
        arguments.timeout_msec,
        arguments.tag,
        arguments.owner,
        arguments.grace_msec,
    )


def _release(arguments: Any) -> Release:
    delay = arguments.delay_msec
    return Release(
        arguments.queue_name,
        _reads(arguments),
        arguments.tag,
        arguments.owner,
        None if delay == -1 else delay,
        arguments.uncounted,
        arguments.dead,
    )


def _reads(arguments: Any) -> Reads:
    return parse_reads([read.encode() for read in arguments.read_ids])


def _browse(arguments: Any) -> Browse:
    count = min(arguments.max_items, MAX_BROWSED)
    search = arguments.search or b""
    return Browse(arguments.queue_name, arguments.offset, count, search, arguments.is_pattern)


def _move(arguments: Any, *, copies: bool = False) -> Move:
    count = _unless_absent(arguments.max_items, "max_items")
    return Move(arguments.queue_name, arguments.target, count, copies)


def _pause(arguments: Any, *, resume: bool) -> Pause:
    operations = _OPERATIONS.get(arguments.operations)
    if operations is None:
        raise MalformedError(f"unknown operations {arguments.operations}")
    return Pause(arguments.queue_name, operations, resume)


def _declare(arguments: Any) -> Declare:
    if arguments.journal not in _JOURNAL:
        raise MalformedError(f"unknown journal {arguments.journal}")
    return Declare(
        arguments.queue_name,
        arguments.fanout_only,
        _JOURNAL[arguments.journal],
        _unless_absent(arguments.expires_msec, "expires_msec"),
        _unless_absent(arguments.max_age_msec, "max_age_msec"),
        _unless_absent(arguments.max_items, "max_items"),
    )


def _unless_absent(number: int, field: str) -> int | None:
    """Return a number of which -1 says that none is given."""
    if number < -1:
        raise MalformedError(f"{field} is below 0")
    return None if number == -1 else number


def _set_status(arguments: Any) -> SetStatus:
    try:
        return SetStatus(ThriftStatus(arguments.status).name)
    except ValueError:
        raise MalformedError(f"unknown status {arguments.status}") from None


_OPERATIONS: Final[dict[int, Operations]] = {
    _IDL.Operations.READS: "reads",
    _IDL.Operations.WRITES: "writes",
    _IDL.Operations.ALL: "all",
}
_JOURNAL: Final[dict[int, bool | None]] = {
    _IDL.Journal.AS_OTHERS: None,
    _IDL.Journal.YES: True,
    _IDL.Journal.NO: False,
}

_REQUESTS: Final[dict[str, Callable[[Any], Request]]] = {
    "put": _put,
    "put_delayed": _put_delayed,
    "put_once": _put_once,
    "get": _get,
    "confirm": lambda a: Confirm(a.queue_name, tuple(a.ids)),
    "abort": lambda a: Abort(a.queue_name, tuple(a.ids)),
    "reserve": _reserve,
    "finish": lambda a: Finish(a.queue_name, _reads(a), a.tag),
    "release": _release,
    "extend": lambda a: Extend(a.queue_name, a.lease_msec, _reads(a), a.tag),
    "extend_owner": lambda a: ExtendOwner(a.owner, a.lease_msec),
    "retire": lambda a: Retire(a.queue_name, a.name, a.epoch),
    "browse": _browse,
    "move": _move,
    "copy": lambda a: _move(a, copies=True),
    "redrive": lambda a: Move(a.queue_name, a.target or None, None),
    "pause_queue": lambda a: _pause(a, resume=False),
    "resume_queue": lambda a: _pause(a, resume=True),
    "declare_queue": _declare,
    "get_clients": lambda a: ListClients(a.offset),
    "kill_client": lambda a: KillClient(a.id),
    "peek": lambda a: Peek(a.queue_name),
    "flush_queue": lambda a: Flush(a.queue_name),
    "flush_all_queues": lambda _: FlushAll(),
    "delete_queue": lambda a: Delete(a.queue_name),
    "current_status": lambda _: GetStatus(),
    "set_status": _set_status,
    "get_version": lambda _: Version(),
}


def _content(header: MessageHeader, body: Any) -> bytes:
    """Return the encoding of a message's content."""
    transport, protocol = _open(header.dialect)
    protocol.write_struct(body)
    content: bytes = transport.getvalue()
    return content


def _length(header: MessageHeader, size: int) -> bytes:
    """Return what comes before data of `size` bytes."""
    return _varint(size) if header.dialect is Dialect.COMPACT else _LENGTH.pack(size)


def _frame_begin(header: MessageHeader, message_type: int, size: int) -> bytes:
    """Return what comes before a message's content of `size` bytes."""
    begin = _message_begin(header, message_type)
    return _LENGTH.pack(len(begin) + size) + begin


def _message_begin(header: MessageHeader, message_type: int) -> bytes:
    name = header.name.encode()
    match header.dialect:
        case Dialect.BINARY:
            begin = struct.pack(">HBBi", _VERSION_1, 0, message_type, len(name))
            return begin + name + _LENGTH.pack(header.seqid)
        case Dialect.OLD_BINARY:
            return _LENGTH.pack(len(name)) + name + struct.pack(">Bi", message_type, header.seqid)
        case Dialect.COMPACT:
            begin = _COMPACT_ID + bytes((_COMPACT_VERSION | message_type << 5,))
            return begin + _varint(header.seqid) + _varint(len(name)) + name


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _open(dialect: Dialect, content: bytes | None = None) -> tuple[Any, Any]:
    """Return a thriftpy2 buffer with `content`, and a protocol that reads and writes it."""
    # `Any` because the compiled parts of thriftpy2 have no types.
    library: Any = compact if dialect is Dialect.COMPACT else cybin
    buffers: Any = memory
    if dialect is Dialect.COMPACT:
        transport = buffers.TMemoryBuffer(content)
        return transport, library.TCompactProtocol(transport, strict_decode=True)
    transport = buffers.TCyMemoryBuffer(content)
    return transport, library.TCyBinaryProtocol(transport, strict_decode=True)
