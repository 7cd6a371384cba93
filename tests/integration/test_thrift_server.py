"""The thrift protocol, over sockets, with thriftpy2's own client, on a real server."""

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import thriftpy2
from thriftpy2 import protocol as thriftpy2_protocol
from thriftpy2 import transport as thriftpy2_transport
from thriftpy2.thrift import TApplicationException, TClient

from kestrelmq.protocol import thrift
from kestrelmq.version import VERSION
from tests.support.limits import largest_file
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server

pytestmark = pytest.mark.compiled

# The library has types for some of this, and none for the rest.
PROTOCOLS: Any = thriftpy2_protocol
TRANSPORTS: Any = thriftpy2_transport
IDL: Any = thriftpy2.load(
    str(Path(thrift.__file__).with_name("kestrel.thrift")), module_name="served_kestrel_thrift"
)
CONFIG = """
max_monitor_transactions = 5
[queues.small]
max_items = 2
[queues.orders]
allowed_client_ids_for_enqueue = ["web"]
allowed_client_ids_for_dequeue = ["worker"]
[aliases.everything]
destination_queues = ["left", "right"]
"""
Connect = Callable[..., Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Return a server that all tests here share; each uses queues of its own."""
    with running_server(tmp_path_factory.mktemp("thrift"), config=CONFIG) as running:
        yield running


def connected(server: ServerProcess, kind: str = "binary") -> Any:
    """Return a client; `kind` is binary, old (without version header) or compact."""
    transport = TRANSPORTS.TFramedTransport(
        TRANSPORTS.TSocket("127.0.0.1", server.ports["thrift"], socket_timeout=PATIENCE * 1000)
    )
    transport.open()
    if kind == "compact":
        return TClient(IDL.Kestrel, PROTOCOLS.TCompactProtocol(transport))
    strict = kind == "binary"
    return TClient(
        IDL.Kestrel,
        PROTOCOLS.TBinaryProtocol(transport, strict_read=strict, strict_write=strict),
    )


@pytest.fixture
def connect(server: ServerProcess) -> Iterator[Connect]:
    """Return what makes clients; they are closed after the test."""
    with ExitStack() as clients:

        def connect(kind: str = "binary") -> Any:
            client = connected(server, kind)
            clients.callback(client.close)
            return client

        yield connect


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """Return the name of a queue that only this test uses."""
    name: str = request.node.name
    return name.translate(str.maketrans("[]", "--"))


def data(items: list[Any]) -> list[bytes]:
    """Return what is in items."""
    return [item.data for item in items]


@pytest.mark.parametrize("kind", ["binary", "old", "compact"])
def test_every_call(connect: Connect, queue: str, kind: str) -> None:
    """Each does what the service says, in every encoding."""
    client = connect(kind)
    assert client.get_version() == VERSION
    assert client.put(queue, [b"1", b"\xff\x00\n", b""]) == 3
    assert client.put(queue_name=queue, items=[b"4"], expiration_msec=60_000) == 1
    info = client.peek(queue)
    assert (info.head_item, info.items, info.bytes, info.open_transactions) == (b"1", 4, 5, 0)
    assert info.journal_bytes > 0
    # Nothing was fetched yet: it is how long the head has waited.
    until(lambda: bool(client.peek(queue).age >= 20))
    (first,) = client.get(queue, 1)
    assert (first.data, first.id) == (b"1", 0)
    opened = client.get(queue, 2, auto_abort_msec=60_000)
    assert data(opened) == [b"\xff\x00\n", b""]
    ids = [item.id for item in opened]
    assert 0 not in ids
    assert client.peek(queue).open_transactions == 2
    assert client.confirm(queue, {ids[0], 12345}) == 1
    assert client.abort(queue, set(ids)) == 1
    assert client.confirm(queue, set(ids)) == 0
    assert data(client.get(queue, 10)) == [b"", b"4"]
    assert client.get(queue, 10) == []
    client.put(queue, [b"x"])
    client.flush_queue(queue)
    assert client.peek(queue).items == 0
    client.put(queue, [b"x"])
    client.delete_queue(queue)
    info = client.peek(queue)
    assert (info.head_item, info.items, info.journal_bytes, info.waiters) == (None, 0, 0, 0)
    client.put(queue, [b"x"])
    client.flush_all_queues()
    assert client.get(queue, 1) == []
    assert client.current_status() == IDL.Status.UP
    client.set_status(IDL.Status.READ_ONLY)
    assert client.current_status() == IDL.Status.READ_ONLY
    client.set_status(IDL.Status.UP)


def test_open_reads_outlive_their_connection(connect: Connect, queue: str) -> None:
    """Another client may confirm and abort them; aborted ones go back in order."""
    client = connect()
    client.put(queue, [b"1", b"2", b"3", b"4"])
    ids = [item.id for item in client.get(queue, 4, auto_abort_msec=60_000)]
    client.close()
    other = connect("compact")
    assert other.get(queue, 1) == []
    assert other.confirm(queue, {ids[1]}) == 1
    assert other.abort(queue, {ids[0], ids[2], ids[3]}) == 3
    assert data(other.get(queue, 4)) == [b"1", b"3", b"4"]


def test_open_reads_abort_themselves(connect: Connect, queue: str) -> None:
    """After their time, also when their client is gone; a later confirm finds nothing."""
    client = connect()
    client.put(queue, [b"1", b"2", b"3"])
    (kept,) = client.get(queue, 1, auto_abort_msec=60_000)
    lost = client.get(queue, 2, auto_abort_msec=100)
    client.close()
    other = connect()
    assert data(other.get(queue, 2, timeout_msec=5000)) == [b"2", b"3"]
    assert other.confirm(queue, {item.id for item in lost}) == 0
    assert other.confirm(queue, {kept.id}) == 1


def test_get_waits_for_as_many_as_are_wanted(connect: Connect, queue: str) -> None:
    """Or until the time is up; items of several puts are one answer."""
    client, other = connect(), connect()
    client.put(queue, [b"1"])
    begin = time.monotonic()
    assert data(client.get(queue, 2, timeout_msec=100)) == [b"1"]
    assert time.monotonic() - begin >= 0.1
    client._send("get", queue_name=queue, max_items=3, timeout_msec=10_000)
    client._send("get_version")
    for item in (b"1", b"2", b"3"):
        until(lambda: bool(other.peek(queue).waiters == 1))
        other.put(queue, [item])
    other.put(queue, [b"4"])
    assert data(client._recv("get")) == [b"1", b"2", b"3"]
    assert client._recv("get_version") == VERSION
    assert data(client.get(queue, 10)) == [b"4"]


def test_items_that_come_back_are_shared_by_those_who_wait(connect: Connect, queue: str) -> None:
    """Each waiting reader gets one before any gets a second, in the order of waiting."""
    owner, first, second = connect(), connect(), connect()
    owner.put(queue, [b"1", b"2", b"3"])
    ids = {item.id for item in owner.get(queue, 3, auto_abort_msec=60_000)}
    for count, client in ((1, first), (2, second)):
        client._send("get", queue_name=queue, max_items=2, timeout_msec=300)
        until(lambda: bool(owner.peek(queue).waiters == count))  # noqa: B023 # used at once
    assert owner.abort(queue, ids) == 3
    assert data(first._recv("get")) == [b"1", b"3"]
    assert data(second._recv("get")) == [b"2"]


@pytest.mark.parametrize("auto_abort", [0, 60_000])
def test_a_client_that_leaves_while_it_waits_takes_nothing(
    connect: Connect, queue: str, auto_abort: int
) -> None:
    """What was read for its answer goes back, in order."""
    client, other = connect(), connect()
    other.put(queue, [b"1", b"2"])
    client._send(
        "get", queue_name=queue, max_items=3, timeout_msec=60_000, auto_abort_msec=auto_abort
    )
    until(lambda: bool(other.peek(queue).waiters == 1))
    client.close()
    until(lambda: bool(other.peek(queue).waiters == 0))
    assert data(other.get(queue, 3)) == [b"1", b"2"]


def test_no_more_reads_are_open_than_one_connection_may_have(connect: Connect, queue: str) -> None:
    """At the limit a get returns what it has; another connection may have as many again."""
    client = connect()
    client.put(queue, [b"x"] * 12)
    assert len(client.get(queue, 3, auto_abort_msec=60_000)) == 3
    opened = client.get(queue, 10, auto_abort_msec=60_000)
    assert len(opened) == 2
    assert client.get(queue, 1, auto_abort_msec=60_000) == []
    # It has what it may have: more time brings no more.
    assert client.get(queue, 1, timeout_msec=60_000, auto_abort_msec=60_000) == []
    assert len(connect().get(queue, 10, auto_abort_msec=60_000)) == 5
    assert client.confirm(queue, {item.id for item in opened}) == 2
    assert len(client.get(queue, 10, auto_abort_msec=60_000)) == 2
    assert client.get(queue, 10) == []


def test_only_who_was_told_an_id_can_end_the_read(connect: Connect, queue: str) -> None:
    """Neither counting nor the journal's numbers lead to it."""
    owner, other = connect(), connect()
    owner.put(queue, [b"x"] * 3)
    opened = [item.id for item in owner.get(queue, 3, auto_abort_msec=60_000)]
    guesses = {*range(1, 1000), *(one + 1 for one in opened)} - {*opened}
    assert other.confirm(queue, guesses) == 0
    assert other.abort(queue, guesses) == 0
    assert other.confirm("small", set(opened)) == 0
    assert other.confirm(queue, set(opened)) == 3


def test_put_stops_at_the_first_item_that_is_refused(connect: Connect) -> None:
    """The answer says how many were accepted."""
    client = connect()
    assert client.put("small", [b"1", b"2", b"3"]) == 2
    assert client.put("small", [b"4"]) == 0
    assert data(client.get("small", 9)) == [b"1", b"2"]


def test_items_expire(connect: Connect, queue: str) -> None:
    """Below 0 they have expired already, 0 is never."""
    client = connect()
    client.put(queue, [b"1"], -1)
    client.put(queue, [b"2"], 0)
    client.put(queue, [b"3"], 60_000)
    assert data(client.get(queue, 9)) == [b"2", b"3"]


def test_nothing_is_got_for_nothing(connect: Connect, queue: str) -> None:
    """0 items or fewer are none, without waiting."""
    client = connect()
    client.put(queue, [b"1"])
    assert client.get(queue, 0, 5000) == []
    assert client.get(queue, -1, 5000, 5000) == []
    assert client.get(queue, 1, -5)[0].data == b"1"


def test_an_alias_adds_everywhere_and_reads_nothing(connect: Connect) -> None:
    """As the guide says."""
    client = connect()
    assert client.put("everything", [b"x"]) == 1
    for auto_abort in (0, 5000):
        begun = time.monotonic()
        assert client.get("everything", 1, 200, auto_abort) == []
        assert time.monotonic() - begun > 0.199
    assert data(client.get("left", 1) + client.get("right", 1)) == [b"x", b"x"]


def test_what_cannot_be_done_is_an_exception_and_the_connection_lives_on(
    connect: Connect, queue: str
) -> None:
    """Bad names, bad arguments, and what the status forbids."""
    client = connect()
    for name in ("", "a/b", "../x", "a.b", "~x"):
        for call in (client.peek, client.delete_queue, client.flush_queue):
            with pytest.raises(TApplicationException):
                call(name)
        with pytest.raises(TApplicationException):
            client.put(name, [b"x"])
        with pytest.raises(TApplicationException):
            client.get(name, 1)
    with pytest.raises(TApplicationException, match="items is missing"):
        client.put(queue)
    with pytest.raises(TApplicationException, match="NOT_CONFIGURED cannot be set"):
        client.set_status(IDL.Status.NOT_CONFIGURED)
    client.put(queue, [b"x"])
    (opened,) = client.get(queue, 1, auto_abort_msec=60_000)
    client.set_status(IDL.Status.QUIESCENT)
    try:
        for refused in (
            lambda: client.put(queue, [b"x"]),
            lambda: client.get(queue, 1),
            lambda: client.peek(queue),
            lambda: client.flush_queue(queue),
            client.flush_all_queues,
            lambda: client.delete_queue(queue),
        ):
            with pytest.raises(TApplicationException, match="the server is quiescent"):
                refused()
        assert client.confirm(queue, {opened.id}) == 1
    finally:
        client.set_status(IDL.Status.UP)


def test_a_deleted_queue_takes_its_open_reads_along(connect: Connect, queue: str) -> None:
    """Their ids mean nothing to a new queue of that name, though it counts from the start."""
    client = connect()
    client.put(queue, [b"old"])
    (old,) = client.get(queue, 1, auto_abort_msec=60_000)
    client.delete_queue(queue)
    client.put(queue, [b"new"])
    assert client.confirm(queue, {old.id}) == 0
    (new,) = client.get(queue, 1, auto_abort_msec=60_000)
    assert (new.data, client.abort(queue, {new.id})) == (b"new", 1)


def test_finagles_probe_is_answered_and_the_connection_lives_on(server: ServerProcess) -> None:
    """Its client takes the exception for a no, and goes on in plain thrift."""
    name = b"__can__finagle__trace__v3__"
    probe = struct.pack(">HHi", 0x8001, 1, len(name)) + name + b"\x00\x00\x00\x00\x00"
    version = struct.pack(">HHi", 0x8001, 1, 11) + b"get_version" + b"\x00\x00\x00\x07\x00"
    with socket.create_connection(("127.0.0.1", server.ports["thrift"]), timeout=PATIENCE) as raw:
        for call, answered in ((probe, 3), (version, 2)):
            raw.sendall(struct.pack(">i", len(call)) + call)
            answer = _frame(raw)
            assert answer[:4] == struct.pack(">HH", 0x8001, answered)


def test_the_client_id_of_a_finagle_client_is_what_a_queue_allows(server: ServerProcess) -> None:
    """The header may come before each message, and answers have none."""
    put = struct.pack(">HHi3sibhi6sbhbii1sb", 0x8001, 1, 3, b"put", 1, 11, 1, 6, b"orders",
                      15, 2, 11, 1, 1, b"x", 0)  # fmt: skip
    read = struct.pack(">HHi3sibhi6sbhib", 0x8001, 1, 3, b"get", 1, 11, 1, 6, b"orders", 8, 2, 1, 0)
    ids = [struct.pack(">bhqbhbhi", 10, 1, 7, 12, 6, 11, 1, len(name)) + name + b"\0\0"
           for name in (b"web", b"worker")]  # fmt: skip
    calls = ((b"", put), (ids[1], put), (ids[0], put), (b"", read), (ids[0], read), (ids[1], read))
    with socket.create_connection(("127.0.0.1", server.ports["thrift"]), timeout=PATIENCE) as raw:
        for number, (header, call) in enumerate(calls, 1):
            raw.sendall(struct.pack(">i", len(header + call)) + header + call)
            answer = _frame(raw)
            assert answer[:4] == struct.pack(">HH", 0x8001, 2 if number % 3 == 0 else 3)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">i", 64 * 1024 * 1024 + 1),
        struct.pack(">i", -1),
        struct.pack(">i", 4) + b"\xff" * 4,
    ],
)
def test_garbage_ends_the_connection_and_harms_no_other(
    server: ServerProcess, connect: Connect, garbage: bytes
) -> None:
    """The server goes on."""
    client = connect()
    with socket.create_connection(("127.0.0.1", server.ports["thrift"]), timeout=PATIENCE) as raw:
        raw.sendall(garbage)
        assert raw.recv(1) == b""
    assert client.get_version() == VERSION


def test_a_frame_that_lies_about_its_content_is_answered(
    server: ServerProcess, connect: Connect
) -> None:
    """Two thousand million declared items cost nothing."""
    lie = struct.pack(">HHi", 0x8001, 1, 3) + b"put" + struct.pack(">i", 1)
    lie += struct.pack(">bhbi", 15, 2, 11, 2**31 - 1)
    with socket.create_connection(("127.0.0.1", server.ports["thrift"]), timeout=PATIENCE) as raw:
        raw.sendall(struct.pack(">i", len(lie)) + lie)
        assert b"more than 100000 values" in _frame(raw)
    assert connect().get_version() == VERSION


def _frame(raw: socket.socket) -> bytes:
    (length,) = struct.unpack(">i", raw.recv(4, socket.MSG_WAITALL))
    return raw.recv(int(length), socket.MSG_WAITALL)


def test_large_items_and_pipelined_requests(connect: Connect, queue: str) -> None:
    """Answers far larger than the buffers arrive whole and in order."""
    client = connect()
    item = bytes(range(256)) * 4096
    for number in range(20):
        client._send("put", queue_name=queue, items=[item + bytes([number])])
    assert [client._recv("put") for _ in range(20)] == [1] * 20
    for _ in range(20):
        client._send("get", queue_name=queue, max_items=1)
    answers = [client._recv("get") for _ in range(20)]
    assert [data(answer) for answer in answers] == [[item + bytes([n])] for n in range(20)]


def test_an_answer_has_a_bounded_size(connect: Connect, queue: str) -> None:
    """It ends after 16 MiB; the rest stays in the queue."""
    client = connect()
    for _ in range(10):
        client.put(queue, [bytes(2 * 1024 * 1024)])
    assert len(client.get(queue, 100)) == 8
    assert len(client.get(queue, 100, 60_000, 0) if client.peek(queue).items > 2 else [1, 1]) == 2


def test_a_failed_write_is_an_exception_and_nothing_is_half_done(tmp_path: Path) -> None:
    """The journal cannot grow; the item is not in the queue, and once it can, all is well."""
    with running_server(tmp_path) as server:
        client = connected(server)
        client.put("q", [b"1"])
        with largest_file(64, server.process.pid):
            with pytest.raises(TApplicationException, match="File too large"):
                client.put("q", [bytes(1000)])
            assert client.peek("q").items == 1
        assert client.put("q", [b"2"]) == 1
        assert data(client.get("q", 9)) == [b"1", b"2"]
        client.close()
