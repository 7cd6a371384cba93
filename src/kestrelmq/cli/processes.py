"""`kestrelmq serve --processes N`: the supervisor's side, and that of each server it runs."""

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

_ORPHAN: Final = 30.0
"""Seconds that a server without supervisor may take to shut down cleanly."""


def supervise(
    config: ServerConfig, count: int, flags: Sequence[str], announce: Callable[[str], None]
) -> None:
    """Run `count` servers, each with `flags`, until they end or this process is told to.

    Raises:
        KestrelError: they cannot serve the queue path, or one did not start.
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


def be_supervised(name: str) -> None:
    """Be called `name` in the log, and shut down when standard input ends: the supervisor has."""
    current_process().name = name
    Thread(target=_end_with_input, name="supervisor", daemon=True).start()


def _end_with_input() -> None:
    try:
        while os.read(0, 1):
            pass
    except OSError:
        # As good as its end: whoever held the other side is gone.
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_ORPHAN)
    os._exit(1)
