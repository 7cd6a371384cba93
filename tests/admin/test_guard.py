"""Who may change something: nobody by GET, from another origin, or without the token."""

from pathlib import Path

import pytest

from kestrelmq.admin.operations import OPERATIONS, PREFIX
from kestrelmq.server.server_actions import is_loopback
from kestrelmq.version import VERSION
from tests.admin.conftest import TOKEN, Admin
from tests.support.server import running_server

CHANGES = [
    *[
        (operation.method, PREFIX + operation.path.replace("{name}", "jobs").replace("{id}", "1"))
        for operation in OPERATIONS
        if operation.changes
    ],
    ("POST", "/reload"),
    ("POST", "/quiesce"),
    ("POST", "/shutdown"),
]
BODIES = {
    f"{PREFIX}/queues": {"name": "new"},
    f"{PREFIX}/queues/jobs/items": {"text": "x"},
    f"{PREFIX}/queues/jobs/open-reads/requeue": {},
    f"{PREFIX}/status": {"status": "readonly"},
}


def prepare(admin: Admin) -> None:
    """Put two items on `jobs` and open a read of the first."""
    with admin.client() as client:
        client.put("jobs", b"one")
        client.put("jobs", b"two")


def assert_untouched(admin: Admin) -> None:
    """Fail if anything was changed since `prepare`."""
    assert admin.server.process.poll() is None
    assert admin.get("/api/v1/status").json["status"] == "UP"
    names = [queue["name"] for queue in admin.get("/api/v1/queues").json["queues"]]
    assert names == ["jobs"]
    stats = admin.get("/api/v1/queues/jobs").json["stats"]
    assert (stats["items"], stats["total_flushes"]) == (2, 0)


def test_nothing_is_changed_by_get(admin: Admin) -> None:
    """Asked with GET, what changes things is not there or says which method it wants."""
    prepare(admin)
    for method, path in CHANGES:
        if (method, path) in {("POST", f"{PREFIX}/queues"), ("PUT", f"{PREFIX}/status")}:
            continue  # these paths have a GET of their own, which the last line judges
        reply = admin.get(path)
        assert reply.status in {405, 200}, path
        if reply.status == 405:
            assert method in reply.headers["Allow"]
    for path in ("/api/v1/queues?name=new", "/api/v1/status?status=readonly"):
        admin.get(path)
    assert_untouched(admin)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "evil.example", "Origin": "http://evil.example"},
    ],
)
def test_nothing_is_changed_from_another_origin(admin: Admin, headers: dict[str, str]) -> None:
    """A page of another origin, or under a name that is not this machine's, changes nothing."""
    prepare(admin)
    admin.headers = headers
    for method, path in CHANGES:
        assert admin.ask(method, path, BODIES.get(path)).status == 403, path
    admin.headers = {}
    assert_untouched(admin)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_no_items_are_read_from_another_origin(admin: Admin, headers: dict[str, str]) -> None:
    """Any page could make the server search, though it sees no reply; others read them."""
    prepare(admin)
    items = f"{PREFIX}/queues/jobs/items"
    for path in (items, f"{items}?pattern=x", f"{PREFIX}/queues/jobs/export"):
        reply = admin.ask("GET", path, **headers)
        assert (reply.status, reply.code) == (403, "cross_origin"), path
        for own in ({}, {"Sec-Fetch-Site": "none"}, {"Sec-Fetch-Site": "same-origin"}):
            assert admin.ask("GET", path, **own).status == 200, path
    assert admin.ask("GET", f"{PREFIX}/queues", **headers).status == 200


@pytest.mark.parametrize("form", ["http://[", "http://[::1", "ftp://{}", "//{}", "http://x@{}", ""])
def test_a_malformed_origin_counts_as_foreign(shared: Admin, form: str) -> None:
    """An Origin that no page can have is refused, whatever its form."""
    origin = form.format(f"127.0.0.1:{shared.port}")
    reply = shared.ask("POST", "/reload", Origin=origin)
    assert (reply.status, reply.code) == (403, "cross_origin")


def test_the_console_itself_may_change_things(admin: Admin) -> None:
    """A request of the same origin passes."""
    headers = {"Origin": admin.url, "Sec-Fetch-Site": "same-origin"}
    reply = admin.ask("POST", f"{PREFIX}/queues", {"name": "jobs"}, **headers)
    assert reply.status == 201


@pytest.mark.parametrize(
    "authorization", [None, "Bearer", "Bearer wrong-wrong-wrong", f"Basic {TOKEN}"]
)
def test_nothing_is_changed_without_the_token(guarded: Admin, authorization: str | None) -> None:
    """Where tokens are configured, every change needs one."""
    prepare(guarded)
    if authorization is not None:
        guarded.headers = {"Authorization": authorization}
    for method, path in CHANGES:
        reply = guarded.ask(method, path, BODIES.get(path))
        assert (reply.status, reply.code) == (401, "token_needed"), path
        assert reply.headers["WWW-Authenticate"].startswith("Bearer")
    guarded.headers = {}
    assert_untouched(guarded)


def test_items_are_as_secret_as_changes(guarded: Admin) -> None:
    """Statistics are open to a monitoring system, items are not."""
    prepare(guarded)
    path = f"{PREFIX}/queues/jobs/items"
    assert guarded.get(path).code == "token_needed"
    assert guarded.get(path, Authorization=f"Bearer {TOKEN}").json["total"] == 2
    assert guarded.get("/metrics").status == 200


def test_the_token_opens_and_never_shows(guarded: Admin) -> None:
    """With the token changes are made; no reply and no log line holds it."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert guarded.ask("POST", f"{PREFIX}/queues", {"name": "jobs"}, **headers).status == 201
    for path in ("/config.json", f"{PREFIX}/config"):
        assert TOKEN not in guarded.get(path, **headers).text
    guarded.server.stop()
    assert TOKEN not in guarded.server.output


def test_off_loopback_nothing_is_changed_without_tokens(tmp_path: Path) -> None:
    """A listener that others can reach refuses every change while no token is configured."""
    config = 'listen_address = "0.0.0.0"\nallow_unauthenticated = true\n'
    with running_server(tmp_path, config=config) as server:
        admin = Admin(server)
        prepare(admin)
        for method, path in CHANGES:
            reply = admin.ask(method, path, BODIES.get(path))
            assert (reply.status, reply.code) == (403, "token_not_configured"), path
        assert admin.get(f"{PREFIX}/queues/jobs/items").status == 403
        assert_untouched(admin)


def test_off_loopback_the_token_opens(tmp_path: Path) -> None:
    """With a token the same listener serves changes, under any name."""
    config = (
        f'listen_address = "0.0.0.0"\nallow_unauthenticated = true\nadmin_tokens = ["{TOKEN}"]\n'
    )
    with running_server(tmp_path, config=config) as server:
        headers = {"Authorization": f"Bearer {TOKEN}", "Host": "queues.example"}
        reply = Admin(server).ask("POST", f"{PREFIX}/queues", {"name": "jobs"}, **headers)
        assert reply.status == 201


def test_a_foreign_name_of_this_machine_sees_nothing(shared: Admin) -> None:
    """A page that points its own name at 127.0.0.1 can read neither items nor statistics."""
    for path in ("/", "/stats.json", f"{PREFIX}/queues", f"{PREFIX}/events"):
        reply = shared.get(path, Host="evil.example:2223")
        assert (reply.status, reply.code) == (403, "wrong_host")
    assert shared.get("/ping", Host=f"localhost:{shared.port}").status == 200


def test_replies_tell_browsers_to_stay_here(shared: Admin) -> None:
    """Nothing is loaded from elsewhere, and no page frames the console."""
    for path in ("/", f"{PREFIX}/queues", "/nothing"):
        headers = shared.get(path).headers
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in headers


def test_replies_say_which_server_this_is_but_not_what_it_is_made_of(shared: Admin) -> None:
    """Who looks for a server with a known fault learns nothing of Python and its libraries."""
    for path in ("/", "/ping", f"{PREFIX}/queues", "/nothing"):
        assert shared.get(path).headers["Server"] == f"kestrelmq/{VERSION}"


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "LOCALHOST"])
def test_loopback_addresses(address: str) -> None:
    """Only this machine reaches these."""
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address", ["0.0.0.0", "::", "10.1.2.3", "localhost.evil.example", "127.0.0.1.evil.example", ""]
)
def test_addresses_that_others_may_reach(address: str) -> None:
    """Whatever is not surely loopback counts as open."""
    assert not is_loopback(address)
