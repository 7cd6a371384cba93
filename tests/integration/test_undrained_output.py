"""A server whose standard output or error nobody reads."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE, until
from tests.support.wire import UnixWire, put


@contextmanager
def undrained() -> Iterator[tuple[int, int]]:
    """Two descriptors: the end of a full pipe to read from, and that to write to."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    for size in (4096, 1):
        try:
            while True:
                os.write(writing, b"\n" * size)
        except BlockingIOError:
            pass
    os.set_blocking(writing, True)
    yield reading, writing
    os.close(writing)
    os.close(reading)


def command(tmp_path: Path, *flags: str) -> list[str]:
    """Return the command of a server that has a Unix socket only."""
    ports = [f"--{name}-port=none" for name in ("memcache", "text", "thrift", "admin")]
    words = [sys.executable, "-m", "kestrelmq", "serve", *ports, *flags]
    return [*words, "--queue-path", str(tmp_path / "q"), "--memcache-path", str(tmp_path / "s")]


def listens(path: Path) -> bool:
    """Whether a server accepts connections at a Unix socket, which is there a moment earlier."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("processes", [(), ("--processes", "1")])
def test_nobody_waits_for_it(tmp_path: Path, stream: str, processes: tuple[str, ...]) -> None:
    """Clients are served, also those whose requests are logged; signals reload and end it."""
    with (
        undrained() as (_, full),
        open(os.devnull, "w") as devnull,  # noqa: PTH123 # for a descriptor
        subprocess.Popen(
            command(tmp_path, *processes),
            stdout=full if stream == "stdout" else devnull,
            stderr=full if stream == "stderr" else devnull,
        ) as server,
    ):
        until(lambda: server.poll() is not None or listens(tmp_path / "s"))
        with UnixWire(tmp_path / "s") as wire:
            put(wire, "jobs", "a")
            wire.ask(b"delete jobs\r\n" * 1000, b"DELETED\r\n" * 1000)
            for _ in range(3):
                server.send_signal(signal.SIGHUP)
            put(wire, "jobs", "b")
            wire.ask(b"version\r\n", b"VERSION ")
        server.terminate()
        assert server.wait(PATIENCE) == 0


def test_a_log_file_is_opened_again_while_nobody_reads_the_old_one(tmp_path: Path) -> None:
    """SIGHUP changes from a pipe that is full to a file; what is logged from then on is in it."""
    log, config = tmp_path / "log", tmp_path / "config"
    config.write_text(f'log_file = "{log}"\n')
    os.mkfifo(log)
    holder = os.open(log, os.O_RDWR | os.O_NONBLOCK)
    try:
        while True:
            os.write(holder, b"\n")
    except BlockingIOError:
        pass
    words = command(tmp_path, "--config", str(config))
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as server:
        until(lambda: server.poll() is not None or listens(tmp_path / "s"))
        with UnixWire(tmp_path / "s") as wire:
            log.unlink()
            server.send_signal(signal.SIGHUP)
            until(log.exists)
            wire.ask(b"delete jobs\r\n", b"DELETED\r\n")
            until(lambda: "delete jobs" in log.read_text())
        server.terminate()
        assert server.wait(PATIENCE) == 0
    os.close(holder)
