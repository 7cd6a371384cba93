"""The thrift protocol's codec, against thriftpy2's own client."""

import contextlib
import itertools
import socket
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import thriftpy2
from hypothesis import given
from hypothesis import strategies as st
from thriftpy2 import protocol as thriftpy2_protocol
from thriftpy2 import transport as thriftpy2_transport
from thriftpy2.thrift import TApplicationException, TClient, TMessageType, TType

from kestrelmq.protocol import thrift
from kestrelmq.protocol.faults import ClientFault
from kestrelmq.protocol.managing import Delete, Flush, FlushAll, GetStatus, SetStatus, Version
from kestrelmq.protocol.thrift import (
    Dialect,
    MessageHeader,
    ThriftParser,
    decode,
    decode_reply,
    encode,
    encode_call,
    encode_item,
    encode_refusal,
)
from kestrelmq.protocol.thrift_service import (
    METHODS,
    Abort,
    Answer,
    Confirm,
    Get,
    Item,
    Peek,
    Put,
    QueueInfo,
    RefusalReason,
    RefusedRequest,
    Request,
    ThriftStatus,
)
from kestrelmq.protocol.thrift_wire import MAX_VALUES, REQUIRED, Field, Kind

IDL: Any = thriftpy2.load(
    str(Path(thrift.__file__).with_name("kestrel.thrift")), module_name="client_kestrel_thrift"
)
# The library has types for some of this, and none for the rest.
PROTOCOLS: Any = thriftpy2_protocol
TRANSPORTS: Any = thriftpy2_transport
DIALECTS = list(Dialect)

CALLS: list[tuple[str, dict[str, Any], Request, Answer]] = [
    ("put", {"queue_name": "q", "items": [b"a", b"\xff\x00"]}, Put("q", (b"a", b"\xff\x00"), 0), 2),
    (
        "put",
        {"queue_name": "caf\u00e9", "items": [], "expiration_msec": -5},
        Put("caf\u00e9", (), -5),
        0,
    ),
    ("get", {"queue_name": "q", "max_items": 3}, Get("q", 3, 0, 0), [Item(b"a", 0)]),
    (
        "get",
        {"queue_name": "q", "max_items": 20, "timeout_msec": 100, "auto_abort_msec": 2**31 - 1},
        Get("q", 20, 100, 2**31 - 1),
        [Item(b"\xff", 7), Item(b"", 2**31)] * 10,
    ),
    ("get", {"queue_name": "q", "max_items": 1}, Get("q", 1, 0, 0), []),
    ("confirm", {"queue_name": "q", "ids": {1, 2**62}}, Confirm("q", (1, 2**62)), 1),
    ("abort", {"queue_name": "q", "ids": set()}, Abort("q", ()), 0),
    ("peek", {"queue_name": "q"}, Peek("q"), QueueInfo(b"\xff", 1, 2**40, 3, 4, 5, 6)),
    ("peek", {"queue_name": "q"}, Peek("q"), QueueInfo(None, 0, 0, 0, 0, 0, 0)),
    ("flush_queue", {"queue_name": "q"}, Flush("q"), None),
    ("flush_all_queues", {}, FlushAll(), None),
    ("delete_queue", {"queue_name": "q"}, Delete("q"), None),
    ("current_status", {}, GetStatus(), ThriftStatus.READ_ONLY),
    ("set_status", {"status": 1}, SetStatus("QUIESCENT"), None),
    ("get_version", {}, Version(), "1.2.3"),
]


def protocol(dialect: Dialect, transport: Any) -> Any:
    """Return thriftpy2's protocol for `dialect`."""
    if dialect is Dialect.COMPACT:
        return PROTOCOLS.TCompactProtocol(transport)
    strict = dialect is Dialect.BINARY
    return PROTOCOLS.TBinaryProtocol(transport, strict_read=strict, strict_write=strict)


def message(
    dialect: Dialect,
    method: str,
    arguments: dict[str, Any],
    message_type: int = TMessageType.CALL,
    seqid: int = 77,
) -> bytes:
    """Return a request as thriftpy2 writes it, without a frame."""
    transport = TRANSPORTS.TMemoryBuffer()
    writer = protocol(dialect, transport)
    writer.write_message_begin(method, message_type, seqid)
    structure = getattr(IDL.Kestrel, f"{method}_args", IDL.Kestrel.get_version_args)()
    vars(structure).update(arguments)
    structure.write(writer)
    written: bytes = transport.getvalue()
    return written


def framed(content: bytes) -> bytes:
    """Return `content` as a frame."""
    return struct.pack(">i", len(content)) + content


def received(dialect: Dialect, frame: bytes) -> tuple[str, int, int, Any]:
    """Return name, type, sequence number and result of an answer, as thriftpy2 reads it."""
    (length,) = struct.unpack(">i", frame[:4])
    assert len(frame) == 4 + length
    transport = TRANSPORTS.TMemoryBuffer(frame[4:])
    reader = protocol(dialect, transport)
    name, message_type, seqid = reader.read_message_begin()
    if message_type == TMessageType.EXCEPTION:
        result = TApplicationException()
    else:
        result = getattr(IDL.Kestrel, f"{name}_result")()
    result.read(reader)
    assert transport.read(1) == b""
    return name, message_type, seqid, result


def plain(value: Any) -> Any:
    """Return an answer as plain values, from ours and thriftpy2's alike."""
    match value:
        case Item() | QueueInfo():
            return value._asdict()
        case list():
            return [plain(part) for part in value]
        case ThriftStatus():
            return value.value
        case int() | str() | bytes() | None:
            return value
        case _:
            return dict(vars(value))


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("method", "arguments", "request_", "answer"), CALLS)
def test_every_call_is_understood_and_answered_in_its_dialect(
    dialect: Dialect, method: str, arguments: dict[str, Any], request_: Request, answer: Answer
) -> None:
    """What thriftpy2 writes is read, and what is written thriftpy2 reads."""
    header, request = decode(message(dialect, method, arguments))
    assert header == MessageHeader(dialect, method, 77)
    assert request == request_
    assert decode(memoryview(message(dialect, method, arguments))) == (header, request)
    frame = b"".join(encode(header, answer))
    assert thrift.header_of(frame) == header
    name, message_type, seqid, result = received(dialect, frame)
    assert (name, message_type, seqid) == (method, TMessageType.REPLY, 77)
    assert plain(getattr(result, "success", None)) == plain(answer)


def fields_of(fields: tuple[Field, ...]) -> list[tuple[Any, ...]]:
    """Return fields of our table: number, name, type and default."""
    return [
        (one.number, one.name, type_of(one.kind), None if one.default is REQUIRED else one.default)
        for one in fields
    ]


def type_of(kind: Kind) -> Any:
    """Return a type of our table as plain values."""
    if kind.element is not None:
        return kind.wire, type_of(kind.element)
    if kind.wire == TType.STRUCT:
        return kind.wire, fields_of(kind.fields)
    return TType.BINARY if kind.wire == TType.STRING and not kind.is_text else kind.wire


def idl_fields_of(structure: Any) -> list[tuple[Any, ...]]:
    """Return what `fields_of` does, for a struct that thriftpy2 has read."""
    defaults = dict(structure.default_spec)
    return [
        (number, name, idl_type_of(ttype, *detail[:-1]), defaults.get(name))
        for number, (ttype, name, *detail) in structure.thrift_spec.items()
    ]


def idl_type_of(ttype: int, detail: Any = None) -> Any:
    """Return what `type_of` does, for a type that thriftpy2 has read."""
    if ttype == TType.STRUCT:
        return ttype, idl_fields_of(detail)
    if ttype in (TType.LIST, TType.SET):
        return ttype, idl_type_of(*(detail if isinstance(detail, tuple) else (detail,)))
    return ttype


def test_the_table_is_the_service_that_the_file_describes() -> None:
    """Clients are generated from the file, and served from the table."""
    assert list(METHODS) == IDL.Kestrel.thrift_services
    for name, method in METHODS.items():
        arguments, result = (getattr(IDL.Kestrel, f"{name}_{of}") for of in ("args", "result"))
        assert fields_of(method.arguments) == idl_fields_of(arguments)
        assert fields_of(method.result) == idl_fields_of(result)
    assert {one.name: one.value for one in ThriftStatus} == IDL.Status._NAMES_TO_VALUES


@pytest.mark.parametrize(("method", "arguments", "_request", "answer"), CALLS)
def test_a_call_of_ours(
    method: str, arguments: dict[str, Any], _request: Request, answer: Answer
) -> None:
    """It is written as thriftpy2 writes it, and the reply is read."""
    fields = METHODS[method].arguments
    called = encode_call(method, *[arguments.get(one.name, one.default) for one in fields])
    assert called == framed(message(Dialect.BINARY, method, arguments, seqid=0))
    header, _ = decode(called[4:])
    reply = decode_reply(b"".join(encode(header, answer))[4:])
    assert reply == (tuple(answer) if isinstance(answer, list) else answer)


def test_a_call_of_ours_that_is_refused() -> None:
    """The reason is what is returned."""
    header, _ = decode(encode_call("get_version")[4:])
    refused = RefusedRequest(RefusalReason.INTERNAL_ERROR, "no, caf\u00e9")
    assert decode_reply(encode_refusal(header, refused)[4:]) == refused


LARGE = memoryview(b"0123456789" * 20)
ANSWERS: dict[str, Callable[[bytes | memoryview], Answer]] = {
    "peek": lambda data: QueueInfo(data, 1, 2, 3, 4, 5, 6),
    "get": lambda data: [Item(b"a", 0), Item(data, 7), Item(data[:9], 8), Item(b"", 2**40)],
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("method", ANSWERS)
def test_large_data_is_a_part_of_its_own(dialect: Dialect, method: str) -> None:
    """The frame is the same as with a copy of the data."""
    header = MessageHeader(dialect, method, 77)
    parts = encode(header, ANSWERS[method](LARGE))
    assert any(part is LARGE for part in parts)
    assert b"".join(parts) == b"".join(encode(header, ANSWERS[method](bytes(LARGE))))


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("count", [0, 1, 14, 15, 300])
def test_items_may_be_encoded_before_their_answer(dialect: Dialect, count: int) -> None:
    """The frame is the same."""
    header = MessageHeader(dialect, "get", 77)
    items = [Item(b"%d" % number, number) for number in range(count)] + [Item(LARGE, 5)]
    parts = encode(header, [encode_item(header, item) for item in items])
    assert any(part is LARGE for part in parts)
    assert b"".join(parts) == b"".join(encode(header, items))


FRAMES = [framed(message(dialect, *call[:2])) for dialect in DIALECTS for call in CALLS]


def frames(chunks: list[bytes]) -> list[bytes]:
    """Return the frames, with their lengths, in what comes in `chunks`."""
    parser = ThriftParser()
    found = []
    for chunk in chunks:
        parser.receive(chunk)
        while (frame := parser.next_frame()) is not None:
            found.append(framed(bytes(frame)))
    return found


@pytest.mark.parametrize("frame", FRAMES)
def test_a_frame_whole_in_parts_and_with_bytes_after_it(frame: bytes) -> None:
    """Where the stream is cut changes nothing; an incomplete frame waits."""
    assert frames([frame]) == [frame]
    assert frames([bytes([byte]) for byte in frame]) == [frame]
    for cut in range(len(frame) + 1):
        assert frames([frame[:cut], frame[cut:]]) == [frame]
    assert frames([frame + frame + frame[:-1]]) == [frame, frame]


def test_what_was_not_cut_yet_can_be_taken_back() -> None:
    """A session that must wait leaves the rest of the stream to its connection."""
    parser = ThriftParser()
    parser.receive(FRAMES[0] + FRAMES[1][:7])
    parser.next_frame()
    assert parser.missing == len(FRAMES[1]) - 7
    assert parser.take_back() == FRAMES[1][:7]
    assert parser.missing == 0
    parser.receive(FRAMES[1])
    assert parser.next_frame() == FRAMES[1][4:]


@pytest.mark.parametrize("length", [0, -1, -(2**31), thrift.MAX_FRAME_BYTES + 1, 2**31 - 1])
def test_a_length_that_no_frame_has_closes_the_connection(length: int) -> None:
    """It is seen before a byte of the frame is waited for, let alone allocated."""
    parser = ThriftParser()
    parser.receive(struct.pack(">i", length))
    with pytest.raises(ClientFault) as caught:
        parser.next_frame()
    assert caught.value.closes


def test_the_longest_frame_is_accepted() -> None:
    """64 MiB are allowed."""
    frame = framed(bytes(thrift.MAX_FRAME_BYTES))
    assert frames([frame]) == [frame]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_unknown_method_is_answered_with_an_exception(dialect: Dialect) -> None:
    """A Finagle client asks this way for its protocol upgrade, and goes on without."""
    probe = "__can__finagle__trace__v3__"
    header, request = decode(message(dialect, probe, {}, seqid=5))
    assert request == RefusedRequest(RefusalReason.UNKNOWN_METHOD, f"unknown method {probe}")
    name, message_type, seqid, result = received(dialect, encode_refusal(header, request))
    assert (name, message_type, seqid) == (probe, TMessageType.EXCEPTION, 5)
    assert (result.type, result.message) == (1, f"unknown method {probe}")


FINAGLE_HEADER = (
    struct.pack(">bhq", TType.I64, 1, 5)
    + struct.pack(">bhb", TType.BOOL, 5, 1)
    + struct.pack(">bhbhi", TType.STRUCT, 6, TType.STRING, 1, 3)
    + b"web\x00"
    + struct.pack(">bhbibhi", TType.LIST, 8, TType.STRUCT, 1, TType.STRING, 1, 3)
    + b"key\x00\x00"
)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_client_id_of_a_finagle_header_is_read(dialect: Dialect) -> None:
    """Its other fields are passed, and without the field there is no id."""
    call = message(dialect, "peek", {"queue_name": "q"})
    header, request = decode(FINAGLE_HEADER + call)
    assert (header.dialect, header.client_id, request) == (dialect, "web", Peek("q"))
    header, request = decode(struct.pack(">bhq", TType.I64, 1, 5) + b"\x00" + call)
    assert (header.client_id, request) == (None, Peek("q"))
    long = struct.pack(">bhbhi", TType.STRUCT, 6, TType.STRING, 1, 500) + b"x" * 500 + b"\x00\x00"
    assert decode(long + call)[0].client_id == "x" * 256


@pytest.mark.parametrize(
    "header",
    [
        *(FINAGLE_HEADER[:end] for end in range(1, len(FINAGLE_HEADER) + 1)),
        FINAGLE_HEADER * 2,
        struct.pack(">bhq", TType.I64, 6, 5) + b"\x00",
        struct.pack(">bhb", TType.STRUCT, 6, 0) + b"\x00",
        struct.pack(">bhbi", TType.LIST, 8, TType.BOOL, MAX_VALUES + 1),
    ],
)
def test_a_malformed_finagle_header_closes_the_connection(header: bytes) -> None:
    """So does one without a message."""
    with pytest.raises(ClientFault) as caught:
        decode(header)
    assert caught.value.closes


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_oneway_request_is_known_as_such(dialect: Dialect) -> None:
    """Nobody reads an answer to it."""
    header, request = decode(message(dialect, "get_version", {}, TMessageType.ONEWAY))
    assert (header.oneway, request) == (True, Version())


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("message_type", [TMessageType.REPLY, TMessageType.EXCEPTION, 0, 7])
def test_a_message_that_is_no_request_is_refused(dialect: Dialect, message_type: int) -> None:
    """The connection lives on."""
    _, request = decode(message(dialect, "get_version", {}, message_type))
    assert request == RefusedRequest(
        RefusalReason.INVALID_MESSAGE_TYPE, f"message type {message_type}"
    )


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("method", "arguments", "reason"),
    [
        ("put", {"queue_name": "q"}, "items is missing"),
        ("put", {"items": [b"a"]}, "queue_name is missing"),
        ("get", {"queue_name": "q"}, "max_items is missing"),
        ("confirm", {"queue_name": "q"}, "ids is missing"),
        ("set_status", {}, "status is missing"),
        ("set_status", {"status": 9}, "unknown status 9"),
        ("peek", {"queue_name": b"\xff"}, "a string that is not UTF-8"),
        (
            "get",
            {"queue_name": "q", "max_items": 1, "auto_abort_msec": -1},
            "auto_abort_msec is below 0",
        ),
        ("put", {"queue_name": "q", "items": [b""] * MAX_VALUES}, "more than 100000 values"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_with_the_reason(
    dialect: Dialect, method: str, arguments: dict[str, Any], reason: str
) -> None:
    """The header is fine, so there is somebody to tell; the connection lives on."""
    header, request = decode(message(dialect, method, arguments))
    assert request == RefusedRequest(RefusalReason.PROTOCOL_ERROR, reason)
    assert received(dialect, encode_refusal(header, request))[3].message == reason


BINARY_PUT = message(Dialect.BINARY, "put", {})[:-1]
COMPACT_PUT = message(Dialect.COMPACT, "put", {})[:-1]
HUGE = struct.pack(">i", 2**31 - 1)
VARINT = b"\xff\xff\xff\xff\x0f"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (BINARY_PUT, "cut short"),
        (BINARY_PUT + b"\x0b\x00\x01" + HUGE + b"q\x00", "cut short"),
        (BINARY_PUT + b"\x0b\x00\x01" + struct.pack(">i", -1) + b"q\x00", "cut short"),
        (BINARY_PUT + b"\x0f\x00\x02\x0b" + HUGE, "more than"),
        (BINARY_PUT + b"\x0f\x00\x02\x0b" + struct.pack(">i", -1), "more than"),
        (BINARY_PUT + b"\x0f\x00\x02\x0b" + struct.pack(">i", 5) + b"\x00" * 8, "cut short"),
        (BINARY_PUT + b"\x0f\x00\x02\x00" + HUGE, "more than"),
        (BINARY_PUT + b"\x0f\x00\x02\x00" + struct.pack(">i", 5) + b"\x00", "unknown type 0"),
        (BINARY_PUT + b"\x0d\x00\x09\x0b\x0b" + HUGE, "more than"),
        (BINARY_PUT + b"\x0f\x00\x09" + b"\x0f\x00\x00\x00\x01" * 10_000, "nested too deep"),
        (BINARY_PUT + b"\x0c\x00\x09" * 10_000, "nested too deep"),
        (BINARY_PUT + b"\x63\x00\x01", "unknown type 99"),
        (BINARY_PUT + b"\x08\x00\x09\x00\x00\x00\x00" * 2 + b"\x00", "field 9 twice"),
        (BINARY_PUT + b"\x08\x00\x02\x00\x00\x00\x00\x00", "items has another type"),
        (BINARY_PUT + b"\x0f\x00\x02\x08\x00\x00\x00\x00\x00", "items has another type"),
        (COMPACT_PUT, "cut short"),
        (COMPACT_PUT + b"\x18" + VARINT + b"q", "cut short"),
        (COMPACT_PUT + b"\x18" + b"\x80" * 1000, "a number too large"),
        (COMPACT_PUT + b"\x18" + b"\xff\xff\xff\xff\x1f", "a number too large"),
        (COMPACT_PUT + b"\x29\xf8" + VARINT, "more than"),
        (COMPACT_PUT + b"\x29\xf0" + VARINT, "unknown type 0"),
        (COMPACT_PUT + b"\x29\xfd" + VARINT, "unknown type 13"),
        (COMPACT_PUT + b"\x9b" + VARINT + b"\x88", "more than"),
        (COMPACT_PUT + b"\x99" + b"\x19" * 10_000, "nested too deep"),
        (COMPACT_PUT + b"\x1c" * 10_000, "nested too deep"),
        (COMPACT_PUT + b"\x05\x04\x00\x00", "items has another type"),
        (COMPACT_PUT + b"\x09\x04\x05\x00", "items has another type"),
    ],
)
def test_lengths_and_counts_that_lie_are_refused_without_allocating(
    content: bytes, reason: str
) -> None:
    """A few bytes cannot make the server allocate, loop or recurse."""
    tracemalloc.start()
    try:
        _, request = decode(content)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(request, RefusedRequest)
    assert request.reason is RefusalReason.PROTOCOL_ERROR
    assert reason in request.message
    assert peak < 200_000


@pytest.mark.parametrize(
    "content",
    [
        b"\x00",
        b"\x80\x01",
        b"\x80\x02\x00\x01\x00\x00\x00\x01a\x00\x00\x00\x01\x00",
        b"\x80\x01\x00\x01" + HUGE + b"put",
        b"\x80\x01\x00\x01\x00\x00\x00\x02\xff\xff\x00\x00\x00\x01\x00",
        b"\x00\x00\x04\x01" + b"a" * 1025 + b"\x01\x00\x00\x00\x01\x00",
        b"\x82",
        b"\x82\x22\x01\x03put\x00",
        b"\x82\x21" + b"\x80" * 1000,
        b"\x82\x21\x01" + VARINT + b"put",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_a_message_without_a_readable_head_closes_the_connection(content: bytes) -> None:
    """There is no name to answer to."""
    with pytest.raises(ClientFault, match="no thrift message") as caught:
        decode(content)
    assert caught.value.closes


@pytest.mark.parametrize("dialect", DIALECTS)
def test_unknown_fields_are_passed_over(dialect: Dialect) -> None:
    """A newer client may send more than this server knows."""
    newer: Any = thriftpy2.load_fp(_newer_idl(), "newer_thrift")
    transport = TRANSPORTS.TMemoryBuffer()
    writer = protocol(dialect, transport)
    writer.write_message_begin("peek", TMessageType.CALL, 1)
    newer.Kestrel.peek_args(
        yes=True,
        no=False,
        tiny=-1,
        short=-2,
        number=-3,
        long=-(2**63),
        fraction=1.5,
        queue_name="q",
        flags=[True, False, True],
        doubles=[1.5] * 20,
        table={"a": [1, 2], "b": []},
        empty={},
        part=newer.Part(yes=True, flags={False}, inner=[newer.Part(), newer.Part(yes=False)]),
    ).write(writer)
    assert decode(transport.getvalue())[1] == Peek("q")


def _newer_idl() -> Any:
    """Return a service whose `peek` has fields of every type, before and after the known one."""

    class Source:
        def read(self) -> str:
            return """
            struct Part { 1: bool yes, 2: set<bool> flags, 3: list<Part> inner }
            service Kestrel {
              void peek(-5: bool yes, -4: bool no, -3: byte tiny, -2: i16 short,
                        1: string queue_name, 20: i32 number, 200: i64 long, 201: double fraction,
                        202: list<bool> flags, 203: list<double> doubles,
                        204: map<string, list<i32>> table, 205: map<i32, bool> empty,
                        206: Part part)
            }
            """

    return Source()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_items_of_a_large_frame(dialect: Dialect) -> None:
    """Large ones are parts of the frame, and the others are as in a small frame."""
    items = [b"a", b"b" * (1 << 20), b"", b"c" * (2 << 20), b"d" * 300]
    parser = ThriftParser()
    behind = framed(message(dialect, "get_version", {}))
    parser.receive(framed(message(dialect, "put", {"queue_name": "q", "items": items})) + behind)
    frame = parser.next_frame()
    assert isinstance(frame, memoryview)
    assert parser.next_frame() == behind[4:]
    _, request = decode(frame)
    assert isinstance(request, Put)
    assert list(request.items) == items
    assert [isinstance(item, memoryview) for item in request.items] == [
        len(item) >= 1 << 20 for item in items
    ]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("method", ["put", "flush_queue"])
def test_a_large_frame_of_something_else_than_items(dialect: Dialect, method: str) -> None:
    """It is refused, because to decode it would keep others waiting."""
    arguments: dict[str, Any] = {"queue_name": "q" * (5 << 20)}
    if method == "put":
        arguments["items"] = [b"a"]
    _, request = decode(memoryview(message(dialect, method, arguments)))
    assert isinstance(request, RefusedRequest)
    assert request.message == "more than 4194304 bytes besides items"


@given(st.binary(max_size=300))
def test_garbage_is_refused_or_closes(content: bytes) -> None:
    """Nothing else comes out of a frame of garbage."""
    with contextlib.suppress(ClientFault):
        decode(content)


@given(st.sampled_from(FRAMES), st.data())
def test_a_damaged_request_is_decoded_or_refused_and_can_be_answered(
    frame: bytes, data: st.DataObject
) -> None:
    """Whatever byte is changed, cut or added, the outcome is one of the three."""
    content = bytearray(frame[4:])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        if not content:
            return
    with contextlib.suppress(ClientFault):
        header, request = decode(bytes(content))
        if isinstance(request, RefusedRequest):
            encode_refusal(header, request)
        assert decode(memoryview(bytes(content))) == (header, request)


@given(st.binary(max_size=100), st.lists(st.integers(0, 100), max_size=4))
def test_a_stream_of_garbage_ends_or_gives_the_same_frames_however_it_is_cut(
    stream: bytes, cuts: list[int]
) -> None:
    """The parser raises its fault or goes on; nothing else."""
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    chunks = [stream[a:b] for a, b in itertools.pairwise(bounds)]
    outcomes: list[list[bytes] | str] = []
    for way in ([stream], chunks):
        try:
            outcomes.append(frames(way))
        except ClientFault as fault:
            outcomes.append(fault.message)
    assert outcomes[0] == outcomes[1]


class Served(threading.Thread):
    """The codec at one end of a pair of sockets, answering from a script."""

    def __init__(self, end: socket.socket, answers: Iterator[Answer]) -> None:
        super().__init__()
        self.requests: list[Request | RefusedRequest] = []
        self._end = end
        self._answers = answers

    def run(self) -> None:
        """Answer until the client hangs up."""
        parser = ThriftParser()
        while data := self._end.recv(3):
            parser.receive(data)
            while (frame := parser.next_frame()) is not None:
                header, request = decode(frame)
                self.requests.append(request)
                if isinstance(request, RefusedRequest):
                    self._end.sendall(encode_refusal(header, request))
                else:
                    self._end.sendall(b"".join(encode(header, next(self._answers))))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_thriftpy2s_own_client_over_sockets(dialect: Dialect) -> None:
    """Every call goes through, and an unknown one raises and harms nothing."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        served = Served(ours, iter([call[3] for call in CALLS]))
        served.start()
        transport = TRANSPORTS.TSocket()
        transport.set_handle(theirs)
        client = TClient(IDL.Kestrel, protocol(dialect, TRANSPORTS.TFramedTransport(transport)))
        for method, arguments, _, answer in CALLS:
            assert plain(getattr(client, method)(**arguments)) == plain(answer)
        with pytest.raises(TApplicationException, match="items is missing"):
            client.put(queue_name="q")
        theirs.shutdown(socket.SHUT_WR)
        served.join()
    assert served.requests[: len(CALLS)] == [call[2] for call in CALLS]


@pytest.mark.parametrize("dialect", [Dialect.BINARY, Dialect.COMPACT])
def test_ids_that_are_there_twice(dialect: Dialect) -> None:
    """They stay in a row as they came: a set of chosen numbers can be made to collide."""
    if dialect is Dialect.BINARY:
        header = struct.pack(">HHi", 0x8001, 1, 7) + b"confirm" + bytes(4)
        ids = struct.pack(">bhbi3q", 14, 2, 10, 3, 5, 5, 1)
        frame = header + struct.pack(">bhi", 11, 1, 1) + b"q" + ids + b"\0"
    else:
        frame = b"\x82\x21\x00\x07confirm" + b"\x18\x01q" + b"\x1a\x36\x0a\x0a\x02" + b"\0"
    _, request = thrift.decode(frame)
    assert request == Confirm("q", (5, 5, 1))
