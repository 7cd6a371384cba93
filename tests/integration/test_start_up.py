"""A real server whose long queues are still loading: what clients see, and how it stops."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from kestrelmq.format.records import item
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire

pytestmark = pytest.mark.compiled_only

PROTOCOLS = ("memcache", "text", "thrift", "admin")
CONFIG = """
[aliases.both]
destination_queues = ["short", "zebra"]
[queues.old]
expire_to_queue = "zebra"
[queues.short]
dead_letter_queue = "zebra"
"""
# The fanout and the long queue are loaded once the file is gone.
GATED = """
import time
from kestrelmq.queues import collection

load_queue = collection.load_queue

def gated(directory, plan, memory, clock, pace, **others):
    while plan.queue not in ("short", "old") and (directory.path / "~~gate").exists():
        time.sleep(0.01)
        pace()
    return load_queue(directory, plan, memory, clock, pace, **others)

collection.load_queue = gated
from kestrelmq.cli.main import main; main()
"""
# One second more than the server waits before it serves.
SLOW = """
import time
from kestrelmq.queues import collection

load_queue = collection.load_queue

def slow(*arguments, **others):
    time.sleep(3.0)
    return load_queue(*arguments, **others)

collection.load_queue = slow
from kestrelmq.cli.main import main; main()
"""
NOW = 1_763_000_000_000


def write_spool(path: Path) -> None:
    """Write two short queues, a fanout and its master, and a longer queue."""
    path.mkdir()
    (path / "short").write_bytes(item(NOW, 0, b"s"))
    (path / "old").write_bytes(item(NOW, NOW + 1, b"expired"))
    (path / "many+kid").write_bytes(item(NOW, 0, b"k" * 50))
    (path / "many").write_bytes(item(NOW, 0, b"m" * 50))
    (path / "zebra").write_bytes(item(NOW, 0, b"z" * 1000))


def journals(path: Path) -> dict[str, bytes]:
    """Return what the journals hold."""
    return {file.name: file.read_bytes() for file in path.iterdir() if "~~" not in file.name}


@pytest.fixture
def gated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    """Return a server that has loaded `short` and `old`, and serves."""
    write_spool(tmp_path / "queues")
    (tmp_path / "queues" / "~~gate").touch()
    monkeypatch.setattr(ServerProcess, "command", GATED)
    with running_server(tmp_path, config=CONFIG, waits=False) as running:
        yield running


def let_load(server: ServerProcess, wire: Wire) -> None:
    """Let the server load the rest, and wait until it has."""
    (server.queue_path / "~~gate").unlink()
    until(lambda: b"STAT queues_loading 0\r\n" in wire.ask_until(b"stats\r\n", b"END\r\n"))


def admin(server: ServerProcess, path: str) -> tuple[int, str]:
    """Return the status and the text of an admin page."""
    try:
        with urlopen(f"http://127.0.0.1:{server.ports['admin']}{path}") as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_no_read_is_released_as_dead_while_the_dead_letter_queue_loads(
    gated: ServerProcess,
) -> None:
    """It stays reserved, for the item would go back to its queue instead."""
    with Wire(gated) as wire:
        read = wire.ask_until(b"reserve short 1 lease=3600000 owner=me\r\n", b"END\r\n").split()[2]
        refused = b"queue zebra is still loading"
        for which in (b"" + read, b"owner=me"):
            wire.ask(b"release short %b dead\r\n" % which, b"SERVER_ERROR %b\r\n" % refused)
        let_load(gated, wire)
        wire.ask(b"release short %b dead\r\n" % read, b"RELEASED 1\r\n")
        items = {wire.ask_until(b"get zebra/t=60000\r\n", b"END\r\n") for _ in range(3)}
        assert b"VALUE zebra 0 1\r\ns\r\nEND\r\n" in items


def test_loaded_queues_serve_while_others_load(gated: ServerProcess) -> None:
    """What concerns a queue that loads is refused as a whole; once it is loaded, all is there."""
    with Wire(gated) as wire, Wire(gated, "text") as text:
        for request, name in (
            (b"set zebra 0 0 1\r\nn\r\n", b"zebra"),
            (b"get zebra\r\n", b"zebra"),
            (b"get zebra/t=10/open\r\n", b"zebra"),
            (b"delete zebra\r\n", b"zebra"),
            (b"stats zebra\r\n", b"zebra"),
            (b"flush zebra\r\n", b"zebra"),
            (b"flush_expired zebra\r\n", b"zebra"),
            (b"set both 0 0 1\r\nn\r\n", b"zebra"),
            (b"set many 0 0 1\r\nn\r\n", b"many"),
            (b"set many+kid 0 0 1\r\nn\r\n", b"many+kid"),
        ):
            wire.ask(request, b"SERVER_ERROR queue " + name + b" is still loading\r\n")
        text.ask(b"put zebra:\nn\n\n", b"-queue zebra is still loading\n")
        text.ask(b"get zebra\n", b"-queue zebra is still loading\n")
        wire.ask(b"get old\r\n", b"END\r\n")  # its item waits to be moved
        wire.ask(b"set short 0 0 1\r\nt\r\n", b"STORED\r\n")
        wire.ask(b"set new 0 0 1\r\nn\r\n", b"STORED\r\n")
        let_load(gated, wire)
        wire.ask(b"get short\r\n", b"VALUE short 0 1\r\ns\r\nEND\r\n")
        wire.ask(b"get short\r\n", b"VALUE short 0 1\r\nt\r\nEND\r\n")
        wire.ask(b"get short\r\n", b"END\r\n")
        wire.ask(b"get old\r\n", b"END\r\n")
        wire.ask(b"get zebra\r\n", b"VALUE zebra 0 1000\r\n" + b"z" * 1000 + b"\r\nEND\r\n")
        wire.ask(b"get zebra/t=60000\r\n", b"VALUE zebra 0 7\r\nexpired\r\nEND\r\n")
        wire.ask(b"set many 0 0 1\r\nn\r\n", b"STORED\r\n")
        for name, letter in ((b"many", b"m"), (b"many+kid", b"k")):
            get = b"get " + name + b"\r\n"
            wire.ask(get, b"VALUE " + name + b" 0 50\r\n" + letter * 50 + b"\r\nEND\r\n")
            wire.ask(get, b"VALUE " + name + b" 0 1\r\nn\r\nEND\r\n")


def test_what_loads_is_shown(gated: ServerProcess) -> None:
    """Health, the API and the metrics tell of the queues that load, until they are loaded."""
    status, health = admin(gated, "/health")
    assert (status, "queue many is still loading, and 2 more" in health) == (503, True)
    assert admin(gated, "/health/ready")[0] == 503
    assert admin(gated, "/health/live")[0] == 200
    late = ["many", "many+kid", "zebra"]
    assert [problem["queue"] for problem in json.loads(health)["problems"]] == late
    assert json.loads(admin(gated, "/api/v1/server")[1])["loading"] == late
    listed = json.loads(admin(gated, "/api/v1/queues?state=loading")[1])["queues"]
    assert [queue["name"] for queue in listed] == late
    queue = json.loads(admin(gated, "/api/v1/queues/zebra")[1])
    assert (queue["state"], queue["problem"]) == ("loading", "queue zebra is still loading")
    assert 'kestrelmq_queues{state="loading"} 3.0' in admin(gated, "/metrics")[1]
    with Wire(gated) as wire:
        let_load(gated, wire)
    assert admin(gated, "/health")[0] == admin(gated, "/health/ready")[0] == 200


def test_a_stop_while_queues_load(gated: ServerProcess) -> None:
    """The server ends cleanly, no journal is changed, and the next start finds everything."""
    before = journals(gated.queue_path)
    gated.process.terminate()
    assert gated.logged("from UP to DOWN")
    (gated.queue_path / "~~gate").unlink()
    assert gated.wait() == 0  # a second signal might come when nobody handles it any more
    assert journals(gated.queue_path) == before
    gated.waits = True
    gated.restart()
    with Wire(gated) as wire:
        wire.ask(b"get many\r\n", b"VALUE many 0 50\r\n" + b"m" * 50 + b"\r\nEND\r\n")


def test_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--wait` nobody is served before every queue is loaded."""
    (tmp_path / "queues").mkdir()
    (tmp_path / "queues" / "slow").write_bytes(item(NOW, 0, b"s"))
    monkeypatch.setattr(ServerProcess, "command", SLOW)
    with running_server(tmp_path, waits=True) as server, Wire(server) as wire:
        wire.ask(b"get slow\r\n", b"VALUE slow 0 1\r\ns\r\nEND\r\n")


def test_a_queue_path_that_cannot_be_made(tmp_path: Path) -> None:
    """The server says so in a line, and ends."""
    path = tmp_path / "queues"
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(RuntimeError, match=r":\nkestrelmq: error: the queue path .*\n$"):
        ServerProcess(path, []).start()


def test_a_reload_before_the_configuration_is_read(tmp_path: Path) -> None:
    """SIGHUP does not end a server that is still starting."""
    pipe = tmp_path / "config"
    os.mkfifo(pipe)
    ports = [f"--{name}-port={0 if name == 'memcache' else 'none'}" for name in PROTOCOLS]
    command = [sys.executable, "-m", "kestrelmq", "serve", *ports]
    command += ["--queue-path", str(tmp_path / "queues"), "--config", str(pipe)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        with pipe.open("w") as config:  # waits until the server reads it
            process.send_signal(signal.SIGHUP)
            config.write('log_level = "warning"\n')
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert "ready\n" in lines
        process.terminate()
        assert process.wait() == 0


@pytest.mark.parametrize("output", [">&-", "> /dev/full"])
def test_a_server_that_cannot_print_serves(tmp_path: Path, output: str) -> None:
    """Where standard output is closed, or full, the log alone says where it listens."""
    ports = [f"--{name}-port={0 if name == 'admin' else 'none'}" for name in PROTOCOLS]
    command = [sys.executable, "-m", "kestrelmq", "serve", *ports]
    command += ["--queue-path", str(tmp_path / "queues")]
    shell = ["sh", "-c", f'exec "$@" {output}', "sh", *command]
    with subprocess.Popen(shell, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        port = process.stderr.readline().rpartition(":")[2].strip()
        with urlopen(f"http://127.0.0.1:{port}/ping", timeout=PATIENCE) as reply:
            assert reply.read().strip() == b"pong"
        process.terminate()
        assert process.wait(PATIENCE) == 0
        assert process.stderr.read().count("ERROR") == 0
