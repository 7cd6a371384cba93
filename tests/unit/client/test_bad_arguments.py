"""What cannot be sent is refused before any server is asked, by an error that names it."""

import asyncio
import math
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from kestrelmq.arguments import given_count, given_number
from kestrelmq.client import AsyncClient, Client, ClientOptions
from kestrelmq.errors import InvalidRequest, ServerUnavailable

ADDRESS = "host.invalid:1"
"""Of no server: what is sent to it raises another error."""


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize("servers", [None, 5, b"a:1", [5], [b"a:1"], ["a", None], object()])
def test_servers_are_text_or_a_membership(client: Callable[..., object], servers: object) -> None:
    """Anything else is told at once, and not by the first operation."""
    with pytest.raises(InvalidRequest, match="a server address is text, not"):
        client(servers)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"options": {"connect_timeout": 1}}, "options are ClientOptions, not dict"),
        ({"affinity": ["queue"]}, "the affinity is 'queue' or None"),
    ],
)
def test_a_client_is_made_of_options(arguments: dict[str, Any], says: str) -> None:
    """They are checked when the client is made."""
    with pytest.raises(InvalidRequest, match=says):
        Client(ADDRESS, **arguments)


@pytest.mark.parametrize(
    "name", ["connect_timeout", "poll_interval", "restart_patience", "max_idle_connections"]
)
def test_options_are_numbers(name: str) -> None:
    """The error says which is not."""
    given: dict[str, Any] = {name: "5"}
    with pytest.raises(InvalidRequest, match=f"{name} is a number, not str"):
        ClientOptions(**given)


def test_what_to_discover_is_text() -> None:
    """ZooKeeper itself is not asked."""
    with pytest.raises(InvalidRequest, match="path_prefix is text"):
        Client.discover("zk:1", None)  # type: ignore[arg-type]


def test_zookeeper_is_at_hosts() -> None:
    """One that no resolver can be asked for would end the thread that connects."""
    with pytest.raises(InvalidRequest, match="are not ZooKeeper addresses"):
        Client.discover("zk:1,a..b:1", "/kestrel")


@pytest.mark.parametrize("path_prefix", ["/kestrel/../other", "..", "./kestrel", "/a\tb"])
def test_what_to_discover_is_a_path(path_prefix: str) -> None:
    """One that ZooKeeper has no node of is not asked for."""
    with pytest.raises(InvalidRequest, match="path_prefix is a path of ZooKeeper, not"):
        Client.discover("zk:1", path_prefix)


def entered(block: Any) -> None:
    """Enter and leave a block."""
    with ExitStack() as stack:
        stack.enter_context(block)


NUMBERS: dict[str, Callable[[Client, Any], object]] = {
    "the expiry": lambda client, wrong: client.put("q", b"x", wrong),
    "the delay": lambda client, wrong: client.put("q", b"x", delay=wrong),
    "a timeout": lambda client, wrong: client.get("q", wrong),
    "a timeout of a consumer": lambda client, wrong: next(client.consume("q", idle_timeout=wrong)),
    "a timeout of a monitor": lambda client, wrong: entered(client.monitor("q", wrong)),
    "a lease": lambda client, wrong: entered(client.reserve("q", lease=wrong)),
    "a grace": lambda client, wrong: entered(client.reserve("q", grace=wrong)),
    "a heartbeat": lambda client, wrong: entered(client.reserve("q", heartbeat=wrong)),
    "a lease of many": lambda client, wrong: client.reserve_many("q", 1, wrong),
    "a lease of an owner": lambda client, wrong: client.extend_owner("me", wrong),
    "the delay of a release": lambda client, wrong: client.release("q", "1-a", delay=wrong),
    "max_age": lambda client, wrong: client.declare("q", max_age=wrong),
}


@pytest.mark.parametrize("wrong", ["5", b"5", [], timedelta(seconds=5), 1j])
@pytest.mark.parametrize("what", NUMBERS)
def test_times_are_numbers(what: str, wrong: object) -> None:
    """The error says which is not, and what it is."""
    name, kind = what.partition(" of ")[0], type(wrong).__name__
    with Client(ADDRESS) as client, pytest.raises(InvalidRequest, match=f"{name}.* not {kind}"):
        NUMBERS[what](client, wrong)


COUNTS: dict[str, Callable[[Client, Any], object]] = {
    "max_items": lambda client, wrong: list(client.consume("q", max_items=wrong)),
    "max_items of a monitor": lambda client, wrong: entered(client.monitor("q", 0, wrong)),
    "max_items of a queue": lambda client, wrong: client.declare("q", max_items=wrong),
    "a number of items": lambda client, wrong: client.move("q", "r", wrong),
    "an epoch": lambda client, wrong: client.retire("q", "sink", wrong),
}


@pytest.mark.parametrize("wrong", ["5", 1.5, -1])
@pytest.mark.parametrize("what", COUNTS)
def test_counts_are_whole_numbers_from_0_on(what: str, wrong: object) -> None:
    """The error says which is not, and what it is."""
    name = what.partition(" of a ")[0]
    with Client(ADDRESS) as client, pytest.raises(InvalidRequest, match=f"{name} is .*not "):
        COUNTS[what](client, wrong)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda client: client.finish("q", [None]), "a read is a ReservedRead or text, not NoneT"),
        (lambda client: client.finish("q", b"1-a"), "a read is a ReservedRead or text, not bytes"),
        (lambda client: client.finish("q", tag=5), "a tag is text, not int"),
        (lambda client: client.release("q", owner=b"me"), "an owner is text, not bytes"),
        (lambda client: client.put_many("q", None), "put_many takes a list"),
        (lambda client: client.import_items(None), "import_items takes lines, not NoneType"),
        (lambda client: client.set_status(None), "a status is text, not NoneType"),
        (lambda client: client.reserve_many([], 1, 5), "no queue was given"),
        (lambda client: client.reserve_many(None, 1, 5), "a queue name is text, not NoneType"),
        (lambda client: client.reserve_many(["q", b"r"], 1, 5), "a queue name is text, not bytes"),
        (lambda client: client.declare("q", expires=math.nan), "expires must be from 0 to"),
    ],
)
def test_names_and_lists_are_such(call: Callable[[Client], object], says: str) -> None:
    """Of the wrong kind, or empty, they are refused."""
    with Client(ADDRESS) as client, pytest.raises(InvalidRequest, match=says):
        call(client)


async def test_both_clients_check_alike() -> None:
    """What a consumer is given is checked in each of them."""
    async with AsyncClient(ADDRESS) as client:
        with pytest.raises(InvalidRequest, match="max_items is a whole number"):
            await anext(client.consume("q", max_items=1.5))  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="a timeout is a number, not str"):
            await client.get("q", "5")  # type: ignore[arg-type]


def test_a_client_belongs_to_one_event_loop() -> None:
    """The connections of the first one would tell another nothing."""
    client = AsyncClient(ADDRESS, options=ClientOptions(restart_patience=0))
    with asyncio.Runner() as first, asyncio.Runner() as second:
        with pytest.raises(ServerUnavailable):
            first.run(client.get("q"))
        with pytest.raises(InvalidRequest, match="belongs to one event loop"):
            second.run(client.get("q"))
        first.run(client.close())


def test_numbers_of_other_libraries_are_numbers() -> None:
    """Such as NumPy's."""
    assert given_count(np.int64(5), "a count") == 5
    assert given_number(np.float32(1.5), "a time") == 1.5


def test_a_number_may_be_huge() -> None:
    """It is not one that a float has room for."""
    with (
        Client(ADDRESS) as client,
        pytest.raises(InvalidRequest, match="the expiry must be finite"),
    ):
        client.put("q", b"x", 10**400)
