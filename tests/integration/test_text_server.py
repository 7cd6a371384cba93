"""The text protocol, over sockets, on a real server."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pymemcache import Client as MemcacheClient

from tests.support.limits import largest_file
from tests.support.patience import PATIENCE
from tests.support.server import ServerProcess, running_server

pytestmark = pytest.mark.compiled

CONFIG = """
max_monitor_transactions = 5
[queues.small]
max_items = 2
[queues.narrow]
max_item_size = 3
[queues."narrow+wide"]
max_item_size = "none"
[aliases.everything]
destination_queues = ["left", "right"]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Return a server that all tests here share; each uses queues of its own."""
    with running_server(tmp_path_factory.mktemp("text"), config=CONFIG) as running:
        yield running


def until_waiting(server: ServerProcess, queue: bytes) -> None:
    """Return when a reader waits for an item of `queue`."""
    with socket.create_connection(("127.0.0.1", server.ports["memcache"])) as connection:
        replies = connection.makefile("rb")
        waiters = b""
        while waiters != b"STAT queue_%b_waiters 1\r\n" % queue:
            connection.sendall(b"stats\r\n")
            waiters = b""
            while (line := replies.readline()) != b"END\r\n":
                if line.startswith(b"STAT queue_%b_waiters " % queue):
                    waiters = line
        replies.close()


class TextClient:
    """A connection, and replies line by line."""

    def __init__(self, server: ServerProcess) -> None:
        self.socket = socket.create_connection(
            ("127.0.0.1", server.ports["text"]), timeout=PATIENCE
        )
        self._lines = self.socket.makefile("rb")

    def ask(self, command: bytes, replies: int = 1) -> list[bytes]:
        """Send a command and return the lines of its reply."""
        self.socket.sendall(command)
        return [self._lines.readline() for _ in range(replies)]

    def close(self) -> None:
        """Hang up."""
        self._lines.close()
        self.socket.close()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[TextClient]:
    """Return a connection."""
    opened = TextClient(server)
    yield opened
    opened.close()


@pytest.fixture
def other(server: ServerProcess) -> Iterator[TextClient]:
    """Return another connection."""
    opened = TextClient(server)
    yield opened
    opened.close()


@pytest.fixture
def memcache(server: ServerProcess) -> Iterator[MemcacheClient]:
    """Return a client of the other protocol."""
    opened = MemcacheClient(("127.0.0.1", server.ports["memcache"]), default_noreply=False)
    yield opened
    opened.close()


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> bytes:
    """Return the name of a queue that only this test uses."""
    name: str = request.node.name
    return name.partition("[")[0].encode()


def test_items_come_in_order_and_a_get_confirms_the_one_before(
    client: TextClient, other: TextClient, queue: bytes
) -> None:
    """What was fetched last is open until the next get."""
    assert client.ask(b"put %b:\na\nb b\n\xff\r\n\n" % queue) == [b"+3\n"]
    assert client.ask(b"get %b\n" % queue) == [b":a\n"]
    assert client.ask(b"GET %b\r\n" % queue) == [b":b b\n"]
    client.close()
    assert other.ask(b"get %b 1000\n" % queue) == [b":b b\n"]
    assert other.ask(b"get %b\n" % queue) == [b":\xff\n"]
    assert other.ask(b"get %b\n" % queue) == [b"*\n"]


def test_peek_leaves_the_item(client: TextClient, queue: bytes) -> None:
    """Any number of times."""
    assert client.ask(b"peek %b\n" % queue) == [b"*\n"]
    client.ask(b"put %b:\na\n\n" % queue)
    assert client.ask(b"peek %b\npeek %b 10\nget %b\n" % (queue, queue, queue), 3) == [b":a\n"] * 3


@pytest.mark.parametrize("verb", [b"get", b"peek"])
def test_a_read_waits_for_an_item(
    client: TextClient, other: TextClient, server: ServerProcess, queue: bytes, verb: bytes
) -> None:
    """What is pipelined behind it waits too."""
    name = queue + verb
    client.socket.sendall(b"%b %b 10000\nversion\n" % (verb, name))
    until_waiting(server, name)
    assert other.ask(b"put %b:\nhello\n\n" % name) == [b"+1\n"]
    first, second = client.ask(b"", 2)
    assert first == b":hello\n"
    assert second.startswith(b":")


def test_a_read_ends_when_its_time_is_up(client: TextClient, queue: bytes) -> None:
    """The answer is that there is nothing."""
    begin = time.monotonic()
    assert client.ask(b"get %b 100\n" % queue) == [b"*\n"]
    assert time.monotonic() - begin >= 0.1


def test_monitor_opens_reads_that_confirm_confirms(
    client: TextClient, other: TextClient, queue: bytes
) -> None:
    """The items come as lines, the end is a star; what is not confirmed goes back, in order."""
    client.ask(b"put %b:\n1\n2\n3\n\n" % queue)
    assert client.ask(b"monitor %b 50\n" % queue, 4) == [b":1\n", b":2\n", b":3\n", b"*\n"]
    assert client.ask(b"confirm %b 4\n" % queue) == [b"-Not that many transactions open.\n"]
    assert client.ask(b"confirm %b 1\n" % queue) == [b"+1\n"]
    assert client.ask(b"confirm %b 0\n" % queue) == [b"+0\n"]
    client.close()
    assert other.ask(b"get %b 1000\n" % queue) == [b":2\n"]
    assert other.ask(b"get %b\n" % queue) == [b":3\n"]


@pytest.mark.parametrize("verb", [b"get", b"peek", b"monitor"])
def test_each_read_confirms_those_before_it(
    client: TextClient, other: TextClient, queue: bytes, verb: bytes
) -> None:
    """All of them, of this queue only, and whether or not there is another item."""
    name = queue + verb
    client.ask(b"put %b:\n1\n2\n3\n\nput else:\nx\n\nget else\n" % name, 3)
    assert client.ask(b"monitor %b 50 2\n" % name, 3) == [b":1\n", b":2\n", b"*\n"]
    assert client.ask(b"%b %b\n" % (verb, name)) == [b":3\n"]
    if verb == b"monitor":
        assert client.ask(b"") == [b"*\n"]
    count = b"confirm %b 1\n" % name
    refused = b"-Not that many transactions open.\n"
    assert client.ask(count) == [refused if verb == b"peek" else b"+1\n"]
    client.ask(b"get %b\n%b %b 1\n" % (name, verb, name), 2)
    client.close()
    assert other.ask(b"get else 10000\nget %b\n" % name, 2) == [b":x\n", b"*\n"]


def test_a_monitor_opens_no_more_than_is_allowed(client: TextClient, queue: bytes) -> None:
    """The next one confirms them."""
    client.ask(b"put %b:\n%b\n" % (queue, b"x\n" * 9))
    assert client.ask(b"monitor %b 50\n" % queue, 6) == [b":x\n"] * 5 + [b"*\n"]
    assert client.ask(b"monitor %b 50\n" % queue, 5) == [b":x\n"] * 4 + [b"*\n"]


def test_an_item_with_a_linefeed_is_an_error_and_stays(
    client: TextClient, memcache: MemcacheClient, server: ServerProcess, queue: bytes
) -> None:
    """It can be neither fetched, nor peeked at, nor monitored; other protocols can."""
    memcache.set(queue.decode(), b"two\nlines")
    for command in (b"get %b\n", b"peek %b\n", b"monitor %b 50\n"):
        (reply,) = client.ask(command % queue)
        assert reply.startswith(b"-the item holds a linefeed")
    client.socket.sendall(b"get %b 5000\n" % (queue + b"2"))
    until_waiting(server, queue + b"2")
    memcache.set(queue.decode() + "2", b"\n")
    assert client.ask(b"")[0].startswith(b"-the item holds a linefeed")
    assert memcache.get(queue.decode()) == b"two\nlines"
    assert memcache.get(queue.decode() + "2") == b"\n"


def test_a_full_queue_takes_what_fits(client: TextClient) -> None:
    """The count says how many, from the first on."""
    assert client.ask(b"put small:\n1\n2\n3\n\n") == [b"+2\n"]
    assert client.ask(b"get small\n") == [b":1\n"]


def test_a_refused_item_does_not_stop_those_behind_it(client: TextClient) -> None:
    """The count says how many were taken, also when it is dropped before it has arrived."""
    assert client.ask(b"put narrow:\nlong\nabc\nlong\ndef\n\n") == [b"+2\n"]
    assert client.ask(b"get narrow+wide\n") == [b"*\n"]
    assert client.ask(b"put narrow:\nlong\nghi\n\n") == [b"+1\n"]
    assert client.ask(b"get narrow+wide\nget narrow+wide\n", 2) == [b":long\n", b":ghi\n"]
    assert client.ask(b"get narrow\n" * 4, 4) == [b":abc\n", b":def\n", b":ghi\n", b"*\n"]


def test_items_expire(client: TextClient, queue: bytes) -> None:
    """The expiry is in milliseconds from now; below 0 it has passed."""
    client.ask(b"put %b -1:\ngone\n\n" % queue)
    client.ask(b"put %b 60000:\nhere\n\n" % queue)
    assert client.ask(b"flush_expired %b\n" % queue) == [b"+0\n"]  # the put dropped it
    assert client.ask(b"get %b\n" % queue) == [b":here\n"]


def test_flush_and_delete(client: TextClient, queue: bytes) -> None:
    """Both succeed whether or not there was anything."""
    for verb in (b"flush", b"delete"):
        client.ask(b"put %b:\nx\n\n" % queue)
        assert client.ask(b"%b %b\n" % (verb, queue)) == [b"+0\n"]
        assert client.ask(b"%b %b\n" % (verb, queue)) == [b"+0\n"]
        assert client.ask(b"get %b\n" % queue) == [b"*\n"]


def test_an_alias_adds_everywhere_and_reads_nothing(client: TextClient) -> None:
    """As the guide says."""
    assert client.ask(b"put everything:\nx\n\n") == [b"+1\n"]
    assert client.ask(b"get everything\n") == [b"*\n"]
    assert client.ask(b"get left\nget right\n", 2) == [b":x\n", b":x\n"]


@pytest.mark.parametrize("verb", [b"get", b"peek", b"monitor"])
def test_a_read_of_an_alias_waits(client: TextClient, verb: bytes) -> None:
    """It is that of a queue that stays empty."""
    begun = time.monotonic()
    assert client.ask(verb + b" everything 200\nversion\n") == [b"*\n"]
    assert time.monotonic() - begun > 0.199


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (b"get a/b\n", b"-"),
        (b"put ../x:\na\n\n", b"-"),
        (b"flush ~x\n", b"-"),
        (b"get\n", b"-usage: get QUEUE [TIMEOUT_MS]\n"),
        (b"who are you\n", b"-unknown command\n"),
        (b"status sideways\n", b"-unknown status; allowed: UP, WRITEAVOID, READONLY, QUIESCENT\n"),
        (b"status down\n", b"-a client cannot set DOWN"),
        (b"get " + b"x" * 10_000 + b"\n", b"-a line has at most 8192 bytes\n"),
    ],
)
def test_an_error_is_a_reply_and_the_connection_lives_on(
    client: TextClient, command: bytes, reply: bytes
) -> None:
    """The next command is served."""
    assert client.ask(b"version\n")[0].startswith(b":")
    assert client.ask(command)[0].startswith(reply)
    assert client.ask(b"version\n")[0].startswith(b":")


def test_a_malformed_put_runs_nothing(client: TextClient, queue: bytes) -> None:
    """Its items are never commands; after the empty line the connection is as before."""
    client.ask(b"put %b:\nkept\n\n" % queue)
    refused = [b"-usage: put QUEUE [EXPIRY_MS]:\n"]
    assert client.ask(b"put:\nflush %b\n\n" % queue) == refused
    assert client.ask(b"put %b\ndelete %b\nshutdown\n\n" % (queue, queue)) == refused
    assert client.ask(b"get %b\n" % queue) == [b":kept\n"]


@pytest.mark.parametrize("start", [b"POST / HTTP/1.1\r\n", b"Host: 127.0.0.1:2222\r\n"])
def test_http_ends_the_connection(server: ServerProcess, start: bytes, other: TextClient) -> None:
    """No line of a request that a browser sends is a command."""
    browser = TextClient(server)
    body = b"Content-Type: text/plain\r\n\r\nput injected:\nx\n\nshutdown\n"
    assert browser.ask(start + body, 2) == [b"-this is no HTTP server\n", b""]
    browser.close()
    assert other.ask(b"peek injected\n") == [b"*\n"]


def test_the_status_refuses_and_the_connection_lives_on(client: TextClient, queue: bytes) -> None:
    """What was opened before can be confirmed in any status."""
    client.ask(b"put %b:\n1\n2\n\n" % queue)
    client.ask(b"get %b\n" % queue)
    try:
        assert client.ask(b"status ReadOnly\nstatus\n", 2) == [b"+0\n", b":READONLY\n"]
        for command in (b"put q:\nx\n\n", b"flush %b\n" % queue, b"delete q\n", b"flush_all\n"):
            assert client.ask(command) == [b"-the server is read-only: it takes no writes\n"]
        assert client.ask(b"get %b\n" % queue) == [b":2\n"]
        client.ask(b"status quiescent\n")
        assert client.ask(b"peek q\n") == [b"-the server is quiescent: it serves no queue\n"]
        assert client.ask(b"confirm %b 1\n" % queue) == [b"+1\n"]
    finally:
        client.ask(b"status up\n")
    assert client.ask(b"get %b\n" % queue) == [b"*\n"]


def test_reload_and_quit(client: TextClient) -> None:
    """The one answers, the other hangs up."""
    assert client.ask(b"reload\n") == [b"+0\n"]
    assert client.ask(b"quit\n") == [b""]


def test_a_large_put_is_pipelined_and_nothing_is_lost(client: TextClient, queue: bytes) -> None:
    """Ten thousand items in, ten thousand out, in order, with every reply due at once."""
    count = 10_000
    items = b"".join(b"item %d\n" % number for number in range(count))
    assert client.ask(b"put %b:\n%b\n" % (queue, items)) == [b"+%d\n" % count]
    replies = client.ask(b"get %b\n" % queue * count, count)
    assert replies == [b":item %d\n" % number for number in range(count)]


def test_a_failed_write_is_an_error_and_nothing_is_half_done(tmp_path: Path) -> None:
    """The journal cannot grow; the items are not in the queue, and once it can, all is well."""
    with running_server(tmp_path, config='[default]\nsync_journal = "0ms"\n') as server:
        client = TextClient(server)
        assert client.ask(b"put q:\n1\n\n") == [b"+1\n"]
        with largest_file(64, server.process.pid):
            refused, version = client.ask(b"put q:\na\n%b\n\nversion\n" % bytes(1000), 2)
            assert b"File too large" in refused
            assert version.startswith(b":")
        assert client.ask(b"put q:\n2\n\n") == [b"+1\n"]
        assert client.ask(b"get q\nget q\nget q\n", 3) == [b":1\n", b":2\n", b"*\n"]
        client.close()


def test_open_reads_survive_a_kill_as_items(tmp_path: Path) -> None:
    """Nothing acknowledged is lost, nothing confirmed comes back; shutdown ends the server."""
    with running_server(tmp_path) as server:
        client = TextClient(server)
        client.ask(b"put q:\n1\n2\n3\n\n")
        client.ask(b"get q\n")
        assert client.ask(b"get q\n") == [b":2\n"]
        server.kill9()
        client.close()
        server.restart()
        client = TextClient(server)
        assert client.ask(b"get q\nget q\nget q\n", 3) == [b":2\n", b":3\n", b"*\n"]
        assert client.ask(b"shutdown\n") == [b""]
        assert server.process.wait(10) == 0
        client.close()
