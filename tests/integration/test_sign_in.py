"""Signing in, on a real server: the protocols byte by byte, reloads, the log, and clients."""

import asyncio
import base64
import http.client
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from kestrelmq import AsyncClient, Client
from kestrelmq.errors import AuthenticationFailed, InvalidRequest, ServerRefused
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server
from tests.support.users import HASH, PASSWORD, users_config
from tests.support.wire import Wire

pytestmark = pytest.mark.compiled_only

ALICE: Final = 'read = ["work*", "al*"]\nwrite = ["work*"]'
CONFIG: Final = users_config(alice=ALICE, root="admin = true")
SIGN_IN: Final = b"set key 0 0 19\r\nalice correct-horse\r\n"
ROOT: Final = b"set key 0 0 18\r\nroot correct-horse\r\n"
WRONG: Final = b"set key 0 0 11\r\nalice wrong\r\n"
FAILED: Final = b"CLIENT_ERROR authentication failure\r\n"
FIRST: Final = b"CLIENT_ERROR sign in first\r\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server with two users."""
    with running_server(tmp_path, config=CONFIG) as server:
        yield server


def signed_in(server: ServerProcess, request: bytes = SIGN_IN) -> Wire:
    """Return a memcache connection of a user."""
    wire = Wire(server)
    wire.ask(request, b"STORED\r\n")
    return wire


def reload(server: ServerProcess, tmp_path: Path, config: str) -> None:
    """Give the server another configuration."""
    (tmp_path / "kestrelmq.toml").write_text(config)
    with signed_in(server, ROOT) as root:
        root.ask(b"reload\r\n", b"Reloaded config.\r\n")


# --- memcache, byte by byte ---


def test_requests_behind_the_sign_in_are_served(server: ServerProcess) -> None:
    """They may come with it, and in any pieces."""
    session = SIGN_IN + b"set work 0 0 1\r\nx\r\nget work\r\n"
    answers = b"STORED\r\nSTORED\r\nVALUE work 0 1\r\nx\r\nEND\r\n"
    with Wire(server) as wire:
        wire.ask(session, answers)
    with Wire(server) as wire:
        for place in range(len(session)):
            wire.send(session[place : place + 1])
        wire.expect(answers)


def test_a_quiet_sign_in_has_no_answer(server: ServerProcess) -> None:
    """A client that does not read one would take it for that to its next request."""
    with Wire(server) as wire:
        wire.ask(SIGN_IN.replace(b"19", b"19 noreply") + b"version\r\n", b"VERSION ")
    with Wire(server) as wire:
        wire.ask(WRONG.replace(b"11", b"11 noreply") + b"get work\r\n", FIRST)


def test_key_flags_and_expiry_do_not_matter(server: ServerProcess) -> None:
    """As in memcached: the key need not be a queue's name."""
    with Wire(server) as wire:
        wire.ask(b"set a/b.c~ x y 19\r\nalice correct-horse\r\n", b"STORED\r\n")
        wire.ask(b"get work\r\n", b"END\r\n")


def test_the_third_refusal_closes(server: ServerProcess) -> None:
    """Not the first: some clients take the end of a connection for the end of the server."""
    one_word = b"set a 0 0 1\r\nx\r\n"
    for request, refusal in ((WRONG, FAILED), (one_word, FAILED), (b"get work\r\n", FIRST)):
        with Wire(server) as wire:
            for _ in range(3):
                wire.ask(request, refusal)
            assert wire.socket.recv(1) == b""
    with Wire(server, "text") as wire:
        for _ in range(3):
            wire.ask(b"auth alice wrong\n", b"-authentication failure\n")
        assert wire.socket.recv(1) == b""


@pytest.mark.parametrize(
    ("request_", "refusal"),
    [
        (b"x" * 3000, b"CLIENT_ERROR the line is too long\r\n"),
        (b"get " + b"x" * 3000 + b"\r\n", b"CLIENT_ERROR the line is too long\r\n"),
        (b"set a 0 0 x\r\n", b"CLIENT_ERROR set takes a key"),
        (b"set a 0 0 -1\r\n", b"CLIENT_ERROR set takes a key"),
        (b"set a 0 0 3\r\nabcdef\r\n", b"CLIENT_ERROR bad data chunk\r\n"),
        (b"GET / HTTP/1.1\r\n", b"CLIENT_ERROR "),
        (b"\x80\x21" + b"\0" * 22, b"\x81"),
        (b"\x16\x03\x01\x00\n", b"CLIENT_ERROR "),
        (b"nonsense\r\n", b"CLIENT_ERROR unknown command"),
    ],
)
def test_a_request_before_signing_in_closes(
    server: ServerProcess, request_: bytes, refusal: bytes
) -> None:
    """Nothing long is kept for a client that nobody knows."""
    with Wire(server) as wire:
        wire.ask(request_, refusal)
        wire.socket.settimeout(PATIENCE)
        while wire.socket.recv(4096):
            pass


def test_refused_data_is_not_read_as_commands(server: ServerProcess) -> None:
    """It is dropped, however long it is."""
    data = b"shutdown\r\n" * 1000
    with Wire(server) as wire:
        wire.ask(b"set a 0 0 %d\r\n%b\r\n" % (len(data), data), FAILED)
        wire.ask(b"set a 0 0 10 noreply\r\nshutdown\r\n\r\n" + SIGN_IN, b"STORED\r\n")


def test_a_large_item_that_is_refused_is_dropped(server: ServerProcess) -> None:
    """What follows it is served."""
    size = 600_000
    with signed_in(server) as wire:
        wire.ask(
            b"set other 0 0 %d\r\n" % size + b"x" * size + b"\r\n",
            b"CLIENT_ERROR user alice may not add to other\r\n",
        )
        wire.ask(
            b"set work 0 0 %d\r\n" % size + b"x" * size + b"\r\nset work 0 0 1\r\ny\r\n",
            b"STORED\r\nSTORED\r\n",
        )
    with signed_in(server, ROOT) as root:
        assert b"queue_other" not in root.ask_until(b"stats\r\n", b"END\r\n")


def test_lists_have_what_may_be_read(server: ServerProcess) -> None:
    """Over memcache and HTTP; an admin sees all."""
    with signed_in(server, ROOT) as root:
        root.ask(b"set secret 0 0 1\r\nx\r\nset work 0 0 1\r\nx\r\n", b"STORED\r\nSTORED\r\n")
        for command in (b"stats", b"dump_stats", b"dump_config"):
            assert b"secret" in root.ask_until(command + b"\r\n", b"END\r\n")
    with signed_in(server) as wire:
        for command in (b"stats", b"dump_stats", b"dump_config"):
            found = wire.ask_until(command + b"\r\n", b"\r\nEND\r\n")
            assert b"work" in found
            assert b"secret" not in found
    status, _, body = ask(server, "GET", "/api/v1/queues", user="alice")
    assert (status, [one["name"] for one in json.loads(body)["queues"]]) == (200, ["work"])


# --- the hot path's views ---


def test_a_queue_that_was_deleted_is_not_written_through_a_view(server: ServerProcess) -> None:
    """The next item is in the queue that has the name then."""
    with signed_in(server) as wire, signed_in(server, ROOT) as root:
        for _ in range(3):
            wire.ask(
                b"set work 0 0 1\r\nx\r\nget work\r\n", b"STORED\r\nVALUE work 0 1\r\nx\r\nEND\r\n"
            )
        root.ask(b"delete work\r\n", b"DELETED\r\n")
        wire.ask(b"get work\r\n", b"END\r\n")
        root.ask(b"delete work\r\n", b"DELETED\r\n")
        wire.ask(b"set work 0 0 1\r\ny\r\n", b"STORED\r\n")
        root.ask(b"get work\r\n", b"VALUE work 0 1\r\ny\r\nEND\r\n")


def test_a_queue_that_an_alias_masks_is_not_written_through_a_view(
    server: ServerProcess, tmp_path: Path
) -> None:
    """The alias takes its adds, as soon as it is in force."""
    with signed_in(server) as wire, signed_in(server, ROOT) as root:
        for _ in range(3):
            wire.ask(b"set work 0 0 1\r\nx\r\n", b"STORED\r\n")
        reload(server, tmp_path, CONFIG + '[aliases.work]\ndestination_queues = ["work2"]\n')
        wire.ask(b"get work\r\n", b"END\r\n")
        wire.ask(b"set work 0 0 1\r\ny\r\n", b"STORED\r\n")
        root.ask(b"get work2\r\n", b"VALUE work2 0 1\r\ny\r\nEND\r\n")


# --- reloads ---


def test_rights_count_from_the_next_request(server: ServerProcess, tmp_path: Path) -> None:
    """Without a new connection; also for queues that were used before."""
    with signed_in(server) as wire:
        for _ in range(3):
            wire.ask(b"set work 0 0 1\r\nx\r\n", b"STORED\r\n")
        reload(server, tmp_path, CONFIG.replace(ALICE, 'read = ["work"]'))
        wire.ask(b"set work 0 0 1\r\nx\r\n", b"CLIENT_ERROR user alice may not add to work\r\n")
        wire.ask(b"get work\r\n", b"VALUE work 0 1\r\nx\r\nEND\r\n")


def test_a_user_who_is_removed_is_disconnected(server: ServerProcess, tmp_path: Path) -> None:
    """And may not sign in any more; others stay."""
    with signed_in(server) as wire, signed_in(server, ROOT) as root:
        reload(server, tmp_path, users_config(root="admin = true"))
        assert wire.socket.recv(1) == b""
        root.ask(b"status\r\n", b"UP\r\n")
    with Wire(server) as wire:
        wire.ask(SIGN_IN, FAILED)


def test_another_password_counts_for_the_next_sign_in(
    server: ServerProcess, tmp_path: Path
) -> None:
    """The old one is forgotten; who is signed in stays so."""
    with signed_in(server) as wire:
        file = tmp_path / "password"
        file.write_text("another\n")
        config = f'[users.alice]\npassword_file = "{file}"\n{ALICE}\n' + users_config(
            root="admin = true"
        )
        reload(server, tmp_path, config)
        wire.ask(b"get work\r\n", b"END\r\n")
    with Wire(server) as wire:
        wire.ask(SIGN_IN, FAILED)
        wire.ask(b"set key 0 0 13\r\nalice another\r\n", b"STORED\r\n")


def test_the_first_users_disconnect_everyone(tmp_path: Path) -> None:
    """Nobody goes on who has not signed in."""
    with running_server(tmp_path, config="") as server, Wire(server) as wire:
        wire.ask(b"set work 0 0 1\r\nx\r\n", b"STORED\r\n")
        (tmp_path / "kestrelmq.toml").write_text(CONFIG)
        with Wire(server, "text") as other:
            other.send(b"reload\n")
            while other.socket.recv(99):
                pass
        assert wire.socket.recv(1) == b""
        with signed_in(server) as signed:
            signed.ask(b"get work\r\n", b"VALUE work 0 1\r\nx\r\nEND\r\n")


# --- rights of special queues ---


def test_fanout_children_and_aliases(tmp_path: Path) -> None:
    """A child takes a pattern of its own; an alias takes a right for each of its queues."""
    config = users_config(alice='read = ["work", "work+*"]\nwrite = ["work", "both", "one"]')
    config += '[aliases.both]\ndestination_queues = ["one", "two"]\n'
    config += '[aliases.single]\ndestination_queues = ["one"]\n'
    with running_server(tmp_path, config=config) as server, signed_in(server) as wire:
        wire.ask(b"get work+audit\r\nset work 0 0 1\r\nx\r\n", b"END\r\nSTORED\r\n")
        wire.ask(b"get work+audit\r\n", b"VALUE work+audit 0 1\r\nx\r\nEND\r\n")
        wire.ask(
            b"set work+audit 0 0 1\r\nx\r\n",
            b"CLIENT_ERROR user alice may not add to work+audit\r\n",
        )
        wire.ask(b"set both 0 0 1\r\nx\r\n", b"CLIENT_ERROR user alice may not add to two\r\n")
        wire.ask(b"set single 0 0 1\r\nx\r\n", b"STORED\r\n")


def test_the_settings_of_a_queue_name_users(tmp_path: Path) -> None:
    """`allowed_client_ids_*` are about the user's name, besides the rights."""
    config = users_config(alice=ALICE, root="admin = true") + (
        '[queues.work]\nallowed_client_ids_for_enqueue = ["alice"]\n'
        'allowed_client_ids_for_dequeue = ["bob"]\n'
    )
    with running_server(tmp_path, config=config) as server, signed_in(server) as wire:
        for _ in range(3):
            wire.ask(b"set work 0 0 1\r\nx\r\n", b"STORED\r\n")
            wire.ask(b"get work\r\n", b"CLIENT_ERROR user alice may not read work\r\n")
        assert b"STAT items 3" in wire.ask_until(b"stats work\r\n", b"END\r\n")
        with signed_in(server, ROOT) as root:
            root.ask(b"set work 0 0 1\r\nx\r\n", b"CLIENT_ERROR user root may not add to work\r\n")


def test_dead_letters_go_back_where_the_user_may_add(tmp_path: Path) -> None:
    """Each to its own origin; the others stay."""
    dead = 'max_deliveries = 1\ndead_letter_queue = "dead"\n'
    config = f"[queues.mine]\n{dead}[queues.theirs]\n{dead}" + users_config(
        alice='read = ["dead"]\nwrite = ["mine"]', root="admin = true"
    )
    with running_server(tmp_path, config=config) as server:
        with signed_in(server, ROOT) as root:
            for name in (b"mine", b"theirs"):
                root.ask(b"set %b 0 0 1\r\nx\r\n" % name, b"STORED\r\n")
                root.ask_until(b"get %b/open\r\n" % name, b"END\r\n")
                root.ask(b"get %b/abort\r\n" % name, b"END\r\n")
        with signed_in(server) as wire:
            reply = wire.ask_until(b"redrive dead\r\n", b"\r\n")
        assert reply.startswith(b"MOVED 1 ")
        with signed_in(server, ROOT) as root:
            root.ask(b"get mine\r\n", b"VALUE mine 0 1\r\nx\r\nEND\r\n")
            root.ask(b"get theirs\r\n", b"END\r\n")
            root.ask(b"get dead/peek\r\n", b"VALUE dead 0 1\r\nx\r\nEND\r\n")


def test_the_reads_of_an_owner_need_their_queues(server: ServerProcess) -> None:
    """Whoever knows the name of an owner may not extend or release what cannot be read."""
    with signed_in(server, ROOT) as root, signed_in(server) as wire:
        root.ask(b"set other 0 0 1\r\nx\r\n", b"STORED\r\n")
        root.ask_until(b"reserve other 1 lease=60000 owner=worker\r\n", b"END\r\n")
        for request in (b"extend owner=worker 9", b"release owner=worker"):
            wire.ask(request + b"\r\n", b"CLIENT_ERROR user alice may not read other\r\n")
        root.ask(b"release owner=worker\r\n", b"RELEASED 1\r\n")


def test_a_user_of_the_system_needs_no_password(tmp_path: Path) -> None:
    """On a Unix socket; others sign in there as everywhere."""
    path = tmp_path / "socket"
    config = f'[users.me]\nunix_user = "{os.getuid()}"\nread = ["work"]\n' + users_config(
        alice=ALICE
    )
    flags = ("--memcache-path", str(path))
    with running_server(tmp_path, *flags, config=config) as server:
        with Client(f"unix:{path}") as client:
            assert client.get("work") is None
            with pytest.raises(ServerRefused, match="user me may not add to work"):
                client.put("work", b"x")
        with Wire(server) as wire:
            wire.ask(b"get work\r\n", FIRST)


# --- off loopback ---


def run(*words: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run the command line."""
    command = [sys.executable, "-m", "kestrelmq", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, check=False, **options
    )


def test_no_server_is_open_by_accident(tmp_path: Path) -> None:
    """The error shows the lines that make a user."""
    flags = ["--queue-path", str(tmp_path / "queues"), "--listen", "0.0.0.0"]
    for more in ([], ["--processes", "2"]):
        ended = run("serve", *flags, *more)
        assert ended.returncode == 1
        assert "    [users.NAME]" in ended.stderr
        assert '    password_hash = "scrypt:..."' in ended.stderr
        assert "    admin = true" in ended.stderr
        assert "allow_unauthenticated = true" in ended.stderr


@pytest.mark.parametrize("before", ["", CONFIG])
def test_a_reload_that_removes_its_user_is_answered(tmp_path: Path, before: str) -> None:
    """The first users shut out a client that has not signed in; then its connection ends."""
    with running_server(tmp_path, config=before) as server, Wire(server) as wire:
        if before:
            wire.ask(ROOT, b"STORED\r\n")
        (tmp_path / "kestrelmq.toml").write_text(users_config(other="admin = true"))
        wire.ask(b"reload\r\n", b"Reloaded config.\r\n")
        wire.expect_close()


def test_users_open_it_and_no_reload_takes_them_away(tmp_path: Path) -> None:
    """Off loopback; the configuration stays as it was."""
    config = 'listen_address = "0.0.0.0"\n' + CONFIG
    with running_server(tmp_path, config=config) as server, signed_in(server, ROOT) as root:
        (tmp_path / "kestrelmq.toml").write_text('listen_address = "0.0.0.0"\n')
        assert b"SERVER_ERROR listen_address" in root.ask_until(b"reload\r\n", b"\r\n")
        root.ask(b"status\r\n", b"UP\r\n")
        assert "clients need no password" not in server.output


# --- what is logged, counted and shown ---


def test_sign_ins_and_refusals_are_logged_and_counted(server: ServerProcess) -> None:
    """Admin actions with the user, failed sign-ins, the first refusal; never a password."""
    with signed_in(server, ROOT) as root:
        root.ask(b"flush work\r\n", b"END\r\n")
    assert server.logged("flush work: asked for by root, 127.0.0.1:")
    for _ in range(7):
        with Wire(server) as wire:
            for _ in range(2):
                wire.ask(WRONG, FAILED)
    with Wire(server) as wire:
        wire.ask(b"set key 0 0 14\r\nhunter2 hunter\r\n", FAILED)
    assert server.logged("sign-in of user alice failed: 127.0.0.1:")
    with signed_in(server) as wire:
        for _ in range(20):
            wire.ask(b"get other\r\n", b"CLIENT_ERROR user alice may not read other\r\n")
    assert server.logged("user alice may not read other; 1 such refusals since the last message")
    status, _, metrics = ask(server, "GET", "/metrics", user="root")
    assert status == 200
    assert b"kestrelmq_failed_sign_ins_total 15.0" in metrics
    assert b"kestrelmq_forbidden_requests_total 20.0" in metrics
    assert server.logged("more sign-ins, which are not logged one by one")
    assert server.output.count("such refusals") == 1
    assert server.output.count("sign-in of") <= 2 * 10
    for secret in ("wrong", "hunter", PASSWORD, HASH[-20:]):
        assert secret not in server.output


def test_secrets_are_not_shown(server: ServerProcess, tmp_path: Path) -> None:
    """Neither by the API nor on the command line."""
    for path in ("/config.json", "/api/v1/config"):
        status, _, body = ask(server, "GET", path, user="root")
        assert (status, b"alice" in body) == (200, True)
        assert HASH[-20:].encode() not in body
        assert b"password_hash" not in body
    shown = run("config", "show", "--config", str(tmp_path / "kestrelmq.toml"))
    assert "[users.alice]" in shown.stdout
    assert "# password_hash is set, and not shown" in shown.stdout
    assert HASH[-20:] not in shown.stdout


def test_the_clients_have_users(server: ServerProcess) -> None:
    """Of those who have not signed in yet, none is named."""
    root = Client(server.address, user="root", password=PASSWORD, name="me")
    with root as client, Wire(server):
        until(lambda: len(client.clients()) == 2)
        assert {(one.name, one.user) for one in client.clients()} == {("me", "root"), (None, None)}


# --- our clients ---


def test_a_client_signs_in_at_each_connection(server: ServerProcess) -> None:
    """Also after a restart of the server; the user may be in the address."""
    with Client(f"kestrel://alice@{server.address}", password=PASSWORD) as client:
        client.put("work", b"1")
        server.restart()
        client.put("work", b"2")
        with client.reserve("work") as item:
            assert item == b"1"
        assert client.get("work") == b"2"


def test_a_wrong_password_is_an_error_of_its_own(server: ServerProcess) -> None:
    """It is tried once, and its message does not have it; so is the lack of one."""
    begun = time.monotonic()
    with Client(server.address, user="alice", password="hunter2") as client:  # noqa: S106
        with pytest.raises(AuthenticationFailed, match="user alice: authentication failure") as no:
            client.put("work", b"x")
        assert "hunter2" not in str(no.value)
        assert "hunter2" not in repr(client._begun.get().pool._options)
    with Client(server.address) as client:
        for act in (
            lambda: client.put("work", b"a b"),
            lambda: client.get("work"),
            lambda: client.put_many("work", [b"1", b"2"]),
            client.queues,
        ):
            with pytest.raises(AuthenticationFailed, match="needs a user and a password"):
                act()
    assert time.monotonic() - begun < PATIENCE
    with Client(server.address, user="root", password=PASSWORD) as client:
        failed = client.stats()
        assert failed
    _, _, metrics = ask(server, "GET", "/metrics", user="root")
    assert b"kestrelmq_failed_sign_ins_total 2.0" in metrics


def test_a_forbidden_queue_is_refused(server: ServerProcess) -> None:
    """No other server is tried, and the client stays usable."""
    with Client(server.address, user="alice", password=PASSWORD) as client:
        with pytest.raises(ServerRefused, match="user alice may not read other") as refused:
            client.get("other")
        assert refused.value.kind == "CLIENT_ERROR"
        with pytest.raises(ServerRefused, match="may not read other"), client.reserve("other"):
            pass
        client.put("work", b"x")
        assert client.get("work") == b"x"


def test_a_server_without_users_does_not_store_the_password(tmp_path: Path) -> None:
    """The client says that it cannot sign in."""
    with running_server(tmp_path) as server:
        with (
            Client(server.address, user="alice", password=PASSWORD) as client,
            pytest.raises(AuthenticationFailed),
        ):
            client.get("work")
        with Client(server.address) as client:
            assert client.queues() == []


@pytest.mark.parametrize(
    ("servers", "given"),
    [
        ("kestrel://alice:hunter2@localhost", {}),
        ("kestrel://alice@a,kestrel://bob@b", {"password": PASSWORD}),
        ("localhost", {"user": "alice"}),
        ("localhost", {"password": "hunter2"}),
        ("localhost", {"user": "a b", "password": "hunter2"}),
        ("localhost", {"user": "alice", "password": "hunter two"}),
        ("localhost", {"user": 1, "password": "hunter2"}),
    ],
)
def test_users_that_no_server_could_know(servers: str, given: Any) -> None:
    """They are refused before anything is sent, without showing a password."""
    with pytest.raises(InvalidRequest) as raised:
        Client(servers, **given)
    assert "hunter" not in str(raised.value)


def test_the_asyncio_client_signs_in(server: ServerProcess) -> None:
    """As the blocking one does."""

    async def scenario() -> None:
        async with AsyncClient(f"kestrel://alice@{server.address}", password=PASSWORD) as client:
            await client.put("work", b"x")
            assert await client.get("work") == b"x"
        async with AsyncClient(server.address, user="alice", password="wrong") as client:  # noqa: S106
            with pytest.raises(AuthenticationFailed):
                await client.get("work")

    asyncio.run(scenario())


def test_the_command_line_signs_in(server: ServerProcess, tmp_path: Path) -> None:
    """By flags, by variables and by the address; a password is never an argument."""
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    flags = ["--servers", server.address]
    assert (
        run("put", "work", "x", *flags, "--user", "alice", "--password-file", str(file)).stderr
        == ""
    )
    environment = os.environ | {"KESTRELMQ_USER": "alice", "KESTRELMQ_PASSWORD_FILE": str(file)}
    assert run("get", "work", *flags, env=environment).stdout == "x"
    address = ["--servers", f"kestrel://root@{server.address}", "--password-file", str(file)]
    assert "root" in run("clients", *address).stdout
    assert run("browse", "work", *address).returncode == 0
    wrong = run("get", "work", *flags, "--user", "alice")
    assert (wrong.returncode, "--password-file" in wrong.stderr) == (2, True)
    for protocol in ("memcache", "text", "thrift"):
        place = f"127.0.0.1:{server.ports[protocol]}"
        where = ["--protocol", protocol, "--server", place, "--queue", "work"]
        who = ["--user", "alice", "--password-file", str(file)]
        done = run("bench", "put-many", "-c", "2", "-n", "9", *where, *who)
        assert "all 9 items arrived" in done.stdout, done.stderr


def test_a_hash_is_printed_and_rights_are_explained(server: ServerProcess, tmp_path: Path) -> None:
    """From standard input, so that it is in no list of processes."""
    made = run("user", "hash", input=f"{PASSWORD}\n")
    assert made.stdout.startswith("scrypt:14:8:1:")
    assert PASSWORD not in made.stdout
    assert run("user", "hash", input="two words\n").returncode == 1
    file = tmp_path / "other.toml"
    file.write_text('[users.alice]\npassword_file = "/no/such/file"\n')
    assert "users.alice: password_file" in run("config", "check", str(file)).stderr
    config = ["--config", str(tmp_path / "kestrelmq.toml")]
    shown = run("user", "check", "alice", "work", *config)
    assert shown.stdout.splitlines()[0] == 'read work: yes, read = "work*"'
    assert run("user", "check", "nobody", "work", *config).returncode == 1


# --- HTTP ---


def ask(
    server: ServerProcess, method: str, path: str, body: object = None, user: str = "", **more: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Return the status, the headers and the body of a reply; keyword arguments are headers."""
    connection = http.client.HTTPConnection("127.0.0.1", server.ports["admin"], PATIENCE)
    headers = {name.replace("_", "-"): value for name, value in more.items()}
    if user:
        token = base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()
        headers["Authorization"] = f"Basic {token}"
    if body is not None:
        headers["Content-Type"] = "application/json"
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    response = connection.getresponse()
    found = response.status, response.headers, response.read()
    connection.close()
    return found


def begin_session(server: ServerProcess, user: str) -> str:
    """Sign in as a browser does; return the cookie."""
    body = {"user": user, "password": PASSWORD}
    status, headers, _ = ask(server, "POST", "/api/v1/session", body)
    assert status == 204
    cookie = headers["Set-Cookie"]
    assert {part.strip() for part in cookie.split(";")[1:]} == {
        "HttpOnly",
        "Path=/",
        "SameSite=Strict",
    }
    return cookie.partition(";")[0]


def test_a_session_of_a_browser(server: ServerProcess, tmp_path: Path) -> None:
    """It has the rights of its user, until that signs out, gets another password or is removed."""
    cookie = begin_session(server, "alice")
    other = begin_session(server, "alice")
    root = begin_session(server, "root")
    queue = "/api/v1/queues/work"
    put = ("POST", f"{queue}/items", {"text": "x"})
    assert ask(server, *put, Cookie=cookie)[0] == 201
    assert ask(server, *put, Cookie=cookie + "x")[0] == 401
    assert ask(server, *put, Cookie=cookie, Origin="http://evil.example")[0] == 403
    assert ask(server, "POST", f"{queue}/flush", Cookie=cookie)[0] == 403
    assert ask(server, "POST", f"{queue}/flush", Cookie=root)[0] == 200
    assert json.loads(ask(server, "GET", "/api/v1/session", Cookie=cookie)[2]) == {
        "has_users": True,
        "user": "alice",
        "admin": False,
        "can_read": True,
        "can_write": True,
    }
    for name, rights in (("work", (True, True)), ("al", (True, False)), ("other", (False, False))):
        _, _, answer = ask(server, "GET", f"/api/v1/session?queue={name}", Cookie=cookie)
        assert tuple(json.loads(answer)[key] for key in ("can_read", "can_write")) == rights, name
    assert ask(server, "DELETE", "/api/v1/session", Cookie=cookie)[0] == 204
    assert ask(server, *put, Cookie=cookie)[0] == 401
    assert ask(server, *put, Cookie=other)[0] == 201
    reload(server, tmp_path, CONFIG.replace("AAAA", "BBBB", 1))
    assert ask(server, *put, Cookie=other)[0] == 401
    reload(server, tmp_path, CONFIG)
    again = begin_session(server, "alice")
    reload(server, tmp_path, users_config(root="admin = true"))
    assert ask(server, *put, Cookie=again)[0] == 401
    assert ask(server, "GET", "/api/v1/queues", Cookie=root)[0] == 200


def test_a_program_is_told_of_basic_and_a_browser_is_not(server: ServerProcess) -> None:
    """Some programs send a password only if asked for it; a browser would ask by itself."""
    url = f"http://127.0.0.1:{server.ports['admin']}/api/v1/queues"
    passwords = urllib.request.HTTPPasswordMgrWithDefaultRealm()
    passwords.add_password(None, url, "root", PASSWORD)
    opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(passwords))
    with opener.open(url, timeout=PATIENCE) as reply:
        assert reply.status == 200
    browser = {"User_Agent": "Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0"}
    for more in ({}, {"Authorization": "Basic eDp5"}):
        status, headers, _ = ask(server, "GET", "/api/v1/queues", **browser, **more)
        assert (status, headers["WWW-Authenticate"]) == (401, 'Bearer realm="kestrelmq"')


def test_a_wrong_sign_in_begins_no_session(server: ServerProcess) -> None:
    """The answer says no more than that."""
    body = {"user": "alice", "password": "wrong"}
    status, headers, answer = ask(server, "POST", "/api/v1/session", body)
    assert status == 401
    assert "Set-Cookie" not in headers
    assert b"authentication_failure" in answer


def test_an_admin_token_stands_for_an_admin(tmp_path: Path) -> None:
    """Where there are users, too; without either, only health is shown, and no reason."""
    token = "0123456789abcdef"  # noqa: S105
    config = f'admin_tokens = ["{token}"]\n{CONFIG}'
    with running_server(tmp_path, config=config) as server:
        bearer = {"Authorization": f"Bearer {token}"}
        assert ask(server, "GET", "/config.json", **bearer)[0] == 200
        assert ask(server, "POST", "/reload", **bearer)[0] == 200
        assert ask(server, "GET", "/config.json", Authorization="Bearer 0123456789abcdeX")[0] == 401
        assert ask(server, "GET", "/metrics")[0] == 401
        status, _, body = ask(server, "GET", "/health")
        assert status == 200
        assert json.loads(body).keys() == {"healthy", "status", "problem_count"}


def test_the_server_serves_while_many_sign_in(server: ServerProcess) -> None:
    """They are more than a backlog of hashes could hold, and all are let in."""
    opened = [socket.create_connection(("127.0.0.1", server.ports["memcache"])) for _ in range(300)]
    for one in opened:
        one.sendall(SIGN_IN)
    for one in opened:
        one.settimeout(PATIENCE)
        assert one.recv(99) == b"STORED\r\n"
        one.close()
