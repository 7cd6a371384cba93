"""`kestrelmq serve --processes N`: the supervisor, and what a supervised server does for it."""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing import current_process
from threading import Thread
from typing import Final

from kestrelmq.config import ServerConfig
from kestrelmq.errors import KestrelError
from kestrelmq.journal.files import QueuePathLock, make_queue_path
from kestrelmq.server.logs import set_up_logging
from kestrelmq.server.processes import Process, check_layout, processes_of
from kestrelmq.server.supervisor import Supervisor

_ORPHAN_SECONDS: Final = 30.0
"""Seconds that a server has to shut down cleanly after its supervisor has ended."""


def supervise(
    config: ServerConfig, count: int, flags: Sequence[str], announce: Callable[[str], None]
) -> None:
    """Run `count` servers, each with `flags`, until they end or this process is told to stop.

    Raises:
        KestrelError: the queue path cannot be used, or a server did not start.
    """
    current_process().name = "supervisor"
    set_up_logging(config)
    processes = processes_of(config, count)

    def command(process: Process) -> list[str]:
        words = [sys.executable, "-P", "-m", "kestrelmq", "serve", *flags]
        words += ["--supervised", process.name, "--queue-path", str(process.queue_path)]
        words += ["--listen", config.listen_address]
        for listener, port in process.ports:
            words += [f"--{listener}-port", "none" if port is None else str(port)]
        for listener, path in process.paths:
            words += [f"--{listener}-path", str(path)]
        return words

    path = config.queue_path
    try:
        make_queue_path(path)
        lock = QueuePathLock(path)
        lock.acquire()
    except OSError as error:
        raise KestrelError(f"{path}: {error.strerror or error}") from error
    try:
        check_layout(path, count)
        Supervisor(processes, command, announce, lambda: set_up_logging(config)).run()
    finally:
        lock.release()


def follow_supervisor(name: str) -> None:
    """Use `name` in the log, and shut down when standard input ends.

    Standard input is a pipe from the supervisor, so its end means that the supervisor has ended.
    """
    current_process().name = name
    Thread(target=_end_with_input, name="supervisor", daemon=True).start()


def _end_with_input() -> None:
    try:
        while os.read(0, 1):
            pass
    except OSError:
        # An error means the same as the end: the supervisor has ended.
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_ORPHAN_SECONDS)
    os._exit(1)
