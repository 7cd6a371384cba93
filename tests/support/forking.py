"""Processes that are forked from one that has imported the server: they start at once.

Importing the server takes most of a second, and the tests start hundreds of servers. Otherwise such
a process is like any other: it has its own memory, sockets, signals, output and exit status.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Final

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_COMMANDS: Final = (
    "client",
    "clients",
    "control",
    "journal",
    "main",
    "moving",
    "reserving",
    "serve",
)
_CONTEXT.set_forkserver_preload(
    [
        *(f"kestrelmq.cli.{name}" for name in _COMMANDS),
        "kestrelmq.server.app",
        "typer.rich_utils",  # of the texts of help and of wrong usage
        "tests.support.frozen",
    ]
)


class ForkedProcess:
    """A Python program; the methods are those of `subprocess.Popen`.

    Attributes:
        stdout: what it writes to its standard output and error.
    """

    def __init__(
        self,
        program: str,
        arguments: list[str],
        environment: dict[str, str],
        streams: Sequence[int | None] | None = None,
    ) -> None:
        """Run `program`, the text of one, as `python -c` does.

        `streams` are descriptors for its standard input, output and error, None for a closed one.
        """
        reading, writing = _CONTEXT.Pipe(duplex=False)
        handed: dict[int, Connection | None] = {1: writing, 2: writing}
        if streams is not None:
            # Connections are what multiprocessing hands over to a process.
            handed = {
                number: None if one is None else Connection(os.dup(one))
                for number, one in enumerate(streams)
            }
        self._process = _CONTEXT.Process(
            target=_run, args=(program, arguments, environment, handed), daemon=True
        )
        self._process.start()
        writing.close()
        self.stdout = os.fdopen(os.dup(reading.fileno()), encoding="utf-8", errors="replace")
        reading.close()

    @property
    def pid(self) -> int:
        """Its number."""
        number = self._process.pid
        assert number is not None
        return number

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended, and return its exit status. Raises TimeoutExpired."""
        self._process.join(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)


def _run(
    program: str,
    arguments: list[str],
    environment: dict[str, str],
    streams: dict[int, Connection | None],
) -> None:
    for number, stream in streams.items():
        if stream is None:
            os.close(number)
        else:
            os.dup2(stream.fileno(), number)
    streams.clear()  # which closes what was handed over
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-c", *arguments]
    exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 # ours
