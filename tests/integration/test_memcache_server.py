"""The memcache protocol on the wire of a real server: requests whole, in pieces and in a row."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelmq.protocol.foreign import binary_refusal
from kestrelmq.queues.counters import LARGE_ITEM
from kestrelmq.version import VERSION
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, stats

pytestmark = pytest.mark.compiled

UNSWEPT = 'expiration_timer_frequency = "none"\n'
"""So that only a request drops what has expired, and its reply can count it."""
CONFIG = f"""
{UNSWEPT}
[queues.full]
max_items = 1
[queues.small]
max_item_size = 10
"""

VERSION_LINE = b"VERSION %b\r\n" % VERSION.encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Return a server that all tests here share; each uses queues of its own."""
    with running_server(tmp_path_factory.mktemp("memcache"), config=CONFIG) as running:
        yield running


# Every request that leaves the connection open, and its reply; Q is a queue that is new.
CONVERSATION: list[tuple[bytes, bytes]] = [
    (b"get Q\r\n", b"END\r\n"),
    (b"set Q 0 0 5\r\nhello\r\n", b"STORED\r\n"),
    (b"set Q 0 0 0\r\n\r\n", b"STORED\r\n"),
    (b"SET Q 1 0 6\r\n\r\nget \r\n", b"STORED\r\n"),
    (b"set Q 0 0 3 noreply\r\nabc\r\n", b""),
    (b"set Q 0 0 2\nhi\n", b"STORED\r\n"),
    (b"set Q 0 0 2\r\n\x00\xff\r\n", b"STORED\r\n"),
    (b"get Q/peek\r\n", b"VALUE Q 0 5\r\nhello\r\nEND\r\n"),
    (b"GET Q\n", b"VALUE Q 0 5\r\nhello\r\nEND\r\n"),
    (b"get Q/open\r\n", b"VALUE Q 0 0\r\n\r\nEND\r\n"),
    (b"get Q/close/open\r\n", b"VALUE Q 0 6\r\n\r\nget \r\nEND\r\n"),
    (b"touch_read Q 60000\r\n", b"TOUCHED\r\n"),
    (b"get Q/abort\r\n", b"END\r\n"),
    (b"gets Q/open\r\n", b"VALUE Q 0 6 3\r\n\r\nget \r\nEND\r\n"),
    (b"get Q/close\r\n", b"END\r\n"),
    (b"get Q/close\r\n", b"END\r\n"),
    (b"touch_read Q 60000\r\n", b"NOT_FOUND\r\n"),
    (b"gets Q\r\n", b"VALUE Q 0 3 0\r\nabc\r\nEND\r\n"),
    (b"get Q/peek Q Q\r\n", b"VALUE Q 0 2\r\nhi\r\n" * 2 + b"VALUE Q 0 2\r\n\x00\xff\r\nEND\r\n"),
    (b"get Q/t=1\r\n", b"END\r\n"),
    (b"get Q/t=0/open\r\n", b"END\r\n"),
    (b"monitor Q 0\r\n", b"END\r\n"),
    (b"confirm Q 0\r\n", b"END\r\n"),
    (b"confirm Q 1\r\n", b"ERROR\r\n"),
    (b"set Q 0 0 1\r\na\r\nset Q 0 0 1\r\nb\r\n", b"STORED\r\nSTORED\r\n"),
    (b"monitor Q 5 2\r\n", b"VALUE Q 0 1\r\na\r\nEND\r\nVALUE Q 0 1\r\nb\r\nEND\r\nEND\r\n"),
    (b"confirm Q 3\r\n", b"ERROR\r\n"),
    (b"confirm Q 2\r\n", b"END\r\n"),
    (b"get Q/what\r\n", b"CLIENT_ERROR unknown option /what\r\n"),
    (b"confirm Q\r\n", b"CLIENT_ERROR confirm takes a queue and a count\r\n"),
    (b"set a~b 0 0 4\r\nget \r\n", b"CLIENT_ERROR a queue name must not contain '~'\r\n"),
    (b"set Q x 0 1\r\ny\r\n", b"CLIENT_ERROR flags and expiry must be numbers\r\n"),
    (b"set small 0 0 11\r\n01234567890\r\n", b"NOT_STORED\r\n"),
    (b"set small 0 0 11 noreply\r\n01234567890\r\n", b""),
    (b"set a~b 0 0 4 noreply\r\nget \r\n", b""),
    (b"set Q 0 x 1 noreply\r\ny\r\n", b""),
    (b"delete a~b noreply\r\nflush a~b noreply\r\nflush_all 5 noreply\r\n", b""),
    (b"flush_expired Q\r\n", b"0\r\n"),
    (b"set Q 0 -1 1\r\nx\r\nflush_expired Q\r\n", b"STORED\r\n1\r\n"),
    (b"set Q 0 0 1\r\nx\r\n", b"STORED\r\n"),
    (b"flush Q\r\n", b"END\r\n"),
    (b"flush Q noreply\r\n", b""),
    (b"delete Q\r\n", b"DELETED\r\n"),
    (b"delete Q 0\r\n", b"DELETED\r\n"),
    (b"delete Q noreply\r\n", b""),
    (b"stats Q\r\n", b"END\r\n"),
    (b"dump_stats Q\r\n", b"END\r\n"),
    (b"dump_config Q\r\n", b"END\r\n"),
    (b"status\r\n", b"UP\r\n"),
    (b"version\r\n", VERSION_LINE),
]


def conversation(queue: bytes) -> tuple[bytes, bytes]:
    """Return all requests in a row, and all replies, about `queue`."""
    requests, replies = (b"".join(part) for part in zip(*CONVERSATION, strict=True))
    return requests.replace(b"Q", queue), replies.replace(b"Q", queue)


def test_each_request_gets_its_own_reply(wire: Wire) -> None:
    """Each request gets its reply, and no more."""
    for request, reply in CONVERSATION:
        wire.ask(request.replace(b"Q", b"single"), reply.replace(b"Q", b"single"))
        wire.expect_silence()


def test_pipelined(wire: Wire) -> None:
    """All requests at once get all replies, in order."""
    wire.ask(*conversation(b"pipelined"))


def test_byte_by_byte(wire: Wire) -> None:
    """Requests that trickle in are the same requests."""
    requests, replies = conversation(b"trickle")
    for index in range(len(requests)):
        wire.send(requests[index : index + 1])
    wire.expect(replies)


def test_split_at_every_byte(server: ServerProcess) -> None:
    """Wherever the network cuts a request, its reply is the same."""
    longest = max(len(request) for request, _ in CONVERSATION)
    with Wire(server) as wire, Wire(server) as other:
        for at in range(1, longest):
            for request, reply in CONVERSATION:
                wire.send(request[:at].replace(b"Q", b"Z"))
                if at < len(request):
                    other.expect_silence()  # what was sent before has been received
                    wire.send(request[at:].replace(b"Q", b"Z"))
                wire.expect(reply.replace(b"Q", b"Z"))


# What closes the connection: the request, and the reply before the end.
FATAL: list[tuple[bytes, bytes]] = [
    (b"frobnicate\r\n", b"CLIENT_ERROR unknown command frobnicate\r\n"),
    (b"add q 0 0 1\r\n", b"CLIENT_ERROR unknown command add\r\n"),
    (b"\r\n", b"CLIENT_ERROR empty line\r\n"),
    (b"set q 0 0\r\n", b"CLIENT_ERROR set takes a queue, flags, expiry and a length\r\n"),
    (b"set q 0 0 -1\r\n", b"CLIENT_ERROR bad length\r\n"),
    (b"set q 0 0 99999999999\r\n", b"CLIENT_ERROR bad length\r\n"),
    (b"set q 0 0 3\r\nabcdef\r\n", b"CLIENT_ERROR bad data chunk\r\n"),
    (b"set q 0 0 3\r\nabc\rx", b"CLIENT_ERROR bad data chunk\r\n"),
    (b"set a~b 0 0 3\r\nabcdef\r\n", b"CLIENT_ERROR bad data chunk\r\n"),
    (b"get\r\n", b"CLIENT_ERROR get takes at least one queue\r\n"),
    (b"get /open\r\n", b"CLIENT_ERROR a get needs a queue name\r\n"),
    (b"get q/peek/open\r\n", b"CLIENT_ERROR peek and abort do not go with open and close\r\n"),
    (b"get q/abort/close\r\n", b"CLIENT_ERROR peek and abort do not go with open and close\r\n"),
    (b"get q/peek/abort\r\n", b"CLIENT_ERROR peek does not go with abort\r\n"),
    (b"get " + b"q" * 8189 + b"\r\n", b"CLIENT_ERROR a line has at most 8192 bytes\r\n"),
    (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"CLIENT_ERROR this is no HTTP server\r\n"),
    (b"Host: x\r\n", b"CLIENT_ERROR this is no HTTP server\r\n"),
    (b"\x80\x0b" + bytes(22), binary_refusal(b"\x80\x0b")),
    (b"\x80\x0a" + b"\n" * 22, binary_refusal(b"\x80\x0a" + b"\n" * 22)),
    (b"x" * 8193, b"CLIENT_ERROR a line has at most 8192 bytes\r\n"),
    (b"quit\r\n", b""),
]


@pytest.mark.parametrize(("request_", "reply"), FATAL)
@pytest.mark.parametrize("trailing", [b"", b"version\r\n", b"set q 0 0 1\r\nx\r\n" * 100])
def test_fatal(server: ServerProcess, request_: bytes, reply: bytes, trailing: bytes) -> None:
    """A stream that cannot be followed is answered once and closed; nothing after it is done."""
    with Wire(server) as wire, Wire(server) as other:
        wire.send(b"version\r\n" + request_ + trailing)
        wire.expect_close(VERSION_LINE + reply)
        assert stats(other, "q") == {}


def test_a_binary_client_is_refused_at_its_first_byte(wire: Wire) -> None:
    """It waits for an answer to its first request, and would wait for ever."""
    wire.send(b"\x80")
    wire.expect_close(binary_refusal(b"\x80"))


def test_a_lone_line_end(wire: Wire) -> None:
    """Nothing but the end of a line is no request, even when it comes first and alone."""
    wire.send(b"\n")
    wire.expect_close(b"CLIENT_ERROR empty line\r\n")


def test_the_same_line_again(wire: Wire) -> None:
    """What is remembered of the last line is for that line only, and for all of it."""
    wire.ask(b"set again 0 0 2\r\nab\r\n" * 5, b"STORED\r\n" * 5)
    wire.ask(b"set again 0 0 2\nab\nset again 0 0 2\r\nab\r\n", b"STORED\r\n" * 2)
    wire.ask(b"set again 0 0 20\r\nset again 0 0 2\r\nabc\r\n", b"STORED\r\n")
    one = b"VALUE again 0 2\r\nab\r\nEND\r\n"
    wire.ask(b"get again\r\n" * 3 + b"get again\n" * 2 + b"get again\r\n" * 2, one * 7)
    twenty = b"VALUE again 0 20\r\nset again 0 0 2\r\nabc\r\nEND\r\n"
    wire.ask(b"get again\r\nget again/t=0\r\nget again\r\n", twenty + b"END\r\n" * 2)


def test_longest_line(wire: Wire) -> None:
    """A line of exactly 8 KiB is served, also in two pieces."""
    line = b"get " + b"longest/peek " * 629 + b"q2/peek    \n"
    assert len(line) == 8193
    wire.ask(line, b"END\r\n")
    wire.send(line[:-1])
    wire.ask(b"\nversion\r\n", b"END\r\n" + VERSION_LINE)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (b"a/b", b"unknown option /b"),
        (b"..", b"must not contain '.'"),
        (b"a~b", b"must not contain '~'"),
        (b"a.b", b"must not contain '.'"),
        (b"\xff", b"valid UTF-8"),
        (b"a\x00b", b"control characters"),
        (b"+a", b"name on each side"),
        (b"a+", b"name on each side"),
        (b"a+b+c", b"at most one '+'"),
        (b"n" * 201, b"at most 200 bytes"),
        (b"a\xe2\x80\xa8b", b"whitespace"),
    ],
)
def test_a_bad_queue_name_is_refused(
    server: ServerProcess, wire: Wire, name: bytes, reason: bytes
) -> None:
    """A bad name is an error to the client, creates nothing, and touches no path."""
    before = sorted(server.queue_path.parent.rglob("*"))
    requests = [b"get %b", b"get %b/open", b"gets %b", b"monitor %b 1", b"confirm %b 1"]
    requests += [b"delete %b", b"flush %b", b"flush_expired %b", b"stats %b", b"dump_stats %b"]
    for request in requests:
        reply = wire.ask_until(request % name + b"\r\n", b"\r\n")
        assert reply.startswith(b"CLIENT_ERROR ")
        assert reason in reply or name == b"a/b"
    reply = wire.ask_until(b"set %b 0 0 3\r\nabc\r\n" % name, b"\r\n")
    assert reply.startswith(b"CLIENT_ERROR ")
    wire.expect_silence()
    assert sorted(server.queue_path.parent.rglob("*")) == before


@pytest.mark.parametrize("name", ["A-_z", "caf\u00e9", "\u4e2d\u6587", "a+b", "x" * 200, "#!$%&"])
def test_good_names(server: ServerProcess, wire: Wire, name: str) -> None:
    """Any other name is a queue and a file."""
    raw = name.encode()
    wire.ask(b"set %b 0 0 1\r\nx\r\n" % raw, b"STORED\r\n")
    assert (server.queue_path / name).exists()
    wire.ask(b"get %b\r\n" % raw, b"VALUE %b 0 1\r\nx\r\nEND\r\n" % raw)


def test_what_creates_a_queue(wire: Wire) -> None:
    """Adds and reads create a queue; asking about it, ending it or confirming does not."""
    for request in (b"confirm", b"touch_read"):
        wire.ask_until(request + b" ghost 1\r\n", b"\r\n")
    for request in (b"flush", b"delete", b"flush_expired"):
        wire.ask_until(request + b" ghost\r\n", b"\r\n")
    wire.ask(b"get ghost/abort\r\nget ghost/close\r\nstats ghost\r\n", b"END\r\n" * 3)
    assert stats(wire, "ghost") == {}
    for queue, request in ((b"g1", b"get g1"), (b"g2", b"get g2/peek"), (b"g3", b"monitor g3 0")):
        wire.ask(request + b"\r\n", b"END\r\n")
        assert stats(wire, queue.decode())["items"] == "0"


def test_refused_items(wire: Wire) -> None:
    """A full queue says NOT_STORED; the data is dropped, and the next request is understood."""
    wire.ask(b"set full 0 0 1\r\na\r\n", b"STORED\r\n")
    wire.ask(b"set full 0 0 7\r\nget x\r\n\r\n", b"NOT_STORED\r\n")
    wire.ask(b"set full 0 0 1 noreply\r\nb\r\nget full\r\n", b"VALUE full 0 1\r\na\r\nEND\r\n")
    wire.ask(b"get full\r\n", b"END\r\n")


def test_large_refused_item_is_not_gathered(wire: Wire) -> None:
    """An item that is known to be too large is dropped as it comes."""
    wire.ask(b"get small\r\n", b"END\r\n")
    size = 64 << 20
    wire.send(b"set small 0 0 %d\r\n" % size)
    piece = bytes(1 << 20)
    for _ in range(size // len(piece)):
        wire.send(piece)
    wire.ask(b"\r\nversion\r\n", b"NOT_STORED\r\n" + VERSION_LINE)


def test_large_items(server: ServerProcess) -> None:
    """Items of 8 MiB come back whole, also while others are served."""
    content = bytes(range(256)) * (8 << 12)
    with Wire(server) as wire, Wire(server) as other:
        request = b"set large 0 0 %d\r\n%b\r\n" % (len(content), content)
        half = len(request) // 2
        wire.send(request[:half])
        other.ask(b"version\r\n", VERSION_LINE)
        wire.ask(request[half:], b"STORED\r\n")
        wire.ask(request, b"STORED\r\n")
        reply = b"VALUE large 0 %d\r\n%b\r\nEND\r\n" % (len(content), content)
        wire.ask(b"get large\r\nget large/open\r\n", reply + reply)


def test_flush_all(tmp_path: Path) -> None:
    """All queues are emptied; the reply is the original's."""
    with running_server(tmp_path, config=UNSWEPT) as server, Wire(server) as wire:
        wire.ask(b"set a 0 0 1\r\nx\r\nset b 0 -5 1\r\nx\r\n", b"STORED\r\n" * 2)
        wire.ask(b"flush_all_expired\r\n", b"1\r\n")
        wire.ask(b"flush_all\r\n", b"Flushed all queues.\r\n")
        wire.ask(b"get a b\r\n", b"END\r\n")
        wire.ask(b"flush_all noreply\r\nstatus\r\n", b"UP\r\n")


def test_memcached_dialect(tmp_path: Path) -> None:
    """Keys are echoed with options, OK is OK, and unknown commands are survived."""
    config = 'memcache_dialect = "memcached"'
    with running_server(tmp_path, config=config) as server, Wire(server) as wire:
        wire.ask(b"set q 0 0 1\r\na\r\n", b"STORED\r\n")
        wire.ask(b"get q/peek\r\n", b"VALUE q/peek 0 1\r\na\r\nEND\r\n")
        wire.ask(b"gets q/t=1/open\r\n", b"VALUE q/t=1/open 0 1 1\r\na\r\nEND\r\n")
        wire.ask(b"get q/close\r\n", b"END\r\n")
        wire.ask(b"flush_all\r\n", b"OK\r\n")
        for command in (b"incr q 1", b"touch q 1", b"verbosity 1", b"mn", b"mg q v", b"whatever"):
            wire.ask(command + b"\r\n", b"ERROR\r\n")
        for command in (b"add q 0 0 5", b"cas q 0 0 5 7", b"ms q 5"):
            wire.ask(command + b"\r\nget q\r\n", b"ERROR\r\n")
        wire.ask(b"\r\n", b"CLIENT_ERROR empty line\r\n")
        wire.ask(b"version\r\n", VERSION_LINE)


@pytest.mark.parametrize("size", [LARGE_ITEM - 1, LARGE_ITEM, 3 * LARGE_ITEM + 1])
@pytest.mark.parametrize("cut", [20, 1000, -12, -9, -8])
def test_a_large_item_in_two_parts(server: ServerProcess, wire: Wire, size: int, cut: int) -> None:
    """It is stored when all of it is here, and what follows it is answered."""
    queue = b"large%d" % size
    body = bytes(range(256)) * (size // 256 + 1)
    request = b"set %b 0 0 %d\r\n%b\r\nget %b\r\n" % (queue, size, body[:size], queue)
    wire.send(request[:cut])
    with Wire(server) as other:
        other.ask(b"get unused\r\n", b"END\r\n")
    wire.send(request[cut:])
    wire.expect(b"STORED\r\nVALUE %b 0 %d\r\n%b\r\nEND\r\n" % (queue, size, body[:size]))
