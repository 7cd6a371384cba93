"""The client's side of the memcache protocol: every reply whole, cut anywhere, and followed."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrelmq.errors import InvalidRequest, ProtocolError
from kestrelmq.protocol import memcache_client as wire
from kestrelmq.protocol.memcache_client import (
    EndOfList,
    ErrorReply,
    Line,
    Reply,
    ReplyParser,
    Stat,
    Value,
)

REPLIES: list[tuple[bytes, list[Reply]]] = [
    (b"STORED\r\n", [Line("STORED")]),
    (b"NOT_STORED\r\n", [Line("NOT_STORED")]),
    (b"END\r\n", [EndOfList()]),
    (b"DELETED\r\n", [Line("DELETED")]),
    (b"UP\r\n", [Line("UP")]),
    (b"VERSION 2.4.8\r\n", [Line("VERSION 2.4.8")]),
    (b"Flushed all queues.\r\n", [Line("Flushed all queues.")]),
    (b"STORED\n", [Line("STORED")]),
    (b"ERROR\r\n", [ErrorReply("ERROR", "")]),
    (b"CLIENT_ERROR bad name\r\n", [ErrorReply("CLIENT_ERROR", "bad name")]),
    (b"SERVER_ERROR\r\n", [ErrorReply("SERVER_ERROR", "")]),
    (b"SERVER_ERROR disk full\r\n", [ErrorReply("SERVER_ERROR", "disk full")]),
    (b"VALUE work 0 5\r\nhello\r\nEND\r\n", [Value(b"work", b"hello"), EndOfList()]),
    (b"VALUE work 0 0\r\n\r\nEND\r\n", [Value(b"work", b""), EndOfList()]),
    (b"VALUE work 0 3 42\r\nabc\r\nEND\r\n", [Value(b"work", b"abc", 42), EndOfList()]),
    (b"VALUE work/open 0 1\r\nx\r\nEND\r\n", [Value(b"work/open", b"x"), EndOfList()]),
    (b"VALUE w 0 7\r\n\r\nEND\r\n\r\nEND\r\n", [Value(b"w", b"\r\nEND\r\n"), EndOfList()]),
    (
        b"VALUE w 0 1\r\na\r\nVALUE w 0 2\r\nbc\r\nEND\r\n",
        [Value(b"w", b"a"), Value(b"w", b"bc"), EndOfList()],
    ),
    (
        b"STAT uptime 3\r\nSTAT queue_a_children b, c\r\nSTAT empty \r\nEND\r\n",
        [Stat("uptime", "3"), Stat("queue_a_children", "b, c"), Stat("empty", ""), EndOfList()],
    ),
    (b"STAT caf\xc3\xa9 \xff\r\n", [Stat("caf\u00e9", "\ufffd")]),
]


@pytest.mark.parametrize(("data", "replies"), REPLIES)
def test_a_reply_that_arrives_whole_is_read(data: bytes, replies: list[Reply]) -> None:
    """Bytes that hold whole replies give these replies and leave nothing behind."""
    parser = ReplyParser()
    assert parser.feed(data) == replies
    assert parser.is_idle


@pytest.mark.parametrize(("data", "replies"), REPLIES)
def test_a_reply_may_be_cut_at_every_byte(data: bytes, replies: list[Reply]) -> None:
    """Wherever the network cuts a reply in two, it reads the same."""
    for cut in range(len(data) + 1):
        parser = ReplyParser()
        assert parser.feed(data[:cut]) + parser.feed(data[cut:]) == replies
        assert parser.is_idle


@pytest.mark.parametrize(("data", "replies"), REPLIES)
def test_a_reply_may_come_byte_by_byte(data: bytes, replies: list[Reply]) -> None:
    """A reply that trickles in reads the same."""
    parser = ReplyParser()
    assert [r for byte in data for r in parser.feed(bytes([byte]))] == replies


@pytest.mark.parametrize(("data", "replies"), REPLIES)
def test_bytes_after_a_reply_belong_to_the_next(data: bytes, replies: list[Reply]) -> None:
    """The beginning of another reply is kept until the rest of it comes."""
    parser = ReplyParser()
    assert parser.feed(data + b"VALUE z 0 3\r\nx") == replies
    assert not parser.is_idle
    assert parser.feed(b"yz\r\n") == [Value(b"z", b"xyz")]


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n",
        b"STAT \r\n",
        b"STAT\r\n",
        b"VALUE work 0\r\n",
        b"VALUE work 0 -1\r\n",
        b"VALUE work 0 x\r\n",
        b"VALUE work x 1\r\n",
        b"VALUE work 0 1 x\r\n",
        b"VALUE work 0 1 2 3\r\n",
        b"VALUE work 0 \xc2\xb2\r\n",
        b"VALUE work 0 " + b"1" * 21 + b"\r\n",
        b"VALUE work 0 2147483648\r\n",
        b"VALUE work 0 1\r\nxyz",
        b"VALUE work 0 1\r\nx\n\n",
    ],
)
def test_bytes_that_are_no_reply_end_the_stream(data: bytes) -> None:
    """A malformed reply is an error, and so is everything after it."""
    parser = ReplyParser()
    with pytest.raises(ProtocolError):
        parser.feed(data)
    with pytest.raises(ProtocolError):
        parser.feed(b"END\r\n")


def test_a_line_that_does_not_end_is_refused_before_it_fills_memory() -> None:
    """A line may be as long as the limit and no longer, with or without its end."""
    assert ReplyParser().feed(b"x" * wire.MAX_LINE_BYTES + b"\n") != []
    with pytest.raises(ProtocolError, match="longer"):
        ReplyParser().feed(b"x" * (wire.MAX_LINE_BYTES + 1))
    with pytest.raises(ProtocolError, match="longer"):
        ReplyParser().feed(b"x" * (wire.MAX_LINE_BYTES + 1) + b"\n")


def test_an_item_over_the_limit_is_refused_by_its_header() -> None:
    """The size limit holds before any of the item has come."""
    parser = ReplyParser(max_item_bytes=10)
    assert parser.feed(b"VALUE a 0 10\r\n0123456789\r\n") == [Value(b"a", b"0123456789")]
    with pytest.raises(ProtocolError, match="over the limit"):
        parser.feed(b"VALUE a 0 11\r\n")


@given(st.lists(st.binary(max_size=50), max_size=5), st.data())
def test_items_of_any_bytes_survive_any_cuts(items: list[bytes], data: st.DataObject) -> None:
    """What a server sent as items arrives as those items, however it is cut up."""
    stream = b"".join(b"VALUE q 0 %d\r\n%b\r\n" % (len(item), item) for item in items)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    parser = ReplyParser()
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    replies = [reply for piece in pieces for reply in parser.feed(piece)]
    assert replies == [Value(b"q", item) for item in items]


@given(st.binary(max_size=300))
def test_garbage_gives_replies_or_a_protocol_error(data: bytes) -> None:
    """No bytes raise anything else, or are kept beyond the last line."""
    try:
        ReplyParser().feed(data)
    except ProtocolError:
        return


@pytest.mark.parametrize(
    ("request_bytes", "expected"),
    [
        (wire.set_request(b"work", b"a\r\nb", 60), b"set work 0 60 4\r\na\r\nb\r\n"),
        (wire.set_request(b"work", b"", -1), b"set work 0 -1 0\r\n\r\n"),
        (wire.get_request(b"work"), b"get work\r\n"),
        (wire.get_request(b"work", peek=True), b"get work/peek\r\n"),
        (wire.get_request(b"work", abort=True), b"get work/abort\r\n"),
        (wire.get_request(b"work", close=True), b"get work/close\r\n"),
        (
            wire.get_request(b"work", wait_ms=250, open_read=True, close=True),
            b"get work/t=250/close/open\r\n",
        ),
        (wire.monitor_request(b"work", 5), b"monitor work 5\r\n"),
        (wire.monitor_request(b"work", 5, 10), b"monitor work 5 10\r\n"),
        (wire.confirm_request(b"work", 3), b"confirm work 3\r\n"),
        (wire.queue_request("delete", "caf\u00e9".encode()), b"delete caf\xc3\xa9\r\n"),
        (wire.plain_request("stats"), b"stats\r\n"),
        (wire.plain_request("status", "readonly"), b"status readonly\r\n"),
    ],
)
def test_requests_are_what_the_protocol_says(request_bytes: bytes, expected: bytes) -> None:
    """Each request is written as the protocol has it."""
    assert request_bytes == expected


@pytest.mark.parametrize(
    "name", [b"", b"a b", b"a\r\nflush_all", b"a\n", b"a\0", b"a\x7f", b"a/t=1"]
)
def test_a_name_cannot_smuggle_in_an_option_or_a_command(name: bytes) -> None:
    """Whatever would end the line or add an option is refused in every request."""
    builders: list[Callable[[], bytes]] = [
        lambda: wire.set_request(name, b"x"),
        lambda: wire.get_request(name),
        lambda: wire.monitor_request(name, 1),
        lambda: wire.confirm_request(name, 1),
        lambda: wire.queue_request("flush", name),
    ]
    for build in builders:
        with pytest.raises(InvalidRequest):
            build()


@pytest.mark.parametrize("word", ["", "a b", "up\r\nshutdown", "x" * 251, "\ud800\n"])
def test_an_argument_is_one_word(word: str) -> None:
    """Other arguments are refused by the same rule."""
    with pytest.raises(InvalidRequest):
        wire.plain_request("status", word)


@pytest.mark.parametrize("number", [-1, 2**31])
def test_numbers_out_of_range_are_refused(number: int) -> None:
    """A server keeps these numbers in 32 bits."""
    builders: list[Callable[[], bytes]] = [
        lambda: wire.get_request(b"q", wait_ms=number),
        lambda: wire.monitor_request(b"q", number),
        lambda: wire.monitor_request(b"q", 1, number),
        lambda: wire.confirm_request(b"q", number),
    ]
    for build in builders:
        with pytest.raises(InvalidRequest):
            build()


def test_options_that_exclude_each_other_are_refused() -> None:
    """What a server answers by closing the connection is never sent."""
    with pytest.raises(InvalidRequest):
        wire.get_request(b"q", peek=True, abort=True)
    with pytest.raises(InvalidRequest):
        wire.get_request(b"q", peek=True, open_read=True)
    with pytest.raises(InvalidRequest):
        wire.get_request(b"q", abort=True, close=True)
