"""`kestrelmq serve`: the server in the foreground, or with `--processes` several servers."""

import logging
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from multiprocessing import current_process
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Annotated, Any, Final

import typer

from kestrelmq.admin.service import AdminService
from kestrelmq.cli.terminal import write_out
from kestrelmq.config import ServerConfig, apply_overrides, default_in_toml, load_config
from kestrelmq.disk.locks import QueuePathLock
from kestrelmq.disk.renaming import make_queue_path
from kestrelmq.errors import ConfigError, KestrelError
from kestrelmq.server.app import Announce, Server
from kestrelmq.server.logs import reopen_log, set_up_logging
from kestrelmq.server.processes import Process, check_layout, processes_of
from kestrelmq.server.server_actions import check_reachable, unsafe
from kestrelmq.server.supervisor import Supervisor
from kestrelmq.version import BUILD, VERSION

_ORPHAN_SECONDS: Final = 30.0
"""Seconds that a server has to shut down cleanly after its supervisor has ended."""


def _flag(setting: str) -> Any:
    """Return the flag of a setting; its help is the setting's description and default."""
    text = (ServerConfig.model_fields[setting].description or "").removesuffix(".")
    default = default_in_toml(ServerConfig, setting).strip('"')
    return typer.Option(help=f"{text} ({default})." if default else f"{text}.", show_default=False)


def serve(  # noqa: PLR0913 # one parameter a flag
    *,
    config: Annotated[
        Path | None, typer.Option(help="Configuration file (TOML).", show_default=False)
    ] = None,
    queue_path: Annotated[str | None, _flag("queue_path")] = None,
    listen: Annotated[str | None, _flag("listen_address")] = None,
    memcache_port: Annotated[str | None, _flag("memcache_listen_port")] = None,
    text_port: Annotated[str | None, _flag("text_listen_port")] = None,
    thrift_port: Annotated[str | None, _flag("thrift_listen_port")] = None,
    admin_port: Annotated[str | None, _flag("admin_http_port")] = None,
    memcache_path: Annotated[str | None, _flag("memcache_listen_path")] = None,
    text_path: Annotated[str | None, _flag("text_listen_path")] = None,
    thrift_path: Annotated[str | None, _flag("thrift_listen_path")] = None,
    admin_path: Annotated[str | None, _flag("admin_listen_path")] = None,
    log_format: Annotated[str | None, _flag("log_format")] = None,
    log_level: Annotated[str | None, _flag("log_level")] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Serve no client before every queue is loaded.")
    ] = False,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Run N independent servers, each with its own sub-path and ports.",
            show_default=False,
        ),
    ] = None,
    supervised: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the server in the foreground; no configuration is needed.

    Flags override the configuration file. Port 0 means any free port, `none` turns a listener off.
    Standard output says what runs, where the queues are and what is not safe; when every listener
    is bound, a line for each and the address of the console; then `ready`. After a second the
    queues that are loaded are served, while the others are still being loaded; with `--wait` all
    are loaded first. SIGTERM and SIGINT stop the server cleanly, SIGHUP reloads the configuration.

    With `--processes N`, server I, from 0 on, keeps its queues in QUEUE_PATH/process-I. Its ports
    are those of the configuration plus 10 x I. Its Unix sockets have .I behind their names, except
    those of server 0. The servers never talk to each other: clients spread the load. A server that
    crashes is started again.
    """
    # Until the server waits for it, it would end the process; what it reloads is read below anyway.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    given: dict[str, object] = {
        "queue_path": Path(queue_path) if queue_path else queue_path,
        "listen_address": listen,
        "memcache_listen_port": memcache_port,
        "text_listen_port": text_port,
        "thrift_listen_port": thrift_port,
        "admin_http_port": admin_port,
        "memcache_listen_path": memcache_path,
        "text_listen_path": text_path,
        "thrift_listen_path": thrift_path,
        "admin_listen_path": admin_path,
        "log_format": log_format,
        "log_level": log_level,
    }
    overrides = {name: value for name, value in given.items() if value is not None}
    base = load_config(config) if config is not None else ServerConfig()
    effective = _with_flags(base, overrides)
    announce = _announcer(_first_lines(effective) if supervised is None else ())
    try:
        if processes is not None:
            check_reachable(effective)
            files = {"--config": config, "--log-format": log_format, "--log-level": log_level}
            flags = [word for name, value in files.items() if value for word in (name, str(value))]
            _supervise(effective, announce, processes, flags + ["--wait"] * wait)
        else:
            check_layout(effective.queue_path, None)
            if supervised is not None:
                _follow_supervisor(supervised)
            set_up_logging(effective)
            Server(
                effective,
                announce,
                config_file=config,
                overrides=overrides,
                services=(AdminService(),),
                wait=wait,
            ).run()
        _ignore_signals()
    finally:
        logging.shutdown()  # before an error is printed


def _first_lines(config: ServerConfig) -> Iterator[str]:
    """Yield what to know before anything is served."""
    yield f"kestrelmq {VERSION} ({BUILD}), queues in {config.queue_path.absolute()}"
    if BUILD == "interpreted":
        yield "slow: this build is plain Python; a compiled one needs a half to a third of the CPU"
    for reason in unsafe(config):
        yield f"not safe: {reason}"


def _with_flags(base: ServerConfig, overrides: dict[str, object]) -> ServerConfig:
    """Return `base` with `overrides` applied.

    Raises:
        typer.BadParameter: a flag is wrong (`base` itself is valid).
    """
    try:
        return apply_overrides(base, overrides)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error


def _ignore_signals() -> None:
    """Ignore what would end the process from now on: it has stopped cleanly, and exits with 0.

    To free the memory of many items may take a while, in which users try again.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _announcer(first: Iterable[str]) -> Announce:
    """Return a function that prints a line, in a thread: perhaps nobody reads the output.

    Before the first line it prints those of `first`, so a server that does not start prints none.
    """
    lines: SimpleQueue[str] = SimpleQueue()
    for one in first:
        lines.put(one)

    def print_lines() -> None:
        while True:
            # One write for text and line end, so that there is no log line between them.
            line = os.fsencode(f"{lines.get()}\n")
            with suppress(KestrelError):  # the log has it, too, and clients can be served without
                write_out(line)

    def announce(line: str) -> None:
        lines.put(line)
        if not printing.is_alive():
            printing.start()

    printing = Thread(target=print_lines, name="output", daemon=True)
    return announce


# --- several servers ---


def _supervise(config: ServerConfig, announce: Announce, count: int, flags: Sequence[str]) -> None:
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
    with ExitStack() as held:
        try:
            make_queue_path(path)
            held.enter_context(QueuePathLock(path))
        except OSError as error:
            raise KestrelError(f"{path}: {error.strerror or error}") from error
        check_layout(path, count)
        Supervisor(processes, command, announce, lambda: reopen_log(config)).run()


def _follow_supervisor(name: str) -> None:
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
