"""Commands on terminals: of other encodings, narrow, and with keys that are pressed."""

import contextlib
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest

from kestrelmq.client import Client
from tests.support.commands import run_command, start_command
from tests.support.forking import ForkedProcess
from tests.support.patience import PATIENCE
from tests.support.server import ServerProcess, running_server

NAME = "caf\u00e9-\u6771"
ASCII = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Run one server for the tests of this module."""
    with running_server(tmp_path_factory.mktemp("server")) as process:
        yield process


@pytest.fixture
def named(server: ServerProcess) -> Iterator[Client]:
    """Return a client of the server, which has only a queue whose name is not ASCII, of 1 item."""
    with Client(server.address) as client:
        for queue in client.queues():
            client.delete(queue.name)
        client.put(NAME, NAME.encode())
        yield client


class Terminal:
    """`kestrelmq` on a terminal of its own."""

    def __init__(
        self,
        server: ServerProcess,
        *arguments: str,
        columns: int = 80,
        variables: dict[str, str] | None = None,
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        unset = {"COLUMNS", "LINES", "NO_COLOR"}
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        environment |= {"KESTRELMQ_SERVERS": server.address, "TERM": "xterm"}
        environment |= variables or {}
        self._process: ForkedProcess | subprocess.Popen[bytes]
        if variables is None:
            self._process = start_command(
                *arguments, streams=(theirs,) * 3, environment=environment
            )
        else:  # which an interpreter reads when it starts
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kestrelmq", *arguments],
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                env=environment,
            )
        os.close(theirs)

    def read_until(self, text: bytes) -> None:
        """Read until the terminal shows `text`."""
        shown = b""
        while text not in shown:
            shown += os.read(self._ours, 4096)

    def press(self, key: bytes) -> None:
        """Press a key."""
        os.write(self._ours, key)

    def echoes(self) -> bool:
        """Whether the terminal shows what is typed."""
        return bool(termios.tcgetattr(self._ours)[3] & termios.ECHO)

    def end(self) -> tuple[int, str]:
        """Wait for the end of the command; return its exit status and what is shown until then."""
        shown = b""
        with contextlib.suppress(OSError):  # how Linux tells the end of a terminal
            while part := os.read(self._ours, 4096):
                shown += part
        self.echoed = self.echoes()
        os.close(self._ours)
        return self._process.wait(PATIENCE), shown.decode().replace("\r\n", "\n")


def run_in_ascii(
    server: ServerProcess, *arguments: str, variables: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run `kestrelmq` where the output can only be ASCII."""
    return subprocess.run(
        [sys.executable, "-m", "kestrelmq", *arguments],
        env=os.environ | (variables or ASCII) | {"KESTRELMQ_SERVERS": server.address},
        capture_output=True,
        check=False,
        timeout=PATIENCE,
    )


@pytest.mark.parametrize(
    "arguments",
    [["queues"], ["queues", "--by-server"], ["stats"], ["top", "--once", "--interval", "1ms"]],
)
def test_tables_where_the_output_is_no_utf8(
    named: Client, server: ServerProcess, arguments: list[str]
) -> None:
    """A name is shown escaped, and its column is as wide as that."""
    result = run_in_ascii(server, *arguments)
    assert (result.returncode, result.stderr) == (0, b"")
    assert rb"caf\xe9-\u6771" in result.stdout
    if arguments[0] == "queues":
        heads, row = result.stdout.decode().splitlines()
        assert heads.index("items") + len("items") == row.index(" 1 ") + 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["export", "ascii"],
        ["browse", "ascii", "--json"],
        ["reserve", "ascii", "--lease", "1m"],
        ["queues", "--json"],
        ["stats", "--json"],
        ["clients", "--json"],
    ],
)
def test_json_where_the_output_is_no_utf8(
    named: Client, server: ServerProcess, arguments: list[str]
) -> None:
    """It is valid, and its text is right."""
    named.move(NAME, "ascii")  # a name in the arguments is taken as the locale says
    result = run_in_ascii(server, *arguments)
    assert (result.returncode, result.stderr) == (0, b"")
    text = result.stdout.decode()
    found = (
        [json.loads(text)]
        if "--json" in arguments and arguments[0] != "browse"
        else [json.loads(line) for line in text.splitlines()]
    )
    if arguments[0] in {"export", "browse", "reserve"}:
        assert found[0]["data"] == NAME


def test_journals_where_the_output_is_no_utf8(named: Client, server: ServerProcess) -> None:
    """The commands for journals print names of queues, too."""
    variables = {"PYTHONIOENCODING": "ascii"}  # names of files are UTF-8 all the same
    for arguments in (["dump"], ["dump", "--json"], ["dump", "-d"], ["verify"], ["export"]):
        path = str(server.queue_path)
        result = run_in_ascii(
            server, "journal", arguments[0], path, *arguments[1:], variables=variables
        )
        assert (result.returncode, b"Traceback" in result.stderr) == (0, False)
        assert b"caf" in result.stdout
        assert result.stdout.isascii()


def test_an_error_where_the_output_is_no_utf8(named: Client, server: ServerProcess) -> None:
    """It is one line, as anywhere."""
    named.delete(NAME)
    result = run_in_ascii(server, "queues", "--sort", "caf\u00e9".encode().decode("latin-1"))
    assert result.returncode == 2
    assert b"Traceback" not in result.stderr


def test_queues_fit_the_terminal(named: Client, server: ServerProcess) -> None:
    """Columns that do not fit are left out, a long name is shortened; a pipe gets everything."""
    named.put("n" * 150, b"x")
    for columns, last in ((40, "items"), (80, "open_transactions"), (200, "logsize")):
        status, shown = Terminal(server, "queues", columns=columns).end()
        assert status == 0
        heads, *rows = shown.splitlines()
        assert all(len(line) <= columns for line in [heads, *rows])
        assert last in heads
        assert len(rows) == 2
        assert rows[1].split()[:2] == [rows[1].split()[0], "1"]
        assert "\u2026" in rows[1]
    piped = run_command("queues", "--servers", server.address)
    assert b"n" * 150 in piped.stdout
    named.pause(NAME, "reads")
    status, shown = Terminal(server, "queues", columns=60).end()
    assert "paused" in shown.splitlines()[0]
    assert "reads" in shown


def test_queues_fit_an_ascii_terminal(named: Client, server: ServerProcess) -> None:
    """A shortened name ends in a character that the terminal has."""
    named.put("n" * 150, b"x")
    status, shown = Terminal(server, "queues", variables=ASCII).end()
    assert status == 0
    assert "nnn~ " in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_queues_of_a_pattern(named: Client, server: ServerProcess) -> None:
    """As for file names in a shell."""
    for name in ("orders_a", "orders_b", "work"):
        named.put(name, b"x")
    for pattern, names in (("orders_*", ["orders_a", "orders_b"]), ("work", ["work"]), ("x*", [])):
        result = run_command("queues", pattern, "--json", "--servers", server.address)
        assert [row["queue"] for row in json.loads(result.stdout)] == names


@pytest.mark.parametrize("command", ["get", "peek"])
def test_an_item_on_a_terminal_ends_its_line(
    named: Client, server: ServerProcess, command: str
) -> None:
    """So that the prompt of the shell is not behind it."""
    status, shown = Terminal(server, command, NAME, variables={"PYTHONUTF8": "1"}).end()
    assert (status, shown) == (0, f"{NAME}\n")


@pytest.mark.parametrize("key", [b"q", b"Q"])
def test_top_ends_with_a_key(named: Client, server: ServerProcess, key: bytes) -> None:
    """At once, whatever the interval; other keys do nothing, and none is shown."""
    terminal = Terminal(server, "top", "--interval", "200ms")
    terminal.read_until(b"queue")
    assert not terminal.echoes()
    terminal.press(b"x")
    terminal.press(key)
    status, _ = terminal.end()
    assert (status, terminal.echoed) == (0, True)


def test_top_ends_with_a_key_before_its_first_view(named: Client, server: ServerProcess) -> None:
    """The interval may be long."""
    terminal = Terminal(server, "top", "--interval", "1h")
    terminal.read_until(b"\x1b[?1049h")  # the other screen
    terminal.press(b"q")
    status, _ = terminal.end()
    assert (status, terminal.echoed) == (0, True)
