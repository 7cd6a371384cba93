"""`kestrelmq backup` beside a real server, and `restore` for another one."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelmq.client import Client
from tests.support.commands import run_command
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, put, stats, value

pytestmark = pytest.mark.compiled_only

CONFIG = """
[default]
max_memory_size = "60 KiB"
default_journal_size = "40 KiB"
max_journal_size = "900 KiB"
[queues.fleeting]
keep_journal = false
"""
HOUR = 3600
LARGE = b"x" * (3 << 20)


@pytest.fixture(name="server")
def running(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server, whose files are soon rotated."""
    with running_server(tmp_path, config=CONFIG) as server:
        yield server


def report(*arguments: str) -> dict[str, object]:
    """Run a command; return the JSON that it prints."""
    done = run_command(*arguments, "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_all_that_a_queue_path_has_is_there_again(tmp_path: Path, server: ServerProcess) -> None:
    """Fanout children, delayed items, reserved reads, large items, producers and settings."""
    path, target = server.queue_path, tmp_path / "backup"
    (path / "damaged").write_bytes(b"cc")
    server.restart()
    with Client(server.address) as client, Wire(server) as wire:
        wire.ask(b"get events+copy\r\n", b"END\r\n")
        put(wire, "events", "a", "b")
        wire.ask(b"get events\r\n", value("events", "a") + b"END\r\n")
        client.put("later", b"c", delay=HOUR)
        client.put("large", LARGE)
        put(wire, "work", "d", "e")
        put(wire, "fleeting", "f")
        reserved = wire.ask_until(b"reserve work 1 lease=3600000 tag=t:1:1\r\n", b"END\r\n")
        wire.ask(b"get work/open\r\n", value("work", "e") + b"END\r\n")
        wire.ask(b"set made/producer=p/seq=5 0 0 1\r\ng\r\n", b"STORED\r\n")
        client.pause("large", "writes")
        client.declare("declared", max_items=1)
        made = report("backup", str(target), "--queue-path", str(path))
        put(wire, "events", "too late")
    assert made["is_one_moment"]
    restored = report("restore", "--from", str(target), "--queue-path", str(tmp_path / "2/queues"))
    assert restored == made | {"queue_path": str(tmp_path / "2/queues")}
    with (
        running_server(tmp_path / "2", config=CONFIG) as second,
        Client(second.address) as client,
        Wire(second) as wire,
    ):
        wire.ask(b"get events\r\n", value("events", "b") + b"END\r\n")
        wire.ask(b"get events\r\n", b"END\r\n")
        wire.ask(b"get events+copy\r\n", value("events+copy", "a") + b"END\r\n")
        wire.ask(b"get events+copy\r\n", value("events+copy", "b") + b"END\r\n")
        wire.ask(b"get events+copy\r\n", b"END\r\n")
        assert (stats(wire, "later")["delayed"], client.get("large")) == ("1", LARGE)
        assert wire.ask_until(b"reserve work 1 lease=3600000 tag=t:1:1\r\n", b"END\r\n") == reserved
        wire.ask(b"get work\r\n", value("work", "e") + b"END\r\n")
        wire.ask(b"get fleeting\r\n", b"END\r\n")
        wire.ask(b"set made/producer=p/seq=5 0 0 1\r\ng\r\n", b"STORED\r\n")
        assert stats(wire, "made")["items"] == "1"
        assert b"paused" in wire.ask_until(b"set large 0 0 1\r\nx\r\n", b"\r\n")
        put(wire, "declared", "1")
        assert wire.ask_until(b"set declared 0 0 1\r\nx\r\n", b"\r\n") != b"STORED\r\n"
        assert b"SERVER_ERROR" in wire.ask_until(b"get damaged\r\n", b"\r\n")
    assert (tmp_path / "2/queues/damaged").read_bytes() == b"cc"


def test_a_backup_stays_as_it_is(tmp_path: Path, server: ServerProcess) -> None:
    """While the server appends to its files, packs and removes them."""
    path, target = server.queue_path, tmp_path / "backup"
    items = [f"{number} " + "x" * 1000 for number in range(200)]
    with Wire(server) as wire:
        put(wire, "work", *items)
        made = report("backup", str(target), "--queue-path", str(path))
        assert made["linked"]
        before = {one.name: one.read_bytes() for one in target.iterdir()}
        rewrites = int(stats(wire, "work")["journal_rewrites"])
        for item in items:
            wire.ask(b"get work\r\n", value("work", item) + b"END\r\n")
        put(wire, "work", *items)
        assert int(stats(wire, "work")["journal_rewrites"]) > rewrites
    assert {one.name: one.read_bytes() for one in target.iterdir()} == before
    new = tmp_path / "2" / "queues"
    report("restore", "--from", str(target), "--queue-path", str(new))
    with running_server(tmp_path / "2", config=CONFIG) as second, Wire(second) as wire:
        for item in items:
            wire.ask(b"get work\r\n", value("work", item) + b"END\r\n")
        wire.ask(b"get work\r\n", b"END\r\n")
    assert {one.name: one.read_bytes() for one in target.iterdir()} == before


def test_the_queue_path_of_a_configuration(tmp_path: Path, server: ServerProcess) -> None:
    """And what is printed for people, of a success and of failures."""
    file = tmp_path / "other.toml"
    file.write_text(f'queue_path = "{server.queue_path}"\n')
    with Wire(server) as wire:
        put(wire, "work", "a")
    target = str(tmp_path / "backup")
    done = run_command("backup", target, "--config", str(file))
    size = (server.queue_path / "work").stat().st_size
    told = f"{server.queue_path}: backed up 1 queues, 1 files of {size} bytes\n"
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, told, b"")
    done = run_command("backup", target, "--config", str(file))
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode() == (
        f"kestrelmq: error: {target} exists: a backup needs a name of its own\n"
    )
    done = run_command("restore", "--from", target, "--queue-path", str(server.queue_path))
    assert (done.returncode, b"is in use by a server" in done.stderr) == (1, True)
    assert run_command("restore", "--from", target).returncode == 2
