"""`kestrelmq config`: check and show a configuration without starting a server."""

import json
import sys
import tomllib
from pathlib import Path
from typing import Annotated

import typer

from kestrelmq.access.users import Users
from kestrelmq.cli.tables import JsonFlag
from kestrelmq.cli.values import wrong
from kestrelmq.config import (
    ServerConfig,
    config_toml,
    config_warnings,
    load_config,
    queues_toml,
)
from kestrelmq.config.kestrel_scala import import_kestrel
from kestrelmq.errors import ConfigError, KestrelError
from kestrelmq.names import queue_name_error
from kestrelmq.server.certificates import load_context
from kestrelmq.server.server_actions import check_reachable

app = typer.Typer(help="Check, show and describe the configuration.", no_args_is_help=True)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="The configuration file.")],
    *,
    as_json: JsonFlag = False,
) -> None:
    """Check whether a server would start with FILE; if not, print everything that is wrong."""
    try:
        config = load_config(file)
        check_reachable(config)
        Users().load(config)  # reads the password files
        load_context(config)  # reads those of TLS
    except KestrelError as error:
        if as_json:
            print(json.dumps({"ok": False, "problems": str(error).splitlines()}, indent=2))
        raise
    warnings, queues, aliases = config_warnings(config), len(config.queues), len(config.aliases)
    if as_json:
        found = {"ok": True, "queues": queues, "aliases": aliases, "warnings": warnings}
        print(json.dumps(found, indent=2))
        return
    for warning in warnings:
        print(f"{file}: warning: {warning}", file=sys.stderr)
    print(f"{file}: ok, {queues} queues and {aliases} aliases configured")


@app.command()
def show(
    queues: Annotated[
        list[str] | None, typer.Argument(metavar="QUEUE", help="Only these queues.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="The configuration file; without one, the defaults.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
) -> None:
    """Print the settings in force, after inheritance, as TOML that loads again.

    With QUEUE names, print the settings of each of them, whether it is configured by name or not.

    Credentials and tokens are never printed; what needs them loads again once they are filled in.
    """
    names = queues or []
    for name in names:
        problem = queue_name_error(name)
        if problem is not None:
            raise wrong("QUEUE", f"{name!r}: {problem}")
    loaded = load_config(config) if config is not None else ServerConfig()
    text = queues_toml(loaded, names) if names else config_toml(loaded)
    print(
        json.dumps(tomllib.loads(text), indent=2, default=str) + "\n" if as_json else text, end=""
    )


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A configuration of Kestrel, as production.scala.")],
) -> None:
    """Convert a configuration file of the original Kestrel; print it as TOML.

    \b
    kestrelmq config import production.scala > kestrelmq.toml

    Standard error names what was not carried over, with its line and the reason.
    """  # noqa: D301 # \b is for the help
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None
    found = import_kestrel(text, str(file))
    print(found.toml, end="")
    for remark in found.remarks:
        print(f"{file}: {remark}", file=sys.stderr)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration file, for editors and other tools."""
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    print(json.dumps(document | ServerConfig.model_json_schema(), indent=2))
