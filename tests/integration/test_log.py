"""What a real server logs: what started where, and who asked for what."""

import http.client
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kestrelmq.version import VERSION
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, put

pytestmark = pytest.mark.compiled_only


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that logs as JSON."""
    config = 'log_format = "json"\n[queues.small]\nmax_items = 1\n'
    with running_server(tmp_path, config=config) as running:
        yield running


def events(server: ServerProcess, **fields: object) -> list[dict[str, Any]]:
    """Return the events in the log that have these fields."""
    lines = [line for line in server.output.splitlines() if line.startswith("{")]
    found = [json.loads(line) for line in lines]
    return [one for one in found if fields.items() <= one.items()]


def peer(wire: Wire) -> str:
    """Return the address by which the server knows a connection."""
    host, port = wire.socket.getsockname()
    return f"{host}:{port}"


def ask(server: ServerProcess, method: str, path: str, body: object = None) -> int:
    """Send a request to the API; return the status of the reply."""
    connection = http.client.HTTPConnection("127.0.0.1", server.ports["admin"], timeout=PATIENCE)
    headers = {"Content-Type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_the_start_is_one_event(server: ServerProcess) -> None:
    """With the version, the queue path and the address of every listener."""
    until(lambda: bool(events(server, version=VERSION)))
    (start,) = events(server, logger="kestrelmq.server.app", version=VERSION)
    assert start["queue_path"] == str(server.queue_path)
    assert start["listeners"] == {name: f"127.0.0.1:{port}" for name, port in server.ports.items()}
    assert start["message"].startswith(f"kestrelmq {VERSION} serves the queue path ")
    assert datetime.fromisoformat(start["time"]).tzinfo is not None


def test_the_log_names_the_client_of_each_change(server: ServerProcess) -> None:
    """Whatever drops items or acts on the server, over each protocol."""
    with Wire(server) as memcache, Wire(server, "text") as text:
        put(memcache, "jobs", "a")
        memcache.ask(b"flush jobs\r\n", b"END\r\n")
        memcache.ask(b"flush_all noreply\r\ndelete jobs\r\n", b"DELETED\r\n")
        memcache.ask(b"status readonly\r\nstatus up\r\n", b"END\r\nEND\r\n")
        text.ask(b"flush jobs\n", b"+0\n")
        text.ask(b"delete jobs\n", b"+0\n")
        until(lambda: len(events(server, peer=peer(text))) == 2)
        by_memcache = events(server, peer=peer(memcache), protocol="memcache")
        assert [(one["action"], one.get("queue")) for one in by_memcache] == [
            ("flush", "jobs"),
            ("flush_all", None),
            ("delete", "jobs"),
            ("status", None),
            ("status", None),
        ]
        assert by_memcache[0]["message"] == f"flush jobs: asked for by {peer(memcache)} (memcache)"
        by_text = events(server, peer=peer(text), protocol="text")
        assert [(one["action"], one["queue"]) for one in by_text] == [
            ("flush", "jobs"),
            ("delete", "jobs"),
        ]


def test_the_traffic_of_items_over_http_is_for_debugging(tmp_path: Path) -> None:
    """Workers would fill the log with it; who did something to a queue or the server is news."""
    one = "/api/v1/queues/jobs"
    traffic = {
        f"{one}/items": {"text": "a"},
        "/api/v1/reserve": {"queues": ["jobs"], "count": 1, "lease_ms": 60_000},
        f"{one}/finish": {"reads": []},
        f"{one}/release": {"reads": []},
        f"{one}/extend": {"reads": [], "lease_ms": 1},
        "/api/v1/extend-owner": {"owner": "me", "lease_ms": 1},
        f"{one}/retire": {"name": "me", "epoch": 1},
    }
    deeds = [f"{one}/pause", f"{one}/resume", f"{one}/redrive", f"{one}/flush", "/api/v1/reload"]
    config = 'log_format = "json"\nlog_level = "debug"\n'
    with running_server(tmp_path, config=config) as server:
        for path, body in traffic.items():
            ask(server, "POST", path, body)
        for path in deeds:
            ask(server, "POST", path, {})
        ask(server, "DELETE", one)
        until(lambda: bool(events(server, action=f"DELETE {one}")))
        found = {event["action"]: event["level"] for event in events(server, protocol="http")}
    assert {path for path in traffic if found[f"POST {path}"] != "debug"} == set()
    assert {action for action, level in found.items() if level == "info"} == {
        *(f"POST {path}" for path in deeds[:-1]),
        "reload",
        f"DELETE {one}",
    }


def test_very_many_requests_of_one_client_are_counted(server: ServerProcess) -> None:
    """Ten a second are logged one by one, and in one line how many others there were."""
    with Wire(server) as wire:
        wire.ask(b"flush jobs\r\n" * 1000, b"END\r\n" * 1000)

    def told() -> int:
        counts: list[int] = [one["count"] for one in events(server, peer="127.0.0.1")]
        return len(events(server, action="flush")) + sum(counts)

    until(lambda: told() == 1000)


def test_which_clients_the_dialect_is_for_is_said_once(tmp_path: Path) -> None:
    """At the first read with options; not of other reads, and not where ordinary clients can read.

    pymemcache sends such a read as written here, and raises KeyError for the reply.
    """
    for name, config, times in (
        ("default", "", 1),
        ("memcached", 'memcache_dialect = "memcached"\n', 0),
    ):
        (tmp_path / name).mkdir()
        with running_server(tmp_path / name, config=config) as server:
            wire = Wire(server)
            wire.ask(b"get work\r\n", b"END\r\n")
            assert 'memcache_dialect = "memcached"' not in server.output
            for request in (b"get work/t=1\r\n", b"get work/peek\r\n", b"gets work/t=2\r\n"):
                wire.ask(request, b"END\r\n")
            wire.close()
        said = [line for line in server.output.splitlines() if "reads with options" in line]
        assert len(said) == times
        assert all('memcache_dialect = "memcached"' in line for line in said)


def test_the_log_names_the_client_of_a_move_or_pause(server: ServerProcess) -> None:
    """Looking at a queue is not logged."""
    with Wire(server) as memcache:
        put(memcache, "bin", "a", "b")
        memcache.ask(b"pause bin writes\r\nresume bin\r\n", b"END\r\nEND\r\n")
        memcache.ask(b"copy bin bin2 1\r\nmove bin bin2 1\r\n", b"COPIED 1\r\nMOVED 1\r\n")
        memcache.ask(b"redrive bin2 bin\r\nbrowse none 0 1\r\n", b"MOVED 2\r\nNOT_FOUND\r\n")
        until(lambda: len(events(server, peer=peer(memcache))) == 5)
        found = events(server, peer=peer(memcache))
    assert [(one["protocol"], one["action"], one["queue"]) for one in found] == [
        ("memcache", "pause writes", "bin"),
        ("memcache", "resume all", "bin"),
        ("memcache", "copy", "bin"),
        ("memcache", "move", "bin"),
        ("memcache", "redrive", "bin2"),
    ]


def test_the_log_names_the_client_of_each_change_over_http(server: ServerProcess) -> None:
    """Every request that changes something, unless it adds an item; none that only looks."""
    item = {"text": "x"}
    assert ask(server, "POST", "/api/v1/queues/jobs/items", item) == 201
    assert ask(server, "POST", "/api/v1/queues/jobs/open-reads/requeue", {}) == 200
    assert ask(server, "POST", "/api/v1/queues/jobs/flush") == 200
    assert ask(server, "DELETE", "/api/v1/queues/jobs") == 204
    assert ask(server, "GET", "/api/v1/queues") == 200
    until(lambda: len(events(server, protocol="http")) == 3)
    found = events(server, protocol="http")
    assert [(one["action"], one["queue"]) for one in found] == [
        ("POST /api/v1/queues/jobs/open-reads/requeue", "jobs"),
        ("POST /api/v1/queues/jobs/flush", "jobs"),
        ("DELETE /api/v1/queues/jobs", "jobs"),
    ]
    assert found[2]["message"].startswith("DELETE /api/v1/queues/jobs: asked for by 127.0.0.1:")


def test_a_queue_that_refuses_logs_once(server: ServerProcess) -> None:
    """However often it refuses; the next line comes a minute later."""
    with Wire(server) as wire:
        put(wire, "small", "one")
        put(wire, "small", *["two"] * 50, reply=b"NOT_STORED\r\n")
        wire.ask(b"delete other\r\n", b"DELETED\r\n")
    until(lambda: bool(events(server, action="delete")))
    (refused,) = events(server, logger="kestrelmq.queue.refusals")
    assert (refused["queue"], refused["level"]) == ("small", "warning")
    assert refused["refused"] == {"full_items": 1}
