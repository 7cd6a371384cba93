"""`kestrelmq user`: hash a password for a configuration file, and say what a user may do."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from kestrelmq.access.users import Users, explain
from kestrelmq.cli.servers import QueueArgument
from kestrelmq.cli.tables import JsonFlag
from kestrelmq.cli.values import wrong
from kestrelmq.config import load_config
from kestrelmq.errors import KestrelError
from kestrelmq.names import queue_name_error
from kestrelmq.passwords import PasswordHash, password_error
from kestrelmq.queues.collection import alias_leaves

app = typer.Typer(help="Make users of a server, and check their rights.", no_args_is_help=True)


@app.command("hash")
def hash_password(*, as_json: JsonFlag = False) -> None:
    """Print the hash of a password, for `password_hash` in a table `users.NAME`.

    \b
    kestrelmq user hash
    kestrelmq user hash < password.txt

    On a terminal you are asked for it; otherwise it is the first line of standard input.
    """  # noqa: D301 # \b is for the help
    if sys.stdin is not None and sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n") if sys.stdin is not None else ""
    problem = password_error(password)
    if problem is not None:
        raise KestrelError(problem)
    password_hash = str(PasswordHash.of(password))
    print(json.dumps({"password_hash": password_hash}) if as_json else password_hash)


@app.command()
def check(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")],
    queue: QueueArgument,
    *,
    config: Annotated[Path, typer.Option(help="The configuration file of the server.")],
    as_json: JsonFlag = False,
) -> None:
    """Print what a user may do with a queue or an alias, and why; no server is asked.

    \b
    kestrelmq user check alice work --config kestrelmq.toml

    Exit status 1: there is no such user.
    """  # noqa: D301 # \b is for the help
    if (problem := queue_name_error(queue)) is not None:
        raise wrong("QUEUE", f"{queue!r}: {problem}")
    loaded = load_config(config)
    user = Users().load(loaded).get(name)
    if user is None:
        raise KestrelError(f"{config} has no user {name!r}")
    rights = explain(loaded, user, queue, list(alias_leaves(loaded, queue)))
    if as_json:
        print(json.dumps([one._asdict() for one in rights], indent=2))
    else:
        print(*rights, sep="\n")
