"""What a real server refuses, over each protocol, and where the counts are shown."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kestrelmq.client import Client
from tests.support.patience import until
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, put, stats, wait_for

pytestmark = pytest.mark.compiled_only

CONFIG = """
[default]
max_item_size = 400_000
[queues.small]
max_items = 1
[queues.short]
max_item_size = 5
[queues.closed]
allowed_client_ids_for_enqueue = ["somebody"]
allowed_client_ids_for_dequeue = ["somebody"]
[aliases.both]
destination_queues = ["small", "short"]
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server with queues that refuse."""
    with running_server(tmp_path, config=CONFIG) as running:
        yield running


def page(server: ServerProcess, path: str) -> str:
    """Return what the admin service answers."""
    with urlopen(f"http://127.0.0.1:{server.ports['admin']}{path}") as reply:
        return str(reply.read().decode())


def refused(server: ServerProcess, queue: str) -> dict[str, int]:
    """Return the refusals of a queue, by reason, as `/metrics` has them."""
    families = text_string_to_metric_families(page(server, "/metrics"))
    return {
        sample.labels["reason"]: int(sample.value)
        for family in families
        for sample in family.samples
        if sample.name == "kestrelmq_queue_refusals_total" and sample.labels["queue"] == queue
        if sample.value
    }


def test_every_protocol_counts(server: ServerProcess) -> None:
    """A full queue, an item that is too large, before or after it arrived."""
    with Wire(server) as memcache, Wire(server, "text") as text:
        put(memcache, "small", "one")
        put(memcache, "small", "two", reply=b"NOT_STORED\r\n")
        text.ask(b"put small:\nthree\n\n", b"+0\n")
        assert refused(server, "small") == {"full_items": 2}
        memcache.ask(b"get short\r\n", b"END\r\n")
        put(memcache, "short", "six bytes", reply=b"NOT_STORED\r\n")
        memcache.ask(b"set short 0 0 300000\r\n", b"")
        memcache.ask(bytes(300_000) + b"\r\n", b"NOT_STORED\r\n")
        text.ask(b"put short:\nfive5\nsix six\nfive5\n\n", b"+2\n")
        assert refused(server, "short") == {"too_large": 3}
        put(memcache, "both", "six bytes", reply=b"NOT_STORED\r\n")
        assert refused(server, "short") == {"too_large": 4}


def test_an_item_too_large_for_an_alias_counts_in_each_queue(server: ServerProcess) -> None:
    """It is dropped before it arrives, so no queue sees it."""
    with Wire(server) as memcache:
        memcache.ask(b"get small short\r\n", b"END\r\n")
        memcache.ask(b"set both 0 0 500000\r\n", b"")
        memcache.ask(bytes(500_000) + b"\r\n", b"NOT_STORED\r\n")
        assert (refused(server, "small"), refused(server, "short")) == (
            {"too_large": 1},
            {"too_large": 1},
        )


def test_what_refuses_a_whole_item_refuses_one_that_is_dropped(tmp_path: Path) -> None:
    """The status, a pause and the client's rights come before the size of an item."""
    dropped = b"set %b 0 0 500000\r\n"
    with running_server(tmp_path, config=CONFIG) as server, Wire(server) as memcache:
        memcache.ask(b"get short\r\npause short writes\r\n", b"END\r\nEND\r\n")
        memcache.ask(dropped % b"short", b"")
        reply = b"SERVER_ERROR queue short is paused for writes\r\n"
        memcache.ask(bytes(500_000) + b"\r\n", reply)
        memcache.ask(dropped % b"closed", b"")
        reply = b"CLIENT_ERROR this client may not add to closed\r\n"
        memcache.ask(bytes(500_000) + b"\r\n", reply)
        assert refused(server, "short") == {"paused": 1}
        memcache.ask(b"status readonly\r\n", b"END\r\n")
        memcache.send(dropped % b"small")
        memcache.expect_close(b"SERVER_ERROR the server is read-only: it takes no writes\r\n")


def test_a_client_without_the_right_id_counts(tmp_path: Path) -> None:
    """Adds and reads alike, as soon as the queue is there."""
    with running_server(tmp_path) as server:
        with Client(server.address) as client:
            client.put("closed", b"from before")
        server.stop()
    with running_server(tmp_path, config=CONFIG) as server, Wire(server) as memcache:
        memcache.ask(b"get closed\r\n", b"CLIENT_ERROR this client may not read closed\r\n")
        put(memcache, "closed", "x", reply=b"CLIENT_ERROR this client may not add to closed\r\n")
        assert refused(server, "closed") == {"forbidden": 2}
        assert server.logged("queue closed refused requests: forbidden 1")


def test_a_client_that_waits_loses_its_right(tmp_path: Path) -> None:
    """A reload takes it away at once: it is refused, and the item stays."""
    with (
        running_server(tmp_path, config="") as server,
        Wire(server) as memcache,
        Wire(server) as waiting,
        Wire(server, "text") as text,
    ):
        waiting.send(b"get closed/t=300000\r\n")
        text.send(b"get closed 300000\n")
        wait_for(memcache, "closed", "waiters", 2)
        (tmp_path / "kestrelmq.toml").write_text(CONFIG)
        memcache.ask(b"reload\r\n", b"Reloaded config.\r\n")
        assert stats(memcache, "closed")["waiters"] == "0"
        waiting.expect(b"CLIENT_ERROR who may read closed has changed\r\n")
        text.expect(b"-who may read closed has changed\n")
        assert refused(server, "closed") == {"forbidden": 2}


def test_limits_and_the_disk_are_shown(server: ServerProcess) -> None:
    """As gauges; a limit that is not set is not there."""
    with Wire(server) as memcache:
        put(memcache, "small", "one")
        put(memcache, "other", "one")
    metrics = page(server, "/metrics")
    limits = re.findall(
        r'^kestrelmq_queue_max_(\w+)\{queue="(\w+)"\} (\S+)$', metrics, re.MULTILINE
    )
    assert sorted(limits) == [
        ("item_bytes", "other", "400000.0"),
        ("item_bytes", "small", "400000.0"),
        ("items", "small", "1.0"),
        ("memory_bytes", "other", "1.34217728e+08"),
        ("memory_bytes", "small", "1.34217728e+08"),
    ]
    assert re.search(r"^kestrelmq_disk_free_bytes [1-9]", metrics, re.MULTILINE)
    assert re.search(r"^kestrelmq_disk_size_bytes [1-9]", metrics, re.MULTILINE)
    numbers = json.loads(page(server, "/api/v1/server"))["stats"]
    assert 0 < numbers["disk_free"] <= numbers["disk_total"]
    detail = json.loads(page(server, "/api/v1/queues/small"))["stats"]
    assert (detail["max_items"], detail["max_item_size"]) == (1, 400_000)
    assert "max_size" not in detail


def test_the_room_on_the_disk_is_read_again(server: ServerProcess) -> None:
    """Some seconds later, when something is written to it."""

    def free() -> float:
        return float(json.loads(page(server, "/stats.json"))["gauges"]["disk_free"])

    before = free()
    (server.queue_path / "~~filler").write_bytes(bytes(64 << 20))
    until(lambda: free() != before)
