"""What somebody may have put into a queue path: links, pipes, sockets, odd names."""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from kestrelmq.format.records import item
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, put, value

pytestmark = pytest.mark.compiled_only

ADDED = item(1_700_000_000_000, 0, b"elsewhere")


def link(path: Path) -> None:
    """Link to a journal that lies elsewhere."""
    elsewhere = path.parent.parent / "elsewhere"
    elsewhere.write_bytes(ADDED)
    path.symlink_to(elsewhere)


def dangling(path: Path) -> None:
    """Link to what is not there."""
    path.symlink_to(path.parent.parent / "nowhere")


def loop(path: Path) -> None:
    """Link to itself."""
    path.symlink_to(path)


def pipe(path: Path) -> None:
    """Make a pipe."""
    os.mkfifo(path)


def listening(path: Path) -> None:
    """Make a socket."""
    # A test's path may be longer than a socket's may be; by its descriptor a directory is short.
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)


def directory(path: Path) -> None:
    """Make a directory."""
    path.mkdir()


HOSTILE = [link, dangling, loop, pipe, listening, directory]


@pytest.mark.parametrize("end", ["", ".1700000000000", ".1700000000001.pack"])
def test_the_start_survives_and_says_so(tmp_path: Path, end: str) -> None:
    """Only such a queue cannot be used; none of its files is touched, and nothing elsewhere."""
    path = tmp_path / "queues"
    path.mkdir()
    (path / "good").write_bytes(ADDED)
    for make in HOSTILE:
        queue = f"bad-{make.__name__}"
        if end:
            (path / f"{queue}.5").write_bytes(ADDED)
        make(path / f"{queue}{end}")
    before = {file.name for file in path.iterdir()}
    with running_server(tmp_path) as server, Wire(server) as wire:
        wire.ask(b"get good\r\n", value("good", "elsewhere") + b"END\r\n")
        for make in HOSTILE:
            if make is directory and end:
                continue  # no file of that queue
            queue = f"bad-{make.__name__}"
            found = wire.ask_until(f"set {queue} 0 0 1\r\nx\r\n".encode(), b"\r\n")
            assert found.startswith(b"SERVER_ERROR"), (queue, found)
            assert server.logged(str(path / f"{queue}{end}"))
        put(wire, "other", "x")
    assert before <= {file.name for file in path.iterdir()}
    assert (tmp_path / "elsewhere").read_bytes() == ADDED
    assert not (tmp_path / "nowhere").exists()


def test_a_link_made_while_the_server_runs(tmp_path: Path) -> None:
    """A new queue's file is not created through it."""
    with running_server(tmp_path) as server, Wire(server) as wire:
        for make in (link, dangling, loop):
            make(server.queue_path / "bad")
            found = wire.ask_until(b"set bad 0 0 1\r\nx\r\n", b"\r\n")
            assert b"symbolic link" in found
            (server.queue_path / "bad").unlink()
        put(wire, "other", "x")
        assert not (tmp_path / "nowhere").exists()
        assert (tmp_path / "elsewhere").read_bytes() == ADDED


@pytest.mark.parametrize("make", [link, dangling, loop])
def test_the_lock_is_no_link(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """The server says so in a line and does not start; nothing is written elsewhere."""
    path = tmp_path / "queues"
    path.mkdir()
    make(path / "~~lock")
    with pytest.raises(RuntimeError, match="symbolic link, which is not followed"):
        ServerProcess(path, []).start()
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", ["~~status", "~~status~~new"])
@pytest.mark.parametrize("make", [link, loop, pipe])
def test_the_status_is_no_link(tmp_path: Path, make: Callable[[Path], None], name: str) -> None:
    """It is neither read nor written through one, and no pipe is waited for."""
    path = tmp_path / "queues"
    path.mkdir()
    make(path / name)
    with running_server(tmp_path) as server, Wire(server) as wire:
        wire.ask(b"status\r\n", b"UP\r\n")
        wire.ask_until(b"status readonly\r\n", b"\r\n")
        wire.ask(b"status\r\n", b"READONLY\r\n")
    assert not (tmp_path / "nowhere").exists()
    if make is link:
        assert (tmp_path / "elsewhere").read_bytes() == ADDED


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """A name that is not UTF-8, or has a line feed, is told in one line of the log file."""
    path = tmp_path / "queues"
    path.mkdir()
    for name in (b"a\xff\xfe", b"line\nfeed", b"tab\t", b"\xe2\x80\xa8"):
        (Path(os.fsdecode(os.fsencode(path) + b"/" + name))).write_bytes(b"x")
    log = tmp_path / "log"
    with (
        running_server(tmp_path, config=f'log_file = "{log}"\n') as server,
        Wire(server) as wire,
    ):
        put(wire, "jobs", "x")
        server.stop()
        assert "Traceback" not in server.output
        assert "Logging error" not in server.output
    told = [line for line in log.read_text().splitlines() if "is not a journal" in line]
    assert len(told) == 4


def modes(path: Path) -> dict[str, int]:
    """Return the modes of the files in a directory."""
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()}


def test_modes(tmp_path: Path) -> None:
    """Whatever the mask: the owner and the group, nobody else; a queue path of ours, too."""
    log, path = tmp_path / "log", tmp_path / "queues" / "sub" / "path"
    mask = os.umask(0)
    try:
        with running_server(
            tmp_path,
            *("--queue-path", str(path)),
            config=f'log_file = "{log}"\n[default]\nmax_memory_size = 1000\n',
        ) as server:
            server.queue_path = path
            with Wire(server) as wire:
                put(wire, "jobs", *("x" * 500 for _ in range(5)))
                put(wire, "large", "x" * 1_500_000)
                wire.ask_until(b"status readonly\r\n", b"\r\n")
            found = modes(path)
    finally:
        os.umask(mask)
    assert {"jobs", "~~lock", "~~status"} <= set(found)
    assert {mode & ~0o640 for mode in found.values()} == {0}
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    assert stat.S_IMODE(log.stat().st_mode) == 0o640
