"""A real server for tests: a process of its own, on loopback and free ports."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import IO, Final, Self

from tests.support.forking import ForkedProcess
from tests.support.patience import PATIENCE, until

LISTENERS: Final = ("memcache", "text", "thrift", "admin")

_COMMAND: Final = "from kestrelmq.cli.main import main; main()"
_TAKEN: Final = "Address already in use"
_LISTENING: Final = re.compile(r"(\w+) listening on (\S+):(\d+)")


class ServerProcess:
    """A `kestrelmq serve` process from `start` on, and the same again after `restart`.

    Attributes:
        queue_path: where its journals are.
        ports: the port of each listener by its name: memcache, text, thrift, admin.
        process: the process that runs now, or ran last.
        waits: whether it loads all queues before it serves. Otherwise a slow machine may still be
            loading some when it is ready.
    """

    process: ForkedProcess
    command = _COMMAND
    waits = True

    def __init__(self, queue_path: Path, arguments: list[str]) -> None:
        self.queue_path = queue_path
        self.ports: dict[str, int] = {}
        self._arguments = arguments
        self._output: deque[str] = deque(maxlen=200)

    @property
    def address(self) -> str:
        """Where it listens for memcache, as `host:port`."""
        return f"127.0.0.1:{self.ports['memcache']}"

    @property
    def output(self) -> str:
        """The last lines it printed or logged."""
        return "".join(self._output)

    def logged(self, text: str) -> bool:
        """Wait until it has logged `text`, which may come later than its reply. Return True.

        Raises:
            AssertionError: that never came.
        """
        until(lambda: text in self.output)
        return True

    def start(self) -> Self:
        """Start it and wait until it is ready.

        At a restart, a connection of another test may have got its port meanwhile. Then it is
        started again until the port is free.
        """
        deadline = time.monotonic() + PATIENCE
        while not self._starts(deadline):
            is_taken = bool(self._output) and _TAKEN in self._output[-1]
            if not (self.ports and is_taken) or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start:\n{self.output}")
            time.sleep(0.2)
        return self

    def _starts(self, deadline: float) -> bool:
        """Start it; return whether it is ready before the deadline. Otherwise it has ended."""
        # Ports come last: on a restart they replace those that the arguments ask for.
        flags = ["--queue-path", str(self.queue_path), *self._arguments, *self._listeners()]
        flags += ["--wait"] * self.waits
        self.process = ForkedProcess(self.command, ["serve", *flags], dict(os.environ))
        ready = Event()
        self._follower = Thread(target=self._follow, args=(self.process.stdout, ready), daemon=True)
        self._follower.start()
        while not ready.wait(0.02):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill9()
                return False
        return True

    def kill9(self) -> None:
        """Kill it at once, as a crash would."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self._wait(None)

    def stop(self) -> int:
        """Let it shut down cleanly and return its exit status; kill it if it does not."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Return its exit status once it has ended; kill it if it does not end."""
        try:
            return self._wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise RuntimeError(f"the server did not stop:\n{self.output}") from None

    def restart(self) -> Self:
        """End it, unless it has ended, and start it again on the same queue path and ports."""
        if self.process.poll() is None:
            self.stop()
        return self.start()

    def _listeners(self) -> list[str]:
        """Return the flags that ask for free ports, or later for the ports it had."""
        ports = self.ports or {n: 0 for n in LISTENERS if f"--{n}-port" not in self._arguments}
        return [word for name, port in ports.items() for word in (f"--{name}-port", str(port))]

    def _follow(self, stream: IO[str], ready: Event) -> None:
        with stream:
            for line in stream:
                self._output.append(line)
                match = _LISTENING.match(line)
                if match is not None:
                    self.ports[match[1]] = int(match[3])
                elif line.strip() == "ready":
                    ready.set()

    def _wait(self, seconds: float | None) -> int:
        status = self.process.wait(seconds)
        self._follower.join(PATIENCE)
        return status


@contextmanager
def running_server(
    tmp_path: Path,
    *extra_args: str,
    config: str | None = None,
    kind: type[ServerProcess] = ServerProcess,
    waits: bool = True,
) -> Iterator[ServerProcess]:
    """Run a server on the queue path `tmp_path/queues` for the length of a `with` block.

    Every listener that `extra_args` does not mention gets a free port of loopback; a restart keeps
    the ports. `config` is the text of its configuration file; `kind` says how it is started, and
    `waits` whether it loads all queues before it serves.
    """
    queue_path = tmp_path / "queues"
    queue_path.mkdir(parents=True, exist_ok=True)
    arguments = list(extra_args)
    if config is not None:
        file = tmp_path / "kestrelmq.toml"
        file.write_text(config)
        arguments += ["--config", str(file)]
    server = kind(queue_path, arguments)
    server.waits = waits
    server.start()
    try:
        yield server
    finally:
        server.kill9()
        # Shown beside the failure of the test that ends the server.
        sys.stderr.write(server.output)
