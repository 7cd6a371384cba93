"""The API against a real server: what it does to queues, and what it says when it cannot."""

import base64
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pytest

from kestrelmq.errors import LeaseEnded
from tests.admin.conftest import Admin
from tests.support.patience import until
from tests.support.server import running_server
from tests.support.wire import Wire, put, value, wait_for

API = "/api/v1"


def test_a_queue_comes_and_goes(admin: Admin) -> None:
    """Created once, there until it is deleted."""
    created = admin.ask("POST", f"{API}/queues", {"name": "jobs"})
    again = admin.ask("POST", f"{API}/queues", {"name": "jobs"})
    assert (created.status, created.json["created"]) == (201, True)
    assert (again.status, again.json["created"]) == (200, False)
    assert admin.get(f"{API}/queues").json["total"] == 1
    assert admin.ask("DELETE", f"{API}/queues/jobs").status == 204
    assert admin.get(f"{API}/queues/jobs").code == "queue_not_found"
    assert admin.get(f"{API}/queues").json["total"] == 0


def test_what_is_put_is_what_a_client_gets(admin: Admin) -> None:
    """Text and bytes arrive as they were sent."""
    text = admin.ask("POST", f"{API}/queues/jobs/items", {"text": "Zoë"})
    data = base64.b64encode(b"\x00\xff\r\n").decode()
    admin.ask("POST", f"{API}/queues/jobs/items", {"data": data})
    assert (text.status, text.json) == (201, {"queue": "jobs", "size": 4})
    with admin.client() as client:
        assert [client.get("jobs"), client.get("jobs")] == ["Zoë".encode(), b"\x00\xff\r\n"]


def test_what_is_put_survives_a_crash(admin: Admin) -> None:
    """The journal is ahead of the reply."""
    admin.ask("POST", f"{API}/queues/jobs/items", {"text": "kept"})
    admin.server.kill9()
    admin.server.start()
    items = admin.get(f"{API}/queues/jobs/items").json["items"]
    assert [base64.b64decode(item["data"]) for item in items] == [b"kept"]


def test_what_is_put_with_sync_is_answered(tmp_path: Path) -> None:
    """With `sync_journal` at 0 the reply waits for the disk, and comes."""
    with running_server(tmp_path, config='[default]\nsync_journal = "0ms"\n') as server:
        admin = Admin(server)
        assert admin.ask("POST", f"{API}/queues/jobs/items", {"text": "x"}).status == 201


def test_an_item_may_expire(admin: Admin) -> None:
    """`expires_in` becomes the item's expiry."""
    admin.ask("POST", f"{API}/queues/jobs/items", {"text": "x", "expires_in": 600})
    item = admin.get(f"{API}/queues/jobs/items").json["items"][0]
    assert 590_000 < item["expiry"] - item["add_time"] <= 605_000


def test_a_full_queue_refuses(tmp_path: Path) -> None:
    """A refused item is a conflict, and is not there."""
    with running_server(tmp_path, config="[default]\nmax_items = 1\n") as server:
        admin = Admin(server)
        admin.ask("POST", f"{API}/queues/jobs/items", {"text": "one"})
        refused = admin.ask("POST", f"{API}/queues/jobs/items", {"text": "two"})
        assert (refused.status, refused.code) == (409, "item_refused")
        assert admin.get(f"{API}/queues/jobs").json["stats"]["items"] == 1


def test_peeking_leaves_items_there(admin: Admin) -> None:
    """Items are shown from the head, cut where asked, and stay."""
    with admin.client() as client:
        for number in range(5):
            client.put("jobs", b"item %d" % number)
    answer = admin.get(f"{API}/queues/jobs/items?limit=2&max_bytes=4").json
    assert answer["total"] == 5
    assert [item["position"] for item in answer["items"]] == [0, 1]
    assert {base64.b64decode(item["data"]) for item in answer["items"]} == {b"item"}
    assert all(item["truncated"] and item["size"] == 6 for item in answer["items"])
    assert admin.get(f"{API}/queues/jobs").json["stats"]["items"] == 5


def test_flushing_tells_how_many_were_dropped(admin: Admin) -> None:
    """A flush empties the queue."""
    with admin.client() as client:
        client.put("jobs", b"a")
        client.put("jobs", b"b")
    assert admin.ask("POST", f"{API}/queues/jobs/flush").json == {"flushed": 2}
    assert admin.get(f"{API}/queues/jobs").json["stats"]["items"] == 0


def test_open_reads_are_listed_and_given_back(admin: Admin) -> None:
    """A requeued item is at the head again, while its reader still believes to have it."""
    with admin.client() as client:
        client.put("jobs", b"first")
        client.put("jobs", b"second")
        with pytest.raises(LeaseEnded), client.reserve("jobs") as item:  # noqa: PT012
            assert item == b"first"
            listed = admin.get(f"{API}/queues/jobs/open-reads").json
            assert (listed["total"], listed["open_reads"][0]["size"]) == (1, 5)
            xids = [read["xid"] for read in listed["open_reads"]]
            answer = admin.ask("POST", f"{API}/queues/jobs/open-reads/requeue", {"xids": xids})
            assert answer.json == {"requeued": 1}
            head = admin.get(f"{API}/queues/jobs/items").json["items"][0]
            assert base64.b64decode(head["data"]) == b"first"
    assert admin.get(f"{API}/queues/jobs/open-reads").json["total"] == 0


def test_open_reads_say_who_holds_them(admin: Admin) -> None:
    """A connection, an owner with a connection or without, a tag; and until when."""
    with Wire(admin.server) as wire, Wire(admin.server, "text") as text, ExitStack() as stack:
        put(wire, "jobs", "1", "2", "3", "4", "5")
        ids = {
            client["address"]: client["id"]
            for client in admin.get(f"{API}/clients").json["clients"]
        }

        def mine(one: Wire) -> tuple[int, str]:
            host, port = one.socket.getsockname()
            return ids[f"{host}:{port}"], f"{host}:{port}"

        wire.ask_until(b"get jobs/open\r\n", b"END\r\n")
        text.ask(b"get jobs\n", b":2\n")
        wire.ask_until(b"reserve jobs 1 lease=60000 owner=me tag=a:1:b\r\n", b"END\r\n")
        wire.ask_until(b"reserve jobs 1 lease=5000\r\n", b"END\r\n")
        gone = stack.enter_context(Wire(admin.server))
        gone.ask_until(b"reserve jobs 1 lease=60000 owner=gone grace=50000\r\n", b"END\r\n")
        gone.close()
        until(lambda: len(admin.get(f"{API}/clients").json["clients"]) == 2)
        listed = admin.get(f"{API}/queues/jobs/open-reads").json["open_reads"]
        expected = [mine(wire), mine(text), mine(wire), (None, None), (None, None)]
    assert [(read["client"], read["address"]) for read in listed] == expected
    assert [(read["owner"], read["tag"]) for read in listed] == [
        (None, None),
        (None, None),
        ("me", "a:1:b"),
        ("", ""),
        ("gone", ""),
    ]
    left = [read["lease_ends_in"] for read in listed]
    assert left[:2] == [None, None]
    assert all(0 < seconds <= most for seconds, most in zip(left[2:], (60, 5, 50), strict=True))


def test_requeueing_all_and_requeueing_none(admin: Admin) -> None:
    """Without xids all go back; an xid that is not open changes nothing."""
    with admin.client() as client:
        client.put("jobs", b"first")
        with pytest.raises(LeaseEnded), client.reserve("jobs"):  # noqa: PT012
            path = f"{API}/queues/jobs/open-reads/requeue"
            assert admin.ask("POST", path, {"xids": [-7]}).json == {"requeued": 0}
            assert admin.ask("POST", path, {}).json == {"requeued": 1}


def test_requeued_items_reach_waiting_readers_oldest_first(admin: Admin) -> None:
    """Those who wait get them in the order in which they were added."""
    with Wire(admin.server) as holder, Wire(admin.server) as watcher, ExitStack() as stack:
        put(holder, "jobs", "1", "2", "3")
        holder.send(b"monitor jobs 0 3\r\n")
        wait_for(watcher, "jobs", "open_transactions", 3)
        readers = [stack.enter_context(Wire(admin.server)) for _ in range(3)]
        for number, reader in enumerate(readers):
            reader.send(b"get jobs/t=20000\r\n")
            wait_for(watcher, "jobs", "waiters", number + 1)
        path = f"{API}/queues/jobs/open-reads/requeue"
        assert admin.ask("POST", path, {}).json == {"requeued": 3}
        for number, reader in enumerate(readers):
            reader.expect(value("jobs", str(number + 1)) + b"END\r\n")


def test_very_many_open_reads(admin: Admin) -> None:
    """They are listed and given back some at a time, and keep their order."""
    count = 500
    with admin.client() as client, Wire(admin.server) as holder, Wire(admin.server) as watcher:
        for number in range(count):
            client.put("jobs", b"%d" % number)
        holder.send(b"reserve jobs %d lease=3600000\r\n" % count)
        wait_for(watcher, "jobs", "open_transactions", count)
        listed = admin.get(f"{API}/queues/jobs/open-reads?limit=300").json
        xids = [read["xid"] for read in listed["open_reads"]]
        assert (listed["total"], xids) == (count, list(range(1, 301)))
        path = f"{API}/queues/jobs/open-reads/requeue"
        assert admin.ask("POST", path, {}).json == {"requeued": count}
        assert [client.get("jobs") for _ in range(count)] == [b"%d" % one for one in range(count)]


def test_lists_are_paged_filtered_and_sorted(admin: Admin) -> None:
    """Every queue is on exactly one page, in order."""
    with admin.client() as client:
        for number in range(7):
            for _ in range(number + 1):
                client.put(f"work-{number}", b"x")
        client.put("other", b"x")
    first = admin.get(f"{API}/queues?filter=WORK&limit=4").json
    rest = admin.get(f"{API}/queues?filter=WORK&limit=4&offset=4").json
    names = [queue["name"] for queue in first["queues"] + rest["queues"]]
    assert (first["total"], names) == (7, [f"work-{number}" for number in range(7)])
    down = admin.get(f"{API}/queues?order=descending&limit=1").json
    assert down["queues"][0]["name"] == "work-6"
    assert {queue["items"] for queue in first["queues"]} == {1, 2, 3, 4}


def test_history_reaches_back_in_steps(admin: Admin) -> None:
    """An hour in steps of 15 seconds and a day in steps of 5 minutes, of a queue and of all."""

    def counted(path: str) -> int:
        points: list[dict[str, float]] = admin.get(path).json["points"]
        return round(sum(point["put_rate"] for point in points) * 15 * 20)

    with admin.client() as client:
        client.put("jobs", b"x")
        until(lambda: admin.get(f"{API}/queues/jobs/history").json["points"] != [])
        client.put("jobs", b"x")
        for range_, step in (("hour", 15_000), ("day", 300_000)):
            for path in (f"{API}/queues/jobs/history", f"{API}/history"):
                until(lambda path=path, range_=range_: counted(f"{path}?range={range_}") > 0)  # type: ignore[misc]
                points = admin.get(f"{path}?range={range_}").json["points"]
                assert points[-1]["items"] == 2
                assert all(point["time"] % step == 0 for point in points)
    assert admin.get(f"{API}/queues/jobs/history?range=week").code == "invalid_query"
    assert admin.get(f"{API}/history?range=").code == "invalid_query"


def test_a_queue_that_is_full_says_so(admin: Admin) -> None:
    """In the list and in what is said about it, by the limit; until it takes items again."""
    bounded = {"name": "jobs", "declared": {"max_items": 1}}
    assert admin.ask("POST", f"{API}/queues", bounded).status == 201
    assert admin.get(f"{API}/queues/jobs").json["state"] == "ok"
    with admin.client() as client:
        client.put("jobs", b"x")
        assert not client.put("jobs", b"x")
        until(
            lambda: (
                [one["name"] for one in admin.get(f"{API}/queues?state=full").json["queues"]]
                == ["jobs"]
            )
        )
        detail = admin.get(f"{API}/queues/jobs").json
        assert detail["state"] == "full"
        assert detail["problem"] == "it holds its most items, and refuses more"
        client.get("jobs")
    detail = admin.get(f"{API}/queues/jobs").json
    assert (detail["state"], detail["problem"]) == ("ok", None)


def test_a_fanout_is_shown_from_both_ends(admin: Admin) -> None:
    """The master knows its children, the child its master."""
    admin.ask("POST", f"{API}/queues", {"name": "a+b"})
    admin.ask("POST", f"{API}/queues/a/items", {"text": "x"})
    master = admin.get(f"{API}/queues/a").json
    child = admin.get(f"{API}/queues/{quote('a+b', safe='')}").json
    assert master["children"] == [{"name": "a+b", "items": 1}]
    assert (child["master"], child["stats"]["items"]) == ("a", 1)


def test_the_journal_files_are_listed(admin: Admin) -> None:
    """Names and sizes are those on the disk."""
    admin.ask("POST", f"{API}/queues/jobs/items", {"text": "x"})
    files = admin.get(f"{API}/queues/jobs").json["journal"]
    assert files == [{"name": "jobs", "bytes": (admin.server.queue_path / "jobs").stat().st_size}]


def test_names_of_any_script_work(admin: Admin) -> None:
    """A name is what it is, percent-encoded in a path."""
    name = "aufträge-注文"
    admin.ask("POST", f"{API}/queues", {"name": name})
    assert admin.get(f"{API}/queues/{quote(name, safe='')}").json["name"] == name


@pytest.mark.parametrize("name", ["{}", "a{b", "b}", "{name}", "%FF", "%zz", "%", "%2F"])
def test_names_that_look_like_syntax_are_names(shared: Admin, name: str) -> None:
    """Braces and percent signs are characters like others."""
    admin = shared
    path = f"{API}/queues/{quote(name, safe='')}"
    assert admin.ask("POST", f"{path}/items", {"text": "x"}).json["queue"] == name
    assert admin.get(path).json["name"] == name
    assert admin.get(f"{path}/items").json["total"] == 1
    assert admin.ask("DELETE", path).status == 204
    assert admin.get(f"{API}/queues").json["total"] == 0


@pytest.mark.parametrize("name", ["%FF", "a%FFb", "%ED%A0%80", "%C3", "%zz", "a%", "%4", "%25%FF"])
def test_names_that_do_not_decode_are_refused(shared: Admin, name: str) -> None:
    """What is no percent-encoded UTF-8 never becomes another name."""
    put = shared.ask("POST", f"{API}/queues/{name}/items", {"text": "x"})
    assert (put.status, put.code) == (400, "invalid_queue_name")
    assert shared.get(f"{API}/queues/{name}").code == "invalid_queue_name"
    assert shared.get(f"{API}/queues").json["total"] == 0


@pytest.mark.parametrize("name", ["a.b", "a~b", "a b", "..", "+a", "a+b+c"])
def test_names_that_no_queue_can_have_are_refused(shared: Admin, name: str) -> None:
    """Nothing is created, whichever way the name comes."""
    admin = shared
    assert admin.ask("POST", f"{API}/queues", {"name": name}).code == "invalid_queue_name"
    put = admin.ask("POST", f"{API}/queues/{quote(name, safe='')}/items", {"text": "x"})
    assert put.status in {400, 404}
    assert admin.get(f"{API}/queues").json["total"] == 0


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/queues?limit=0", None, 400, "invalid_query"),
        ("GET", "/queues?limit=1&limit=2", None, 400, "invalid_query"),
        ("GET", "/queues?colour=red", None, 400, "invalid_query"),
        ("GET", "/queues?filter=%ff", None, 400, "invalid_query"),
        ("GET", "/queues?filter=50%", None, 400, "invalid_query"),
        ("GET", "/queues/none/items", None, 404, "queue_not_found"),
        ("POST", "/queues/none/flush", None, 404, "queue_not_found"),
        ("POST", "/queues", b"{", 400, "invalid_body"),
        ("POST", "/queues", {"nam": "x"}, 400, "invalid_body"),
        ("POST", "/queues/a/items", {}, 400, "invalid_body"),
        ("POST", "/queues/a/items", {"data": "?"}, 400, "invalid_body"),
        ("POST", "/queues/a/items", {"text": "x", "delay": True}, 400, "invalid_body"),
        ("POST", "/queues", {"name": "x", "max_items": "1_000"}, 400, "invalid_body"),
        ("PUT", "/status", {"status": "sideways"}, 400, "invalid_status"),
        ("PUT", "/status", {"status": "down"}, 400, "invalid_status"),
        ("PATCH", "/status", {"status": "up"}, 405, "method_not_allowed"),
        ("GET", "/nothing", None, 404, "not_found"),
    ],
)
def test_errors_have_one_shape(
    shared: Admin, method: str, path: str, body: object, status: int, code: str
) -> None:
    """Whatever is wrong, the reply says so in the same way."""
    reply = shared.ask(method, API + path, body)
    assert (reply.status, reply.code) == (status, code)
    assert reply.json["error"]["message"]


def test_a_body_must_be_json_by_its_type(shared: Admin) -> None:
    """A form of another page could send text; it could not send this type."""
    reply = shared.ask("POST", f"{API}/queues", b'{"name":"x"}', Content_Type="text/plain")
    assert (reply.status, reply.code) == (415, "not_json")


def test_the_status_forbids_changes(admin: Admin) -> None:
    """In READONLY nothing is added, flushed or deleted; looking and requeueing still work."""
    admin.ask("POST", f"{API}/queues/jobs/items", {"text": "x"})
    assert admin.ask("PUT", f"{API}/status", {"status": "readonly"}).json["status"] == "READONLY"
    refused = [
        admin.ask("POST", f"{API}/queues", {"name": "new"}),
        admin.ask("POST", f"{API}/queues/jobs/items", {"text": "y"}),
        admin.ask("POST", f"{API}/queues/jobs/flush"),
        admin.ask("DELETE", f"{API}/queues/jobs"),
        admin.ask("POST", f"{API}/queues/jobs/move", {"target": "new"}),
        admin.ask("POST", f"{API}/queues/jobs/copy", {"target": "new"}),
        admin.ask("POST", f"{API}/queues/jobs/redrive", {"target": "new"}),
    ]
    assert {(reply.status, reply.code) for reply in refused} == {(503, "refused_by_status")}
    assert admin.get(f"{API}/queues/jobs/items").json["total"] == 1
    assert admin.ask("POST", f"{API}/queues/jobs/open-reads/requeue", {}).status == 200
    assert admin.get(f"{API}/status").json["writes_allowed"] is False


def test_a_queue_for_certain_clients_stays_theirs(tmp_path: Path) -> None:
    """The API shows no id, so it may neither add nor look into items."""
    config = "[queues.jobs]\nallowed_client_ids_for_enqueue = ['a']\n"
    config += "allowed_client_ids_for_dequeue = ['a']\n"
    with running_server(tmp_path, config=config) as server:
        admin = Admin(server)
        admin.ask("POST", f"{API}/queues", {"name": "jobs"})
        put = admin.ask("POST", f"{API}/queues/jobs/items", {"text": "x"})
        assert (put.status, put.code) == (403, "client_not_allowed")
        assert admin.get(f"{API}/queues/jobs/items").code == "client_not_allowed"
        for action in ("move", "copy", "redrive"):
            moved = admin.ask("POST", f"{API}/queues/jobs/{action}", {"target": "other"})
            assert (moved.status, moved.code) == (403, "client_not_allowed")


def test_a_damaged_queue_is_shown_and_not_served(tmp_path: Path) -> None:
    """It is listed with its state; the reason is told; nothing can be put on it."""
    (tmp_path / "queues").mkdir()
    (tmp_path / "queues" / "old").write_bytes(b"\x55garbage")
    with running_server(tmp_path) as server:
        admin = Admin(server)
        listed = admin.get(f"{API}/queues?state=damaged").json["queues"]
        assert [queue["name"] for queue in listed] == ["old"]
        detail = admin.get(f"{API}/queues/old").json
        assert (detail["state"], "damaged at byte 0" in detail["problem"]) == ("damaged", True)
        put = admin.ask("POST", f"{API}/queues/old/items", {"text": "x"})
        assert (put.status, put.code) == (503, "queue_unavailable")
        health = admin.get("/health")
        (problem,) = health.json["problems"]
        assert (health.status, health.json["healthy"]) == (200, True)
        assert (problem["kind"], problem["queue"]) == ("damaged", "old")
        assert problem["reason"] == detail["problem"]
        assert health.json["reasons"] == [problem["reason"]]
        assert admin.get("/health/ready").status == 200


def test_reload_puts_queue_settings_in_force(tmp_path: Path) -> None:
    """Settings of queues change, others are named; a bad file changes nothing."""
    with running_server(tmp_path, config="[default]\nmax_items = 5\n") as server:
        admin = Admin(server)
        file = tmp_path / "kestrelmq.toml"
        file.write_text("client_timeout = 9\n[default]\nmax_items = 6\n")
        assert admin.ask("POST", "/reload").text == "ok\nclient_timeout\n"
        assert admin.ask("POST", f"{API}/reload").json == {"needs_restart": ["client_timeout"]}
        config = admin.get(f"{API}/config").json["config"]
        assert (config["default"]["max_items"], config["client_timeout"]) == (6, None)
        file.write_text("[default]\nmax_items = 'many'\n")
        reply = admin.ask("POST", f"{API}/reload")
        assert (reply.status, reply.code) == (422, "invalid_configuration")
        assert admin.get(f"{API}/config").json["config"]["default"]["max_items"] == 6


def test_the_server_tells_about_itself(shared: Admin) -> None:
    """Statistics by name, status, and what the console must know about changes."""
    server = shared.get(f"{API}/server").json
    assert server["stats"]["curr_items"] == 0
    assert server["status"]["status"] == "UP"
    assert (server["token_needed"], server["changes_allowed"]) == (False, True)


def test_a_queue_is_paused_and_resumed(admin: Admin) -> None:
    """Every listing shows it; the items are still shown."""
    admin.ask("POST", f"{API}/queues/jobs/items", {"text": "x"})
    paused = admin.ask("POST", f"{API}/queues/jobs/pause", {"operations": "writes"})
    assert (paused.status, paused.json) == (200, {"paused": "writes"})
    assert admin.ask("POST", f"{API}/queues/jobs/pause", {}).json == {"paused": "all"}
    assert admin.get(f"{API}/queues/jobs").json["paused"] == "all"
    assert admin.get(f"{API}/queues").json["queues"][0]["paused"] == "all"
    assert admin.get(f"{API}/queues/jobs/items").json["total"] == 1
    refused = admin.ask("POST", f"{API}/queues/jobs/items", {"text": "y"})
    assert (refused.status, refused.code) == (503, "queue_unavailable")
    assert 'kestrelmq_queue_writes_paused{queue="jobs"} 1.0' in admin.get("/metrics").text
    resumed = admin.ask("POST", f"{API}/queues/jobs/resume", {"operations": "reads"})
    assert resumed.json == {"paused": "writes"}
    assert admin.ask("POST", f"{API}/queues/none/pause", {}).code == "queue_not_found"
    wrong = admin.ask("POST", f"{API}/queues/jobs/pause", {"operations": "some"})
    assert wrong.code == "invalid_body"


def test_a_queue_is_created_with_settings_of_its_own(admin: Admin) -> None:
    """They are shown, replaced by others, and checked."""
    wanted = {"name": "replies", "declared": {"keep_journal": False, "max_queue_age": 60}}
    assert admin.ask("POST", f"{API}/queues", wanted).status == 201
    shown = admin.get(f"{API}/queues/replies").json["settings"]
    assert (shown["keep_journal"], shown["max_queue_age"]) == ("false", "1m")
    assert admin.ask("POST", f"{API}/queues", {"name": "replies"}).status == 200
    assert admin.get(f"{API}/queues/replies").json["settings"] == shown
    wanted["declared"] = {"max_items": 2}
    assert admin.ask("POST", f"{API}/queues", wanted).status == 200
    shown = admin.get(f"{API}/queues/replies").json["settings"]
    assert (shown["keep_journal"], shown["max_items"]) == ("false", "2")
    wanted["declared"] = {"keep_journal": True}
    refused = admin.ask("POST", f"{API}/queues", wanted)
    assert (refused.status, refused.code) == (422, "invalid_configuration")
    wanted["declared"] = {"max_age": 1e20}
    refused = admin.ask("POST", f"{API}/queues", wanted)
    assert (refused.status, refused.code) == (422, "invalid_configuration")
