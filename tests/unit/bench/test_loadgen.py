"""The load generator counts replies exactly, however they arrive, in every protocol."""

from collections import Counter

import pytest

from bench.load.latency import Latency, histogram, summary
from bench.load.replies import BatchReplies, ReplyError, WindowReplies
from bench.load.wires import WIRES
from bench.load.workload import Batch, Operation, Protocol, Workload, item_of
from kestrelmq.protocol import thrift
from kestrelmq.protocol.thrift import ThriftParser
from kestrelmq.protocol.thrift_service import Answer, Get, Item, Put, Request

SIZE = 10
DEPTH = 3
CASES = [(protocol, operation) for protocol in Protocol for operation in Operation]
STORED = b"MSG _INBOX.bench.7 1 23\r\n" + b'{"stream":"q", "seq":8}' + b"\r\n"
THRIFT_PUT = b"\x80\x01\0\x02\0\0\0\x03put\0\0\0\0\x08\0\0\0\0\0\x01\0"
THRIFT_GET = b"\x80\x01\0\x02\0\0\0\x03get\0\0\0\0\x0f\0\0\x0c"
THRIFT_ITEM = b"\x0b\0\x01\0\0\0\x0a0123456789\x0a\0\x02" + bytes(8) + b"\0"


def framed(message: bytes) -> bytes:
    """A thrift message after its length."""
    return len(message).to_bytes(4) + message


GOOD = {
    (Protocol.MEMCACHE, Operation.SET): b"STORED\r\n",
    (Protocol.MEMCACHE, Operation.GET): b"VALUE q 0 10\r\n0123456789\r\nEND\r\n",
    (Protocol.TEXT, Operation.SET): b"+1\n",
    (Protocol.TEXT, Operation.GET): b":0123456789\n",
    (Protocol.THRIFT, Operation.SET): framed(THRIFT_PUT),
    (Protocol.THRIFT, Operation.GET): framed(THRIFT_GET + b"\0\0\0\x01" + THRIFT_ITEM + b"\0"),
    (Protocol.RESP, Operation.SET): b":12\r\n",
    (Protocol.RESP, Operation.GET): b"$10\r\n0123456789\r\n",
    (Protocol.BEANSTALK, Operation.SET): b"INSERTED 4711\r\n",
    (Protocol.BEANSTALK, Operation.GET): b"RESERVED 4711 10\r\n0123456789\r\n",
    (Protocol.NATS, Operation.SET): STORED,
    (Protocol.NATS, Operation.GET): b"MSG q 1 $JS.ACK.q.pull.1.8.8.9.0 10\r\n0123456789\r\n",
}
MISS = {
    Protocol.MEMCACHE: b"END\r\n",
    Protocol.TEXT: b"*\n",
    Protocol.THRIFT: framed(THRIFT_GET + b"\0\0\0\0\0"),
    Protocol.RESP: b"$-1\r\n",
    Protocol.BEANSTALK: b"TIMED_OUT\r\n",
}
"""NATS has no miss of one item: see the test of a pull that ends early."""


def work_of(protocol: Protocol, operation: Operation, depth: int = DEPTH) -> Workload:
    """A batch of one connection."""
    return WIRES[protocol].batch(Batch(operation, b"q", item_of(SIZE), depth, b"7"))


def replies_to(protocol: Protocol, operation: Operation) -> BatchReplies:
    """The replies to one connection's batches of three."""
    work = work_of(protocol, operation)
    return BatchReplies(work.whole, work.parser, DEPTH)


def feed_all(replies: BatchReplies, *parts: bytes) -> None:
    """Feeds the parts that are not empty."""
    for part in filter(None, parts):
        replies.feed(part)


def test_requests_are_the_protocols_own() -> None:
    """A batch is the request as many times as it is deep."""
    requests = {case: work_of(*case, depth=2).request for case in CASES}
    thrift = {operation: requests.pop((Protocol.THRIFT, operation)) for operation in Operation}
    assert requests == {
        (Protocol.MEMCACHE, Operation.SET): b"set q 0 0 10\r\n0123456789\r\n" * 2,
        (Protocol.MEMCACHE, Operation.GET): b"get q\r\n" * 2,
        (Protocol.TEXT, Operation.SET): b"put q:\n0123456789\n\n" * 2,
        (Protocol.TEXT, Operation.GET): b"get q\n" * 2,
        (Protocol.RESP, Operation.SET): (
            b"*3\r\n$5\r\nLPUSH\r\n$1\r\nq\r\n$10\r\n0123456789\r\n" * 2
        ),
        (Protocol.RESP, Operation.GET): b"*2\r\n$4\r\nRPOP\r\n$1\r\nq\r\n" * 2,
        (Protocol.BEANSTALK, Operation.SET): b"put 0 0 60 10\r\n0123456789\r\n" * 2,
        (Protocol.BEANSTALK, Operation.GET): b"reserve-with-timeout 0\r\n" * 2,
        (Protocol.NATS, Operation.SET): b"PUB q _INBOX.bench.7 10\r\n0123456789\r\n" * 2,
        (Protocol.NATS, Operation.GET): (
            b"PUB $JS.API.CONSUMER.MSG.NEXT.q.pull _INBOX.bench.7 26\r\n"
            b'{"batch":2,"no_wait":true}\r\n'
        ),
    }
    half = {operation: request[: len(request) // 2] for operation, request in thrift.items()}
    assert {operation: request * 2 for operation, request in half.items()} == thrift


def test_thrift_frames_are_what_the_server_reads_and_writes() -> None:
    """The server's own codec understands the requests, and would answer these bytes."""
    calls: list[tuple[Operation, Request, Answer]] = [
        (Operation.SET, Put("q", (item_of(SIZE),), 0), 1),
        (Operation.GET, Get("q", 1, 0, 0), [Item(item_of(SIZE), 0)]),
    ]
    for operation, request, answer in calls:
        work = work_of(Protocol.THRIFT, operation, depth=1)
        parser = ThriftParser()
        parser.receive(work.request)
        frame = parser.next_frame()
        assert frame is not None
        head, decoded = thrift.decode(frame)
        assert decoded == request
        assert b"".join(thrift.encode(head, answer)) == work.whole


@pytest.mark.parametrize(("protocol", "operation"), CASES)
def test_a_batch_split_anywhere_is_complete_at_its_last_byte(
    protocol: Protocol, operation: Operation
) -> None:
    """Two batches in a row, each cut in two at every byte, complete once each and not before."""
    batch = GOOD[protocol, operation] * DEPTH
    for cut in range(1, len(batch)):
        replies = replies_to(protocol, operation)
        seen = [replies.feed(part) for part in (batch[:cut], batch[cut:]) * 2]
        assert seen == [False, True, False, True]
        assert replies.misses == 0


@pytest.mark.parametrize(("protocol", "operation"), CASES)
def test_a_batch_may_come_byte_by_byte(protocol: Protocol, operation: Operation) -> None:
    """Only the last byte completes the batch."""
    batch = GOOD[protocol, operation] * DEPTH
    replies = replies_to(protocol, operation)
    seen = [replies.feed(batch[at : at + 1]) for at in range(len(batch))]
    assert seen == [False] * (len(batch) - 1) + [True]


@pytest.mark.parametrize("protocol", list(MISS))
@pytest.mark.parametrize("place", range(DEPTH))
def test_a_miss_is_counted_wherever_it_stands(protocol: Protocol, place: int) -> None:
    """One miss among hits, cut at every byte, is one miss; the next batch is whole again."""
    parts = [GOOD[protocol, Operation.GET]] * DEPTH
    parts[place] = MISS[protocol]
    batch = b"".join(parts)
    for cut in range(1, len(batch)):
        replies = replies_to(protocol, Operation.GET)
        assert [replies.feed(batch[:cut]), replies.feed(batch[cut:])] == [False, True]
        assert replies.misses == 1
        assert replies.fast == (work_of(protocol, Operation.GET).whole or None)


@pytest.mark.parametrize(
    ("protocol", "operation", "answer"),
    [
        (Protocol.MEMCACHE, Operation.SET, b"NOT_STORED\r\n"),
        (Protocol.MEMCACHE, Operation.SET, b"SERVER_ERROR disk full\r\n"),
        (Protocol.MEMCACHE, Operation.GET, b"ERROR\r\n"),
        (Protocol.MEMCACHE, Operation.GET, b"VALUE q 0 9\r\n012345678\r\nEND\r\n"),
        (Protocol.MEMCACHE, Operation.GET, b"VALUE q 0 10\r\n0123456780\r\nEND\r\n"),
        (Protocol.TEXT, Operation.SET, b"+0\n"),
        (Protocol.TEXT, Operation.GET, b":012345678\n"),
        (Protocol.THRIFT, Operation.SET, b"\0\0\0\x04abcd"),
        (Protocol.THRIFT, Operation.GET, b"\x7f\0\0\0"),
        (Protocol.BEANSTALK, Operation.SET, b"JOB_TOO_BIG\r\n"),
        (Protocol.BEANSTALK, Operation.SET, b"BURIED 1\r\n"),
        (Protocol.BEANSTALK, Operation.GET, b"RESERVED 1 9\r\n012345678\r\n"),
        (Protocol.NATS, Operation.SET, b"-ERR 'Maximum Payload Violation'\r\n"),
        (Protocol.NATS, Operation.SET, b'MSG i 1 23\r\n{"error":{"code":503}} \r\n'),
        (Protocol.NATS, Operation.GET, b"MSG q 1 $JS.ACK.1 9\r\n012345678\r\n"),
        (Protocol.NATS, Operation.GET, b"HMSG i 1 28 28\r\nNATS/1.0 409 Not Allowed\r\n\r\n\r\n"),
        (Protocol.RESP, Operation.SET, b"-OOM command not allowed\r\n"),
        (Protocol.RESP, Operation.SET, b":\r\n"),
        (Protocol.RESP, Operation.GET, b"-WRONGTYPE\r\n"),
        (Protocol.RESP, Operation.GET, b"$9\r\n012345678\r\n"),
    ],
)
def test_an_error_or_a_wrong_item_ends_the_run(
    protocol: Protocol, operation: Operation, answer: bytes
) -> None:
    """What is neither hit nor miss raises: whole, cut at any byte, or after a good reply."""
    for before in (b"", GOOD[protocol, operation]):
        stream = before + answer
        for cut in range(1, len(stream) + 1):
            replies = replies_to(protocol, operation)
            with pytest.raises(ReplyError):
                feed_all(replies, stream[:cut], stream[cut:])


@pytest.mark.parametrize(("protocol", "operation"), CASES)
def test_more_bytes_than_replies_end_the_run(protocol: Protocol, operation: Operation) -> None:
    """A reply too many means that the replies can't be told apart any more."""
    replies = replies_to(protocol, operation)
    with pytest.raises(ReplyError, match="more bytes than replies"):
        replies.feed(GOOD[protocol, operation] * (DEPTH + 1))


def test_a_job_is_deleted_by_the_id_that_its_reserve_answered() -> None:
    """What was reserved is deleted once, and a miss deletes nothing."""
    work = work_of(Protocol.BEANSTALK, Operation.GET)
    replies = BatchReplies(work.whole, work.parser, DEPTH)
    assert work.follow is not None
    stream = b"".join(b"RESERVED %d 10\r\n0123456789\r\n" % number for number in (8, 9))
    assert [replies.feed(part) for part in (stream, b"TIMED_OUT\r\n")] == [False, True]
    assert work.follow() == (b"delete 8\r\ndelete 9\r\n", b"DELETED\r\n" * 2)
    assert work.follow() == (b"", b"")


def test_a_message_is_acknowledged_where_its_stream_says() -> None:
    """Each message of a pull is acknowledged once, and no answer is awaited."""
    work = work_of(Protocol.NATS, Operation.GET)
    replies = BatchReplies(work.whole, work.parser, DEPTH)
    assert work.follow is not None
    message = b"MSG q 1 $JS.ACK.%d 10\r\n0123456789\r\n"
    assert replies.feed(b"".join(message % number for number in range(3)))
    acknowledged = b"".join(b"PUB $JS.ACK.%d 0\r\n\r\n" % number for number in range(3))
    assert work.follow() == (acknowledged, b"")
    assert work.follow() == (b"", b"")


@pytest.mark.parametrize("status", [b"404 No Messages", b"408 Request Timeout"])
@pytest.mark.parametrize("messages", range(DEPTH))
def test_a_pull_that_ends_early_misses_the_rest(status: bytes, messages: int) -> None:
    """A status after some messages, cut at every byte, ends the batch; the next one is whole."""
    head = b"NATS/1.0 %b\r\n\r\n" % status
    ending = b"HMSG i 1 %d %d\r\n%b\r\n" % (len(head), len(head), head)
    batch = GOOD[Protocol.NATS, Operation.GET] * messages + ending
    for cut in range(1, len(batch)):
        work = work_of(Protocol.NATS, Operation.GET)
        replies = BatchReplies(work.whole, work.parser, DEPTH)
        assert [replies.feed(part) for part in (batch[:cut], batch[cut:])] == [False, True]
        assert replies.misses == DEPTH - messages
        assert work.follow is not None
        work.follow()
        assert replies.feed(GOOD[Protocol.NATS, Operation.GET] * DEPTH)


@pytest.mark.parametrize("operation", list(Operation))
def test_a_question_of_the_server_is_no_reply(operation: Operation) -> None:
    """A PING may stand before, between and after the messages of a batch."""
    message = GOOD[Protocol.NATS, operation]
    replies = replies_to(Protocol.NATS, operation)
    assert replies.feed(b"PING\r\n" + message + b"PING\r\n" + message * 2 + b"PING\r\n")
    assert replies.misses == 0


def test_a_set_with_copies_is_complete_with_the_last_of_them() -> None:
    """Redis pushes to each list, and one set has as many replies as there are lists."""
    wanted = Batch(Operation.SET, b"q", item_of(SIZE), 2, copies=2)
    work = WIRES[Protocol.RESP].batch(wanted)
    assert work.request.count(b"LPUSH") == 6
    replies = BatchReplies(work.whole, work.parser, work.depth)
    assert [replies.feed(b":1\r\n") for _ in range(6)] == [False] * 5 + [True]


def window_of(protocol: Protocol, operation: Operation) -> WindowReplies:
    """The replies of a sliding window of three."""
    work = work_of(protocol, operation, 1)
    return WindowReplies(work.whole, work.parser, DEPTH)


WINDOWS = [case for case in CASES if case[0] not in {Protocol.BEANSTALK, Protocol.NATS}]
"""What needs no second request."""


@pytest.mark.parametrize(("protocol", "operation"), WINDOWS)
def test_a_window_counts_each_reply_at_its_last_byte(
    protocol: Protocol, operation: Operation
) -> None:
    """However the bytes are cut, for as many replies as ever come."""
    reply = GOOD[protocol, operation]
    for size in range(1, 2 * len(reply) + 2):
        window, received, counted = window_of(protocol, operation), 0, 0
        stream = reply * 5
        while received < len(stream):
            counted += window.feed(stream[received : received + size])
            received = min(received + size, len(stream))
            assert counted == received // len(reply)
        assert window.misses == 0


@pytest.mark.parametrize("protocol", [Protocol.MEMCACHE, Protocol.TEXT, Protocol.RESP])
def test_a_window_counts_misses_and_goes_on(protocol: Protocol) -> None:
    """A miss stands for a reply; anything else ends the run, as does a closed connection."""
    window = window_of(protocol, Operation.GET)
    hit, miss = GOOD[protocol, Operation.GET], MISS[protocol]
    assert window.feed(hit + miss + hit + miss[:1]) == 3
    assert window.feed(miss[1:] + hit + hit) == 3
    assert window.misses == 2
    with pytest.raises(ReplyError):
        window.feed(b"SERVER_ERROR\r\n" * 2)
    with pytest.raises(ReplyError, match="closed"):
        window_of(protocol, Operation.GET).feed(b"")


def test_a_closed_connection_ends_the_run() -> None:
    """An empty read is no reply."""
    replies = replies_to(Protocol.MEMCACHE, Operation.SET)
    with pytest.raises(ReplyError, match="closed the connection"):
        replies.feed(b"")


def test_a_reply_without_a_line_end_is_not_read_forever() -> None:
    """The line buffer is bounded."""
    replies = replies_to(Protocol.MEMCACHE, Operation.SET)
    with pytest.raises(ReplyError, match="no line end"):
        replies.feed(b"x" * 10_000)


def test_percentiles_are_the_least_value_that_covers_them() -> None:
    """Of 1 to 100 microseconds the median is 50, and 99 are at most 99."""
    assert summary(Counter(range(1, 101))) == Latency(p50=50, p99=99, max=100)
    assert summary(histogram([0.0000025, 0.0000021, 0.001])) == Latency(p50=2, p99=1000, max=1000)
