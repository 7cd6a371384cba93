"""A real ZooKeeper for tests: Debian's, on a free loopback port, in a directory of the test's."""

import shutil
import socket
import subprocess
from pathlib import Path

from kazoo.client import KazooClient

from tests.support.patience import until

# Debian's libzookeeper-java; the manifest names the other jars it needs.
JAR = Path("/usr/share/java/zookeeper.jar")
TICK_MILLISECONDS = 200

# The server's real command, but for one thing: it announces the loopback address that it listens
# on, which a server never does otherwise.
SERVE_ON_LOOPBACK = """
import functools
import kestrelmq.cli.serve as module
module.Server = functools.partial(module.Server, advertise=str)
from kestrelmq.cli.main import main
main()
"""


class ZooKeeper:
    """One ZooKeeper server, which keeps its port and its data when it is stopped and started."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()

    @property
    def hosts(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and return when it serves."""
        java = shutil.which("java")
        assert java is not None, "the tests need a Java runtime (Debian: default-jre-headless)"
        assert JAR.exists(), "the tests need ZooKeeper (Debian: libzookeeper-java)"
        config = self._directory / "zoo.cfg"
        config.write_text(
            f"tickTime={TICK_MILLISECONDS}\n"
            "maxSessionTimeout=60000\n"
            f"dataDir={self._directory / 'data'}\n"
            f"clientPort={self.port}\n"
            "clientPortAddress=127.0.0.1\n"
            "admin.enableServer=false\n"
            "4lw.commands.whitelist=srvr\n"
        )
        with (self._directory / "zookeeper.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    java,
                    "-Xmx64m",
                    "-cp",
                    str(JAR),
                    "org.apache.zookeeper.server.ZooKeeperServerMain",
                    str(config),
                ],
                stdout=log,
                stderr=log,
            )
        until(self._answers)

    def stop(self) -> None:
        """Kill it; sessions and nodes stay on its disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def client(self, root: str = "", session_seconds: float = 10.0) -> KazooClient:
        """Return a connected client of the test's own that sees the tree below `root`.

        It outlives restarts of the server that take less than `session_seconds`: it connects
        again, and repeats what was cut off.
        """
        again = {"max_tries": -1, "delay": 0.05, "max_delay": 0.2}
        client = KazooClient(
            hosts=self.hosts,
            timeout=session_seconds,
            connection_retry=again,
            command_retry=again,
        )
        client.start()
        client.chroot = root
        client.ensure_path("/")
        return client

    def expire(self, client: KazooClient) -> None:
        """End the session of `client` behind its back, as ZooKeeper does after a long silence."""
        twin = KazooClient(hosts=self.hosts, client_id=client.client_id)
        twin.start()
        twin.stop()
        twin.close()

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "ZooKeeper ended"
        return self._serves()

    def _serves(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"srvr")
                return connection.recv(4096).startswith(b"Zookeeper version")
        except OSError:
            return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
