"""`--json`: what commands print for other programs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kestrelmq.client import Client
from kestrelmq.passwords import PasswordHash
from tests.support.commands import run_command
from tests.support.server import ServerProcess, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Run one server for the tests of this module."""
    with running_server(tmp_path_factory.mktemp("server")) as process:
        yield process


def lines(*arguments: str, server: ServerProcess | None = None) -> list[Any]:
    """Run a command; return the JSON of each line that it prints."""
    variables = {} if server is None else {"KESTRELMQ_SERVERS": server.address}
    done = run_command(*arguments, "--json", environment=variables)
    assert (done.returncode, done.stderr) == (0, b"")
    return [json.loads(line) for line in done.stdout.splitlines()]


def document(*arguments: str, server: ServerProcess | None = None, data: bytes = b"") -> Any:
    """Run a command with this input; return the JSON that it prints."""
    variables = {} if server is None else {"KESTRELMQ_SERVERS": server.address}
    done = run_command(*arguments, "--json", data=data, environment=variables)
    assert (done.returncode, done.stderr) == (0, b"")
    return json.loads(done.stdout)


def test_items(server: ServerProcess) -> None:
    """Each is a line with its queue; what is not UTF-8 is encoded."""
    with Client(server.address) as client:
        client.put_many("work", [b"one\ntwo", b"\xff", b"three", b"four"])
    first = [{"queue": "work", "data": "one\ntwo"}]
    assert lines("peek", "work", server=server) == first
    assert lines("get", "work", server=server) == first
    rest = [{"queue": "work", "data_base64": "/w=="}, {"queue": "work", "data": "three"}]
    assert lines("monitor", "work", "5", "2", server=server) == rest
    assert lines("get", "work", "--count", "0", server=server) == [
        {"queue": "work", "data": "four"}
    ]


def test_servers(server: ServerProcess) -> None:
    """Their status, and what becomes of a move, by server."""
    assert document("status", server=server) == {server.address: "UP"}
    with Client(server.address) as client:
        client.put_many("old", [b"1", b"2", b"3"])
    done = {server.address: {"count": 2, "stopped": None}}
    assert document("copy", "old", "new", "--count", "2", server=server) == done
    assert document("move", "old", "new", "--count", "2", server=server) == done


def test_top(server: ServerProcess) -> None:
    """Each view is a line, with the servers and the busiest queues."""
    with Client(server.address) as client:
        client.put("busy", b"x")
    (view,) = lines("top", "--once", "--interval", "1ms", server=server)
    assert view["servers"][server.address]["curr_connections"] >= 1
    (busy,) = [line for line in view["queues"] if line["name"] == "busy"]
    assert (busy["items"], busy["bytes"]) == (1, 1)


def test_counts(server: ServerProcess) -> None:
    """What is a line of text elsewhere is an object with one number."""
    items = b'{"queue": "counted", "data": "one"}\n{"queue": "counted", "data": "two"}\n'
    assert document("import", server=server, data=items) == {"added": 2}
    with Client(server.address) as client:
        reads = [one.read for one in client.reserve_many("counted", 2, lease=60) or ()]
    assert document("extend", "counted", "2m", *reads, server=server) == {"extended": 2}
    assert document("release", "counted", reads[0], server=server) == {"released": 1}
    assert document("finish", "counted", reads[1], server=server) == {"finished": 1}
    assert document("extend-owner", "nobody", "1m", server=server) == {"extended": 0}
    assert document("retire", "counted", "name", "7", server=server) == {"retired": 0}
    assert document("put", "counted", "--lines", server=server, data=b"a\nb\n") == {"put": 2}


def test_load_tests(server: ServerProcess) -> None:
    """The rates of the phases, the verdict, and what else is said."""
    words = ("many-clients", "-c", "2", "-n", "100", "--server", server.address, "-q", "load")
    found = document("bench", *words)
    assert [(one["action"], one["items"]) for one in found["rates"]] == [
        ("put", 100),
        ("read", 100),
    ]
    assert all(one["seconds"] > 0 for one in found["rates"])
    assert (found["verdict"]["expected"], found["verdict"]["is_good"]) == (100, True)
    assert len(found["notes"]) == 1


def test_users(tmp_path: Path) -> None:
    """A hash fits the password; each right says whether the user has it, and why."""
    made = document("user", "hash", data=b"correct-horse-battery\n")["password_hash"]
    assert PasswordHash.parse(made).fits("correct-horse-battery")
    file = tmp_path / "kestrelmq.toml"
    file.write_text(f"[users.alice]\npassword_hash = '{made}'\nread = ['work*']\n")
    assert document("user", "check", "alice", "work", "--config", str(file)) == [
        {"to": "read work", "allowed": True, "why": 'read = "work*"'},
        {"to": "write work", "allowed": False, "why": "no pattern in write matches it"},
        {"to": "flush, delete and pause work", "allowed": False, "why": "admin is false"},
    ]


def test_settings(tmp_path: Path) -> None:
    """The same settings as in TOML."""
    file = tmp_path / "kestrelmq.toml"
    file.write_text("memcache_listen_port = 4711\n[queues.work]\nmax_items = 7\n")
    shown = document("config", "show", "--config", str(file))
    assert shown["memcache_listen_port"] == 4711
    assert shown["queues"]["work"]["max_items"] == 7
    only = document("config", "show", "work", "--config", str(file))
    assert only == {"queues": {"work": shown["queues"]["work"]}}


def test_journals(tmp_path: Path) -> None:
    """One line for each queue; a damaged one has the ranges of bytes that are lost."""
    path, export = tmp_path / "queues", tmp_path / "export.jsonl"
    export.write_text('{"queue": "work", "data": "one"}\n{"queue": "work", "data": "two"}\n')
    imported = lines("journal", "import", str(path), str(export))
    assert imported == [{"queue": "work", "items": 2}]
    (found,) = lines("journal", "verify", str(path))
    assert (found["queue"], found["items"], found["is_sound"]) == ("work", 2, True)
    assert lines("journal", "dump", "--quiet", str(path)) == [found]
    (packed,) = lines("journal", "pack", str(path))
    assert (packed["queue"], packed["items"]) == ("work", 2)
    journal = path / "work"
    journal.write_bytes(journal.read_bytes()[:-1] + b"x\xff\xff\xff")
    done = run_command("journal", "verify", "--json", str(path))
    assert done.returncode == 1
    (lost,) = json.loads(done.stdout)["damaged"]
    assert lost["file"] == "work"
    (repaired,) = lines("journal", "repair", str(path))
    assert list(repaired["kept"]) == ["work"]
