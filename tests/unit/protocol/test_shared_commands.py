"""Requests that the memcache and text protocols read from the same words."""

import re
from collections.abc import Callable

import pytest

from kestrelmq.names import queue_name_error
from kestrelmq.protocol import managing, reserving
from kestrelmq.protocol.faults import ClientFault
from kestrelmq.protocol.managing import Browse, Declare, KillClient, ListClients, Move, Pause
from kestrelmq.protocol.memcache import Parser
from kestrelmq.protocol.reserving import Extend, ExtendOwner, Finish, Release, Reserve, Retire
from kestrelmq.protocol.text import TextParser

READ = b"7-00000000000000ab"
LINES = [
    (b"browse work 5 1", Browse("work", 5, 1)),
    (b"browse work 5 1 text=a%20%25/b", Browse("work", 5, 1, b"a %/b")),
    (b"BROWSE work 5 1 pattern=%5Ea%3D", Browse("work", 5, 1, b"^a=", is_pattern=True)),
    (b"move work other 5", Move("work", "other", 5)),
    (b"copy work other", Move("work", "other", None, copies=True)),
    (b"redrive dead work", Move("dead", "work", None)),
    (b"redrive dead", Move("dead", None, None)),
    (b"declare work", Declare("work")),
    (
        b"declare work fanout_only journal=no expires=1 max_age=2 max_items=3",
        Declare("work", True, False, 1, 2, 3),
    ),
    (b"declare work journal=yes", Declare("work", journal=True)),
    (b"pause work reads", Pause("work", "reads", resume=False)),
    (b"resume work", Pause("work", "all", resume=True)),
    (b"resume work writes", Pause("work", "writes", resume=True)),
    (b"clients", ListClients()),
    (b"Client KILL 7", KillClient(7)),
    (
        b"reserve b,a,b 5 lease=9 t=1 tag=a:1:b owner=w grace=2",
        Reserve(("b", "a", "b"), 5, 9, 1, "a:1:b", "w", 2),
    ),
    (b"reserve work 5 lease=9", Reserve(("work",), 5, 9)),
    (b"finish work %b %b" % (READ, READ), Finish("work", ((171, (7, 7)),))),
    (b"finish work tag=a:1:b", Finish("work", (), "a:1:b")),
    (b"release work %b delay=5" % READ, Release("work", ((171, (7,)),), delay=5)),
    (b"release work owner=w uncounted", Release("work", (), owner="w", uncounted=True)),
    (
        b"release work dead uncounted tag=a:1:b delay=5",
        Release("work", (), "a:1:b", delay=5, uncounted=True, dead=True),
    ),
    (b"Release work tag=a:1:b dead", Release("work", (), "a:1:b", dead=True)),
    (b"extend work 5 %b" % READ, Extend("work", 5, ((171, (7,)),))),
    (b"extend owner=w 5", ExtendOwner("w", 5)),
    (b"retire work a 7", Retire("work", "a", 7)),
    (b"retire work a 9223372036854775807", Retire("work", "a", 2**63 - 1)),
]
BAD_LINES = [
    b"browse work 5",
    b"browse work x 5",
    b"browse work 5 -1",
    b"browse work 5 1 like=a",
    b"browse work 5 1 text=" + b"x" * 1001,
    b"move work",
    b"move work other 1 2",
    b"copy work other x",
    b"redrive",
    b"declare",
    b"declare work expires=1 expires=1",
    b"declare work max_size=1",
    b"pause work",
    b"pause work some",
    b"resume",
    b"clients all",
    b"client",
    b"client kill",
    b"client kill -1",
    b"reserve work 5",
    b"reserve work 5 lease=x",
    b"reserve work 5 lease=1 grace=1",
    b"reserve work 5 lease=1 lease=1",
    b"finish",
    b"finish work tag=",
    b"release work x=1",
    b"extend work",
    b"extend work x tag=a:1:b",
    b"retire work a",
]
BAD_REQUESTS = [
    b"reserve work 0 lease=1",
    b"reserve work 1 lease=0",
    b"finish work",
    b"finish work 7",
    b"reserve work 1 lease=1 tag=a:1",
    b"finish work tag=a:b:c",
    b"release work tag=:1:c",
    b"extend work 5 tag=a:99999999999999999999:c",
    b"extend work -1 tag=a:1:b",
    b"retire work a -1",
    b"retire work a 9223372036854775808",
]


def of_text(line: bytes) -> object:
    """Return what the text protocol makes of a line."""
    parser = TextParser()
    parser.receive(line + b"\n")
    return parser.next_command()


@pytest.mark.parametrize(("line", "request_"), LINES)
def test_both_protocols_read_the_same(line: bytes, request_: object) -> None:
    """And there is a line here for each command."""
    assert Parser("kestrel", queue_name_error).parse(line) == of_text(line) == request_
    assert {words.split()[0].lower() for words, _ in LINES} == {
        *managing.PARSERS,
        *reserving.PARSERS,
    }


@pytest.mark.parametrize("line", BAD_REQUESTS)
def test_a_request_that_no_server_does_is_refused_by_both(line: bytes) -> None:
    """Text leaves the error to its session."""
    with pytest.raises(ClientFault) as of_memcache:
        Parser("kestrel", queue_name_error).parse(line)
    with pytest.raises(ValueError, match=re.escape(of_memcache.value.message)):
        of_text(line)


@pytest.mark.parametrize("line", BAD_LINES)
def test_both_protocols_refuse_the_same(line: bytes) -> None:
    """With the same reason, and the connection survives."""
    with pytest.raises(ClientFault) as of_memcache:
        Parser("kestrel", queue_name_error).parse(line)
    with pytest.raises(ClientFault) as fault:
        of_text(line)
    assert fault.value.message == of_memcache.value.message
    assert not fault.value.closes
    assert not of_memcache.value.closes


def test_declared_settings_have_the_names_of_the_configuration() -> None:
    """What is not given is as for other queues; times are in seconds there."""
    assert Declare("q").settings == {}
    assert Declare("q", True, False, 500, 2000, 0).settings == {
        "fanout_only": True,
        "keep_journal": False,
        "max_queue_age": 0.5,
        "max_age": 2.0,
        "max_items": 0,
    }


@pytest.mark.parametrize(
    "make",
    [
        lambda: Browse("q", -1, 1),
        lambda: Browse("q", 0, -1),
        lambda: Browse("q", 0, 1, b"x" * 1001),
        lambda: Move("q", "r", -1),
        lambda: ListClients(-1),
    ],
)
def test_a_request_checks_itself(make: Callable[[], object]) -> None:
    """However it was read."""
    with pytest.raises(ValueError, match=r"numbers|below 0|at most 1000"):
        make()
