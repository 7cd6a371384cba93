"""A Spark cluster of three machines: network namespaces of their own, and private `/tmp`s.

On the hub run Spark's master and everything else; on each of two others runs a worker. They share
one directory. Whatever is on the hub's loopback, or in its temporary folder, they do not have.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyspark

from tests.support.patience import until

HUB: Final = "10.123.45.1"
"""The hub's address."""
MASTER: Final = f"spark://{HUB}:7077"
_WORKERS: Final = ("10.123.45.2", "10.123.45.3")
_SPARK: Final = Path(pyspark.__file__).parent
_PRIVATE: Final = """
mount --bind "$1" /mnt && mount -t tmpfs none /tmp && mkdir -p "$1" && mount --bind /mnt "$1"
umount /mnt; shift; exec "$@"
"""
"""Runs a command with a `/tmp` of its own, in which only the directory `$1` is shared."""


def problem() -> str | None:
    """Return why there can be no cluster here; None if there can be one."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "network namespaces take root, and `ip` of iproute2: run this test with sudo"
    return None


class SparkCluster:
    """A running cluster."""

    def __init__(self, hub: str) -> None:
        self._hub = hub

    def command(self, words: Sequence[str]) -> list[str]:
        """Return a command that runs another on the hub."""
        return _on(self._hub, words)


@contextlib.contextmanager
def running_cluster(shared: Path) -> Iterator[SparkCluster]:
    """Run a cluster whose machines share a directory during a `with` block."""
    hub, *others = (f"kmq{os.getpid()}-{number}" for number in range(3))
    environment = os.environ | {
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_NO_DAEMONIZE": "1",
    }
    log = shared / "cluster.log"
    started: list[subprocess.Popen[bytes]] = []

    def start(machine: str, kind: str, *words: str) -> None:
        spark_class = [str(_SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        command = ["sh", "-c", _PRIVATE, "sh", str(shared), *spark_class, *words]
        with log.open("ab") as output:
            running = _on(machine, command)
            started.append(
                subprocess.Popen(running, env=environment, stdout=output, stderr=subprocess.STDOUT)
            )

    try:
        _make_network(hub, others)
        start(hub, "master.Master", "--host", HUB, "--port", "7077", "--webui-port", "0")
        until(lambda: "New state: ALIVE" in log.read_text(), 0.1)
        for machine, address in zip(others, _WORKERS, strict=True):
            where = ("--host", address, "--webui-port", "0", "--work-dir", "/tmp/work")  # noqa: S108 # its own
            start(machine, "worker.Worker", *where, "--cores", "1", "--memory", "1g", MASTER)
        registered = "Successfully registered with master"
        until(lambda: log.read_text().count(registered) == len(_WORKERS), 0.1)
        yield SparkCluster(hub)
    finally:
        for machine in (hub, *others):
            for process in _ip("netns", "pids", machine).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            _ip("netns", "del", machine)
        for one in started:
            one.wait()


def _make_network(hub: str, others: Sequence[str]) -> None:
    _ip("netns", "add", hub, check=True)
    _ip("-n", hub, "link", "set", "lo", "up", check=True)
    _ip("-n", hub, "link", "add", "bridge", "type", "bridge", check=True)
    _ip("-n", hub, "address", "add", f"{HUB}/24", "dev", "bridge", check=True)
    _ip("-n", hub, "link", "set", "bridge", "up", check=True)
    for number, (machine, address) in enumerate(zip(others, _WORKERS, strict=True)):
        _ip("netns", "add", machine, check=True)
        wire = f"wire{number}"
        peer = ("peer", "name", "wire", "netns", machine)
        _ip("-n", hub, "link", "add", wire, "type", "veth", *peer, check=True)
        _ip("-n", hub, "link", "set", wire, "master", "bridge", "up", check=True)
        _ip("-n", machine, "link", "set", "lo", "up", check=True)
        _ip("-n", machine, "address", "add", f"{address}/24", "dev", "wire", check=True)
        _ip("-n", machine, "link", "set", "wire", "up", check=True)


def _on(machine: str, words: Sequence[str]) -> list[str]:
    return ["ip", "netns", "exec", machine, *words]


def _ip(*words: str, check: bool = False) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr}")
    return done.stdout
