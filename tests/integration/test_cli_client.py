"""The client commands against a real server, as a shell runs them."""

import contextlib
import json
import os
import pty
import socketserver
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from threading import Thread

import pytest

from kestrelmq.client import Client
from tests.support.commands import run_command, run_without_room, start_command
from tests.support.patience import PATIENCE
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire

BINARY = bytes(range(256)) * 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Run one server for the tests of this module that do not harm it."""
    config = "[queues.small]\nmax_items = 2\n[aliases.every]\ndestination_queues = ['small']\n"
    with running_server(tmp_path_factory.mktemp("server"), config=config) as process:
        yield process


def run(
    server: ServerProcess | str, *arguments: str, data: bytes = b"", closed: int | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run `kestrelmq` with its servers in the environment."""
    address = server if isinstance(server, str) else server.address
    variables = {"KESTRELMQ_SERVERS": address}
    return run_command(*arguments, data=data, environment=variables, closed=closed)


def answer(server: ServerProcess | str, *arguments: str, data: bytes = b"") -> bytes:
    """Run `kestrelmq`, which must succeed, and return what it printed."""
    result = run(server, *arguments, data=data)
    assert (result.returncode, result.stderr) == (0, b"")
    return result.stdout


def test_an_item_goes_in_and_comes_out_byte_for_byte(client: Client, server: ServerProcess) -> None:
    """Put reads an argument or standard input; peek leaves the item, get takes it."""
    assert answer(server, "put", "work", "caf\u00e9") == b""
    assert answer(server, "put", "work", "-", data=BINARY) == b""
    assert answer(server, "put", "work", data=b"") == b""
    assert answer(server, "peek", "work") == "caf\u00e9".encode()
    assert answer(server, "get", "work") == "caf\u00e9".encode()
    assert answer(server, "get", "work", "--no-confirm") == BINARY
    assert answer(server, "get", "work") == b""
    assert client.get("work") is None


def test_an_empty_queue_is_exit_status_1_and_silent(client: Client, server: ServerProcess) -> None:
    """A script can tell no item from an empty item."""
    client.get("work")
    for arguments in (["get", "work"], ["peek", "work"], ["get", "work", "--timeout", "10ms"]):
        result = run(server, *arguments)
        assert (result.returncode, result.stdout, result.stderr) == (1, b"", b"")


def test_lines_become_items_and_items_lines(client: Client, server: ServerProcess) -> None:
    """--lines puts each line, and --count takes several, each with a delimiter."""
    assert answer(server, "put", "work", "--lines", data=b"a\nb\r\n\nlast") == b"4 items put\n"
    assert answer(server, "get", "work", "--count", "2") == b"a\nb\r\n"
    assert answer(server, "get", "work", "--count", "0", "--delimiter", "\\0") == b"\0last\0"
    lines = b"".join(b"%d\n" % n for n in range(5000))
    assert answer(server, "put", "work", "--lines", data=lines) == b"5000 items put\n"
    assert answer(server, "get", "work", "--count", "0") == lines


def test_an_item_that_could_not_be_written_stays_in_its_queue(
    client: Client, server: ServerProcess
) -> None:
    """A full disk behind get costs no item."""
    client.put("work", b"x" * 100)
    result = run_without_room("get", "work", "--servers", server.address)
    assert result.returncode == 1
    assert b"No space left" in result.stderr
    assert b"Traceback" not in result.stderr
    assert client.get("work", timeout=PATIENCE) == b"x" * 100


def test_an_item_expires(client: Client, server: ServerProcess) -> None:
    """--expiry takes a duration, and refuses what is none."""
    answer(server, "put", "work", "x", "--expiry", "30 minutes")
    assert client.get("work") == b"x"
    assert run(server, "put", "work", "x", "--expiry", "soon").returncode == 2


def test_a_full_queue_is_an_error(client: Client, server: ServerProcess) -> None:
    """The message says how far it went."""
    result = run(server, "put", "small", "--lines", data=b"1\n2\n3\n")
    assert result.returncode == 1
    assert b"2 items put, 1 refused" in result.stderr
    result = run(server, "put", "small", "x")
    assert (result.returncode, result.stdout) == (1, b"")
    assert b"full" in result.stderr


def test_a_damaged_queue(tmp_path: Path) -> None:
    """Its statistics say why it cannot be read, and so does a warning beside the table."""
    path = tmp_path / "queues"
    path.mkdir()
    (path / "bad").write_bytes(b"U" * 64)
    with running_server(tmp_path) as server:
        found = json.loads(answer(server, "stats", "bad", "--json"))[server.address]
        assert "damaged" in found["failure"]
        listed = run(server, "queues", "--json")
        warning = f"kestrelmq: warning: {server.address}: {found['failure']}\n"
        assert (listed.returncode, listed.stdout) == (0, b"[]\n")
        assert listed.stderr.decode() == warning


def test_monitor_collects_and_confirms(client: Client, server: ServerProcess) -> None:
    """It ends when it has as many as it was told; with none, the exit status is 1."""
    client.put_many("work", [b"1", b"2", b"3"])
    assert answer(server, "monitor", "work", "5", "2") == b"1\n2\n"
    assert client.get("work") == b"3"
    assert run(server, "monitor", "work", "1").returncode == 1


def test_statistics_are_printed_for_people_and_programs(
    client: Client, server: ServerProcess
) -> None:
    """Stats and queues print a table, or JSON with numbers."""
    client.put_many("work", [b"12345"] * 3)
    client.put("another", b"x")
    numbers = json.loads(answer(server, "stats", "--json"))[server.address]
    assert (numbers["queue_work_items"], numbers["queue_work_bytes"]) == (3, 15)
    assert json.loads(answer(server, "stats", "work", "--json"))[server.address]["items"] == 3
    assert b"uptime" in answer(server, "stats")
    assert run(server, "stats", "never-there").returncode == 1
    rows = {row["queue"]: row for row in json.loads(answer(server, "queues", "--json"))}
    assert (rows["work"]["items"], rows["another"]["bytes"]) == (3, 1)
    table = answer(server, "queues", "--sort", "items").decode().splitlines()
    assert table[0].split()[:3] == ["queue", "items", "bytes"]
    assert table[1].split()[:3] == ["work", "3", "15"]


def test_top_prints_once_for_scripts(client: Client, server: ServerProcess) -> None:
    """Servers and queues are shown with rates; a server that is down is shown as such."""
    client.put_many("work", [b"12345"] * 3)
    printed = answer(server, "top", "--once", "--interval", "50ms").decode()
    assert server.address in printed
    work = next(line.split() for line in printed.splitlines() if line.startswith("work "))
    assert work[1:3] == ["3", "15"]
    both = f"{server.address},127.0.0.1:1"
    assert "refused" in answer(both, "top", "--once", "--interval", "50ms").decode()
    assert run("127.0.0.1:1", "top", "--once", "--interval", "50ms").returncode == 1


def test_top_goes_on_in_a_pipe_until_it_is_closed(server: ServerProcess) -> None:
    """One view behind the other; nobody is told that a reader like `head` has enough."""
    with subprocess.Popen(
        [sys.executable, "-m", "kestrelmq", "top", "--interval", "1ms"],
        env=os.environ | {"KESTRELMQ_SERVERS": server.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        heads = (line for line in process.stdout if line.startswith(b"server "))
        assert next(heads) == next(heads)
        process.stdout.close()
        assert (process.wait(PATIENCE), process.stderr.read()) == (1, b"")


def test_flush_and_delete(client: Client, server: ServerProcess) -> None:
    """One queue, or all, on purpose."""
    for name in ("a", "b", "c"):
        client.put(name, b"x")
    answer(server, "flush", "a")
    answer(server, "delete", "b")
    names = {queue.name: queue.items for queue in client.queues()}
    assert (names["a"], "b" in names, names["c"]) == (0, False, 1)
    assert run(server, "flush").returncode == 2
    assert run(server, "flush", "a", "--all").returncode == 2
    answer(server, "flush", "--all")
    assert client.get("c") is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["get", "typo"],
        ["get", "typo", "--timeout", "30"],
        ["peek", "typo"],
        ["monitor", "typo", "30"],
        ["flush", "typo"],
        ["delete", "typo"],
        ["get", "every"],
    ],
)
def test_a_queue_that_is_not_there_is_said(
    client: Client, server: ServerProcess, arguments: list[str]
) -> None:
    """A typing error is an error, at once, and makes no queue; nor does an alias's name."""
    client.put("typo_open", b"x")  # its `transactions` looks like `open_transactions` of `typo`
    result = run(server, *arguments)
    assert (result.returncode, result.stdout) == (1, b"")
    assert result.stderr == f"kestrelmq: error: no server has a queue '{arguments[1]}'\n".encode()
    assert not {"typo", "every"} & {queue.name for queue in client.queues()}
    assert client.get("typo_open") == b"x"


def test_a_queue_can_be_made_by_reading_it(client: Client, server: ServerProcess) -> None:
    """A fanout queue has to be there before the first item that it shall get."""
    result = run(server, "get", "orders+audit", "--create")
    assert (result.returncode, result.stdout, result.stderr) == (1, b"", b"")
    assert run(server, "monitor", "orders+billing", "0", "--create").returncode == 1
    client.put("orders", b"x")
    assert answer(server, "get", "orders+audit") == b"x"
    assert answer(server, "get", "orders+billing") == b"x"


def test_a_queue_is_looked_for_on_every_server(tmp_path: Path) -> None:
    """One that has it is enough; without one, a server that cannot be asked is an error."""
    with running_server(tmp_path / "a") as first, running_server(tmp_path / "b") as second:
        both = f"{first.address},{second.address}"
        with Client(second.address) as client:
            client.put("work", b"x")
        assert answer(both, "get", "work") == b"x"
        assert b"no server has a queue" in run(both, "get", "typo").stderr
        first.kill9()
        assert run(both, "get", "work").stderr == b""
        result = run(both, "get", "typo")
        assert result.returncode == 1
        assert first.address.encode() in result.stderr
        with Client(second.address) as client:
            assert [queue.name for queue in client.queues()] == ["work"]


def on_a_terminal(server: ServerProcess, *arguments: str, typed: bytes = b"") -> tuple[int, bytes]:
    """Run `kestrelmq` on a terminal of its own; return the exit status and what that showed."""
    ours, theirs = pty.openpty()
    variables = os.environ | {"KESTRELMQ_SERVERS": server.address}
    process = start_command(*arguments, streams=(theirs,) * 3, environment=variables)
    os.close(theirs)
    os.write(ours, typed)
    shown = b""
    with contextlib.suppress(OSError):  # how Linux tells the end of a terminal
        while part := os.read(ours, 4096):
            shown += part
    os.close(ours)
    return process.wait(PATIENCE), shown


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["delete", "work"], {"kept"}),
        (["flush", "--all"], {"work", "kept"}),
    ],
)
def test_what_cannot_be_undone_is_asked_on_a_terminal(
    client: Client, server: ServerProcess, arguments: list[str], names: set[str]
) -> None:
    """Only a yes, typed or given before, lets it happen."""
    for queue in client.queues():
        client.delete(queue.name)
    client.put("work", b"x")
    client.put("kept", b"x")
    for typed in (b"\n", b"\x04"):
        status, shown = on_a_terminal(server, *arguments, typed=typed)
        assert status == 1
        assert b"[y/N]" in shown
        assert {queue.name: queue.items for queue in client.queues()} == {"work": 1, "kept": 1}
    status, _ = on_a_terminal(server, *arguments, typed=b"y\n")
    assert status == 0
    assert {queue.name for queue in client.queues()} == names
    assert sum(queue.items for queue in client.queues() if queue.name == "work") == 0
    client.put("work", b"x")
    status, shown = on_a_terminal(server, *arguments, "--yes")
    assert (status, shown) == (0, b"")
    assert sum(queue.items for queue in client.queues() if queue.name == "work") == 0


ESCAPES = "\x1b[2J\x1b]0;title\x07\x9b31m\u202e"
ESCAPED = rb"\x1b[2J\x1b]0;title\x07\x9b31m\u202e"


def test_an_item_cannot_command_a_terminal(client: Client, server: ServerProcess) -> None:
    """It is shown there, and goes unchanged to anything else."""
    item = f"a\t{ESCAPES}\nb\r".encode() + b"\xff"
    for command in (["peek", "work"], ["get", "work", "--count", "0"], ["monitor", "work", "1"]):
        client.put("work", item)
        status, written = on_a_terminal(server, *command)
        # A terminal shows a line end as two characters.
        assert (status, written.replace(b"\r\n", b"\n").rstrip(b"\n")) == (
            0,
            b"a\t" + ESCAPED + b"\nb" + rb"\r\xff",
        )
        if command[0] == "peek":
            assert answer(server, "get", "work") == item


class _Hostile(socketserver.StreamRequestHandler):
    """A server whose names, numbers and errors are what a terminal obeys."""

    def handle(self) -> None:
        for line in self.rfile:
            if line.startswith(b"stats"):
                text = f"STAT {ESCAPES} {ESCAPES}\r\nSTAT uptime \N{SUPERSCRIPT TWO}\r\n"
                stats = ("items", "bytes", "logsize")
                lines = (f"STAT queue_{ESCAPES}_{stat} {'9' * 5000}\r\n" for stat in stats)
                self.wfile.write(f"{text}{''.join(lines)}END\r\n".encode())
            elif line == b"status\r\n":
                self.wfile.write(f"{ESCAPES}\r\n".encode())
            else:
                self.wfile.write(f"CLIENT_ERROR {ESCAPES}\r\n".encode())


@pytest.fixture
def hostile() -> Iterator[str]:
    """Run such a server; return its address."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Hostile) as listening:
        thread = Thread(target=listening.serve_forever)
        thread.start()
        yield f"127.0.0.1:{listening.server_address[1]}"
        listening.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["stats"], 0),
        (["queues"], 0),
        (["top", "--once", "--interval", "1ms"], 0),
        (["status"], 0),
        (["put", "work", "x"], 1),
    ],
)
def test_a_server_cannot_command_a_terminal(hostile: str, command: list[str], status: int) -> None:
    """Names, numbers and errors are shown with what is not printable escaped, without a fault."""
    result = run(hostile, *command)
    written = result.stdout + result.stderr
    assert result.returncode == status
    assert b"\\x1b" in written
    assert not any(byte < 32 and byte not in b"\n\t" for byte in written)
    assert not {"\x9b", "\u202e"} & set(written.decode())
    assert b"Traceback" not in written


def test_status_and_reload(client: Client, server: ServerProcess) -> None:
    """The status is shown and changed; an unknown one is refused."""
    answer(server, "status", "readonly")
    try:
        shown = answer(server, "status").decode().split()
        assert (shown[0], shown[1].upper()) == (server.address, "READONLY")
        assert run(server, "put", "work", "x").returncode == 1
        refused = run(server, "put", "work", "--lines", data=b"1\n2\n")
        assert refused.stderr.endswith(b"takes no writes; 0 items put\n")  # for certain
    finally:
        answer(server, "status", "up")
    assert run(server, "status", "nonsense").returncode == 2
    answer(server, "reload")


def test_wrong_usage_is_exit_status_2(server: ServerProcess) -> None:
    """Usage errors are told apart from failures, which are one line."""
    assert run(server, "browse", "work", "--pattern", "[").returncode == 2
    assert run(server, "config", "show", "a b").returncode == 2
    assert run(server, "journal", "pack").returncode == 2
    assert run(server, "bench", "flood", "--queue", "a b").returncode == 2
    assert run(server, "clients", "kill", "none").returncode == 2
    assert run(server, "get").returncode == 2
    assert run("nonsense:x", "get", "work").returncode == 2
    assert run(server, "get", "work", "--zookeeper", "z:1").returncode == 2
    assert run(server, "put", "work", "x", "--lines").returncode == 2
    result = run("127.0.0.1:1", "get", "work")
    assert result.returncode == 1
    assert result.stderr.decode().count("\n") == 1
    assert run(server, "put", "a/b", "x").returncode == 2


def test_a_cluster_is_one_to_the_commands(tmp_path: Path) -> None:
    """--servers with several servers: items, sums, and orders to all of them, shutdown too."""
    with ExitStack() as stack:
        cluster = [stack.enter_context(running_server(tmp_path / str(n))) for n in range(2)]
        both = ",".join(process.address for process in cluster)
        for n in range(2):
            answer(both, "put", "work", str(n))
        with Client(cluster[0].address) as first, Client(cluster[1].address) as second:
            first.put_many("spread", [b"x"] * 2)
            second.put_many("spread", [b"x"] * 3)
        rows = {row["queue"]: row for row in json.loads(answer(both, "queues", "--json"))}
        assert rows["spread"]["items"] == 5
        assert len(json.loads(answer(both, "stats", "spread", "--json"))) == 2
        lines = answer(both, "queues", "--by-server").decode().splitlines()
        assert sum(line.startswith("spread") for line in lines) == 2
        assert sorted(answer(both, "get", "work", "--count", "0").split()) == [b"0", b"1"]
        answer(both, "shutdown")
        assert [process.process.wait(15) for process in cluster] == [0, 0]


@pytest.mark.parametrize(
    "arguments",
    [["queues"], ["queues", "--json"], ["stats"], ["stats", "work"], ["status"], ["clients"]],
)
def test_other_servers_are_shown_when_one_is_down(
    client: Client, server: ServerProcess, arguments: list[str]
) -> None:
    """The others are shown, and the exit status is 1."""
    client.put("work", b"x")
    result = run(f"{server.address},127.0.0.1:1", *arguments)
    assert result.returncode == 1
    assert result.stderr == b"kestrelmq: error: 127.0.0.1:1: connection refused\n"
    assert (b"work" if "queues" in arguments else server.address.encode()) in result.stdout
    nothing = run("127.0.0.1:1", *arguments)
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (1, b"", result.stderr)


def test_a_queue_is_not_missing_though_a_server_is_down(server: ServerProcess) -> None:
    """That server may have it."""
    result = run(f"{server.address},127.0.0.1:1", "stats", "never-there")
    assert (result.returncode, b"connection refused" in result.stderr) == (1, True)


def test_a_queue_is_paused_and_resumed(client: Client, server: ServerProcess) -> None:
    """As a column of `queues`."""

    def shown() -> str:
        rows = json.loads(answer(server, "queues", "--json"))
        (paused,) = [row["paused"] for row in rows if row["queue"] == "work"]
        return str(paused)

    client.put("work", b"x")
    assert answer(server, "pause", "work", "reads") == b""
    assert shown() == "reads"
    (line,) = [x for x in answer(server, "queues").splitlines() if x.startswith(b"work ")]
    assert line.endswith(b"  reads")
    assert answer(server, "resume", "work") == b""
    assert shown() == ""
    missing = run(server, "pause", "nosuch")
    assert (missing.returncode, b"no server has a queue 'nosuch'" in missing.stderr) == (1, True)
    assert run(server, "pause", "work", "some").returncode == 2


def test_a_queue_is_declared(server: ServerProcess) -> None:
    """The server shows the settings."""
    flags = ["--fanout-only", "--no-journal", "--expires", "1h", "--max-age", "5m", "--max-items"]
    assert answer(server, "declare", "replies", *flags, "7") == b""
    with Wire(server) as wire:
        shown = wire.ask_until(b"dump_config replies\r\n", b"END\r\n").decode()
    expected = ("fanout_only=true", "keep_journal=false", "max_queue_age=1h", "max_age=5m")
    for setting in (*expected, "max_items=7"):
        assert f"  {setting}\r\n" in shown
    assert run(server, "declare", "a/b").returncode == 2


def test_items_are_browsed_and_searched(client: Client, server: ServerProcess) -> None:
    """A line for each, or JSON as in an export; all pages of a search are followed."""
    client.put_many("browsed", [b"item %d!" % number for number in range(1500)])
    shown = answer(server, "browse", "browsed", "--offset", "5", "--count", "2")
    assert shown == b"5\t7\titem 5!\n6\t7\titem 6!\n"
    found = answer(server, "browse", "browsed", "--count", "0", "--search", "77!").splitlines()
    assert [int(line.split(b"\t")[0]) for line in found] == list(range(77, 1500, 100))
    found = answer(
        server, "browse", "browsed", "--count", "2", "--pattern", "^item .9!"
    ).splitlines()
    assert [int(line.split(b"\t")[0]) for line in found] == [19, 29]
    lines = answer(server, "browse", "browsed", "--json", "--count", "0").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["position"] for row in rows] == list(range(1500))
    assert (rows[7]["queue"], rows[7]["data"], rows[7]["expiry"]) == ("browsed", "item 7!", 0)
    assert answer(server, "browse", "browsed", "--search", "nothing", "--count", "0") == b""
    assert run(server, "browse", "nosuch").returncode == 1
    assert run(server, "browse", "browsed", "--search", "a", "--pattern", "a").returncode == 2


def test_items_are_moved_and_copied(client: Client, server: ServerProcess) -> None:
    """The number is printed; a refusal is exit status 1."""
    client.put_many("from", [b"1", b"2", b"3", b"4"])
    assert answer(server, "copy", "from", "to", "--count", "2") == b"2 items copied\n"
    assert answer(server, "move", "from", "to", "--count", "1") == b"1 items moved\n"
    refused = run(server, "move", "from", "small")
    assert (refused.returncode, refused.stdout) == (1, b"2 items moved\n")
    assert b"small is full" in refused.stderr
    assert answer(server, "redrive", "from", "to") == b"1 items moved\n"
    assert [client.get("to") for _ in range(5)] == [b"1", b"2", b"1", b"4", None]
    assert run(server, "move", "nosuch", "to").returncode == 1
    client.flush("small")


def test_an_export_is_imported_again(client: Client, server: ServerProcess, tmp_path: Path) -> None:
    """Any bytes, and what expires; into the same queue or another one."""
    client.put("original", BINARY)
    client.put("original", b"expires", 600)
    client.put_many("original", [b"%d" % number for number in range(1200)])
    lines = answer(server, "export", "original")
    assert client.get("original") == BINARY
    client.flush("original")
    file = tmp_path / "work.jsonl"
    file.write_bytes(lines)
    assert answer(server, "import", str(file)) == b"1202 items added\n"
    assert answer(server, "import", "-", "--queue", "second", data=lines) == b"1202 items added\n"
    (page,) = client.browse("original", 1, 1).values()
    assert page.items[0].expiry > page.items[0].add_time
    for queue in ("original", "second"):
        items = [client.get(queue) for _ in range(1203)]
        assert items == [BINARY, b"expires", *[b"%d" % number for number in range(1200)], None]
    expired = b'{"queue": "original", "data": "old", "expiry": 5}\n'
    assert answer(server, "import", data=expired) == b"0 items added\n"
    wrong = run(server, "import", data=b'{"queue": "original", "data": "x"}\nwrong\n')
    assert (wrong.returncode, b"line 2" in wrong.stderr) == (1, True)
    full = run(server, "import", "--queue", "small", data=lines)
    assert (full.returncode, b"queue 'small' is full" in full.stderr) == (1, True)
    assert run(server, "import", str(tmp_path / "nosuch")).returncode == 1
    client.flush("small")


def test_arguments_may_be_any_bytes(client: Client, server: ServerProcess) -> None:
    """As items are; the system gives them to Python as text that has no encoding."""
    odd = os.fsdecode(b"\xff\xfe")
    assert answer(server, "put", "work", odd) == b""
    assert answer(server, "put", "work", "plain") == b""
    assert answer(server, "browse", "work", "--search", odd).startswith(b"0\t2\t")
    assert answer(server, "get", "work", "--count", "2", "--delimiter", odd) == (
        b"\xff\xfe\xff\xfeplain\xff\xfe"
    )
    assert client.get("work") is None


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["put", "a b", "x"], "whitespace"),
        (["get", "a b"], "whitespace"),
        (["get", "a b", "--create"], "whitespace"),
        (["peek", "a/b"], "contain '/'"),
        (["monitor", "a b", "1"], "whitespace"),
        (["browse", "a b"], "whitespace"),
        (["reserve", "a b", "--lease", "1s"], "whitespace"),
        (["finish", "a b", "1"], "whitespace"),
        (["retire", "a b", "name", "1"], "whitespace"),
        (["flush", "a b"], "whitespace"),
        (["delete", "a b"], "whitespace"),
        (["declare", "a b"], "whitespace"),
        (["pause", "a b"], "whitespace"),
        (["stats", "a b"], "whitespace"),
        (["move", "work", "a b"], "whitespace"),
        (["copy", "a b", "work"], "whitespace"),
        (["redrive", "work", "a b"], "whitespace"),
        (["export", "a b"], "whitespace"),
        (["import", "--queue", "a b"], "whitespace"),
        (["put", "work", "x", "--expiry", "99999999999999999d"], "the expiry"),
        (["put", "work", "x", "--delay", "99999999999999999d"], "the delay"),
        (["declare", "work", "--max-age", "99999999999999999d"], "max_age"),
        (["extend-owner", "", "1s"], "an owner"),
        (["put", "a b", "--lines"], "whitespace"),
        (["put", "work", "x", "--producer", "p"], "go together"),
        (["put", "work", "x", "--producer", os.fsdecode(b"\xff"), "--sequence", "1"], "is UTF-8"),
        (["extend-owner", "worker", "0"], "a lease is more than 0"),
        (["reserve", "work", "--lease", "1", "--tag", os.fsdecode(b"\xff:1:1")], "a tag cannot be"),
        (["finish", "work"], "finish takes either reads, or a tag\n"),
        (["extend", "work", "1s"], "extend takes either reads, or a tag\n"),
        (["release", "work"], "release takes either reads, or a tag or an owner\n"),
    ],
)
def test_what_cannot_be_sent(server: ServerProcess, arguments: list[str], why: str) -> None:
    """The reason is one line, and nothing was asked for."""
    result = run(server, *arguments, data=b"x\n")
    assert (result.returncode, result.stderr.count(b"\n")) == (2, 1)
    assert why in result.stderr.decode()


def test_an_empty_list_of_servers_is_wrong_usage(server: ServerProcess) -> None:
    """It does not mean the usual servers."""
    result = run(server, "get", "work", "--servers", "")
    assert result.returncode == 2
    assert "no server address" in result.stderr.decode()


@pytest.mark.parametrize(
    "arguments",
    [["--version"], ["queues"], ["stats", "--json"], ["browse", "work"], ["put", "--help"]],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_an_error(
    client: Client, server: ServerProcess, arguments: list[str], unbuffered: str
) -> None:
    """In one line, whether it is noticed at once or at the end."""
    client.put("work", b"x")
    environment = {"KESTRELMQ_SERVERS": server.address, "PYTHONUNBUFFERED": unbuffered}
    result = run_without_room(*arguments, environment=environment)
    why = b"kestrelmq: error: standard output: No space left on device\n"
    assert (result.returncode, result.stderr) == (1, why)


@pytest.mark.parametrize(
    ("arguments", "closed", "why"),
    [
        (["put", "work"], 0, b"standard input is closed"),
        (["put", "work", "--lines"], 0, b"standard input is closed"),
        (["import"], 0, b"standard input is closed"),
        (["get", "work"], 1, b"standard output is closed"),
        (["browse", "work"], 1, b"standard output is closed"),
        (["export", "work"], 1, b"standard output is closed"),
        (["reserve", "work", "--lease", "1h"], 1, b"standard output is closed"),
        (["stats"], 1, b"standard output is closed"),
        (["queues"], 1, b"standard output is closed"),
        (["clients"], 1, b"standard output is closed"),
        (["status"], 1, b"standard output is closed"),
        (["config"], 1, b"standard output is closed"),
        (["--version"], 1, b"standard output is closed"),
        (["get", "--help"], 1, b"standard output is closed"),
    ],
)
def test_closed_streams_are_said(
    client: Client, server: ServerProcess, arguments: list[str], closed: int, why: bytes
) -> None:
    """And an item that could not be written stays."""
    client.put("work", b"x")
    result = run(server, *arguments, closed=closed)
    assert (result.returncode, result.stderr) == (1, b"kestrelmq: error: " + why + b"\n")
    assert client.get("work", timeout=PATIENCE) == b"x"


def test_nobody_is_asked_where_standard_input_is_closed(
    client: Client, server: ServerProcess
) -> None:
    """A closed stream is no terminal: as in a job of cron, what was asked for is done."""
    client.put("work", b"x")
    command = [sys.executable, "-m", "kestrelmq", "flush", "work", "--servers", server.address]
    result = subprocess.run(
        ["sh", "-c", '"$@" <&-', "sh", *command],
        stderr=subprocess.PIPE,
        check=False,
        timeout=PATIENCE,
    )
    assert (result.returncode, result.stderr) == (0, b"")
    assert client.get("work") is None


@pytest.mark.parametrize("arguments", [["import"], ["put", "work", "--lines"], ["export", "work"]])
def test_long_work_shows_its_progress_on_a_terminal(
    server: ServerProcess, arguments: list[str]
) -> None:
    """On standard error, so that the output is not mixed with it."""
    lines = b"".join(b'{"queue": "work", "data": "%d"}\n' % number for number in range(2500))
    run(server, "delete", "work", "--yes")
    assert answer(server, "import", data=lines) == b"2500 items added\n"
    terminal, stderr = os.openpty()
    variables = os.environ | {"KESTRELMQ_SERVERS": server.address, "TERM": "xterm"}
    with TemporaryFile() as given, TemporaryFile() as out:
        given.write(lines)
        given.seek(0)
        streams = (given.fileno(), out.fileno(), stderr)
        process = start_command(*arguments, streams=streams, environment=variables)
        os.close(stderr)
        shown: list[bytes] = []
        reader = Thread(target=_read_to_end, args=(terminal, shown))
        reader.start()
        status = process.wait(PATIENCE)
        out.seek(0)
        output = out.read()
    reader.join()
    assert (status, output.count(b"\n")) == (0, 2500 if arguments[0] == "export" else 1)
    assert {"import": b"read", "put": b"put", "export": b"exported"}[arguments[0]] in b"".join(
        shown
    )
    assert b"\x1b" not in output


def _read_to_end(terminal: int, shown: list[bytes]) -> None:
    """Read a terminal until its other side is closed, which is an error on Linux."""
    with contextlib.suppress(OSError):
        while part := os.read(terminal, 1 << 16):
            shown.append(part)
    os.close(terminal)
