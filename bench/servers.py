"""The servers under test: start each on a free loopback port, pinned to a CPU, and stop it.

The data of a server is in a temporary directory, which is deleted when the server stops. A
benchmark that is killed may leave that directory and the server behind, but nothing else.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from bench.load.replies import ReplyError
from bench.load.tls import trusting_context
from bench.load.wires import WIRES
from bench.load.wires.wire import greet
from bench.load.workload import Protocol
from kestrelmq.client.address import Address, open_socket

START_LIMIT = 15.0
STOP_LIMIT = 10.0
MAX_CLIENTS = "12000"
MAX_ITEM = 16 * 1024 * 1024
"""The largest item in bytes; some peers must be configured to accept it."""

NATS_CONFIG = f"""\
listen: "127.0.0.1:{{port}}"
max_connections: {{clients}}
max_payload: {MAX_ITEM}
max_pending: {4 * MAX_ITEM}
ping_interval: "1h"
jetstream {{{{ store_dir: "{{dir}}" }}}}
"""


REDIS_TLS = (
    "--port 0 --tls-port {port} --tls-cert-file {certificate} --tls-key-file {key} "
    "--tls-ca-cert-file {certificate} --tls-auth-clients no"
)


class PeerError(Exception):
    """A server could not be started or measured."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A server and how to run it.

    Attributes:
        name: its name in the tables.
        command: its command line. `{port}`, `{path}`, `{dir}`, `{clients}` and `{config}` in it are
            replaced; `{path}` is a Unix socket, which is then loaded instead of the port. The
            program is looked for beside the running Python, then on PATH.
        protocol: the protocol it is loaded in.
        queue: whether it is a queue. A key-value server gets a key per connection instead, because
            a single key would be a hot spot.
        config: the text of the file `{config}`, in which the other words are replaced, too.
        ready: the line that the server prints when it serves; "" if it prints none.
        tls: the arguments that make it speak TLS on `{port}`, with `{certificate}` and `{key}`, or
            with the configuration `{tls}` of kestrelmq; () if none do.
        speaks_tls: whether they are in the command.
        unix: the arguments that make it listen on the Unix socket `{path}`; () if none do.
        version: the arguments that make the program print its version.
    """

    name: str
    command: tuple[str, ...]
    protocol: Protocol = Protocol.MEMCACHE
    queue: bool = True
    config: str = ""
    ready: str = ""
    unix: tuple[str, ...] = ()
    tls: tuple[str, ...] = ()
    speaks_tls: bool = False
    version: tuple[str, ...] = ("--version",)

    def keys(self, connections: int) -> int:
        """Return the number of queues or keys that `connections` connections use."""
        return 1 if self.queue else min(connections, 64)

    def on_unix_socket(self) -> Peer:
        """Return the same server on a Unix socket."""
        return replace(self, command=(*self.command, *self.unix))

    def with_tls(self) -> Peer:
        """Return the same server with TLS."""
        command = (*self.command, *self.tls)
        return replace(self, name=f"{self.name} TLS", command=command, speaks_tls=True)

    @property
    def is_on_unix_socket(self) -> bool:
        """Whether it is loaded over a Unix socket."""
        return any("{path}" in word for word in self.command)

    def missing(self) -> str:
        """Return why it cannot be run on this machine; "" if it can."""
        return "" if _executable(self.command[0]) else f"{self.command[0]} is not installed"

    def version_text(self) -> str:
        """Return the first line that the program prints about its version."""
        program = _executable(self.command[0])
        if not (program and self.version):
            return ""
        answer = subprocess.run(
            [program, *self.version], capture_output=True, text=True, timeout=20, check=False
        )
        return answer.stdout.partition("\n")[0].strip()


@dataclass(frozen=True, slots=True)
class Running:
    """A running server: its process, its port on 127.0.0.1, and the seconds until it served.

    `path` is the Unix socket to load instead of the port; "" if it has none.
    """

    pid: int
    port: int
    start_seconds: float
    path: str = ""


def known_peers() -> list[Peer]:
    """Return kestrelmq and its peers, in the order of the tables."""
    redis = (
        "redis-server --bind 127.0.0.1 --port {port} --dir {dir} --maxclients {clients} --save '' "
        "--appendonly yes --appendfsync everysec --auto-aof-rewrite-percentage 0"
    )
    memcached = f"memcached -l 127.0.0.1 -p {{port}} -t 1 -m 1024 -I {MAX_ITEM} -c {{clients}}"
    if os.getuid() == 0:
        memcached += " -u nobody"
    beanstalkd = f"beanstalkd -l 127.0.0.1 -p {{port}} -b {{dir}} -F -z {MAX_ITEM}"
    nats = "nats-server --config {config}"
    return [
        ours(),
        Peer(
            "redis",
            tuple(shlex.split(redis)),
            Protocol.RESP,
            unix=("--unixsocket", "{path}"),
            tls=tuple(shlex.split(REDIS_TLS)),
        ),
        Peer(
            "memcached",
            tuple(shlex.split(memcached)),
            queue=False,
            unix=("-s", "{path}"),
            tls=("-Z", "-o", "ssl_chain_cert={certificate},ssl_key={key}"),
            version=("-V",),
        ),
        Peer(
            "beanstalkd",
            tuple(shlex.split(beanstalkd)),
            Protocol.BEANSTALK,
            unix=("-l", "unix:{path}"),
            version=("-v",),
        ),
        Peer("nats", tuple(shlex.split(nats)), Protocol.NATS, config=NATS_CONFIG),
    ]


def queues() -> list[Peer]:
    """Return the servers that are queues."""
    return [peer for peer in known_peers() if peer.queue]


def ours(protocol: Protocol = Protocol.MEMCACHE) -> Peer:
    """Return kestrelmq with one listener; its name has the protocol, unless that is memcache."""
    command = ["kestrelmq", "serve", "--queue-path", "{dir}", "--admin-port", "none"]
    for listener in (Protocol.MEMCACHE, Protocol.TEXT, Protocol.THRIFT):
        command += [f"--{listener.value}-port", "{port}" if listener is protocol else "none"]
    name = "kestrelmq" if protocol is Protocol.MEMCACHE else f"kestrelmq {protocol.value}"
    unix = (f"--{protocol.value}-path", "{path}")
    tls = ("--config", "{tls}")
    return Peer(name, tuple(command), protocol, ready="ready", unix=unix, tls=tls)


def synced(settings: Sequence[str]) -> list[Peer]:
    """Return kestrelmq with each value of `sync_journal`, and the peers that can always fsync."""
    made = []
    for setting in settings:
        peer = ours()
        command = (*peer.command, "--config", "{config}")
        config = f'[default]\nsync_journal = "{setting}"\n'
        made.append(replace(peer, name=f"kestrelmq {setting}", command=command, config=config))
    for peer in known_peers():
        words = {"everysec": "always", "-F": "-f0"}
        command = tuple(words.get(word, word) for word in peer.command)
        if command != peer.command:
            made.append(replace(peer, name=f"{peer.name} always", command=command))
    return made


def custom_peer(name: str, command: str) -> Peer:
    """Return a peer that speaks memcache, from a command line with `{port}` and `{dir}`."""
    return Peer(name, tuple(shlex.split(command)), version=())


@contextmanager
def running(peer: Peer, cpu: int | None, data: Path | None) -> Iterator[Running]:
    """Run a peer on CPU `cpu` during a `with` block, with its files in a new directory in `data`.

    Raises `PeerError` if it does not serve within 15 seconds.
    """
    with home(peer, data) as directory, started(peer, cpu, directory) as server:
        yield server


@contextmanager
def home(peer: Peer, data: Path | None) -> Iterator[Path]:
    """Make a directory in `data` for a peer's files, and delete it after the `with` block."""
    with tempfile.TemporaryDirectory(
        prefix=f"bench-{peer.name.replace(' ', '-')}-", dir=data, ignore_cleanup_errors=True
    ) as directory:
        yield Path(directory)


@contextmanager
def started(
    peer: Peer, cpu: int | None, directory: Path, limit: float = START_LIMIT
) -> Iterator[Running]:
    """Run a peer during a `with` block, with its data, old or new, in `directory/data`.

    Raises `PeerError` if it does not serve within `limit` seconds.
    """
    files, log = directory / "data", directory / "log"
    files.mkdir(exist_ok=True)
    port = _free_port()
    path = str(directory / "socket") if peer.is_on_unix_socket else ""
    if path:
        directory.chmod(0o777)  # a server may make its socket as another user
    command = _command(peer, port, directory)
    begun = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_pin_to(cpu),  # noqa: PLW1509 - no threads here, and exec keeps it
        )
    try:
        server = Running(process.pid, port, 0.0, path)
        _wait_until_serving(peer, process, server, log, limit)
        yield replace(server, start_seconds=time.monotonic() - begun)
    finally:
        _stop(process)


def _command(peer: Peer, port: int, directory: Path) -> list[str]:
    program = _executable(peer.command[0])
    if program is None:
        raise PeerError(f"{peer.command[0]} is not installed")
    config = directory / "config"
    places = {
        "port": str(port),
        "path": str(directory / "socket"),
        "dir": str(directory / "data"),
        "clients": MAX_CLIENTS,
        "config": str(config),
        "certificate": str(directory / "certificate"),
        "key": str(directory / "key"),
        "tls": str(directory / "tls"),
    }
    if peer.speaks_tls:
        _make_certificate(directory)
    if peer.config:
        config.write_text(peer.config.format_map(places))
    return [program, *(word.format_map(places) for word in peer.command[1:])]


def _make_certificate(directory: Path) -> None:
    """Make a certificate, its key, and a configuration of kestrelmq with them."""
    directory.chmod(0o755)  # a server may read them as another user
    made = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=bench"
    files = ("-keyout", str(directory / "key"), "-out", str(directory / "certificate"))
    done = subprocess.run(["openssl", *made.split(), *files], capture_output=True, check=False)
    if done.returncode:
        raise PeerError(f"openssl: {done.stderr.decode()[-300:].strip()}")
    (directory / "key").chmod(0o644)
    (directory / "tls").write_text(
        f'[tls]\ncertificate = "{directory}/certificate"\nkey = "{directory}/key"\n'
    )


def _pin_to(cpu: int | None) -> Callable[[], None] | None:
    return None if cpu is None else lambda: os.sched_setaffinity(0, {cpu})


def _executable(name: str) -> str | None:
    beside = Path(sys.executable).parent / name
    # Debian installs servers in sbin, which is not on every user's PATH.
    path = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin"
    return str(beside) if beside.is_file() else shutil.which(name, path=path)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _wait_until_serving(
    peer: Peer, process: subprocess.Popen[bytes], server: Running, log: Path, limit: float
) -> None:
    deadline, said = time.monotonic() + limit, ""
    while time.monotonic() < deadline:
        said = log.read_text(errors="replace")
        if process.poll() is not None:
            raise PeerError(f"ended with status {process.returncode}: {said[-300:].strip()}")
        if (not peer.ready or peer.ready in said.splitlines()) and _answers(peer, server):
            return
        time.sleep(0.005)
    raise PeerError(f"not serving after {limit:.0f} s: {said[-300:].strip()}")


def _answers(peer: Peer, server: Running) -> bool:
    tls = trusting_context() if peer.speaks_tls else None
    try:
        with open_socket(Address("127.0.0.1", server.port, server.path), 1, tls) as probe:
            greet(WIRES[peer.protocol], probe, b"bench", b"probe")
    except (OSError, ReplyError):
        return False
    return True


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the server's process group, so that the children of a wrapper stop as well."""
    _signal_group(process, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_LIMIT)
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
