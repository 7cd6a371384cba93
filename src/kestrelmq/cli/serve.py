"""`kestrelmq serve`: the server in the foreground."""

from pathlib import Path
from typing import Annotated

import typer

from kestrelmq.admin.service import AdminService
from kestrelmq.cli.processes import be_supervised, supervise
from kestrelmq.config import ServerConfig, apply_overrides, load_config
from kestrelmq.errors import ConfigError
from kestrelmq.server.app import Server
from kestrelmq.server.logs import set_up_logging
from kestrelmq.server.processes import check_layout

Port = Annotated[str | None, typer.Option(metavar="PORT", show_default=False)]


def serve(  # noqa: PLR0913 # one parameter a flag
    *,
    config: Annotated[
        Path | None, typer.Option(help="Configuration file (TOML).", show_default=False)
    ] = None,
    queue_path: Annotated[
        Path | None, typer.Option(help="Directory of the journals.", show_default=False)
    ] = None,
    listen: Annotated[
        str | None, typer.Option(help="Address to bind (127.0.0.1).", show_default=False)
    ] = None,
    memcache_port: Annotated[
        str | None, typer.Option(help="Memcache port (22133).", show_default=False)
    ] = None,
    text_port: Annotated[
        str | None, typer.Option(help="Text port (2222).", show_default=False)
    ] = None,
    thrift_port: Annotated[
        str | None, typer.Option(help="Thrift port (2229).", show_default=False)
    ] = None,
    admin_port: Annotated[
        str | None, typer.Option(help="Admin HTTP port (2223).", show_default=False)
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(help="`text` or `json`.", show_default=False)
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(help="Least severity that is logged (info).", show_default=False)
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Serve nobody before every queue is loaded.")
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

    Flags override the configuration file. A port of 0 picks a free one, `none` turns the listener
    off. Once every listener is bound, one line for each goes to standard output, and then
    `ready`. Queues whose journals take longer than two seconds go on loading meanwhile; the
    others are served. SIGTERM and SIGINT stop the server cleanly, SIGHUP reloads the configuration.

    With `--processes N` server number I, from 0, keeps its queues in QUEUE_PATH/process-I, and its
    ports are those of the configuration plus 10 x I. The servers never talk to each other: clients
    spread the load. One that crashes is started again.
    """
    given: dict[str, object] = {
        "queue_path": queue_path,
        "listen_address": listen,
        "memcache_listen_port": memcache_port,
        "text_listen_port": text_port,
        "thrift_listen_port": thrift_port,
        "admin_http_port": admin_port,
        "log_format": log_format,
        "log_level": log_level,
    }
    overrides = {name: value for name, value in given.items() if value is not None}
    base = load_config(config) if config is not None else ServerConfig()
    effective = _with_flags(base, overrides)
    if processes is not None:
        files = {"--config": config, "--log-format": log_format, "--log-level": log_level}
        flags = [word for name, value in files.items() if value for word in (name, str(value))]
        supervise(effective, processes, flags + ["--wait"] * wait, _announce)
        return
    check_layout(effective.queue_path, None)
    if supervised is not None:
        be_supervised(supervised)
    set_up_logging(effective)
    server = Server(
        effective,
        _announce,
        config_file=config,
        overrides=overrides,
        services=(AdminService(),),
        wait=wait,
    )
    server.run()


def _with_flags(base: ServerConfig, overrides: dict[str, object]) -> ServerConfig:
    """Return what is in force. Raises typer.BadParameter: `base` is sound, so a flag is wrong."""
    try:
        return apply_overrides(base, overrides)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error


def _announce(line: str) -> None:
    # In one write: unbuffered, print would let a log line come between the text and its end.
    print(f"{line}\n", end="", flush=True)
