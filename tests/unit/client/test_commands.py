"""How the client reads the replies to its commands: played bytes, no server."""

from typing import Any

import pytest

from kestrelmq.client import BrowsedItem, BrowsedPage, DeadLetter, Moved, commands
from kestrelmq.errors import InvalidRequest, ProtocolError, ServerRefused
from kestrelmq.protocol.memcache_client import ReplyParser

A, B = b"VALUE q 0 1\r\na\r\n", b"VALUE q 0 1\r\nb\r\n"
END, VERSION = b"END\r\n", b"VERSION 1.0\r\n"


def result(command: commands.Command[Any], data: bytes) -> Any:
    """Return the result of a command that is answered with `data`, all of which belongs to it."""
    reading = command.reading()
    next(reading)
    replies = ReplyParser().feed(data)
    try:
        for reply in replies[:-1]:
            reading.send(reply)
    except StopIteration:
        raise AssertionError("it ended before its reply did") from None
    try:
        reading.send(replies[-1])
    except StopIteration as done:
        return done.value
    raise AssertionError("it wants more")


@pytest.mark.parametrize(
    ("data", "items"),
    [
        (END + VERSION, []),
        (A + END + END + VERSION, [b"a"]),
        (A + END + VERSION, [b"a"]),
        (A + END + B + END + END + VERSION, [b"a", b"b"]),
        (A + B + END + VERSION, [b"a", b"b"]),
    ],
)
def test_both_forms_of_a_monitor_are_read(data: bytes, items: list[bytes]) -> None:
    """Servers end each item with END and the whole with one more, or only the whole."""
    assert result(commands.monitor(b"q", 1, 2), data) == items


@pytest.mark.parametrize(
    "data", [VERSION, A + VERSION, A + B + A + END + VERSION, A + END + b"STORED\r\n"]
)
def test_what_is_no_reply_to_a_monitor_is_an_error(data: bytes) -> None:
    """Nothing at all, no END, more items than were asked for, or a reply to something else."""
    with pytest.raises(ProtocolError):
        result(commands.monitor(b"q", 1, 2), data)


@pytest.mark.parametrize(
    ("data", "there"),
    [
        (b"", False),
        (b"STAT items 0\r\nSTAT bytes 0\r\n", True),
        (b"STAT failure damaged\r\n", True),
        (b"STAT curr_items 0\r\nSTAT bytes 0\r\nSTAT queue_creates 1\r\n", False),
        (b"STAT queue_q_items 0\r\nSTAT queue_q_logsize 0\r\n", True),
        (b"STAT queue_q_failure damaged\r\n", True),
        (b"STAT queue_q_open_transactions 0\r\n", True),
        (b"STAT queue_q_open_logsize 0\r\nSTAT queue_q_open_transactions 0\r\n", False),
    ],
)
def test_whether_there_is_a_queue(data: bytes, *, there: bool) -> None:
    """A server answers `stats q` with what it knows of the queue, or of everything."""
    assert result(commands.exists(b"q"), data + END) is there


def test_one_queue_is_asked_for_by_its_name() -> None:
    """The server then has nothing to say of the others, of which there may be very many."""
    assert (commands.stats().request, commands.stats(b"q").request) == (
        b"stats\r\n",
        b"stats q\r\n",
    )


def test_commands_may_be_sent_together() -> None:
    """Their results come in order; one that is refused fails them all."""
    both = commands.together([commands.exists(b"q"), commands.exists(b"r")])

    assert both.request == b"stats q\r\nstats r\r\n"
    assert result(both, b"STAT items 0\r\n" + END + END) == [True, False]
    with pytest.raises(ServerRefused):
        result(both, b"SERVER_ERROR loading\r\n")


@pytest.mark.parametrize("limit", ["MAX_STATS", "MAX_STATS_BYTES"])
def test_a_flood_of_statistics_is_an_error(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory does not grow with what a server sends."""
    line = b"STAT a 12345678\r\n"
    most = 100 if limit == "MAX_STATS" else 900
    monkeypatch.setattr(commands, limit, most)
    assert len(result(commands.stats(), line * 100 + END)) == 100
    with pytest.raises(ProtocolError, match="statistics"):
        result(commands.stats(), line * 101 + END)


READS: list[commands.Command[Any]] = [
    commands.get(b"q"),
    commands.peek(b"q", 1),
    commands.open_read(b"q", 1, close=True),
    commands.close_read(b"q"),
    commands.abort_read(b"q"),
]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("key", [b"q", b"q/t=1000/close/open"])
def test_an_item_is_that_of_the_queue(read: commands.Command[Any], key: bytes) -> None:
    """Servers name the queue, or the whole key that was asked for."""
    assert result(read, b"VALUE %b 0 1\r\na\r\nEND\r\n" % key) == b"a"


@pytest.mark.parametrize("read", [*READS, commands.monitor(b"q", 1, None)])
@pytest.mark.parametrize("key", [b"other", b"q2", b"", b"/q"])
def test_an_item_of_another_queue_is_an_error(read: commands.Command[Any], key: bytes) -> None:
    """A reply that was meant for another request must not be taken for this one's."""
    with pytest.raises(ProtocolError, match="does not answer the request"):
        result(read, b"VALUE %b 0 1\r\na\r\nEND\r\nVERSION 1\r\n" % key)


@pytest.mark.parametrize(("data", "there"), [(END, True), (b"NOT_FOUND\r\n", False)])
def test_whether_a_queue_was_paused(data: bytes, *, there: bool) -> None:
    """A server that does not have it says so."""
    pause, resume = commands.pause(b"q", "reads"), commands.resume(b"q", "all")
    assert (pause.request, resume.request) == (b"pause q reads\r\n", b"resume q all\r\n")
    assert [result(command, data) for command in (pause, resume)] == [there, there]


def test_a_queue_is_declared_with_its_settings() -> None:
    """As words after its name."""
    command = commands.declare(b"q", ["fanout_only", "max_items=5"])
    assert command.request == b"declare q fanout_only max_items=5\r\n"
    assert result(command, END) == "END"


def test_browsed_items_are_read() -> None:
    """With their times, whatever is in them; and where to go on."""
    command = commands.browse(b"q", 5, 2, b"a b/", is_pattern=False)
    assert command.request == b"browse q 5 2 text=a%20b%2F\r\n"
    data = b"ITEM 5 1000 0 4\r\nEND\n\r\nITEM 9 1001 2000 0\r\n\r\nNEXT 10\r\n" + END
    items = [BrowsedItem(5, b"END\n", 1000, 0), BrowsedItem(9, b"", 1001, 2000)]
    assert result(command, data) == BrowsedPage(items, 10)
    words = b"from=a died=7 deliveries=2 why=50%25%20of%20it"
    letter = DeadLetter("a", 7, "50% of it", 2)
    data = b"ITEM 5 1000 0 %b 1\r\nx\r\n" % words + END
    assert result(command, data) == BrowsedPage([BrowsedItem(5, b"x", 1000, 0, letter)], None)
    assert result(command, END) == BrowsedPage([], None)
    assert result(command, b"NOT_FOUND\r\n") is None


@pytest.mark.parametrize(
    "data",
    [
        b"ITEM 5 1000 1\r\nx\r\n",
        b"ITEM 5 x 0 1\r\nx\r\n",
        b"ITEM 5 1000 0 from=a died=1 deliveries=2 1\r\nx\r\n",
        b"ITEM 5 1000 0 from=a died=x deliveries=2 why=y 1\r\nx\r\n",
        b"NEXT x\r\n",
        b"STORED\r\n",
        b"VALUE q 0 1\r\nx\r\n",
    ],
)
def test_what_is_no_browsed_item_is_an_error(data: bytes) -> None:
    """As are lines that do not belong there."""
    with pytest.raises(ProtocolError):
        result(commands.browse(b"q", 0, 1, b"", is_pattern=False), data)


def test_a_move_says_how_many() -> None:
    """And why no more."""
    move = commands.move("move", b"q", b"other", 5)
    assert move.request == b"move q other 5\r\n"
    assert commands.move("copy", b"q", b"other", None).request == b"copy q other\r\n"
    assert commands.move("redrive", b"q", None, None).request == b"redrive q\r\n"
    assert result(move, b"MOVED 5\r\n") == Moved(5)
    assert result(move, b"MOVED 2 other is full\r\n") == Moved(2, "other is full")
    assert result(move, b"NOT_FOUND\r\n") is None
    for wrong in (b"COPIED 5\r\n", b"MOVED\r\n", b"MOVED x\r\n", END):
        with pytest.raises(ProtocolError):
            result(move, wrong)


LINE = b"ITEM q 7-00000000000000ab 2 1700000000000 0 1\r\na\r\n"


def test_a_reserved_item_has_what_the_server_says() -> None:
    """Its read, its deliveries and its times; END alone is no item."""
    command = commands.reserve_one(b"q", commands.reserve_terms(60, owner="me", grace=5), 1.5)
    assert command.request == b"reserve q 1 lease=60000 t=1500 owner=me grace=5000\r\n"
    expected = commands.HeldItem(b"a", "7-00000000000000ab", 2, 1_700_000_000_000, 0)
    assert result(command, LINE + END) == expected
    assert result(command, END) is None


def test_many_items_are_reserved_at_once() -> None:
    """Of several queues; a tag may be done."""
    command = commands.reserve((b"p", b"q"), 3, commands.reserve_terms(0.5, tag="a:1:b"), 0)
    assert command.request == b"reserve p,q 3 lease=500 tag=a:1:b\r\n"
    found = result(command, LINE.replace(b" q ", b" p ") + LINE + END)
    assert [(one.queue, one.data) for one in found] == [("p", b"a"), ("q", b"a")]
    assert result(command, END) == []
    assert result(command, b"DONE\r\n") is None


@pytest.mark.parametrize(
    "data",
    [
        A + END,
        LINE + LINE + END,
        LINE.replace(b"q", b"other") + END,
        LINE.replace(b" 2 ", b" x ") + END,
        LINE.replace(b" 0 1", b" 1") + END,
        VERSION,
    ],
)
def test_what_is_no_reply_to_a_reserve_is_an_error(data: bytes) -> None:
    """A value, two items, another queue's, or a line with other fields."""
    with pytest.raises(ProtocolError):
        result(commands.reserve((b"q",), 1, commands.reserve_terms(60), 0), data)


SOME = commands.Reads(["7-ab", "8-ab"])


def test_the_limit_of_items_is_read_from_the_settings() -> None:
    """None if it is unlimited, if the server names none, or has no such queue."""
    command = commands.item_limit(b"q")
    assert command.request == b"dump_config q\r\n"
    shown = b"queue 'q' {\r\n  max_items=7\r\n  max_item_size=%s\r\n}\r\nEND\r\n"
    assert result(command, shown % b"100 B") == 100
    assert result(command, shown % b"1 MiB") == 1 << 20
    assert result(command, shown % b"2048") == 2048
    assert result(command, shown % b"unlimited") is None
    assert result(command, b"END\r\n") is None
    with pytest.raises(ProtocolError):
        result(command, b"VALUE q 0 1\r\na\r\nEND\r\n")


def test_reserved_reads_are_ended_and_extended() -> None:
    """The reply says how many there were."""
    for command, verb in (
        (commands.finish(b"q", SOME), b"FINISHED"),
        (commands.release(b"q", SOME, 0.5), b"RELEASED"),
        (commands.extend(b"q", SOME, 30), b"EXTENDED"),
        (commands.extend_owner("me", 30), b"EXTENDED"),
        (commands.retire(b"q", "sink", 7), b"RETIRED"),
    ):
        assert result(command, verb + b" 2\r\n") == 2
        assert result(command, verb + b" 0\r\n") == 0
        for wrong in (END, b"DONE 1\r\n", verb + b" x\r\n"):
            with pytest.raises(ProtocolError):
                result(command, wrong)
    assert commands.release(b"q", SOME, 0.5).request == b"release q delay=500 7-ab 8-ab\r\n"
    dead = commands.release(b"q", commands.Reads(owner="me"), counted=False, dead=True)
    assert dead.request == b"release q uncounted dead owner=me\r\n"
    tagged = commands.extend(b"q", commands.Reads(tag="a:1:b"), 30)
    assert tagged.request == b"extend q 30000 tag=a:1:b\r\n"
    assert commands.extend_owner("me", 30).request == b"extend owner=me 30000\r\n"
    assert commands.retire(b"q", "sink", 7).request == b"retire q sink 7\r\n"


def test_many_reads_are_named_in_several_requests() -> None:
    """A line is bounded; the result is the sum."""
    reads = [f"{xid}-00000000000000ab" for xid in range(2**31 - 400, 2**31)]
    command = commands.finish(b"q" * 200, commands.Reads(reads))
    lines = command.request.split(b"\r\n")
    assert (command.parts, len(lines), lines[-1]) == (3, 4, b"")
    assert max(map(len, lines)) < 8192
    assert result(command, b"FINISHED 150\r\nFINISHED 0\r\nFINISHED 100\r\n") == 250


def test_a_request_must_name_its_reads() -> None:
    """Some, or those of a tag or an owner."""
    for which in (
        commands.Reads(),
        commands.Reads(["7-ab"], "a:1:b"),
        commands.Reads((), "a", "b"),
    ):
        with pytest.raises(InvalidRequest):
            commands.release(b"q", which)
