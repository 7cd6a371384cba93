"""A server's life: reload, status, crash and restart, and its lock."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kestrelmq import Client, PersistentQueue, QueuePathLocked
from tests.admin.conftest import Admin
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, put, stats, value, wait_for

pytestmark = pytest.mark.compiled_only

QUIET = ("--text-port", "none", "--thrift-port", "none", "--admin-port", "none")


def drain(wire: Wire, queue: str) -> str:
    """Take everything out of a queue; return the items, parted by spaces."""
    items = []
    while (reply := wire.ask_until(f"get {queue}\r\n".encode(), b"END\r\n")) != b"END\r\n":
        items.append(reply.split(b"\r\n")[1].decode())
    return " ".join(items)


# --- crash and restart ---


def test_kill_and_restart(tmp_path: Path) -> None:
    """After kill -9 everything is there that was not taken, in order; open reads came back."""
    with running_server(tmp_path, *QUIET) as server:
        with Wire(server) as wire, Wire(server) as holder:
            put(wire, "work", *"abcdef")
            put(wire, "work+child", "x")
            wire.ask(b"get work\r\n", b"VALUE work 0 1\r\na\r\nEND\r\n")
            wire.ask(b"get work/open\r\n", b"VALUE work 0 1\r\nb\r\nEND\r\n")
            wire.ask(b"get work/close/open\r\n", b"VALUE work 0 1\r\nc\r\nEND\r\n")
            holder.ask(b"get work/open\r\n", b"VALUE work 0 1\r\nd\r\nEND\r\n")
            put(wire, "flushed", "x")
            wire.ask(b"flush flushed\r\n", b"END\r\n")
            put(wire, "deleted", "x")
            wire.ask(b"delete deleted\r\n", b"DELETED\r\n")
            server.kill9()
        server.restart()
        with Wire(server) as wire:
            assert drain(wire, "work") == "c d e f"
            assert drain(wire, "work+child") == "x"
            assert stats(wire, "deleted") == {}
            assert stats(wire, "flushed")["items"] == "0"


# What is added by requests that were not answered, and so may be there or not.
UNSURE = b"unsure"


def test_repeated_kills_under_load(tmp_path: Path) -> None:
    """Nothing acknowledged is lost and nothing confirmed comes back, crash after crash."""
    added: set[bytes] = set()
    taken: set[bytes] = set()
    number = 0
    with running_server(tmp_path, *QUIET) as server:
        for _ in range(4):
            with Wire(server) as wire:
                for _ in range(10):
                    batch = [b"%06d" % (number + index) for index in range(20)]
                    number += 20
                    wire.send(b"".join(b"set load 0 0 6\r\n%b\r\n" % item for item in batch))
                    wire.expect(b"STORED\r\n" * 20)
                    added |= set(batch)
                    for _ in range(10):
                        reply = wire.ask_until(b"get load/close/open\r\n", b"END\r\n")
                        item = reply.split(b"\r\n")[1]
                        assert item not in taken or item == UNSURE
                        taken.add(item)
                wire.ask(b"get load/close\r\n", b"END\r\n")
                wire.send(b"set load 0 0 6\r\n%b\r\n" % UNSURE * 50)
                server.kill9()
            server.restart()
        with Wire(server) as wire:
            left = [item.encode() for item in drain(wire, "load").split()]
    left = [item for item in left if item != UNSURE]
    taken.discard(UNSURE)
    assert left == sorted(left)
    assert not set(left) & taken
    assert set(left) | taken == added


def test_torn_journal_is_served(tmp_path: Path) -> None:
    """A server starts on a cut journal, keeps the cut bytes, and goes on after them."""
    with running_server(tmp_path, *QUIET) as server:
        with Wire(server) as wire:
            put(wire, "work", "a", "b")
        server.kill9()
        journal = server.queue_path / "work"
        journal.write_bytes(journal.read_bytes()[:-1])
        server.restart()
        with Wire(server) as wire:
            put(wire, "work", "c")
        assert len(list(server.queue_path.glob("work~~torn-*"))) == 1
        server.restart()
        with Wire(server) as wire:
            assert drain(wire, "work") == "a c"


def test_damaged_queue(tmp_path: Path) -> None:
    """The server starts; the damaged queue answers with the reason; the others work."""
    queues = tmp_path / "queues"
    queues.mkdir()
    (queues / "bad").write_bytes(b"\x01\xffrubbish")
    with running_server(tmp_path, *QUIET) as server, Wire(server) as wire:
        put(wire, "good", "x")
        for request in (b"get bad", b"get bad/t=10/open", b"set bad 0 0 1\r\nx", b"monitor bad 1"):
            reply = wire.ask_until(request + b"\r\n", b"\r\n")
            assert reply.startswith(b"SERVER_ERROR queue bad cannot be loaded: ")
            assert b"damaged at byte 1" in reply
        wire.expect_silence()
        assert (queues / "bad").read_bytes() == b"\x01\xffrubbish"


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    """Directories, temporaries and files of other programs are neither loaded nor touched."""
    queues = tmp_path / "queues"
    (queues / "sub").mkdir(parents=True)
    content = {"sub/x": b"1", "README.md": b"2", "a~~1": b"3", "core.x.y": b"4"}
    for name, raw in content.items():
        (queues / name).write_bytes(raw)
    with running_server(tmp_path, *QUIET) as server, Wire(server) as wire:
        assert not [name for name in stats(wire) if name.startswith("queue_") and "sub" in name]
        assert server.stop() == 0
    assert {name: (queues / name).read_bytes() for name in content} == content


# --- the lock ---


def test_second_server_on_a_path(tmp_path: Path) -> None:
    """It fails at once with a clear error, and harms nothing; so does the library."""
    with running_server(tmp_path, *QUIET) as server, Wire(server) as wire:
        put(wire, "work", "a")
        command = [sys.executable, "-c", "from kestrelmq.cli.main import main; main()", "serve"]
        flags = ["--queue-path", str(server.queue_path), "--memcache-port", "0", *QUIET]
        second = subprocess.run(
            [*command, *flags], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert second.returncode == 1
        assert "is in use by a server, a tool or the library" in second.stderr
        assert f"(process {server.process.pid})" in second.stderr
        assert "Traceback" not in second.stderr
        with pytest.raises(QueuePathLocked):
            PersistentQueue("work", server.queue_path).setup()
        assert drain(wire, "work") == "a"
        assert server.stop() == 0
    with PersistentQueue("work", server.queue_path) as queue:
        assert len(queue) == 0


def test_server_serves_what_the_library_wrote(tmp_path: Path) -> None:
    """Both have the same files."""
    with PersistentQueue("work", tmp_path / "queues") as queue:
        queue.add(b"a")
        queue.add(b"b")
        queue.remove(transaction=True)
    with running_server(tmp_path, *QUIET) as server, Wire(server) as wire:
        assert drain(wire, "work") == "a b"


# --- shutdown, status, reload ---


def test_shutdown(tmp_path: Path) -> None:
    """The connection closes, the server ends cleanly, and waiting readers are let go."""
    with running_server(tmp_path, *QUIET) as server, Wire(server) as wire, Wire(server) as reader:
        put(wire, "work", "a")
        reader.send(b"get other/t=60000\r\n")
        wait_for(wire, "other", "waiters", 1)
        wire.send(b"shutdown\r\n")
        wire.expect_close()
        assert server.process.wait(PATIENCE) == 0
        server.restart()
        with Wire(server) as again:
            assert drain(again, "work") == "a"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_the_server(tmp_path: Path, number: signal.Signals) -> None:
    """What a terminal or an init system sends ends it cleanly."""
    with running_server(tmp_path, *QUIET) as server:
        server.process.send_signal(number)
        assert server.process.wait(PATIENCE) == 0


def test_status(tmp_path: Path) -> None:
    """A status forbids with an error and close, is kept over a restart, and lets reads finish."""
    with running_server(tmp_path, *QUIET) as server:
        with Wire(server) as wire, Wire(server) as holder:
            put(wire, "work", "a", "b")
            holder.ask(b"get work/open\r\n", b"VALUE work 0 1\r\na\r\nEND\r\n")
            wire.ask(b"status readonly\r\nstatus\r\n", b"END\r\nREADONLY\r\n")
            for request in (b"set work 0 0 1\r\nx\r\n", b"flush work\r\n", b"delete work\r\n"):
                with Wire(server) as refused:
                    refused.send(request)
                    refused.expect_close(
                        b"SERVER_ERROR the server is read-only: it takes no writes\r\n"
                    )
            wire.ask(b"get work/peek\r\n", b"VALUE work 0 1\r\nb\r\nEND\r\n")
            wire.ask(b"status Quiescent\r\nstatus\r\n", b"END\r\nQUIESCENT\r\n")
            with Wire(server) as refused:
                refused.send(b"get work\r\n")
                refused.expect_close(
                    b"SERVER_ERROR the server is quiescent: it serves no queue\r\n"
                )
            holder.ask(b"confirm work 1\r\n", b"END\r\n")
            for bad in (b"down", b"sideways"):
                with Wire(server) as refused:
                    reply = refused.ask_until(b"status " + bad + b"\r\n", b"\r\n")
                    assert reply.startswith(b"CLIENT_ERROR ")
                    refused.expect_close()
        server.restart()
        with Wire(server) as wire:
            wire.ask(b"status\r\n", b"QUIESCENT\r\n")
            wire.ask(b"status up\r\n", b"END\r\n")
            assert drain(wire, "work") == "b"


def test_status_file(tmp_path: Path) -> None:
    """It is `~~status` in the queue path, unless the configuration says otherwise."""
    with running_server(tmp_path, *QUIET) as server, Wire(server) as wire:
        wire.ask(b"status WriteAvoid\r\nstatus\r\n", b"END\r\nWRITEAVOID\r\n")
        put(wire, "work", "x")
        assert (server.queue_path / "~~status").read_text() == "WRITEAVOID\n"


def test_a_journal_is_turned_on_by_a_restart(tmp_path: Path) -> None:
    """A reload says what is not in force, in its reply and in the log, and shows what is."""
    settings = "[queues.jobs]\nkeep_journal = {}\nmax_items = {}\n"
    file = tmp_path / "kestrelmq.toml"
    with running_server(tmp_path, config=settings.format("false", 9)) as server:
        with Wire(server) as wire:
            put(wire, "jobs", "before")
            file.write_text(settings.format("true", 1))
            staying = "keep_journal of jobs: delete and create them, or restart"
            reply = f"Reloaded config. Not in force before a restart: {staying}\r\n"
            wire.ask(b"reload\r\n", reply.encode())
            until(lambda: f"not put in force: {staying}" in server.output)
            answer = Admin(server).ask("POST", "/api/v1/reload")
            assert answer.json == {"needs_restart": [staying]}
            shown = wire.ask_until(b"dump_config jobs\r\n", b"END\r\n").decode()
            assert "keep_journal=false" in shown
            assert "max_items=1" in shown
            put(wire, "jobs", "refused", reply=b"NOT_STORED\r\n")
        server.restart()
        with Wire(server) as wire:
            wire.ask(b"get jobs\r\n", b"END\r\n")
            put(wire, "jobs", "after")
            shown = wire.ask_until(b"dump_config jobs\r\n", b"END\r\n").decode()
            assert "keep_journal=true" in shown
        server.kill9()
        server.start()
        with Wire(server) as wire:
            wire.ask(b"get jobs\r\n", value("jobs", "after") + b"END\r\n")


@pytest.mark.parametrize("by_signal", [False, True])
def test_reload(tmp_path: Path, *, by_signal: bool) -> None:
    """Settings of queues and aliases change; a bad file changes nothing and is explained."""
    config = tmp_path / "kestrelmq.toml"
    with (
        running_server(tmp_path, *QUIET, config="[queues.work]\nmax_items = 1") as server,
        Wire(server) as wire,
    ):
        put(wire, "work", "a")
        wire.ask(b"set work 0 0 1\r\nb\r\n", b"NOT_STORED\r\n")
        config.write_text("[queues.work]\nmax_items = 2\n[aliases.all]\ndestination_queues=['x']\n")
        _reload(server, wire, b"Reloaded config.\r\n", by_signal=by_signal)
        wire.ask_until(b"dump_config work\r\n", b"max_items=2\r\n")
        wire.until(b"END\r\n")
        put(wire, "work", "b")
        wire.ask(b"set work 0 0 1\r\nc\r\n", b"NOT_STORED\r\n")
        put(wire, "all", "y")
        assert drain(wire, "x") == "y"
        config.write_text("[queues.work]\nmax_itms = 3\n")
        _reload(server, wire, b"SERVER_ERROR ", by_signal=by_signal)
        wire.ask(b"set work 0 0 1\r\nc\r\n", b"NOT_STORED\r\n")
        assert not by_signal or server.logged("max_itms")


def _reload(server: ServerProcess, wire: Wire, reply: bytes, *, by_signal: bool) -> None:
    if not by_signal:
        wire.ask(b"reload\r\n", reply)
        if reply.startswith(b"SERVER_ERROR"):
            assert b"max_itms" in wire.until(b"\r\n")
        return
    before = server.output.count("reloaded")
    os.kill(server.process.pid, signal.SIGHUP)
    until(lambda: server.output.count("reloaded") > before)


def test_reload_of_a_global_setting(tmp_path: Path) -> None:
    """What needs a restart is reported, and stays."""
    config = tmp_path / "kestrelmq.toml"
    with running_server(tmp_path, *QUIET, config="") as server, Wire(server) as wire:
        put(wire, "work", "a")
        config.write_text(
            'max_open_transactions = 5\nmemcache_dialect = "memcached"\n'
            "[queues.work]\nkeep_journal = false\n"
        )
        wire.ask(
            b"reload\r\n",
            b"Reloaded config. Not in force before a restart: max_open_transactions;"
            b" memcache_dialect; keep_journal of work: delete and create them, or restart\r\n",
        )
        with Client(server.address) as client:
            (left,) = client.reload().values()
        assert left.startswith("Not in force before a restart: max_open_transactions; ")
        wire.ask(b"flush_all\r\n", b"Flushed all queues.\r\n")
        assert server.logged("memcache_dialect changed; it takes a restart")
