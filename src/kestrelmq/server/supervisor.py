"""Keeps the servers of `--processes` running: starts them, forwards signals, restarts them.

Each server is a separate process. It ends when the pipe to its standard input closes, so no server
outlives the supervisor, however that ends. A server that ends with status 0 was shut down and is
not restarted. One that crashed is restarted on the same ports, and its journals have everything
that it acknowledged. The supervisor ends when all servers have ended. It has no state that must
survive a crash.
"""

import asyncio
import logging
import signal
import time
from asyncio.subprocess import PIPE
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from kestrelmq.errors import KestrelError
from kestrelmq.server.processes import Process
from kestrelmq.server.service_manager import ServiceManager

log = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.1
"""Seconds until a crashed server is restarted; doubled while it keeps crashing."""
LONGEST_PAUSE: Final = 30.0
STABLE_RUN: Final = 60.0
"""A server that ran for so many seconds before a crash counts as having run well."""

Announce = Callable[[str], None]
Command = Callable[[Process], Sequence[str]]
"""Returns the command line of a server."""


def restart_pause(crashes: int) -> float:
    """Return the seconds to wait before a restart after so many crashes in a row."""
    return min(FIRST_PAUSE * 2.0 ** min(crashes - 1, 20), LONGEST_PAUSE)


class SupervisedServer:
    """One supervised server and its process."""

    def __init__(self, process: Process, command: Command) -> None:
        self.process = process
        self.lines: list[str] = []
        self._command = command
        self._running: asyncio.subprocess.Process | None = None
        self._is_ready = False
        self._reload = False

    async def start(self) -> bool:
        """Start the server and wait until it is ready; return False when it ended before that."""
        self._is_ready = self._reload = False
        self._running = None
        try:
            self._running = running = await asyncio.create_subprocess_exec(
                *self._command(self.process), stdin=PIPE, stdout=PIPE, start_new_session=True
            )
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread to watch it
            log.error("%s: %s", self.process.name, error)  # noqa: TRY400
            return False
        log.info("%s started (process %d)", self.process.name, running.pid)
        if running.stdout is None:
            raise AssertionError("it was asked for")
        self.lines = []
        async for output in running.stdout:
            line = output.decode(errors="replace").rstrip("\n")
            if line == "ready":
                self._is_ready = True
                if self._reload:
                    self._send(signal.SIGHUP)
                return True
            self.lines.append(line)
            self.process = self.process.with_announced_port(line)
        await running.wait()
        return False

    async def wait(self) -> int:
        """Wait until the process has ended; return its status, negative for a signal."""
        running = self._running
        if running is None:
            return 1
        if running.stdout is not None:
            await running.stdout.read()
        status = await running.wait()
        if running.stdin is not None:
            running.stdin.close()
        return status

    async def keep_running(self) -> None:
        """Restart the server whenever it crashes, until it is shut down."""
        crashes = 0
        ready = True
        while True:
            since = time.monotonic()
            status = await self.wait()
            if status == 0 and ready:
                log.info("%s was shut down", self.process.name)
                return
            crashes = 1 if ready and time.monotonic() - since > STABLE_RUN else crashes + 1
            pause = restart_pause(crashes)
            log.error(
                "%s %s; it is started again in %g s",
                self.process.name,
                exit_description(status),
                pause,
            )
            await asyncio.sleep(pause)
            ready = await self.start()

    def reload(self) -> None:
        """Have the server read its configuration again, now or when it is ready."""
        if self._is_ready:
            self._send(signal.SIGHUP)
        self._reload = True

    def shut_down(self, *, at_once: bool = False) -> None:
        """Shut the server down cleanly, or with `at_once` kill it."""
        self._send(signal.SIGKILL if at_once else signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        if self._running is not None and self._running.returncode is None:
            with suppress(ProcessLookupError):
                self._running.send_signal(number)


class Supervisor:
    """Starts several servers and keeps them running."""

    def __init__(
        self,
        processes: Sequence[Process],
        command: Command,
        announce: Announce,
        reopen_log: Callable[[], None],
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            processes: the servers.
            command: returns the command line of each.
            announce: called with the lines of each server in turn when all are ready, then with
                `ready`.
            reopen_log: called when the servers are to read their configuration again.
        """
        self._servers = [SupervisedServer(process, command) for process in processes]
        self._announce = announce
        self._reopen_log = reopen_log
        self._service_manager = ServiceManager()

    def run(self) -> None:
        """Run until SIGTERM or SIGINT, or until every server was shut down.

        A second signal kills the servers without waiting for them to shut down cleanly.

        Raises:
            KestrelError: a server did not start; the others were shut down again.
        """
        asyncio.run(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()

        def stop() -> None:
            if stopping.is_set():
                for server in self._servers:
                    server.shut_down(at_once=True)
            stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        loop.add_signal_handler(signal.SIGHUP, self._on_sighup)
        work = asyncio.create_task(self._start_and_keep_running())
        stopped = asyncio.create_task(stopping.wait())
        await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        self._service_manager.stopping()
        # First, so that no server is started after this.
        is_cancelled = work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        for server in self._servers:
            server.shut_down()
        await asyncio.gather(*(server.wait() for server in self._servers))
        if not is_cancelled:
            work.result()

    async def _start_and_keep_running(self) -> None:
        try:
            async with asyncio.TaskGroup() as starts:
                for server in self._servers:
                    starts.create_task(_start(server))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        for server in self._servers:
            for line in server.lines:
                self._announce(line)
        self._announce("ready")
        self._service_manager.ready()
        if self._service_manager.is_watching:
            self._showing_life = asyncio.create_task(self._service_manager.show_life())
        async with asyncio.TaskGroup() as running:
            for server in self._servers:
                running.create_task(server.keep_running())

    def _on_sighup(self) -> None:
        try:
            self._reopen_log()
        except OSError as error:
            log.error("the log file cannot be opened again: %s", error)  # noqa: TRY400
        for server in self._servers:
            server.reload()


async def _start(server: SupervisedServer) -> None:
    if not await server.start():
        status = await server.wait()
        raise KestrelError(f"{server.process.name} {exit_description(status)} before it was ready")


def exit_description(status: int) -> str:
    """Describe how a process ended."""
    if status >= 0:
        return f"ended with status {status}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-status).name}"
    return f"was ended by signal {-status}"
