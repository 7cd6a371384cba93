"""The servers under test: each is started on a free loopback port, pinned to a CPU, and stopped.

A peer's data lives in a temporary directory that is deleted with it. A benchmark that is killed
may leave that directory and the server behind, never anything else. beanstalkd (binlog) is known
but has no adaptor yet: its delete needs the id that reserve answered, so its requests can't be
built beforehand.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench import workload
from bench.workload import Protocol

START_LIMIT = 15.0
STOP_LIMIT = 10.0
MAX_CLIENTS = "12000"


class PeerError(Exception):
    """The server did not start; the message ends with what it said last."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A server and how to run it.

    `command` may hold `{port}`, `{dir}` and `{clients}`; its first word is looked up beside the
    running Python, then on PATH. A key-value server `spreads` over one key a connection, because
    one key would be one hot item there, whereas a queue is the thing to be measured. `ready` is a
    line that the server prints when it serves, "" when it prints none. `note` says why a peer
    can't be run at all.
    """

    name: str
    command: tuple[str, ...]
    protocol: Protocol = Protocol.MEMCACHE
    spreads: bool = False
    ready: str = ""
    version: tuple[str, ...] = ("--version",)
    note: str = ""

    def keys(self, connections: int) -> int:
        """How many queues or keys that many connections work on."""
        return min(connections, 64) if self.spreads else 1

    def missing(self) -> str:
        """Why it can't be run on this machine; "" when it can."""
        if self.note:
            return self.note
        return "" if _executable(self.command[0]) else f"{self.command[0]} is not installed"

    def version_text(self) -> str:
        """The first line of what the program says about its version."""
        program = _executable(self.command[0])
        if not (program and self.version):
            return ""
        answer = subprocess.run(
            [program, *self.version], capture_output=True, text=True, timeout=20, check=False
        )
        return answer.stdout.partition("\n")[0].strip()


@dataclass(frozen=True, slots=True)
class Running:
    """A started server: its process and its port on 127.0.0.1."""

    pid: int
    port: int


def known_peers() -> list[Peer]:
    """Ours first, then the peers in the order of the table."""
    kestrelmq = (
        "kestrelmq serve --queue-path {dir} --memcache-port {port} "
        "--text-port none --thrift-port none --admin-port none"
    )
    redis = (
        "redis-server --bind 127.0.0.1 --port {port} --dir {dir} --maxclients {clients} --save '' "
        "--appendonly yes --appendfsync everysec --auto-aof-rewrite-percentage 0"
    )
    memcached = "memcached -l 127.0.0.1 -p {port} -t 1 -m 1024 -c {clients}"
    if os.getuid() == 0:
        memcached += " -u nobody"
    return [
        Peer("kestrelmq", tuple(shlex.split(kestrelmq)), ready="ready"),
        Peer("redis", tuple(shlex.split(redis)), Protocol.RESP),
        Peer("memcached", tuple(shlex.split(memcached)), spreads=True, version=("-V",)),
        Peer("beanstalkd", ("beanstalkd",), note="no adaptor yet"),
    ]


def custom_peer(name: str, command: str) -> Peer:
    """Any server that speaks memcache, from a command line with `{port}` and `{dir}`."""
    return Peer(name, tuple(shlex.split(command)), version=())


@contextmanager
def running(peer: Peer, cpu: int | None, data: Path | None) -> Iterator[Running]:
    """Runs a peer on CPU `cpu`, with its files in a new directory inside `data`, and stops it.

    Raises `PeerError` when it does not answer within 15 seconds.
    """
    with tempfile.TemporaryDirectory(
        prefix=f"bench-{peer.name}-", dir=data, ignore_cleanup_errors=True
    ) as directory:
        port = _free_port()
        files = Path(directory, "data")
        files.mkdir()
        places = {"port": str(port), "dir": str(files), "clients": MAX_CLIENTS}
        command = [word.format_map(places) for word in peer.command]
        program = _executable(command[0])
        if program is None:
            raise PeerError(f"{command[0]} is not installed")
        log = Path(directory, "log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [program, *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_pin_to(cpu),  # noqa: PLW1509 - no threads here, and exec keeps it
            )
        try:
            _wait_until_serving(peer, process, port, log)
            yield Running(process.pid, port)
        finally:
            _stop(process)


def _pin_to(cpu: int | None) -> Callable[[], None] | None:
    return None if cpu is None else lambda: os.sched_setaffinity(0, {cpu})


def _executable(name: str) -> str | None:
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.is_file() else shutil.which(name)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _wait_until_serving(peer: Peer, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline, said = time.monotonic() + START_LIMIT, ""
    while time.monotonic() < deadline:
        said = log.read_text(errors="replace")
        if process.poll() is not None:
            raise PeerError(f"ended with status {process.returncode}: {said[-300:].strip()}")
        if (not peer.ready or peer.ready in said.splitlines()) and _answers(peer.protocol, port):
            return
        time.sleep(0.02)
    raise PeerError(f"not serving after {START_LIMIT:.0f} s: {said[-300:].strip()}")


def _answers(protocol: Protocol, port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as probe:
            probe.sendall(workload.greeting(protocol))
            return probe.recv(4096).endswith(b"\r\n")
    except OSError:
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends the server's own process group: a wrapper's children go with it."""
    _signal_group(process, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_LIMIT)
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
