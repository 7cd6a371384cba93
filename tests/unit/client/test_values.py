"""The plain values of the client: addresses, expiries, statistics, members of a server set."""

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from kestrelmq.client.address import Address, parse_address, parse_addresses
from kestrelmq.client.discovery import member_address
from kestrelmq.client.options import ClientOptions, protocol_expiry
from kestrelmq.client.statistics import queue_stats, stats_of_queue
from kestrelmq.errors import InvalidRequest
from kestrelmq.protocol.stats import QUEUE_STATS
from tests.support.zones import NoZone

OWN = [stat.name for stat in QUEUE_STATS if stat.shown == "everywhere"]
"""What our server reports of a queue."""


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("host:1", Address("host", 1)),
        ("host", Address("host", 22133)),
        (" 10.0.0.1:65535 ", Address("10.0.0.1", 65535)),
        ("[::1]:5", Address("::1", 5)),
        ("[::1]", Address("::1", 22133)),
        ("::1", Address("::1", 22133)),
        ("unix:/run/a b:1.sock", Address("", 0, "/run/a b:1.sock")),
    ],
)
def test_addresses_are_read_and_printed(text: str, address: Address) -> None:
    """An address prints so that it reads back."""
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", ":1", "a:", "a:0", "a:65536", "a:x", "[::1", "[::1]5", "a b:1", "unix:", "unix:\0"),
        *("a..b:22133", ".:1", f"{'a' * 64}:1", "\ud800:1", "[a..b]:1", "a\0b"),
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """A wrong address fails at once, not at the first operation."""
    with pytest.raises(InvalidRequest):
        parse_address(text)


def test_a_server_that_a_membership_knows_is_a_host() -> None:
    """One that no resolver can be asked for would fail every second operation of a cluster."""
    with pytest.raises(InvalidRequest, match=r"'a\.\.b'"):
        Address("a..b", 22133)
    member = b'{"serviceEndpoint": {"host": "%s", "port": 22133}, "status": "ALIVE"}'
    assert member_address(member % b"a.b") == Address("a.b", 22133)
    assert member_address(member % b"a..b") is None


def test_a_list_of_servers_has_each_once() -> None:
    """Commas and lists may be mixed; nothing at all is refused."""
    assert parse_addresses(["a:1,b:2", "a:1"]) == (Address("a", 1), Address("b", 2))
    for nothing in ("", " , ", ()):
        with pytest.raises(InvalidRequest):
            parse_addresses(nothing)


@pytest.mark.parametrize(
    ("expiry", "sent"),
    [
        (None, 0),
        (0.2, 1),
        (60, 60),
        (999_999, 999_999),
        (1_000_000, 5_000_000),
        (0, -1),
        (-5, -1),
        (datetime(2020, 1, 1, tzinfo=UTC), 1_577_836_800),
        (datetime(1970, 1, 1, tzinfo=UTC), -1),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), -1),
        (datetime(9999, 12, 31, tzinfo=timezone(timedelta(hours=-12))), 253_402_257_600),
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=12))), -1),
    ],
)
def test_an_expiry_is_sent_as_the_protocol_counts(expiry: Any, sent: int) -> None:
    """Long relative times become absolute, and zero does not become never."""
    assert protocol_expiry(expiry, lambda: 4_000_000.0) == sent


@pytest.mark.parametrize(
    "expiry",
    [math.inf, math.nan, datetime(2020, 1, 1), datetime(2020, 1, 1, tzinfo=NoZone())],  # noqa: DTZ001
)
def test_an_expiry_that_is_no_time_is_refused(expiry: Any) -> None:
    """Infinity, and a time without a zone, are refused."""
    with pytest.raises(InvalidRequest):
        protocol_expiry(expiry)


def test_stats_of_queues_with_confusing_names_are_told_apart() -> None:
    """A line that fits two queues goes to the one whose lines it stands among."""
    pairs = [
        (f"queue_{queue}_{stat}", f"{queue} {stat}")
        for queue in ("a", "a_mem", "a_mem_items")
        for stat in ("items", "bytes", "mem_items", "mem_bytes", "open_transactions")
    ]
    assert [(q.name, dict(q.values)) for q in queue_stats("s", [("uptime", "1"), *pairs])] == [
        (
            queue,
            {
                stat: f"{queue} {stat}"
                for stat in ("items", "bytes", "mem_items", "mem_bytes", "open_transactions")
            },
        )
        for queue in ("a", "a_mem", "a_mem_items")
    ]


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([("items", "3"), ("age", "-1"), ("unknown", "7")], {"items": 3, "age": -1}),
        ([("failure", "damaged")], {"failure": "damaged"}),
        ([("uptime", "1"), ("queue_jobs_failure", "damaged")], {"failure": "damaged"}),
        ([("queue_jobs_items", "3"), ("queue_jobs_logsize", "0")], {"items": 3, "logsize": 0}),
        ([("queue_other_items", "3"), ("queue_other_logsize", "0")], None),
        ([("curr_items", "3"), ("bytes", "0"), ("total_items", "7")], None),
        ([], None),
    ],
)
def test_the_statistics_of_one_queue(
    pairs: list[tuple[str, str]], expected: dict[str, int | str] | None
) -> None:
    """A server answers `stats jobs` with those of the queue, or with those of everything."""
    found = stats_of_queue("s", "jobs", pairs)
    assert (None if found is None else dict(found.values)) == expected


def test_statistics_are_numbers_unless_they_are_text() -> None:
    """What another server sends in place of a number stays text."""
    pairs = [("items", "3"), ("age", "-1"), ("bytes", "many"), ("children", "7"), ("waiters", "0")]
    (found,) = queue_stats("s", [(f"queue_jobs_{stat}", value) for stat, value in pairs])
    expected = {"items": 3, "age": -1, "bytes": "many", "children": "7", "waiters": 0}
    assert found.values == expected
    assert (found.items, found.bytes, found.number("logsize")) == (3, 0, 0)


def test_what_only_the_admin_service_has_takes_no_line_from_a_queue() -> None:
    """A `max_items` of `x` would be the `items` of `x_max`: no server has it in `stats`."""
    pairs = [
        (f"queue_{name}_{stat}", f"{name}.{stat}")
        for name in ("x", "x_max", "x_refused")
        for stat in OWN
    ]
    found = queue_stats("s", pairs)
    assert [(queue.name, queue.values["items"]) for queue in found] == [
        ("x", "x.items"),
        ("x_max", "x_max.items"),
        ("x_refused", "x_refused.items"),
    ]


@pytest.mark.parametrize(
    "reported",
    [
        [*OWN, "put_items", "put_bytes"],
        ["items", "waiters", "open_transactions"],
        ["items", "open_transactions"],
    ],
)
def test_queues_are_those_that_there_are(reported: list[str]) -> None:
    """Names that end in a stat, or nearly so, make no queue appear; servers report more or less."""
    names = sorted(["a", "a_open", "a_canceled", "a_mem", "a_logsize", "age", "waiters", "x_get"])
    pairs = [(f"queue_{name}_{stat}", f"{name}.{stat}") for name in names for stat in reported]
    found = queue_stats("s", [("uptime", "1"), ("queue_creates", "5"), *pairs])
    assert [queue.name for queue in found] == names
    for queue in found:
        assert queue.values == {stat: f"{queue.name}.{stat}" for stat in reported}


@pytest.mark.parametrize(
    ("data", "address"),
    [
        (b'{"serviceEndpoint": {"host": "h", "port": 1}, "status": "ALIVE"}', Address("h", 1)),
        (
            b'{"additionalEndpoints": {"memcache": {"host": "m", "port": 2}}, "status": "ALIVE"}',
            Address("m", 2),
        ),
        (
            b'{"additionalEndpoints": {"thrift": {"host": "h", "port": 1}}, "status": "ALIVE"}',
            None,
        ),
        (b'{"serviceEndpoint": {"host": "h", "port": 1}, "status": "DEAD"}', None),
        (b'{"serviceEndpoint": {"host": "h", "port": "1"}}', None),
        (b'{"serviceEndpoint": {"host": "h", "port": 70000}}', None),
        (b"[]", None),
        (b"", None),
        (b"\xff", None),
    ],
)
def test_a_member_of_a_server_set_names_its_address(data: bytes, address: Address | None) -> None:
    """Members that listen for another protocol, are not up, or make no sense are left out."""
    assert member_address(data) == address


@pytest.mark.parametrize(
    "wrong",
    [
        {"connect_timeout": 0},
        {"connect_timeout": math.nan},
        {"operation_timeout": -1},
        {"operation_timeout": math.inf},
        {"poll_interval": 0},
        {"restart_patience": -1},
        {"restart_patience": math.nan},
        {"max_idle_connections": -1},
        {"max_item_bytes": -1},
        {"affinity": "server"},
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    """When they are made, not by the first operation."""
    (name,) = wrong
    with pytest.raises(InvalidRequest, match=name):
        ClientOptions(**wrong)
