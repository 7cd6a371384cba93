"""`kestrelmq serve`: the server in the foreground."""

from pathlib import Path
from typing import Annotated

import typer

from kestrelmq.admin.service import AdminService
from kestrelmq.config import ServerConfig, apply_overrides, load_config
from kestrelmq.server.app import Server
from kestrelmq.server.logs import set_up_logging

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
) -> None:
    """Run the server in the foreground; no configuration is needed.

    Flags override the configuration file. A port of 0 picks a free one, `none` turns the listener
    off. Once every listener is bound, one line for each goes to standard output, and then
    `ready`. SIGTERM and SIGINT stop the server cleanly, SIGHUP reloads the configuration.
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
    effective = apply_overrides(base, overrides)
    set_up_logging(effective)
    server = Server(
        effective,
        _announce,
        config_file=config,
        overrides=overrides,
        services=(AdminService(),),
    )
    server.run()


def _announce(line: str) -> None:
    # In one write: unbuffered, print would let a log line come between the text and its end.
    print(f"{line}\n", end="", flush=True)
