"""Reserved reads over HTTP, on a real server: alone, and together with memcache."""

import base64
import http.client
import json
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.admin.conftest import TOKEN, Admin
from tests.support.patience import PATIENCE, until
from tests.support.server import running_server
from tests.support.wire import Wire, put, stats, wait_for

API = "/api/v1"
LARGE = 24 << 20
"""Bytes of an item that is more than the sockets take at once."""
CONFIG = """
[queues.failing]
max_deliveries = 9
dead_letter_queue = "dead"
retry_delay = "1 hour"

[queues.closed]
allowed_client_ids_for_dequeue = ["a"]

[aliases.both]
destination_queues = ["one", "two"]
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    """A server that most tests here share; each uses queues of its own."""
    with running_server(tmp_path_factory.mktemp("reserving"), config=CONFIG) as server:
        yield Admin(server)


@pytest.fixture
def wire(shared: Admin) -> Iterator[Wire]:
    """A memcache connection to the shared server."""
    with Wire(shared.server) as connection:
        yield connection


def ask(admin: Admin, path: str, **body: object) -> Any:
    """Send a request that is served; return its answer."""
    reply = admin.ask("POST", f"{API}{path}", body)
    assert reply.status == 200, reply.text
    return reply.json


def refused(admin: Admin, path: str, **body: object) -> tuple[int, str]:
    """Send a request that is refused; return the status and the code."""
    reply = admin.ask("POST", f"{API}{path}", body)
    return reply.status, reply.code


def reserve(admin: Admin, *queues: str, count: int = 1, **body: object) -> list[dict[str, Any]]:
    """Reserve items for a long time; return them, with their data decoded."""
    answer = ask(admin, "/reserve", **{"queues": queues, "count": count, "lease": 600, **body})
    assert answer["done"] is False
    for item in answer["items"]:
        item["data"] = base64.b64decode(item["data"], validate=True)
        assert item["size"] == len(item["data"])
    return list(answer["items"])


def data(items: list[dict[str, Any]]) -> list[bytes]:
    """Return the data of items."""
    return [item["data"] for item in items]


def items(admin: Admin, queue: str) -> list[bytes]:
    """Return the items that wait in a queue."""
    found = admin.get(f"{API}/queues/{queue}/items").json["items"]
    return [base64.b64decode(item["data"]) for item in found]


def request(**body: object) -> bytes:
    """Return a request to reserve items, as bytes."""
    content = json.dumps(body).encode()
    head = f"POST {API}/reserve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def sent(admin: Admin, **body: object) -> socket.socket:
    """Send a request to reserve items; return the connection, on which the answer comes."""
    connection = socket.create_connection(("127.0.0.1", admin.port), PATIENCE)
    connection.sendall(request(**body))
    return connection


def test_items_are_reserved_and_finished(shared: Admin, wire: Wire) -> None:
    """In the order of the queues; they are gone when their reads are finished, and counted once."""
    binary = bytes(range(256))
    with shared.client() as client:
        client.put("b1", binary)
        client.put("b1", b"")
        client.put("c1", b"last", expiry=3600)
    found = reserve(shared, "a1", "b1", "c1", "b1", count=9)
    assert data(found) == [binary, b"", b"last"]
    assert [item["queue"] for item in found] == ["b1", "b1", "c1"]
    assert [item["deliveries"] for item in found] == [1, 1, 1]
    assert [item["expiry"] > item["add_time"] > 0 for item in found] == [False, False, True]
    assert reserve(shared, "a1", "b1", "c1") == []
    reads = [found[0]["read"], found[1]["read"]]
    finished = ask(shared, "/queues/b1/finish", reads=[*reads, reads[0], found[2]["read"]])
    assert finished == {"finished": 2}
    assert ask(shared, "/queues/b1/finish", reads=reads) == {"finished": 0}
    assert ask(shared, "/queues/c1/finish", reads=[found[2]["read"]]) == {"finished": 1}
    assert stats(wire, "b1")["open_transactions"] == stats(wire, "c1")["open_transactions"] == "0"
    assert ask(shared, "/queues/absent/finish", reads=reads) == {"finished": 0}
    assert stats(wire, "absent") == {}


def test_an_answer_has_about_a_mebibyte(shared: Admin) -> None:
    """What there is no room for stays in the queue; an item alone may have any size."""
    large = [os.urandom(700_000), os.urandom(700_001), os.urandom(LARGE)]
    with shared.client() as client:
        client.put_many("large", large)
    assert data(reserve(shared, "large", count=9)) == large[:2]
    assert data(reserve(shared, "large", count=9)) == large[2:]


def test_many_small_items(shared: Admin) -> None:
    """Each has its own read."""
    wanted = [b"%d" % number * (number % 50) for number in range(1000)]
    with shared.client() as client:
        client.put_many("small", wanted)
    found = reserve(shared, "small", count=1000)
    assert data(found) == wanted
    reads = [item["read"] for item in found]
    assert ask(shared, "/queues/small/finish", reads=reads) == {"finished": 1000}


def test_a_connection_goes_on(shared: Admin, wire: Wire) -> None:
    """After an answer in parts, one without an item, and one that was refused."""
    put(wire, "kept", "a")
    connection = http.client.HTTPConnection("127.0.0.1", shared.port, timeout=PATIENCE)
    answers, ours = [], set()
    for queues in (["kept"], ["kept"], [], ["kept"]):
        body = json.dumps({"queues": queues, "lease": 600})
        kind = {"Content-Type": "application/json"}
        connection.request("POST", f"{API}/reserve", body, kind)
        ours.add(connection.sock.getsockname())
        with connection.getresponse() as response:
            answers.append((response.status, len(json.load(response).get("items", ()))))
    connection.close()
    assert answers == [(200, 1), (200, 0), (400, 0), (200, 0)]
    assert len(ours) == 1


def test_a_tag_makes_a_step_repeatable(shared: Admin, wire: Wire) -> None:
    """The same items again until it is finished, the same answer after that, and then no more."""
    put(wire, "tagged", "a", "b", "c")
    first = reserve(shared, "tagged", "tagged", count=2, tag="sink:7:0")
    assert data(first) == [b"a", b"b"]
    assert reserve(shared, "tagged", "tagged", count=2, tag="sink:7:0") == first
    assert ask(shared, "/queues/tagged/extend", lease=60, tag="sink:7:0") == {"extended": 2}
    for _ in range(2):
        assert ask(shared, "/queues/tagged/finish", tag="sink:7:0") == {"finished": 2}
    again = ask(shared, "/reserve", queues=["tagged"], lease=600, tag="sink:7:0")
    assert again == {"done": True, "items": []}
    reserve(shared, "tagged", tag="sink:8:0")
    assert ask(shared, "/queues/tagged/retire", name="sink", epoch=8) == {"retired": 2}
    assert items(shared, "tagged") == [b"c"]
    late = {"queues": ["tagged"], "lease": 600, "tag": "sink:8:0"}
    assert refused(shared, "/reserve", **late) == (409, "tag_refused")
    for end in ("finish", "release"):
        answer = refused(shared, f"/queues/tagged/{end}", tag="sink:8:0")
        assert answer == (409, "tag_refused")
    assert items(shared, "tagged") == [b"c"]


def test_a_tag_is_held_without_data(shared: Admin, wire: Wire) -> None:
    """Whoever holds it is listed, and released in all queues at once."""
    put(wire, "holding", "a", "bcd")
    body = {"queues": ["holding"], "count": 9, "lease": 0, "tag": "h:1:0", "owner": "holder"}
    assert ask(shared, "/reserve", **body, again=True) == {"done": False, "items": []}
    answer = ask(shared, "/reserve", **body, nodata=True)
    (held,) = answer["held"]
    assert answer == {"done": False, "items": [], "held": [held]}
    assert (held["queue"], held["count"], held["bytes"]) == ("holding", 2, 4)
    first, second = reserve(shared, "holding", again=True, tag="h:1:0", owner="holder", lease=0)
    assert first["read"].endswith(f"-{held['nonce']}")
    assert data([first, second]) == [b"a", b"bcd"]
    (read, _) = shared.get(f"{API}/queues/holding/open-reads").json["open_reads"]
    assert (read["owner"], read["lease_ends_in"]) == ("holder", None)
    listed = shared.get(f"{API}/owners?pattern=h*").json
    (owner,) = listed.pop("owners")
    assert listed == {"total": 1, "offset": 0}
    assert owner.pop("age") >= 0
    assert owner == {"owner": "holder", "reads": 2, "queues": 1, "tags": 1, "connections": 0}
    assert shared.get(f"{API}/owners?pattern=h*&offset=1").json["owners"] == []
    assert ask(shared, "/release-owner", owner="holder", uncounted=True) == {"released": 2}
    assert items(shared, "holding") == [b"a", b"bcd"]


def test_reads_are_released(shared: Admin, wire: Wire) -> None:
    """With the delay of the settings, with another one, uncounted, or as dead letters."""
    put(wire, "failing", "a", "b", "c", "d")
    first, second, third, fourth = reserve(shared, "failing", count=4)
    release = "/queues/failing/release"
    assert ask(shared, release, reads=[first["read"]], delay=0) == {"released": 1}
    assert ask(shared, release, reads=[second["read"]]) == {"released": 1}
    assert stats(wire, "failing")["delayed"] == "1"
    assert ask(shared, release, reads=[third["read"]], uncounted=True) == {"released": 1}
    assert ask(shared, release, reads=[fourth["read"]], dead=True) == {"released": 1}
    found = reserve(shared, "failing", count=9)
    assert [(item["data"], item["deliveries"]) for item in found] == [(b"c", 1), (b"a", 2)]
    (dead,) = reserve(shared, "dead")
    assert (dead["data"], dead["deliveries"]) == (b"d", 2)
    answer = refused(shared, "/queues/dead/release", reads=[dead["read"]], dead=True)
    assert answer == (409, "no_dead_letter_queue")
    assert ask(shared, "/queues/dead/release", reads=[dead["read"]]) == {"released": 1}


def test_an_owner_lives_by_its_leases(shared: Admin, wire: Wire) -> None:
    """No request is a connection of it; but when a connection that named it ends, grace begins."""
    put(wire, "o1", "a", "b")
    put(wire, "o2", "c")
    reserve(shared, "o1", "o2", count=3, owner="worker", grace=0)
    assert ask(shared, "/extend-owner", owner="worker", lease=500) == {"extended": 3}
    (read, _) = shared.get(f"{API}/queues/o1/open-reads").json["open_reads"]
    assert (read["owner"], 400 < read["lease_ends_in"] <= 500) == ("worker", True)
    assert ask(shared, "/queues/o2/release", owner="worker") == {"released": 1}
    assert ask(shared, "/extend-owner", owner="worker", lease=500) == {"extended": 2}
    with Wire(shared.server) as worker:
        worker.ask(b"extend owner=worker 500000\r\n", b"EXTENDED 2\r\n")
    until(lambda: items(shared, "o1") == [b"a", b"b"])
    assert ask(shared, "/extend-owner", owner="worker", lease=500) == {"extended": 0}


def test_a_lease_ends_or_is_extended(shared: Admin, wire: Wire) -> None:
    """In real time."""
    put(wire, "lease", "a", "b")
    first, second = reserve(shared, "lease", count=2, lease=0.3)
    ask(shared, "/queues/lease/extend", lease=0, reads=[first["read"]])
    extended = ask(shared, "/queues/lease/extend", lease=600, reads=[second["read"]])
    wait_for(wire, "lease", "items", 2 - extended["extended"])
    assert ask(shared, "/queues/lease/finish", reads=[first["read"]]) == {"finished": 0}


def test_a_wait_ends_with_an_item(shared: Admin, wire: Wire) -> None:
    """Of any of the queues; it leaves the lines of the others."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reserve, shared, "w1", "w2", count=9, timeout=600)
        wait_for(wire, "w2", "waiters", 1)
        put(wire, "w2", "late")
        assert data(waiting.result(PATIENCE)) == [b"late"]
    assert stats(wire, "w1")["waiters"] == "0"
    assert reserve(shared, "w1", "w2", timeout=0.01) == []


def test_a_client_that_disconnects_while_waiting_takes_nothing(shared: Admin, wire: Wire) -> None:
    """It leaves the line, and the next item stays."""
    with sent(shared, queues=["left", "other"], lease=600, timeout=600):
        wait_for(wire, "left", "waiters", 1)
    wait_for(wire, "left", "waiters", 0)
    assert stats(wire, "other")["waiters"] == "0"
    put(wire, "left", "a")
    assert items(shared, "left") == [b"a"]
    assert stats(wire, "left")["open_transactions"] == "0"


@pytest.mark.parametrize("before", [b"", b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_the_next_request_ends_a_wait(shared: Admin, before: bytes) -> None:
    """Whether it came before the wait or in it: the answer has no item."""
    ping = b"GET /ping HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    asked = request(queues=["pipelined"], lease=600, timeout=600)
    with socket.create_connection(("127.0.0.1", shared.port), PATIENCE) as connection:
        connection.sendall(before + asked + ping)
        with connection.makefile("rb") as answers:
            found = answers.read()
    assert b'{"done":false,"items":[]}' in found
    assert found.count(b"pong") == (2 if before else 1)


def test_who_disconnects_with_many_requests_behind_a_wait_takes_nothing(
    shared: Admin, wire: Wire
) -> None:
    """Though the server does not read them all, and so would not see that the client goes."""
    with sent(shared, queues=["many"], lease=600, timeout=600) as connection:
        wait_for(wire, "many", "waiters", 1)
        connection.sendall(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n" * 40)
    wait_for(wire, "many", "waiters", 0)
    put(wire, "many", "a")
    assert items(shared, "many") == [b"a"]
    assert stats(wire, "many")["open_transactions"] == "0"


@pytest.mark.parametrize("tag", [None, "sink:1:0"])
def test_items_of_an_unsent_answer_are_released(shared: Admin, wire: Wire, tag: str | None) -> None:
    """The client goes before it has read all of the answer: the item is as it was."""
    queue = f"gone-{tag}"
    with shared.client() as client:
        client.put(queue, bytes(LARGE))
    with sent(shared, queues=[queue], lease=600, tag=tag):
        wait_for(wire, queue, "open_transactions", 1)
    wait_for(wire, queue, "open_transactions", 0)
    (found,) = reserve(shared, queue)
    assert (found["deliveries"], found["size"]) == (1, LARGE)


def test_a_repetition_that_was_not_sent_changes_nothing(shared: Admin) -> None:
    """The tag is open, as it was before."""
    with shared.client() as client:
        client.put("again", bytes(LARGE))
    first = reserve(shared, "again", tag="a:1:x")
    with sent(shared, queues=["again"], lease=600, tag="a:1:x") as connection:
        assert connection.recv(1) == b"H"
    assert reserve(shared, "again", tag="a:1:x") == first


def test_reads_survive_a_kill(tmp_path: Path) -> None:
    """What is reserved stays so, with its tag; what is finished never comes back."""
    with running_server(tmp_path) as server:
        admin = Admin(server)
        with admin.client() as client:
            client.put_many("jobs", [b"a", b"b", b"c", b"d"])
        (done,) = reserve(admin, "jobs", tag="sink:1:0")
        (plain,) = reserve(admin, "jobs")
        tagged = reserve(admin, "jobs", tag="sink:2:0", owner="w", grace=0)
        assert ask(admin, "/queues/jobs/finish", tag="sink:1:0") == {"finished": 1}
        server.kill9()
        server.restart()
        assert items(admin, "jobs") == [b"d"]
        assert reserve(admin, "jobs", tag="sink:2:0", owner="w", grace=0) == tagged
        assert ask(admin, "/queues/jobs/finish", reads=[plain["read"]]) == {"finished": 1}
        assert ask(admin, "/queues/jobs/finish", tag="sink:1:0") == {"finished": 1}
        assert ask(admin, "/queues/jobs/release", tag="sink:2:0") == {"released": 1}
        server.kill9()
        server.restart()
        assert items(admin, "jobs") == [tagged[0]["data"], b"d"]
        assert done["data"] == b"a"


def test_the_same_reads_over_memcache(shared: Admin, wire: Wire) -> None:
    """What is reserved over the one is finished, released or extended over the other."""
    put(wire, "mixed", "a", "b", "c")
    first, second = reserve(shared, "mixed", count=2)
    wire.ask(f"finish mixed {first['read']}\r\n".encode(), b"FINISHED 1\r\n")
    wire.ask(f"release mixed {second['read']}\r\n".encode(), b"RELEASED 1\r\n")
    reply = wire.ask_until(b"reserve mixed 2 lease=600000 tag=t:1:x\r\n", b"\r\nEND\r\n").decode()
    reads = [line.split(" ")[2] for line in reply.split("\r\n") if line.startswith("ITEM ")]
    assert [item["read"] for item in reserve(shared, "mixed", tag="t:1:x")] == reads
    assert ask(shared, "/queues/mixed/extend", lease=600, reads=reads) == {"extended": 2}
    assert ask(shared, "/queues/mixed/finish", reads=reads[:1]) == {"finished": 1}
    assert ask(shared, "/queues/mixed/finish", tag="t:1:x") == {"finished": 1}
    wire.ask(b"reserve mixed 2 lease=600000 tag=t:1:x\r\n", b"DONE\r\n")
    assert items(shared, "mixed") == []


def test_what_the_status_forbids(admin: Admin) -> None:
    """Nothing is reserved while the server is quiescent, but what was can be ended."""
    with admin.client() as client:
        client.put_many("jobs", [b"a", b"b", b"c"])
    first, second = reserve(admin, "jobs", count=2)
    admin.ask("PUT", f"{API}/status", {"status": "QUIESCENT"})
    again = {"queues": ["jobs"], "lease": 600}
    assert refused(admin, "/reserve", **again) == (503, "refused_by_status")
    assert ask(admin, "/queues/jobs/finish", reads=[first["read"]]) == {"finished": 1}
    assert ask(admin, "/queues/jobs/extend", reads=[second["read"]], lease=9) == {"extended": 1}
    assert ask(admin, "/queues/jobs/release", reads=[second["read"]]) == {"released": 1}
    admin.ask("PUT", f"{API}/status", {"status": "READONLY"})
    assert data(reserve(admin, "jobs", count=9)) == [b"b", b"c"]


def test_a_paused_queue_seems_empty(shared: Admin, wire: Wire) -> None:
    """A reserve that waits is answered once it is resumed."""
    put(wire, "paused", "a")
    ask(shared, "/queues/paused/pause", operations="reads")
    assert reserve(shared, "paused") == []
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reserve, shared, "paused", timeout=600)
        wait_for(wire, "paused", "waiters", 1)
        ask(shared, "/queues/paused/resume")
        assert data(waiting.result(PATIENCE)) == [b"a"]


def test_queues_that_cannot_be_read(shared: Admin, wire: Wire) -> None:
    """One that names its clients, and one in a list of several; an alias is empty."""
    put(wire, "closed", "a")
    put(wire, "open", "a")
    several = {"queues": ["open", "closed"], "lease": 600}
    assert refused(shared, "/reserve", **several) == (403, "client_not_allowed")
    for path, body in (
        ("/queues/closed/finish", {"reads": [f"1-{'0' * 16}"]}),
        ("/queues/closed/retire", {"name": "sink", "epoch": 1}),
    ):
        assert refused(shared, path, **body) == (403, "client_not_allowed")
    assert items(shared, "open") == [b"a"]
    put(wire, "both", "a")
    assert reserve(shared, "both") == []
    assert items(shared, "one") == [b"a"]


def test_a_damaged_queue(tmp_path: Path) -> None:
    """It says why it cannot be read."""
    path = tmp_path / "queues"
    path.mkdir()
    (path / "bad").write_bytes(b"U" * 64)
    with running_server(tmp_path) as server:
        admin = Admin(server)
        body = {"queues": ["good", "bad"], "lease": 600}
        assert refused(admin, "/reserve", **body) == (503, "queue_unavailable")
        answer = refused(admin, "/queues/bad/finish", tag="sink:1:0")
        assert answer == (503, "queue_unavailable")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"queues": []},
        {"queues": ["bad5"] * 101},
        {"queues": ["bad5"], "lease": 60, "again": True},
        {"queues": ["bad5"], "lease": 60, "again": True, "tag": "a:1:b", "timeout": 1},
        {"queues": ["bad5"], "lease": 0.0001},
        {"queues": ["bad5"], "lease": 1e300},
        {"queues": ["bad5"], "lease": "NaN"},
        {"queues": ["bad5"], "lease": 60, "count": 0},
        {"queues": ["bad5"], "lease": 60, "count": 1001},
        {"queues": ["bad5"], "lease": 60, "timeout": -1},
        {"queues": ["bad5"], "lease": 60, "tag": "sink"},
        {"queues": ["bad5"], "lease": 60, "tag": "sink:x:0"},
        {"queues": ["bad5"], "lease": 60, "tag": "sink:1:" + "\xe9" * 99},
        {"queues": ["bad5"], "lease": 60, "owner": "two words"},
        {"queues": ["bad5"], "lease": 60, "ownr": "x"},
    ],
)
def test_a_malformed_reserve_is_refused_and_takes_nothing(
    shared: Admin, wire: Wire, body: dict[str, object]
) -> None:
    """They are refused, and take nothing."""
    put(wire, "bad5", "a")
    assert refused(shared, "/reserve", **body) == (400, "invalid_body")
    assert items(shared, "bad5") == [b"a"]
    wire.ask(b"flush bad5\r\n", b"END\r\n")


def test_an_end_that_names_no_reads_is_refused(shared: Admin, wire: Wire) -> None:
    """What names no reads, or two kinds of them, ends none."""
    put(wire, "bad6", "a")
    (item,) = reserve(shared, "bad6", tag="sink:1:0", owner="me")
    reads = [item["read"]]
    for end, body in (
        ("finish", {}),
        ("finish", {"reads": ["1"]}),
        ("finish", {"reads": ["1-\U0001f600"]}),
        ("finish", {"reads": reads, "tag": "sink:1:0"}),
        ("finish", {"tag": "sink"}),
        ("release", {"owner": "me", "tag": "sink:1:0"}),
        ("release", {"reads": reads, "delay": -1}),
        ("extend", {"reads": reads}),
        ("extend", {"lease": 5}),
        ("retire", {"name": "a:b", "epoch": 1}),
        ("retire", {"name": "sink", "epoch": -1}),
    ):
        assert refused(shared, f"/queues/bad6/{end}", **body) == (400, "invalid_body"), (end, body)
    for name in ("a b", "a~b"):
        body = {"queues": ["bad6", name], "lease": 600}
        assert refused(shared, "/reserve", **body) == (400, "invalid_queue_name")
    assert refused(shared, "/extend-owner", owner="", lease=5) == (400, "invalid_body")
    assert ask(shared, "/queues/bad6/finish", reads=reads) == {"finished": 1}


def test_too_many_that_wait(admin: Admin) -> None:
    """They leave connections for others, and each that ends makes room."""
    with ExitStack() as stack, Wire(admin.server) as wire:
        body = {"queues": ["work"], "lease": 600, "timeout": 600}
        waiting = [stack.enter_context(sent(admin, **body)) for _ in range(128)]
        wait_for(wire, "work", "waiters", 128)
        assert refused(admin, "/reserve", **body) == (503, "too_many_reserves")
        waiting[0].close()
        wait_for(wire, "work", "waiters", 127)
        until(lambda: admin.ask("POST", f"{API}/reserve", body | {"timeout": 0}).status == 200)


def test_a_server_that_stops_ends_the_waits(admin: Admin) -> None:
    """The client is told, and nothing is in the log."""
    with sent(admin, queues=["work"], lease=600, timeout=600) as connection:
        with Wire(admin.server) as wire:
            wait_for(wire, "work", "waiters", 1)
        assert admin.server.stop() == 0
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert response.status == 503
        assert json.load(response)["error"]["code"] == "shutting_down"
    assert "Traceback" not in admin.server.output
    assert "ERROR" not in admin.server.output


def test_a_token_is_needed(guarded: Admin) -> None:
    """Who may not change anything may not reserve."""
    with guarded.client() as client:
        client.put("work", b"a")
    assert refused(guarded, "/reserve", queues=["work"], lease=600) == (401, "token_needed")
    guarded.headers["Authorization"] = f"Bearer {TOKEN}"
    assert data(reserve(guarded, "work")) == [b"a"]
