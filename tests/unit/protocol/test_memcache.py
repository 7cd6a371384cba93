"""The memcache codec: every request of the table, and every kind of bad one."""

import re

import pytest

from kestrelmq.idempotent_producers import PutMark
from kestrelmq.names import queue_name_error
from kestrelmq.protocol import memcache
from kestrelmq.protocol.faults import ClientFault
from kestrelmq.protocol.foreign import binary_refusal
from kestrelmq.protocol.managing import (
    Browse,
    Confirm,
    Declare,
    Delete,
    Flush,
    FlushAll,
    FlushExpired,
    GetStatus,
    KillClient,
    ListClients,
    Move,
    NameClient,
    Pause,
    Quit,
    Reload,
    SetStatus,
    Shutdown,
    Version,
)
from kestrelmq.protocol.memcache import (
    MAX_ITEM_BYTES,
    MAX_LINE,
    Dialect,
    Dump,
    Get,
    Key,
    Monitor,
    Parser,
    RefusedRequest,
    Request,
    Set,
    Stats,
    TouchRead,
)
from kestrelmq.protocol.reserving import Extend, ExtendOwner, Finish, Release, Reserve, Retire

pytestmark = pytest.mark.compiled

DIALECTS: list[Dialect] = ["kestrel", "memcached"]
NONCE = b"0000000000fedcba"
READ = ((0xFEDCBA, (7,)),)


def parse(line: bytes, dialect: Dialect = "kestrel") -> Request:
    """Parse one line."""
    return Parser(dialect, queue_name_error).parse(line)


def plain(queue: str, timeout: int | None = None) -> Get:
    """Return a `get` of one queue without options, save perhaps a time-out."""
    name = queue.encode()
    return Get((Key(queue, name, timeout),), False, queue, b"VALUE " + name + b" 0 ")


def get(*keys: Key, cas: bool = False) -> Get:
    """Return a `get` that has other options, or several keys."""
    return Get(keys, cas, None, b"")


def plain_set(queue: str, expiry: int, size: int, *, noreply: bool) -> Set:
    """Return a `set` without options."""
    return Set(queue, expiry, size, noreply, plain=queue)


def delayed(queue: str, milliseconds: int) -> Set:
    """Return a `set` with a delay."""
    plain = "" if milliseconds else queue
    return Set(queue, 0, 5, noreply=False, plain=plain, delay=milliseconds)


def numbered(sequence: int, after: int = -1) -> Set:
    """Return a `set` of a producer."""
    mark = PutMark(b"p", sequence, after)
    return Set("work", 0, 5, noreply=False, plain="work", mark=mark)


REQUESTS: list[tuple[bytes, Request]] = [
    (b"set work 0 0 5", plain_set("work", 0, 5, noreply=False)),
    (b"SET work 7 -1 0", plain_set("work", -1, 0, noreply=False)),
    (b"  set   work 0 1000000 5 noreply", plain_set("work", 1_000_000, 5, noreply=True)),
    (b"set caf\xc3\xa9 0 0 1", plain_set("caf\u00e9", 0, 1, noreply=False)),
    (b"set orders+audit 0 +5 1", plain_set("orders+audit", 5, 1, noreply=False)),
    (
        b"set %b 0 0 %d" % (b"q" * 200, MAX_ITEM_BYTES),
        plain_set("q" * 200, 0, MAX_ITEM_BYTES, noreply=False),
    ),
    (b"set work/delay=1500 0 0 5", delayed("work", 1500)),
    (b"set orders+audit/delay=0 0 0 5", delayed("orders+audit", 0)),
    (b"set work/delay=%d 0 0 5" % (10**18 - 1), delayed("work", 10**18 - 1)),
    (b"set work/producer=p/seq=7 0 0 5", numbered(7)),
    (b"set work/seq=%d/after=6/producer=p 0 0 5" % (10**18 - 1), numbered(10**18 - 1, 6)),
    (b"get work", plain("work")),
    (b"GeT work", plain("work")),
    (b"get work/t=500", plain("work", 500)),
    (b"get work/t=0", plain("work", 0)),
    (b"get work/t=-5", plain("work", 0)),
    (b"get work/open", get(Key("work", b"work", open=True))),
    (b"get work/close", get(Key("work", b"work", close=True))),
    (b"get work/abort", get(Key("work", b"work", abort=True))),
    (b"get work/peek", get(Key("work", b"work", peek=True))),
    (b"get work/close/open", get(Key("work", b"work", open=True, close=True))),
    (b"get work/t=9/open/close", get(Key("work", b"work", 9, open=True, close=True))),
    (b"get work/open/open", get(Key("work", b"work", open=True))),
    (b"get work/peek/t=1", get(Key("work", b"work", 1, peek=True))),
    (b"get work/", plain("work")),
    (b"get a b/open a", get(Key("a", b"a"), Key("b", b"b", open=True), Key("a", b"a"))),
    (b"gets work", get(Key("work", b"work"), cas=True)),
    (b"gets work/open x", get(Key("work", b"work", open=True), Key("x", b"x"), cas=True)),
    (b"monitor work 5", Monitor("work", 5, None)),
    (b"monitor work 5 10", Monitor("work", 5, 10)),
    (b"monitor work 0 0", Monitor("work", 0, 0)),
    (b"confirm work 3", Confirm("work", 3)),
    (b"confirm work 0", Confirm("work", 0)),
    (b"touch_read work 500", TouchRead("work", 500)),
    (b"browse work 0 20", Browse("work", 0, 20)),
    (b"browse work from=a:1", Browse("work", 0, 100, place="a:1")),
    (b"browse work from=a:1 text=a", Browse("work", 0, 100, b"a", place="a:1")),
    (b"browse work 5 1 text=a%20%25/b", Browse("work", 5, 1, b"a %/b")),
    (b"browse work 5 1 pattern=%5Ea%3D", Browse("work", 5, 1, b"^a=", is_pattern=True)),
    (b"move work other 5", Move("work", "other", 5)),
    (b"copy work other", Move("work", "other", None, copies=True)),
    (b"redrive dead work", Move("dead", "work", None, redrives=True)),
    (b"redrive dead", Move("dead", None, None, redrives=True)),
    (b"declare work", Declare("work")),
    (b"declare work fanout_only journal=no", Declare("work", fanout_only=True, journal=False)),
    (
        b"declare work max_items=7 max_age=500 expires=60000 journal=yes",
        Declare("work", journal=True, expires=60000, max_age=500, max_items=7),
    ),
    (b"pause work reads", Pause("work", "reads", resume=False)),
    (b"PAUSE work all", Pause("work", "all", resume=False)),
    (b"resume work writes", Pause("work", "writes", resume=True)),
    (b"resume work", Pause("work", "all", resume=True)),
    (b"reserve work 1 lease=30000", Reserve(("work",), 1, 30_000)),
    (b"reserve work 1 lease=30000 t=-5", Reserve(("work",), 1, 30_000)),
    (
        b"Reserve b,a,b 1000 t=9 grace=7 owner=w-1 tag=sink:7:0 lease=1",
        Reserve(("b", "a", "b"), 1000, 1, 9, "sink:7:0", "w-1", 7),
    ),
    (b"finish work 7-" + NONCE, Finish("work", READ)),
    (
        b"finish work -1-%b 0-%b 1-%b" % (NONCE, NONCE, NONCE),
        Finish("work", ((0xFEDCBA, (-1, 0, 1)),)),
    ),
    (b"finish work -7-%b 8-%b" % (NONCE, NONCE), Finish("work", ((0xFEDCBA, (-7, 8)),))),
    (b"finish work  7-%b \t8-%b " % (NONCE, NONCE), Finish("work", ((0xFEDCBA, (7, 8)),))),
    (
        b"FINISH work " + b" ".join(b"%d-%b" % (xid, NONCE) for xid in range(990, 1020)),
        Finish("work", ((0xFEDCBA, range(990, 1020)),)),
    ),
    (
        b"finish work " + b" ".join(b"%d-%b" % (xid, NONCE) for xid in [*range(9, 20), 30]),
        Finish("work", ((0xFEDCBA, (*range(9, 20), 30)),)),
    ),
    (b"finish work 9-%b 010-%b" % (NONCE, NONCE), Finish("work", ((0xFEDCBA, (9, 10)),))),
    (
        b"finish work 9-%b 8-%b 7-%b 7-%b" % (NONCE, b"0" * 15 + b"1", NONCE, NONCE),
        Finish("work", ((0xFEDCBA, (9,)), (1, (8,)), (0xFEDCBA, (7, 7)))),
    ),
    (b"finish work tag=a:1:b", Finish("work", (), "a:1:b")),
    (
        b"release work 7-%b delay=0 uncounted" % NONCE,
        Release("work", READ, delay=0, uncounted=True),
    ),
    (b"release work dead 7-" + NONCE, Release("work", READ, dead=True)),
    (b"release work owner=w delay=5", Release("work", (), owner="w", delay=5)),
    (b"release work tag=a:1:b", Release("work", (), "a:1:b")),
    (b"extend work 500 7-" + NONCE, Extend("work", 500, READ)),
    (b"extend work 500 tag=a:1:b", Extend("work", 500, (), "a:1:b")),
    (b"extend owner=caf\xc3\xa9 500", ExtendOwner("caf\u00e9", 500)),
    (b"retire work sink 7", Retire("work", "sink", 7)),
    (b"delete work", Delete("work", noreply=False)),
    (b"delete work 0", Delete("work", noreply=False)),
    (b"delete work noreply", Delete("work", noreply=True)),
    (b"delete work 0 noreply", Delete("work", noreply=True)),
    (b"delete noreply", Delete("noreply", noreply=False)),
    (b"delete noreply noreply", Delete("noreply", noreply=True)),
    (b"flush work", Flush("work", noreply=False)),
    (b"flush work noreply", Flush("work", noreply=True)),
    (b"flush noreply", Flush("noreply", noreply=False)),
    (b"flush_all", FlushAll(noreply=False)),
    (b"flush_all 0", FlushAll(noreply=False)),
    (b"flush_all noreply", FlushAll(noreply=True)),
    (b"flush_all 0 noreply", FlushAll(noreply=True)),
    (b"flush_expired work", FlushExpired("work")),
    (b"flush_all_expired", FlushExpired(None)),
    (b"stats", Stats(None)),
    (b"stats work", Stats("work")),
    (b"dump_stats", Dump("stats", ())),
    (b"dump_stats a b", Dump("stats", ("a", "b"))),
    (b"dump_config", Dump("config", ())),
    (b"DUMP_CONFIG a", Dump("config", ("a",))),
    (b"status", GetStatus()),
    (b"status ReadOnly", SetStatus("ReadOnly")),
    (b"version", Version()),
    (b"reload", Reload()),
    (b"shutdown", Shutdown()),
    (b"QUIT", Quit()),
    (b"clients", ListClients()),
    (b"client kill 7", KillClient(7)),
    (b"client name me", NameClient("me")),
    (b"Client KILL 0", KillClient(0)),
]

NAME = "queue name"
# What is wrong, part of the reason, and whether the stream can still be followed.
FAULTS: list[tuple[bytes, str, bool]] = [
    (b"reserve work", "queues, a count and a lease", False),
    (b"reserve work 1", "takes a lease=", False),
    (b"reserve work 1 lease=5 more", "takes a lease=", False),
    (b"reserve work 0 lease=5", "a count of 1 to 1000", False),
    (b"reserve work 1001 lease=5", "a count of 1 to 1000", False),
    (b"reserve work 1 lease=9 again", "again needs a tag", False),
    (b"reserve work 1 lease=9 tag=a:1:b again t=1", "again takes no t", False),
    (b"owners a b", "owners takes perhaps a pattern", False),
    (b"reserve work 1 lease=-1", "lease takes milliseconds", False),
    (b"reserve work 1 lease=5 lease=5", "unknown or repeated option lease=5", False),
    (b"reserve work 1 lease=5 colour=5", "unknown or repeated option colour=5", False),
    (b"reserve work 1 lease=5 grace=5", "a grace needs an owner", False),
    (b"reserve work 1 lease=5 owner=", "owner takes at most 200 bytes of text", False),
    (b"reserve work 1 lease=5 owner=\xff", "owner takes at most 200 bytes of text", False),
    (b"reserve work 1 lease=5 tag=" + b"x" * 201, "tag takes at most 200 bytes of text", False),
    (b"reserve work, 1 lease=5", "empty", False),
    (b"reserve a/b 1 lease=5", "must not contain", False),
    (b"reserve %b 1 lease=5" % b",".join(b"%d" % n for n in range(101)), "100 queues", False),
    (b"finish", "takes a queue and reads", False),
    (b"finish work", "takes reads, or says whose", False),
    (b"finish work 7-%b tag=a:1:b" % NONCE, "takes reads, or says whose", False),
    (b"finish work 7", "7 is not a read id", False),
    (b"finish work x-" + NONCE, "is not a read id", False),
    (b"finish work 7-%b -%b" % (NONCE, NONCE), "is not a read id", False),
    (b"finish work 7-%b 8" % NONCE, "8 is not a read id", False),
    (b"finish work 7-%b 8-%b0" % (NONCE, NONCE), "is not a read id", False),
    (b"finish work 7-%b %b-%b" % (NONCE, b"1" * 20, NONCE), "is not a read id", False),
    (b"finish work 7-" + NONCE.upper(), "is not a read id", False),
    (b"release", "takes a queue and reads", False),
    (b"release work dead", "takes reads, or says whose", False),
    (b"release work tag=a:1:b owner=w", "a tag or an owner", False),
    (b"extend work", "takes a queue, milliseconds and reads", False),
    (b"extend work x 7-" + NONCE, "extend takes milliseconds", False),
    (b"extend owner= 5", "owner takes at most", False),
    (b"retire work sink", "takes a queue, a name and an epoch", False),
    (b"retire work a:b 1", "has no colon", False),
    (b"retire work sink -1", "an epoch is a whole number", False),
    (b"retire work sink 9223372036854775808", "an epoch is a whole number", False),
    (b"reserve work 1 lease=1 tag=a:1", "a tag is NAME:EPOCH:PART", False),
    (b"finish work tag=", "tag takes at most 200 bytes of text", False),
    (b"finish work tag=a:b:c", "a tag is NAME:EPOCH:PART", False),
    (b"release work x=1", "unknown or repeated option x=1", False),
    (b"release work tag=:1:c", "a tag is NAME:EPOCH:PART", False),
    (b"extend work 5 tag=a:99999999999999999999:c", "an epoch is at most", False),
    (b"extend work -1 tag=a:1:b", "extend takes milliseconds", False),
    (b"set", "length", True),
    (b"set work", "length", True),
    (b"set work 0 0", "length", True),
    (b"set work 0 0 5 extra", "length", True),
    (b"set work 0 0 5 noreply extra", "length", True),
    (b"set work 0 0 -1", "bad length", True),
    (b"set work 0 0 x", "bad length", True),
    (b"set work 0 0 1.5", "bad length", True),
    (b"set work 0 0 \xd9\xa3", "bad length", True),
    (b"set work 0 0 1_0", "bad length", True),
    (b"set work 0 0 %d" % (MAX_ITEM_BYTES + 1), "bad length", True),
    (b"set work 0 0 99999999999999999999999999", "bad length", True),
    (b"get /open", "queue name", True),
    (b"get /", "queue name", True),
    (b"get a /t=5", "queue name", True),
    (b"get work/peek/open", "do not go", True),
    (b"get work/peek/close", "do not go", True),
    (b"get work/abort/open", "do not go", True),
    (b"get work/abort/close", "do not go", True),
    (b"get work/peek/abort", "does not go", True),
    (b"get work/t=", "milliseconds", False),
    (b"get work/t=x", "milliseconds", False),
    (b"get work/t=99999999999999999999", "milliseconds", False),
    (b"get work/what", "unknown option /what", False),
    (b"get work/\xff\xfe", "unknown option", False),
    (b"get a~b", NAME, False),
    (b"get a.b", NAME, False),
    (b"get a\x00b", NAME, False),
    (b"get ..", NAME, False),
    (b"get +a", NAME, False),
    (b"get a+", NAME, False),
    (b"get a+b+c", NAME, False),
    (b"get \xff", NAME, False),
    (b"get " + b"q" * 201, NAME, False),
    (b"monitor work", "monitor takes", False),
    (b"monitor work x", "whole numbers", False),
    (b"monitor work -5", "whole numbers", False),
    (b"monitor work 5 -1", "whole numbers", False),
    (b"monitor work 5 5 5", "monitor takes", False),
    (b"monitor a/b 5", NAME, False),
    (b"confirm work", "confirm takes", False),
    (b"confirm work x", "whole numbers", False),
    (b"confirm work -1", "whole numbers", False),
    (b"confirm a~ 1", NAME, False),
    (b"touch_read work", "touch_read takes", False),
    (b"touch_read work -1", "whole numbers", False),
    (b"browse work 0", "browse takes", False),
    (b"browse work 0 1 2", "browse takes", False),
    (b"browse work 0 x", "whole numbers", False),
    (b"browse a~ 0 1", NAME, False),
    (b"browse work 0 1 text=", "browse takes", False),
    (b"browse work 0 1 other=a", "browse takes", False),
    (b"browse work 0 1 text=" + b"x" * 1001, "browse takes", False),
    (b"move work", "move takes", False),
    (b"move work a~", NAME, False),
    (b"copy work other -1", "whole numbers", False),
    (b"copy work other 1 1", "copy takes", False),
    (b"redrive", "redrive takes", False),
    (b"redrive a b c", "redrive takes", False),
    (b"declare", "declare takes", False),
    (b"declare a~", NAME, False),
    (b"declare work max_items", "whole numbers", False),
    (b"declare work max_items=-1", "whole numbers", False),
    (b"declare work max_age=1s", "whole numbers", False),
    (b"declare work journal=maybe", "declare takes", False),
    (b"declare work journal=no journal=no", "declare takes", False),
    (b"declare work max_items=1 max_items=1", "declare takes", False),
    (b"declare work max_size=1", "max_size=1: declare takes", False),
    (b"pause work", "pause takes", False),
    (b"pause work Reads", "only reads, writes or all", False),
    (b"pause a~ all", NAME, False),
    (b"resume", "resume takes", False),
    (b"resume work all all", "resume takes", False),
    (b"delete", "delete takes", False),
    (b"delete work 5", "delete takes", False),
    (b"delete work 0 0", "delete takes", False),
    (b"delete ../x", NAME, False),
    (b"flush", "flush takes", False),
    (b"flush a b", "flush takes", False),
    (b"flush_all 10", "no delay", False),
    (b"flush_expired", "flush_expired takes", False),
    (b"flush_all_expired x", "takes nothing", False),
    (b"stats a b", "at most one", False),
    (b"stats a/b", NAME, False),
    (b"dump_stats a~", NAME, False),
    (b"dump_config a~", NAME, False),
    (b"status a b", "at most one", False),
    (b"version x", "takes nothing", False),
    (b"reload x", "takes nothing", False),
    (b"shutdown now", "takes nothing", False),
    (b"quit now", "takes nothing", False),
    (b"clients all", "takes nothing", False),
    (b"client", "kill and an id", False),
    (b"client kill", "kill and an id", False),
    (b"client name", "name and a name", False),
    (b"client name \xff", "printable", False),
    (b"client list", "kill and an id", False),
    (b"client kill 7 8", "kill and an id", False),
    (b"client kill x", "whole numbers", False),
    (b"client kill -1", "whole numbers", False),
    (b"get " + b"q " * 5000, f"at most {MAX_LINE} bytes", True),
]


@pytest.mark.parametrize(("line", "request_"), REQUESTS)
@pytest.mark.parametrize("ending", [b"", b"\r", b"  \r"])
def test_request(line: bytes, request_: Request, ending: bytes) -> None:
    """Every request of the table, with and without CR, in either case."""
    assert parse(line + ending) == request_


@pytest.mark.parametrize(
    "line",
    [
        *(b"set work/producer=p/seq=%d 0 0 5" % number for number in (0, 7, 10**18 - 1)),
        b"set work/producer=p/seq=7/after=6 0 0 5",
        b"set work/after=6/producer=p/seq=7 0 0 5",
        b"set work/producer=p/seq=7/delay=5 0 9 5 noreply",
        b"set work/delay=5/producer=p/seq=7 0 0 5",
        b"SET work/seq=7/producer=p 0 0 5",
    ],
)
@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_a_line_with_a_number_is_read_by_what_it_has_in_common_with_another(
    line: bytes, ending: bytes
) -> None:
    """The result is the same, and whatever else there may be is left to others."""
    parser = Parser("kestrel", queue_name_error)
    for other in (line, re.sub(rb"seq=\d+(/after=)?\d*", rb"seq=123456\g<1>5", line)):
        numbered = parser.parse_numbered(other + ending)
        assert numbered is not None
        whole = line + ending
        assert numbered.read(b"x" + whole + whole, 1) == 1 + len(whole)
        assert numbered.request == parser.parse_long(whole[:-1])
        assert numbered.read(whole[:-1], 0) == 0
        for bad in (b"", b"+7", b"7x", b"7 0", b"7/after=", b"7/after=x", b"1" * 19, b"\xb2"):
            assert numbered.read(re.sub(rb"seq=\d+", b"seq=" + bad, whole), 0) == 0


def test_numbers_that_follow_one_another() -> None:
    """The next number is found without being parsed; any other, or none, as before."""
    parser = Parser("kestrel", queue_name_error)
    lines = [
        b"set work/producer=p/seq=%b 0 0 5\r\n" % digits
        for digits in b"0 1 8 9 10 10 010 11 99 100 3 999999999999999999".split()
    ]
    numbered = parser.parse_numbered(lines[0])
    assert numbered is not None
    for line in lines:
        assert numbered.read(line, 0) == len(line)
        assert numbered.request == parser.parse_long(line[:-1])
    for bad in (b"1000000000000000000", b""):
        assert numbered.read(b"set work/producer=p/seq=%b 0 0 5\r\n" % bad, 0) == 0


@pytest.mark.parametrize(
    "line",
    [
        b"set work/producer=p/seq=1000000000000000000 0 0 5",
        b"set work/producer=p/seq=7/after=1000000000000000000 0 0 5",
        b"set work/producer=p/seq=7/seq=8 0 0 5",
        b"set work/after=6/producer=p/seq=7/after=6 0 0 5",
        b"set work/producer=a\x07/seq=7 0 0 5",
        b"set work/producer=p/seq=x 0 0 5",
        b"set work/producer=p/seq= 0 0 5",
        b"set work/producer=p/seq=7",
        b"set work/seq=7 0 0 5",
        b"get work/seq=7",
        b"get work/seq=7 work/seq=8",
        b"touch /seq=7",
        b"/seq=7",
        b"/seq=7 /seq=8",
    ],
)
def test_other_lines_with_a_number_are_parsed_as_any_line(line: bytes) -> None:
    """They are not valid, or no add of a producer."""
    numbered = Parser("kestrel", queue_name_error).parse_numbered(line + b"\r\n")
    assert numbered is None or not numbered.read(line + b"\r\n", 0)


@pytest.mark.parametrize(("line", "reason", "closes"), FAULTS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_fault(line: bytes, reason: str, *, closes: bool, dialect: Dialect) -> None:
    """A bad line says what is wrong; only what cannot be followed closes the connection."""
    with pytest.raises(ClientFault, match=reason) as caught:
        parse(line, dialect)
    assert caught.value.closes == closes
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "line",
    [
        b"set a~b 0 0 5",
        b"set work x 0 5",
        b"set work 0 x 5",
        b"set a~b/delay=1 0 0 5",
        b"set work/ 0 0 5",
        b"set work/open 0 0 5",
        b"set work/delay 0 0 5",
        b"set work/delay= 0 0 5",
        b"set work/delay=-1 0 0 5",
        b"set work/delay=1.5 0 0 5",
        b"set work/delay=1/delay=1 0 0 5",
        b"set work/delay=%b 0 0 5" % (b"9" * 19),
    ],
)
@pytest.mark.parametrize("noreply", [b"", b" noreply"])
def test_set_whose_data_can_be_skipped(line: bytes, noreply: bytes) -> None:
    """A bad name, flag or expiry does not cost the connection: the length is known."""
    request = parse(line + noreply)
    assert isinstance(request, RefusedRequest)
    assert request.size == 5
    # A client that says so reads no reply.
    assert request.reply.startswith(b"CLIENT_ERROR ") == (not noreply)


@pytest.mark.parametrize("line", [b"get", b"gets", b"GET \r"])
def test_bare_get(line: bytes) -> None:
    """Without a key there is nothing to read: Kestrel hangs up, memcached answers ERROR."""
    with pytest.raises(ClientFault, match="at least one queue") as caught:
        parse(line)
    assert caught.value.closes
    assert parse(line, "memcached") == RefusedRequest(b"ERROR\r\n", None)


HTTP: list[bytes] = [
    b"GET / HTTP/1.1",
    b"POST /path?query HTTP/1.1",
    b"get http://127.0.0.1:22133/ HTTP/1.0",
    b"GET work HTTP/1.1",
    b"DELETE /work HTTP/1.1",
    b"PUT /work HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
    b"stats / HTTP/1.1",
    b"PRI * HTTP/2.0",
    b"incr / http/1.1",
    b"delete x HTTP/1.1",
    b"Host: 127.0.0.1:22133",
    b"host:x",
    b"HOST:  a noreply",
]


@pytest.mark.parametrize("line", HTTP)
@pytest.mark.parametrize("ending", [b"", b"\r"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_http(line: bytes, ending: bytes, dialect: Dialect) -> None:
    """A browser's request closes the connection, so that a web page cannot send commands."""
    with pytest.raises(ClientFault, match="HTTP") as caught:
        parse(line + ending, dialect)
    assert caught.value.closes


@pytest.mark.parametrize("line", [b"get HTTP", b"get a HTTP", b"stats host:", b"get host:a HTTPS"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_only_looks_like_http(line: bytes, dialect: Dialect) -> None:
    """A command is a command, whatever its queues are called."""
    assert not isinstance(parse(line, dialect), RefusedRequest)


@pytest.mark.parametrize("line", [b"\x80", b"\x80\x00\x00\x04", b"\x80\x0b version noreply"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_binary_protocol(line: bytes, dialect: Dialect) -> None:
    """No command begins with the byte that every binary request begins with."""
    with pytest.raises(ClientFault, match="binary") as caught:
        parse(line, dialect)
    assert caught.value.closes


def test_binary_refusal() -> None:
    """It answers the request that it is given, of which a part may be all there is."""
    request = bytes.fromhex("80 0b 0000 00 00 0000 00000000 deadbeef 0000000000000000")
    refusal = binary_refusal(request + b"more")
    assert refusal[:2] == b"\x81\x0b"
    assert refusal[6:8] == b"\x00\x81"
    assert int.from_bytes(refusal[8:12]) == len(refusal) - 24
    assert refusal[12:16] == b"\xde\xad\xbe\xef"
    assert binary_refusal(b"\x80")[:2] == b"\x81\x00"
    assert len(binary_refusal(b"\x80")) == len(refusal)


QUIET: list[tuple[bytes, int | None]] = [
    (b"add work 0 0 5", 5),
    (b"replace work 0 0 5", 5),
    (b"append work 0 0 0", 0),
    (b"prepend work 0 0 7", 7),
    (b"cas work 0 0 5 123", 5),
    (b"incr work 1", None),
    (b"decr work 1", None),
    (b"touch work 10", None),
    (b"verbosity 1", None),
    (b"cache_memlimit 64", None),
    (b"mn", None),
    (b"frobnicate", None),
    (b"version", None),
    (b"stats a b", None),
    (b"confirm work", None),
    (b"finish work 7-x 8-x", None),
]


@pytest.mark.parametrize(("line", "size"), QUIET)
def test_no_reply_in_memcached(line: bytes, size: int | None) -> None:
    """Who sends `noreply` reads no reply, whatever the command is; its data is skipped."""
    assert parse(line + b" noreply", "memcached") == RefusedRequest(b"", size)
    with pytest.raises(ClientFault):
        parse(line + b" noreply", "kestrel")


@pytest.mark.parametrize("line", [b"delete a~b", b"flush a b", b"flush_all 5"])
def test_refused_without_a_reply(line: bytes) -> None:
    """A client that reads no reply gets none for a mistake that leaves the connection open."""
    with pytest.raises(ClientFault):
        parse(line)
    assert parse(line + b" noreply") == RefusedRequest(b"", None)


@pytest.mark.parametrize("line", [b"frobnicate", b"\xff\x00", b"add work 0 0 5", b"", b" \r"])
def test_unknown_command_in_kestrel(line: bytes) -> None:
    """The original closes the connection."""
    with pytest.raises(ClientFault) as caught:
        parse(line)
    assert caught.value.closes
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("line", "size"),
    [
        (b"add work 0 0 5", 5),
        (b"replace work 0 0 5", 5),
        (b"append work 0 0 0", 0),
        (b"prepend work 0 0 7", 7),
        (b"cas work 0 0 5 123", 5),
        (b"ms work 5 T0", 5),
        (b"incr work 1", None),
        (b"decr work 1", None),
        (b"touch work 10", None),
        (b"verbosity 1", None),
        (b"mn", None),
        (b"mg work v", None),
        (b"frobnicate 5", None),
    ],
)
def test_unknown_command_in_memcached(line: bytes, size: int | None) -> None:
    """Ordinary clients get ERROR and stay connected; data that follows is known and skipped."""
    assert parse(line, "memcached") == RefusedRequest(b"ERROR\r\n", size)


@pytest.mark.parametrize("line", [b"add work", b"cas work 0 0 x", b"ms work", b"ms work -1"])
def test_unknown_storage_command_without_length(line: bytes) -> None:
    """Without the length nobody knows where the next request begins."""
    with pytest.raises(ClientFault) as caught:
        parse(line, "memcached")
    assert caught.value.closes


def test_memcached_echoes_the_key() -> None:
    """An ordinary client finds its value by the key it asked for, options included."""
    request = parse(b"get work/t=5/open b", "memcached")
    assert isinstance(request, Get)
    assert [key.echo for key in request.keys] == [b"work/t=5/open", b"b"]
    assert [key.queue for key in request.keys] == ["work", "b"]


def test_equal_lines_are_parsed_once() -> None:
    """A line that comes again costs a look-up; one that is refused is refused again."""
    parser = Parser("kestrel", queue_name_error)
    assert parser.parse(b"get work") is parser.parse(b"get work")
    for _ in range(2):
        with pytest.raises(ClientFault):
            parser.parse(b"get a~b")


def test_longest_line() -> None:
    """A line of exactly the limit is served."""
    line = b"get " + b"a " * ((MAX_LINE - 4) // 2)
    assert len(line) == MAX_LINE
    request = parse(line)
    assert isinstance(request, Get)
    assert len(request.keys) == (MAX_LINE - 4) // 2


def test_replies() -> None:
    """Replies that are built from values are of one shape, and an error is one line."""
    assert b"".join(memcache.value_parts(b"q", b"ab\r\n")) == b"VALUE q 0 4\r\nab\r\n\r\n"
    assert b"".join(memcache.value_parts(b"q", b"", 7)) == b"VALUE q 0 0 7\r\n\r\n"
    assert memcache.value_header(b"VALUE q 0 ", 12) == b"VALUE q 0 12\r\n"
    assert memcache.client_error("bad\r\nSTORED") == b"CLIENT_ERROR bad STORED\r\n"
    assert memcache.server_error("full\ndisk") == b"SERVER_ERROR full disk\r\n"
    assert memcache.line("UP") == b"UP\r\n"
    assert memcache.stats([("a", 1), ("b", "x")]) == b"STAT a 1\r\nSTAT b x\r\n"
    assert memcache.stats([("a", 1)], "queue_q_") == b"STAT queue_q_a 1\r\n"
    assert memcache.stats([]) == b""
    assert memcache.dump("q", [("k", 1)]) == b"queue 'q' {\r\n  k=1\r\n}\r\n"
