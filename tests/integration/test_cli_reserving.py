"""The commands for reserved reads against a real server, as a script uses them."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from kestrelmq.client import Client
from tests.integration.test_cli_client import answer, run
from tests.support.commands import run_without_room
from tests.support.server import ServerProcess, running_server

CONFIG = """
[queues.work]
max_deliveries = 5
dead_letter_queue = "dead"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Run one server for the tests of this module."""
    with running_server(tmp_path_factory.mktemp("server"), config=CONFIG) as process:
        yield process


def lines(output: bytes) -> list[dict[str, Any]]:
    """Return lines of JSON."""
    return [json.loads(line) for line in output.splitlines()]


def test_items_are_reserved_and_ended(client: Client, server: ServerProcess) -> None:
    """Each with what is needed to end it, by any later command."""
    client.put("high", b"\xff")
    client.put_many("work", [b"a", b"caf\xc3\xa9", b"c"])
    output = answer(server, "reserve", "high", "work", "--count", "9", "--lease", "5m")
    first, *others = lines(output)
    assert (first["queue"], base64.b64decode(first["data_base64"])) == ("high", b"\xff")
    assert [one["data"] for one in others] == ["a", "caf\u00e9", "c"]
    assert all(one["deliveries"] == 1 and one["server"] == server.address for one in others)
    assert all(one["add_time"] > 0 == one["expiry"] for one in others)
    a, b, c = [one["read"] for one in others]
    assert answer(server, "extend", "work", "10m", a, b, c) == b"3 extended\n"
    assert answer(server, "finish", "work", a) == b"1 finished\n"
    assert answer(server, "release", "work", b, "--uncounted") == b"1 released\n"
    assert answer(server, "release", "work", c, "--dead") == b"1 released\n"
    assert (client.get("work"), client.get("work")) == (b"caf\xc3\xa9", None)
    assert client.get("dead") == b"c"
    late = run(server, "finish", "work", a, b)
    assert (late.returncode, late.stdout) == (1, b"0 finished\n")
    assert b"2 of 2 were not reserved any more" in late.stderr


def test_what_could_not_be_printed_is_given_back(client: Client, server: ServerProcess) -> None:
    """Nobody can finish it, so it does not wait for the end of its lease, nor counts."""
    client.put_many("work", [b"a", b"b"])
    command = ("reserve", "work", "--count", "2", "--lease", "1h", "--servers", server.address)
    ended = run_without_room(*command)
    assert (ended.returncode, b"No space left" in ended.stderr) == (1, True)
    again = lines(answer(server, "reserve", "work", "--count", "2", "--lease", "1h"))
    assert [(one["data"], one["deliveries"]) for one in again] == [("a", 1), ("b", 1)]
    answer(server, "finish", "work", *(one["read"] for one in again))


def test_what_a_tag_could_not_print_comes_again(client: Client, server: ServerProcess) -> None:
    """The tag has its items; whoever asks for it gets them."""
    client.put("work", b"a")
    command = ("reserve", "work", "--lease", "1h", "--tag", "full:1:0")
    assert run_without_room(*command, "--servers", server.address).returncode == 1
    (again,) = lines(answer(server, *command))
    assert again["data"] == "a"
    answer(server, "finish", "work", "--tag", "full:1:0")


def test_a_script_can_tell_how_a_reserve_ended(client: Client, server: ServerProcess) -> None:
    """Nothing there, done before, or refused."""
    nothing = run(server, "reserve", "work", "--lease", "1s", "--timeout", "10ms")
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (1, b"", b"")
    client.put("work", b"a")
    tag = ("--tag", "sink:7:0", "--lease", "5m")
    first = answer(server, "reserve", "work", *tag)
    assert answer(server, "reserve", "work", *tag) == first
    assert answer(server, "extend", "work", "5m", "--tag", "sink:7:0") == b"1 extended\n"
    assert answer(server, "finish", "work", "--tag", "sink:7:0") == b"1 finished\n"
    done = run(server, "reserve", "work", *tag)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"", b"")
    assert answer(server, "retire", "work", "sink", "7") == b"1 retired\n"
    refused = run(server, "reserve", "work", *tag)
    assert refused.returncode == 1
    assert b"the epoch of tag sink:7:0 is retired" in refused.stderr


def test_an_owner_that_has_ended_gives_back(client: Client, server: ServerProcess) -> None:
    """The command was its only connection."""
    client.put("work", b"a")
    own = ("--owner", "me", "--grace", "10m")
    assert lines(answer(server, "reserve", "work", "--lease", "5m", *own))
    assert client.get("work") is None
    assert answer(server, "release", "work", "--owner", "me") == b"1 released\n"
    assert lines(
        answer(server, "reserve", "work", "--lease", "5m", "--owner", "me", "--grace", "0")
    )
    assert client.get("work", timeout=60) == b"a"


def test_owners_are_listed_and_released(client: Client, server: ServerProcess) -> None:
    """Over all queues; a lease of 0 outlives the command."""
    client.put("high", b"a")
    client.put("work", b"bc")
    tagged = ("--tag", "c:1:0", "--owner", "cli", "--nodata")
    assert run(server, "reserve", "high", "--lease", "0", *tagged, "--again").returncode == 1
    (held,) = lines(answer(server, "reserve", "high", "--lease", "0", *tagged))
    assert (held["queue"], held["count"], held["bytes"]) == ("high", 1, 1)
    answer(server, "reserve", "work", "--lease", "0", "--owner", "cli")
    (owner,) = json.loads(answer(server, "owners", "c*", "--json"))
    assert (owner["owner"], owner["reads"], owner["queues"], owner["tags"]) == ("cli", 2, 2, 1)
    assert b"cli" in answer(server, "owners")
    assert answer(server, "release", "--owner", "cli") == b"2 released\n"
    assert (client.get("high"), client.get("work")) == (b"a", b"bc")


def test_all_items_of_an_owner_are_extended(client: Client, server: ServerProcess) -> None:
    """In all queues; the owner is connected, so that they stay reserved."""
    client.put("work", b"a")
    client.put("other", b"b")
    assert len(client.reserve_many(["work", "other"], 9, 60.0, owner="me", grace=0) or ()) == 2
    assert answer(server, "extend-owner", "me", "1s") == b"2 extended\n"
    assert answer(server, "extend-owner", "nobody", "5m") == b"0 extended\n"
    assert client.get("other", timeout=60) == b"b"
    assert client.get("work", timeout=60) == b"a"


@pytest.mark.parametrize(
    "arguments",
    [
        ("reserve", "work"),
        ("reserve", "work", "--lease", "soon"),
        ("reserve", "work", "--lease", "1s", "--again"),
        ("release",),
        ("reserve", "work", "--lease", "1s", "--count", "1001"),
        ("reserve", "a/b", "--lease", "1s"),
        ("finish", "work"),
        ("finish", "work", "7"),
        ("release", "work", "7-00000000000000ab", "--tag", "a:1:b"),
        ("release", "work", "7-00000000000000ab", "--dead", "--uncounted"),
        ("extend", "work", "1s"),
        ("retire", "work", "a:b", "1"),
    ],
)
def test_what_cannot_be_done_is_said(server: ServerProcess, arguments: tuple[str, ...]) -> None:
    """Without a traceback."""
    result = run(server, *arguments)
    assert result.returncode in {1, 2}
    assert result.stderr
    assert b"Traceback" not in result.stderr
