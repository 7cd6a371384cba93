"""The load generator counts replies exactly, however they arrive."""

from collections import Counter

import pytest

from bench.latency import Latency, histogram, summary
from bench.replies import BatchReplies, ReplyError
from bench.workload import Operation, Protocol, build

SIZE = 10
DEPTH = 3
CASES = [(protocol, operation) for protocol in Protocol for operation in Operation]
GOOD = {
    (Protocol.MEMCACHE, Operation.SET): b"STORED\r\n",
    (Protocol.MEMCACHE, Operation.GET): b"VALUE q 0 10\r\n0123456789\r\nEND\r\n",
    (Protocol.RESP, Operation.SET): b":12\r\n",
    (Protocol.RESP, Operation.GET): b"$10\r\n0123456789\r\n",
}
MISS = {Protocol.MEMCACHE: b"END\r\n", Protocol.RESP: b"$-1\r\n"}


def replies_to(protocol: Protocol, operation: Operation) -> BatchReplies:
    """The replies to one connection's batches of three."""
    work = build(protocol, operation, "q", SIZE, DEPTH)
    return BatchReplies(work.whole, work.parser, DEPTH)


def feed_all(replies: BatchReplies, *parts: bytes) -> None:
    """Feeds the parts that are not empty."""
    for part in filter(None, parts):
        replies.feed(part)


def test_requests_are_the_protocols_own() -> None:
    """A batch is the request as many times as it is deep."""
    requests = {case: build(*case, "q", SIZE, 2).request for case in CASES}
    assert requests == {
        (Protocol.MEMCACHE, Operation.SET): b"set q 0 0 10\r\n0123456789\r\n" * 2,
        (Protocol.MEMCACHE, Operation.GET): b"get q\r\n" * 2,
        (Protocol.RESP, Operation.SET): (
            b"*3\r\n$5\r\nLPUSH\r\n$1\r\nq\r\n$10\r\n0123456789\r\n" * 2
        ),
        (Protocol.RESP, Operation.GET): b"*2\r\n$4\r\nRPOP\r\n$1\r\nq\r\n" * 2,
    }


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


@pytest.mark.parametrize("protocol", list(Protocol))
@pytest.mark.parametrize("place", range(DEPTH))
def test_a_miss_is_counted_wherever_it_stands(protocol: Protocol, place: int) -> None:
    """One miss among hits, cut at every byte, is one miss; the next batch is whole again."""
    parts = [GOOD[protocol, Operation.GET]] * DEPTH
    hits = b"".join(parts)
    parts[place] = MISS[protocol]
    batch = b"".join(parts)
    for cut in range(1, len(batch)):
        replies = replies_to(protocol, Operation.GET)
        assert [replies.feed(batch[:cut]), replies.feed(batch[cut:])] == [False, True]
        assert replies.misses == 1
        assert replies.fast == hits


@pytest.mark.parametrize(
    ("protocol", "operation", "answer"),
    [
        (Protocol.MEMCACHE, Operation.SET, b"NOT_STORED\r\n"),
        (Protocol.MEMCACHE, Operation.SET, b"SERVER_ERROR disk full\r\n"),
        (Protocol.MEMCACHE, Operation.GET, b"ERROR\r\n"),
        (Protocol.MEMCACHE, Operation.GET, b"VALUE q 0 9\r\n012345678\r\nEND\r\n"),
        (Protocol.MEMCACHE, Operation.GET, b"VALUE q 0 10\r\n0123456780\r\nEND\r\n"),
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
