"""What monitoring systems ask for: Ostrich's endpoints, health, Prometheus, the event stream."""

import gzip
import http.client
import json
from pathlib import Path
from urllib.parse import quote

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from kestrelmq.protocol.stats import QUEUE_STATS
from tests.admin.conftest import Admin
from tests.support.patience import PATIENCE, until
from tests.support.server import running_server


def fill(admin: Admin) -> None:
    """Put three items on `jobs` and read one."""
    with admin.client() as client:
        for _ in range(3):
            client.put("jobs", b"12345")
        client.get("jobs")


def test_ping(shared: Admin) -> None:
    """The server says that it is there."""
    assert shared.get("/ping").text == "pong\n"
    assert shared.get("/ping.txt").text == "pong\n"
    assert shared.get("/ping.json").json == {"response": "pong"}
    assert shared.get("/ping.json").text == '{"response":"pong"}'


def test_ostrich_forms_of_what_the_server_is(shared: Admin) -> None:
    """Without a suffix it is JSON, as in Ostrich; with `.txt` it is text."""
    info = shared.get("/server_info.json").json
    assert shared.get("/server_info").json.keys() == info.keys()
    assert shared.get("/stats").json.keys() == shared.get("/stats.json").json.keys()
    assert shared.get("/stats?period=0").code == "invalid_query"
    lines = dict(line.split(": ", 1) for line in shared.get("/server_info.txt").text.splitlines())
    assert lines.keys() == info.keys()
    assert lines["version"] == info["version"]


def test_ostrich_statistics_as_json(admin: Admin) -> None:
    """Global and queue statistics, split into what grows and what goes up and down."""
    fill(admin)
    stats = admin.get("/stats.json").json
    assert stats.keys() == {"counters", "metrics", "gauges", "labels"}
    assert stats["counters"]["cmd_set"] == 3
    assert stats["counters"]["q/jobs/put_items"] == 3
    assert stats["gauges"]["q/jobs/items"] == 2
    assert stats["gauges"]["q/jobs/bytes"] == 10
    assert stats["labels"]["status"] == "UP"


def test_ostrich_statistics_over_a_period(admin: Admin) -> None:
    """Counters of a period are those of its last finished stretch; gauges are of now."""
    fill(admin)
    assert admin.get("/stats.json?period=1").json["counters"]["cmd_set"] == 3
    fill(admin)
    stats: dict[str, dict[str, int]] = {}

    def has_got_one() -> bool:
        stats.update(admin.get("/stats.json?period=1").json)
        return stats["counters"]["cmd_get"] == 1

    until(has_got_one, pause=0.2)
    assert stats["counters"]["cmd_set"] == 3
    assert stats["gauges"]["q/jobs/items"] == 4
    assert admin.get("/stats.json").json["counters"]["cmd_set"] == 6


@pytest.mark.parametrize("period", ["0", "-1", "x", "", "99999999", "٣"])
def test_a_period_is_a_number_of_seconds(shared: Admin, period: str) -> None:
    """Anything else is refused."""
    assert shared.get(f"/stats.json?period={quote(period)}").code == "invalid_query"


def test_ostrich_statistics_as_text(admin: Admin) -> None:
    """The same, to be read."""
    fill(admin)
    lines = admin.get("/stats.txt").text.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        "counters:",
        "metrics:",
        "gauges:",
        "labels:",
    ]
    assert "  q/jobs/put_items: 3" in lines


def test_server_info_and_config(admin: Admin) -> None:
    """Name, version and settings; the settings are those in force."""
    info = admin.get("/server_info.json").json
    assert (info["name"], info["uptime"] >= 0) == ("kestrelmq", True)
    config = admin.get("/config.json").json
    assert config["queue_path"] == str(admin.server.queue_path)


def test_quiesce_and_health(admin: Admin) -> None:
    """A server that serves nobody is not healthy, and says why."""
    healthy = {"healthy": True, "status": "UP", "reasons": [], "problems": [], "problem_count": 0}
    assert admin.get("/health").json == healthy
    ready = admin.get("/health/ready")
    assert (ready.status, ready.json) == (200, {"ready": True, "status": "UP", "reasons": []})
    assert admin.ask("POST", "/quiesce").text == "ok\n"
    health = admin.get("/health")
    assert (health.status, health.json["reasons"]) == (503, ["the status is QUIESCENT"])
    assert health.json["healthy"] is False
    assert health.json["problems"] == [
        {"kind": "status", "queue": None, "reason": "the status is QUIESCENT"}
    ]
    ready = admin.get("/health/ready")
    assert (ready.status, ready.json["ready"]) == (503, False)
    live = admin.get("/health/live")
    assert (live.status, live.json) == (200, {"live": True})
    admin.ask("PUT", "/api/v1/status", {"status": "readonly"})
    assert admin.get("/health").status == admin.get("/health/ready").status == 200


def test_shutdown_ends_the_server_cleanly(admin: Admin) -> None:
    """The reply comes, and then the process ends with status 0, streams open or not."""
    connection = http.client.HTTPConnection("127.0.0.1", admin.port, timeout=PATIENCE)
    connection.request("GET", "/api/v1/events")
    assert connection.getresponse().status == 200
    assert admin.ask("POST", "/shutdown").text == "ok\n"
    assert admin.server.process.wait(10) == 0
    connection.close()


def test_metrics_parse_and_are_complete(admin: Admin) -> None:
    """Prometheus can read every line, and each statistic of a queue is there once."""
    fill(admin)
    families = {f.name: f for f in text_string_to_metric_families(admin.get("/metrics").text)}
    values = {name: families[f"kestrelmq_{name}"].samples[0].value for name in (
        "queue_items", "queue_bytes", "queue_added_items", "queue_get_hits")}  # fmt: skip
    assert values == {
        "queue_items": 2,
        "queue_bytes": 10,
        "queue_added_items": 3,
        "queue_get_hits": 1,
    }
    kinds = {name.removeprefix("kestrelmq_"): family.type for name, family in families.items()}
    for stat in QUEUE_STATS:
        if stat.metric is not None:
            assert kinds[stat.metric.name] == ("counter" if stat.kind == "counter" else "gauge")
    left_out = {stat.name for stat in QUEUE_STATS if stat.metric is None}
    assert left_out == {"total_items", "age", "children", "paused", "failure"}


def metric_families(admin: Admin) -> dict[str, Metric]:
    """Return what `/metrics` tells, by name."""
    return {f.name: f for f in text_string_to_metric_families(admin.get("/metrics").text)}


def of_others(families: dict[str, Metric], name: str) -> float:
    """Return the sample of the queues that have no series of their own."""
    samples = families[f"kestrelmq_{name}"].samples
    (value,) = [one.value for one in samples if one.labels["queue"] == "~other"]
    return value


def test_metrics_have_bounded_cardinality(tmp_path: Path) -> None:
    """Queues beyond the first thousand are added up under one name, and nothing is lost.

    A counter of theirs never falls, also when one of them is deleted, or gets a series of its own.
    """
    with running_server(tmp_path) as server:
        admin = Admin(server)
        with admin.client() as client:
            for number in range(1100):
                client.put(f"jobs-{number}", b"x")
            first = metric_families(admin)
            client.delete("jobs-1050")
            client.delete("jobs-7")
            second = metric_families(admin)
            for _ in range(5):
                client.put("jobs-1099", b"x")
            third = metric_families(admin)
    samples = first["kestrelmq_queue_items"].samples
    assert len(samples) == 1001
    assert sum(sample.value for sample in samples) == 1100
    assert [of_others(found, "queue_items") for found in (first, second, third)] == [100, 98, 103]
    counted = [of_others(found, "queue_added_items") for found in (first, second, third)]
    assert counted == [100, 100, 105]


def test_metrics_of_some_queues(admin: Admin) -> None:
    """Patterns choose queues, and the others are neither listed nor added up."""
    with admin.client() as client:
        for name in ("orders", "orders-late", "mail", "other"):
            client.put(name, b"x")
    text = admin.get("/metrics?queues=orders*&queues=m%3Fil").text
    found = {f.name: f for f in text_string_to_metric_families(text)}["kestrelmq_queue_items"]
    assert [one.labels["queue"] for one in found.samples] == ["mail", "orders", "orders-late"]
    none = {f.name for f in text_string_to_metric_families(admin.get("/metrics?queues=x").text)}
    assert "kestrelmq_connections" in none
    too_many = "&".join(["queues=a"] * 21)
    assert admin.get(f"/metrics?{too_many}").status == 400
    assert admin.get(f"/metrics?queues={'a' * 201}").status == 400


def test_metrics_are_compressed_for_who_takes_it(admin: Admin) -> None:
    """As Prometheus does; nobody else gets what it cannot read."""
    with admin.client() as client:
        for number in range(100):
            client.put(f"jobs-{number}", b"x")
    plain = admin.get("/metrics")
    reply = admin.get("/metrics", Accept_Encoding="gzip")
    assert "Content-Encoding" not in plain.headers
    assert reply.headers["Content-Encoding"] == "gzip"
    assert len(reply.content) < len(plain.content) / 5
    assert "kestrelmq_queue_items" in gzip.decompress(reply.content).decode()


def test_metric_labels_are_escaped(admin: Admin) -> None:
    """A queue may have a quote or a backslash in its name."""
    name = 'quo"te\\n'
    assert admin.ask("POST", "/api/v1/queues", {"name": name}).status == 201
    families = {f.name: f for f in text_string_to_metric_families(admin.get("/metrics").text)}
    assert families["kestrelmq_queue_items"].samples[0].labels == {"queue": name}


def test_latencies_are_measured(admin: Admin) -> None:
    """Adds, reads and what items waited are in every rendering, while the queue lives."""
    kinds = {"set_latency_usec", "get_hit_latency_usec", "delivery_latency_usec"}

    def all_found() -> bool:
        fill(admin)
        found: dict[str, object] = admin.get("/api/v1/queues/jobs").json["latencies"]
        return kinds <= found.keys()

    until(all_found)
    metrics = admin.get("/stats.json").json["metrics"]
    assert metrics["q/jobs/set_latency_usec"]["count"] > 0
    assert metrics["set_latency_usec"]["maximum"] >= metrics["set_latency_usec"]["p50"]
    text = admin.get("/metrics").text
    assert 'kestrelmq_queue_delivery_latency_seconds_bucket{le="+Inf",queue="jobs"}' in text
    admin.ask("DELETE", "/api/v1/queues/jobs")
    assert "q/jobs/set_latency_usec" not in admin.get("/stats.json").json["metrics"]


def read_event(stream: http.client.HTTPResponse) -> tuple[str, object]:
    """Return the next event of a stream."""
    name = stream.readline().decode().removeprefix("event: ").strip()
    data = stream.readline().decode().removeprefix("data: ")
    assert stream.readline() == b"\n"
    return name, json.loads(data)


def test_the_stream_tells_what_changed(admin: Admin) -> None:
    """First everything, then only differences, and what went."""
    fill(admin)
    connection = http.client.HTTPConnection("127.0.0.1", admin.port, timeout=PATIENCE)
    connection.request("GET", "/api/v1/events")
    stream = connection.getresponse()
    assert stream.headers["Content-Type"].startswith("text/event-stream")
    assert read_event(stream)[0] == "reset"
    rows: dict[str, list[object]] = {}
    gone: list[object] = []
    deleted = False
    while not gone:
        name, data = read_event(stream)
        if name == "rows" and isinstance(data, list):
            rows |= {row[0]: row for row in data}
        elif name == "gone" and isinstance(data, list):
            gone += data
        if "jobs" in rows and not deleted:
            assert rows["jobs"][1:3] == [2, 10]
            admin.ask("DELETE", "/api/v1/queues/jobs")
            deleted = True
    assert gone == ["jobs"]
    connection.close()


def test_streams_are_limited(admin: Admin) -> None:
    """One more than the limit is refused, and there is room again when one ends."""
    connections = []
    for _ in range(64):
        connection = http.client.HTTPConnection("127.0.0.1", admin.port, timeout=PATIENCE)
        connection.request("GET", "/api/v1/events")
        assert connection.getresponse().status == 200
        connections.append(connection)
    refused = admin.get("/api/v1/events")
    assert (refused.status, refused.code) == (503, "too_many_watchers")
    for connection in connections:
        connection.close()


def test_the_console_is_served_and_cached_by_its_tag(shared: Admin) -> None:
    """What did not change is not sent again."""
    page = shared.get("/")
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    script = shared.get("/console/main.js")
    assert script.headers["Content-Type"].startswith("text/javascript")
    again = shared.get("/console/main.js", If_None_Match=script.headers["ETag"])
    assert (again.status, again.content) == (304, b"")


@pytest.mark.parametrize(
    "path", ["/console/../service.py", "/console/%2e%2e/service.py", "/console/"]
)
def test_only_the_console_is_served(shared: Admin, path: str) -> None:
    """No path leads to another file."""
    assert shared.get(path).status == 404


def test_head_is_answered_wherever_get_is(admin: Admin) -> None:
    """With headers and nothing else: the next reply on the connection follows at once."""
    fill(admin)
    document = admin.get("/api/v1/openapi.json").json["paths"]
    paths = ["/", "/console/main.js", "/metrics", "/stats.json", "/stats.txt", "/health"]
    paths += ["/api/v1/events", "/api/v1/openapi.json"]
    paths += [path.replace("{name}", "jobs") for path, has in document.items() if "get" in has]
    connection = http.client.HTTPConnection("127.0.0.1", admin.port, timeout=PATIENCE)
    for path in paths:
        connection.request("HEAD", path, headers={"Accept-Encoding": "gzip"})
        reply = connection.getresponse()
        assert (path, reply.status, reply.read()) == (path, 200, b"")
        connection.request("GET", "/ping")
        assert connection.getresponse().read() == b"pong\n"
    connection.close()
    refused = admin.ask("HEAD", "/reload")
    assert (refused.status, refused.headers["Allow"]) == (405, "POST")
