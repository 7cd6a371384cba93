"""The text protocol's codec."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrelmq.protocol import text
from kestrelmq.protocol.faults import ClientFault
from kestrelmq.protocol.managing import (
    Confirm,
    Delete,
    Flush,
    FlushAll,
    FlushExpired,
    GetStatus,
    Quit,
    Reload,
    SetStatus,
    Shutdown,
    Version,
)
from kestrelmq.protocol.text import (
    Command,
    Get,
    Monitor,
    Peek,
    Put,
    TextParser,
)

LARGE = b"x" * (1 << 20)

COMMANDS: list[tuple[bytes, Command]] = [
    (b"put work:\na\nbb\n\n", Put("work", 0, (b"a", b"bb"))),
    (b"PUT work 500:\r\na\r\nb b\r\n\r\n", Put("work", 500, (b"a", b"b b"))),
    (b"put work -1 :\nget x\n\n", Put("work", -1, (b"get x",))),
    (b"put a:b:\n \n:\n\n", Put("a:b", 0, (b" ", b":"))),
    (b"put work:\n\n", Put("work", 0, ())),
    (b"put caf\xc3\xa9:\n\xff\x00\n\n", Put("caf\u00e9", 0, (b"\xff\x00",))),
    (b"put work:\n%b\na\r\n%b\r\n\n" % (LARGE, LARGE), Put("work", 0, (LARGE, b"a", LARGE))),
    (b"get work\n", Get("work", 0)),
    (b"  Get   work\t100 \r\n", Get("work", 100)),
    (b"peek work\n", Peek("work", 0)),
    (b"peek work 100\n", Peek("work", 100)),
    (b"monitor work\n", Monitor("work", 0, None)),
    (b"monitor work 100\n", Monitor("work", 100, None)),
    (b"monitor work 100 5\n", Monitor("work", 100, 5)),
    (b"confirm work 3\n", Confirm("work", 3)),
    (b"flush work\n", Flush("work")),
    (b"flush_all\n", FlushAll()),
    (b"flush_expired work\n", FlushExpired("work")),
    (b"delete work\n", Delete("work")),
    (b"reload\n", Reload()),
    (b"status\n", GetStatus()),
    (b"status ReadOnly\n", SetStatus("ReadOnly")),
    (b"version\n", Version()),
    (b"shutdown\n", Shutdown()),
    (b"QUIT\r\n", Quit()),
    (b"\n\r\nversion\n", Version()),
]

FAULTS: list[tuple[bytes, str]] = [
    (b"hello\n", "unknown command"),
    (b"\x00\xff\xfe\n", "unknown command"),
    (b"put work\nflush a\n\n", "usage: put QUEUE [EXPIRY_MS]:"),
    (b"put:\nflush a\n\n", "usage: put QUEUE [EXPIRY_MS]:"),
    (b"Put:a\r\nshutdown\r\n\r\n", "usage: put QUEUE [EXPIRY_MS]:"),
    (b"put\n\n", "usage: put QUEUE [EXPIRY_MS]:"),
    (b"put a " + b" " * text.MAX_LINE_BYTES + b":\nflush a\n\n", "a line has at most 8192 bytes"),
    (b"pt a:\nflush a\n\n", "unknown command"),
    (b"GET / HTTP/1.1\n", "closes"),
    (b"PUT /q HTTP/1.1\r\n\n", "closes"),
    (b"OPTIONS * HTTP/1.1\r\n", "closes"),
    (b"delete q HTTP/1.0\n", "closes"),
    (b"MOVE /q HTTP/1.1\r\n", "closes"),
    *(
        (verb + b" q 1 5 lease=1\n", "unknown command")
        for verb in b"""browse move copy redrive declare pause resume clients client reserve finish
        release extend retire flush_all_expired stats set""".split()
    ),
    (b"Host: 127.0.0.1:2222\r\n", "closes"),
    (b"hOST:\n\n", "closes"),
    (b"put :\na\n\n", "usage: put QUEUE [EXPIRY_MS]:"),
    (b"put a 1 2:\nx\n\n", "usage: put QUEUE [EXPIRY_MS]:"),
    (b"put a soon:\nx\n\n", "not a number"),
    (b"put \xff:\nget work\n\n", "a queue name is UTF-8"),
    (b"get\n", "usage: get QUEUE [TIMEOUT_MS]"),
    (b"get a 1 2\n", "usage: get QUEUE [TIMEOUT_MS]"),
    (b"get a -1\n", "a number below 0"),
    (b"get a 1e3\n", "not a number"),
    (b"get a \xd9\xa1\n", "not a number"),
    (b"get a " + b"9" * 19 + b"\n", "not a number"),
    (b"get \xff\n", "a queue name is UTF-8"),
    (b"peek\n", "usage: peek QUEUE [TIMEOUT_MS]"),
    (b"monitor a 1 2 3\n", "usage: monitor QUEUE [TIMEOUT_MS [MAX]]"),
    (b"confirm a\n", "usage: confirm QUEUE COUNT"),
    (b"confirm a -1\n", "a number below 0"),
    (b"confirm a -\n", "not a number"),
    (b"flush\n", "usage: flush QUEUE"),
    (b"flush_all now\n", "usage: flush_all"),
    (b"delete\n", "usage: delete QUEUE"),
    (b"status a b\n", "usage: status [NEW]"),
    (b"get " + b"q" * text.MAX_LINE_BYTES + b"\n", "a line has at most 8192 bytes"),
]

Outcome = Command | str


def outcomes(chunks: Iterable[bytes]) -> list[Outcome]:
    """Return the commands and the messages of the faults in `chunks`, which follow a first line."""
    parser = TextParser()
    parser.receive(b"version\n")
    assert parser.next_command() == Version()
    found: list[Outcome] = []
    for chunk in chunks:
        parser.receive(chunk)
        while True:
            try:
                command = parser.next_command()
            except ClientFault as fault:
                found.append("closes" if fault.closes else fault.message)
                continue
            if command is None:
                break
            found.append(command)
    return found


CASES = [*COMMANDS, *FAULTS]


@pytest.mark.parametrize(("data", "expected"), CASES)
def test_a_command_that_comes_whole(data: bytes, expected: Outcome) -> None:
    """One command, or one error, and nothing else."""
    assert outcomes([data]) == [expected]


@pytest.mark.parametrize(("data", "expected"), CASES)
def test_a_command_that_comes_byte_by_byte(data: bytes, expected: Outcome) -> None:
    """Where the stream is cut changes nothing."""
    assert outcomes(bytes([byte]) for byte in data) == [expected]


@pytest.mark.parametrize(("data", "expected"), CASES)
def test_a_command_that_comes_in_two_parts(data: bytes, expected: Outcome) -> None:
    """At every byte of a short command, and at some of a long one."""
    for cut in range(0, len(data), 1 + len(data) // 200):
        assert outcomes([data[:cut], data[cut:]]) == [expected]


@pytest.mark.parametrize(("data", "expected"), CASES)
def test_bytes_after_a_command_are_the_next(data: bytes, expected: Outcome) -> None:
    """Pipelining works, after an error too; an incomplete command waits."""
    assert outcomes([data + b"get next\n" + data + b"ver"]) == [expected, Get("next", 0), expected]


def test_a_long_line_is_dropped_while_it_comes() -> None:
    """Memory does not grow with it, and the stream goes on after it."""
    parser = TextParser()
    for _ in range(1000):
        parser.receive(b"x" * 10_000)
        assert parser.next_command() is None
        assert len(parser._buffer) <= text.MAX_LINE_BYTES + 1
    parser.receive(b"\nversion\n")
    with pytest.raises(ClientFault, match="at most 8192"):
        parser.next_command()
    assert parser.next_command() == Version()


@pytest.mark.parametrize(
    ("line", "closes"),
    [
        (b"EHLO me", True),
        (b"\x80\0", True),
        (b":", True),
        (b"x" * 10_000, True),
        (b" " * 10_000, True),
        (b"set q 0 0 1", False),
        (b"Verbosity 1", False),
        (b"get", False),
        (b"put q", False),
        (b"put:", False),
        (b"get " + b"q" * 10_000, False),
        (b"put " + b"q" * 10_000 + b":", False),
    ],
)
def test_only_the_first_line_must_be_a_command(line: bytes, *, closes: bool) -> None:
    """A word of memcached's is one, and empty lines are none; what is wrong later is an error."""
    parser = TextParser()
    parser.receive(b"\r\n\n" + line + b"\n\n")
    with pytest.raises(ClientFault) as fault:
        parser.next_command()
    assert fault.value.closes is closes
    assert parser.next_command() is None
    parser.receive(line + b"\n\nversion\n")
    with pytest.raises(ClientFault) as fault:
        parser.next_command()
    assert not fault.value.closes
    assert parser.next_command() == Version()


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_the_longest_line_is_accepted(end: bytes) -> None:
    """The limit is the line's, without its end."""
    line = b"get q ".ljust(text.MAX_LINE_BYTES)
    assert outcomes([line, end]) == [Get("q", 0)]
    assert outcomes([line + b" ", end]) == ["a line has at most 8192 bytes"]


def test_the_items_of_a_malformed_put_are_no_commands() -> None:
    """However many or long they are; the error is told before they have come."""
    long = b"flush " + b"a" * 2 * text.MAX_LINE_BYTES
    items = [b"flush a\n", b"put b:\n", b" \n", long + b"\n", b"Host: x\n"]
    usage = "usage: put QUEUE [EXPIRY_MS]:"
    assert outcomes([b"put\n"]) == [usage]
    assert outcomes([b"put\n", *items, b"\r\n", b"get q\n"]) == [usage, Get("q", 0)]


def test_http_in_an_item_is_data() -> None:
    """Only where a command could stand does it end the connection."""
    lines = (b"GET / HTTP/1.1", b"Host: x")
    assert outcomes([b"put q:\n" + b"\n".join(lines) + b"\n\n"]) == [Put("q", 0, lines)]


@pytest.mark.parametrize("item", [b"x", b"x" * 100_000])
def test_a_put_that_is_too_large_is_dropped_as_a_whole(
    item: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many small items are too many; the stream goes on after the put."""
    monkeypatch.setattr(text, "MAX_PUT_BYTES", 1_000_000)
    count = min(1_000_000 // len(item), 100_000) + 1
    items = [item + b"\n"] * count
    message = "a put holds at most 100000 items and 1000000 bytes"
    assert outcomes([b"put q:\n", *items, b"\nversion\n"]) == [message, Version()]
    assert outcomes([b"put q:\n", *items[1:], b"\n"]) == [Put("q", 0, (item,) * (count - 1))]


def test_an_item_that_is_too_large_is_dropped_while_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory does not grow with it."""
    monkeypatch.setattr(text, "MAX_PUT_BYTES", 1000)
    parser = TextParser()
    parser.receive(b"put q:\n")
    for _ in range(100):
        parser.receive(b"x" * 1000)
        assert parser.next_command() is None
        assert len(parser._buffer) <= 1001
    parser.receive(b"\na\n\n")
    with pytest.raises(ClientFault, match="a put holds at most"):
        parser.next_command()


@given(st.binary(max_size=200), st.integers(min_value=0, max_value=200))
def test_garbage_gives_commands_and_faults_and_nothing_else(data: bytes, cut: int) -> None:
    """Whatever comes, wherever it is cut, the outcome is the same, and the parser goes on."""
    whole = outcomes([data + b"\n\nversion\n"])
    assert outcomes([data[:cut], data[cut:] + b"\n\nversion\n"]) == whole
    assert whole[-1] == Version()


@given(
    st.lists(
        st.sampled_from([data for data, _ in CASES])
        | st.text("getpukloms _019:\r\n", max_size=30).map(str.encode),
        max_size=8,
    ),
    st.data(),
)
def test_where_the_stream_is_cut_never_matters(parts: list[bytes], data: st.DataObject) -> None:
    """Commands and near misses in any order, cut anywhere."""
    stream = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert outcomes(chunks) == outcomes([stream])


def test_what_was_not_parsed_yet_can_be_taken_back() -> None:
    """A session that must wait leaves the rest of the stream to its connection."""
    parser = TextParser()
    parser.receive(b"get a\nget b\nver")
    assert parser.next_command() == Get("a", 0)
    assert parser.take_back() == b"get b\nver"
    parser.receive(b"version\n")
    assert parser.next_command() == Version()


def test_replies() -> None:
    """Each kind of reply is one line."""
    assert text.count_reply(3) == b"+3\n"
    assert text.value_reply(b"item \xff") == b":item \xff\n"
    assert text.NO_ITEM == b"*\n"
    assert text.error_reply("no\nsuch  thing \u00e9") == b"-no such thing \xc3\xa9\n"
    assert text.can_carry(b"one\rline")
    assert not text.can_carry(b"two\nlines")


def test_items_that_are_too_large_count_as_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not kept, but a put without an end must not count them for ever."""
    monkeypatch.setattr(text, "MAX_PUT_ITEMS", 3)
    parser = TextParser({"q": 1}.get)
    parser.receive(b"put q:\n1\n22\n33\n\nput q:\n1\n22\n33\n44\n\n")
    assert parser.next_command() == Put("q", 0, (b"1",), too_large=2)
    with pytest.raises(ClientFault, match="a put holds at most 3 items"):
        parser.next_command()
