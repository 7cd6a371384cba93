"""The flags that say which servers a command uses, and what commands with servers share."""

import inspect
import logging
import os
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from kestrelmq.cli.values import wrong
from kestrelmq.client import Client
from kestrelmq.client.address import DEFAULT_PORT, user_of
from kestrelmq.client.cluster import FixedMembership, Membership, membership_of
from kestrelmq.client.options import ClientOptions
from kestrelmq.client.plans import join_errors
from kestrelmq.client.tls import tls_context, tls_of
from kestrelmq.errors import ClientError, InvalidRequest, KestrelError, ServerUnavailable
from kestrelmq.passwords import read_password

T = TypeVar("T")

DEFAULT_SERVER: Final = f"127.0.0.1:{DEFAULT_PORT}"
SERVERS_VARIABLE: Final = "KESTRELMQ_SERVERS"
USER_VARIABLE: Final = "KESTRELMQ_USER"
PASSWORD_VARIABLE: Final = "KESTRELMQ_PASSWORD_FILE"  # noqa: S105 # of a variable
_PANEL: Final = "Which servers"
_COMPLETION: Final = ClientOptions(connect_timeout=0.5, operation_timeout=2.0, restart_patience=0)

ServersFlag = Annotated[
    str | None,
    typer.Option(
        "--servers",
        metavar="HOST:PORT,...",
        help=(
            "The servers, each HOST:PORT or unix:PATH; otherwise those of the variable"
            f" {SERVERS_VARIABLE}, or {DEFAULT_SERVER}."
        ),
        rich_help_panel=_PANEL,
    ),
]
ZookeeperFlag = Annotated[
    str | None,
    typer.Option(
        "--zookeeper",
        metavar="HOST:PORT,...",
        help="Ask ZooKeeper for the servers, together with --path-prefix.",
        rich_help_panel=_PANEL,
    ),
]
PathPrefixFlag = Annotated[
    str | None,
    typer.Option(
        "--path-prefix",
        metavar="PATH",
        help="The path in ZooKeeper; the servers are in PATH/read and PATH/write.",
        rich_help_panel=_PANEL,
    ),
]
UserFlag = Annotated[
    str | None,
    typer.Option(
        "--user",
        help=f"Sign in as this user; otherwise that of the variable {USER_VARIABLE}, if any.",
        rich_help_panel=_PANEL,
    ),
]
PasswordFileFlag = Annotated[
    str | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="A file whose first line is the user's password; otherwise that of the variable"
        f" {PASSWORD_VARIABLE}.",
        rich_help_panel=_PANEL,
    ),
]
TlsFlag = Annotated[
    bool,
    typer.Option(
        "--tls",
        help="Speak TLS; the flags --tls-ca and --tls-certificate mean that, too.",
        rich_help_panel=_PANEL,
    ),
]
TlsCaFlag = Annotated[
    str | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        help="The authorities that sign servers' certificates; otherwise those of the system.",
        rich_help_panel=_PANEL,
    ),
]
TlsCertificateFlag = Annotated[
    str | None,
    typer.Option(
        "--tls-certificate",
        metavar="FILE",
        help="The certificate to show.",
        rich_help_panel=_PANEL,
    ),
]
TlsKeyFlag = Annotated[
    str | None,
    typer.Option(
        "--tls-key",
        metavar="FILE",
        help="Its key, if that is in another file.",
        rich_help_panel=_PANEL,
    ),
]
YesFlag = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask first, as is done on a terminal.")
]


def complete_queue(context: typer.Context, incomplete: str) -> list[str]:
    """Return the queues of the servers that begin with `incomplete`, for a shell; none if unknown.

    A user and TLS are those of the variables and the address: the other flags are not parsed yet.
    """
    servers = context.params.get("servers")
    try:
        with connect(servers, None, None, _COMPLETION) as client:
            return [one.name for one in client.queues() if one.name.startswith(incomplete)]
    except (KestrelError, typer.BadParameter):
        return []


QueueArgument = Annotated[
    str,
    typer.Argument(metavar="QUEUE", help="The queue's name.", autocompletion=complete_queue),
]


@dataclass(slots=True)
class _Access:
    """What the flags of `with_access` say; `found` are the user and the password then."""

    user: str | None = None
    password_file: str | None = None
    tls: bool = False
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    found: tuple[str, str] | None = field(default=None, repr=False)


_ACCESS: Final[ContextVar[_Access | None]] = ContextVar("access", default=None)
_FLAGS: Final = {
    "user": UserFlag,
    "password_file": PasswordFileFlag,
    "tls": TlsFlag,
    "tls_ca": TlsCaFlag,
    "tls_certificate": TlsCertificateFlag,
    "tls_key": TlsKeyFlag,
}


def named_servers(
    servers: str | None, zookeeper: str | None, path_prefix: str | None
) -> str | None:
    """Return the servers that the flags or the variable name; None if ZooKeeper knows them.

    Raises:
        typer.BadParameter: the flags contradict each other.
    """
    if (zookeeper is None) != (path_prefix is None):
        raise typer.BadParameter("--zookeeper and --path-prefix go together")
    if zookeeper is None:
        return (
            servers if servers is not None else os.environ.get(SERVERS_VARIABLE) or DEFAULT_SERVER
        )
    if servers is not None:
        raise typer.BadParameter("give either --servers or --zookeeper")
    return None


def membership(servers: str | None, zookeeper: str | None, path_prefix: str | None) -> Membership:
    """Return the servers that the flags name.

    Raises:
        typer.BadParameter: the flags contradict each other, or do not name a server.
    """
    named = named_servers(servers, zookeeper, path_prefix)
    if named is not None:
        try:
            return membership_of(named)
        except InvalidRequest as error:
            raise wrong("--servers" if servers is not None else SERVERS_VARIABLE, error) from error
    from kestrelmq.client.discovery import ZooKeeperMembership  # noqa: PLC0415 # kazoo is large

    # What it says of each attempt to connect, the error says in the end.
    logging.getLogger("kazoo").addHandler(logging.NullHandler())
    try:
        return ZooKeeperMembership(zookeeper or "", path_prefix or "")
    except InvalidRequest as error:
        raise wrong("--zookeeper", error) from error


def client_options(options: ClientOptions | None, servers: str | None) -> ClientOptions:
    """Return options with the user as whom to sign in, and TLS; `servers` are those of the flag."""
    options = options or ClientOptions(restart_patience=0)
    found, context = credentials(servers), tls(servers)
    if context is not None:
        options = replace(options, tls=context)
    return options if found is None else replace(options, user=found[0], password=found[1])


def credentials(servers: str | None) -> tuple[str, str] | None:
    """Return the user and the password that flags, variables or addresses name; None for neither.

    Once found, they hold for the whole command, whatever `servers` are asked later.

    Raises:
        typer.BadParameter: only one of the two is known, or the password cannot be read.
    """
    given = _ACCESS.get() or _Access()
    if given.found is not None:
        return given.found
    addresses = servers if servers is not None else os.environ.get(SERVERS_VARIABLE, "")
    try:
        user = given.user or user_of(addresses) or os.environ.get(USER_VARIABLE)
    except InvalidRequest as error:
        raise wrong("--servers", error) from error
    file = given.password_file or os.environ.get(PASSWORD_VARIABLE)
    if not user:
        if given.password_file:
            raise typer.BadParameter("--password-file needs a --user")
        return None
    if not file:
        raise typer.BadParameter(f"user {user} needs a --password-file, or {PASSWORD_VARIABLE}")
    try:
        given.found = user, read_password(Path(file))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise wrong("--password-file", f"{file}: {reason}") from None
    return given.found


def tls(servers: str | None) -> ssl.SSLContext | None:
    """Return the TLS that flags or addresses ask for; None for none.

    Raises:
        typer.BadParameter: a file cannot be used.
    """
    given = _ACCESS.get() or _Access()
    try:
        if given.tls or given.tls_ca or given.tls_certificate or given.tls_key:
            return tls_context(given.tls_ca, given.tls_certificate, given.tls_key)
        return tls_of(servers if servers is not None else os.environ.get(SERVERS_VARIABLE, ""))
    except InvalidRequest as error:
        raise wrong("--tls", error) from error


def access(servers: str | None) -> dict[str, Any]:
    """Return how to sign in, and TLS, as arguments of Spark's `ClusterOptions`.

    Raises:
        typer.BadParameter: as `credentials` and `tls`.
    """
    given, found = _ACCESS.get() or _Access(), credentials(servers)
    tls(servers)
    known = {name: getattr(given, name) for name in _FLAGS}
    if found is not None:
        file = given.password_file or os.environ[PASSWORD_VARIABLE]
        known |= {"user": found[0], "password_file": file}
    return known


def with_access(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command with the flags for signing in and TLS, if it uses servers.

    One place gives them to all of them; `credentials` and `tls` find what they say.
    """
    signature = inspect.signature(command)
    names = {*signature.parameters}
    if names.isdisjoint({"servers", "server", "checkpoint"}) or "user" in names:
        return command  # it uses none, or has them already

    @wraps(command)
    def run(**given: Any) -> Any:
        token = _ACCESS.set(_Access(**{name: given.pop(name) for name in _FLAGS if name in given}))
        try:
            return command(**given)
        finally:
            _ACCESS.reset(token)

    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(name, keyword, default=False if name == "tls" else None, annotation=kind)
        for name, kind in _FLAGS.items()
    ]
    run.__annotations__ = command.__annotations__ | _FLAGS
    run.__signature__ = signature.replace(  # type: ignore[attr-defined] # of every function
        parameters=[*signature.parameters.values(), *added]
    )
    return run


def connect(
    servers: str | None,
    zookeeper: str | None,
    path_prefix: str | None,
    options: ClientOptions | None = None,
) -> Client:
    """Return a client of the servers that the flags name; a person does not wait for a restart."""
    known = membership(servers, zookeeper, path_prefix)
    return Client(known, options=client_options(options, servers))


@contextmanager
def asking_each(
    servers: str | None,
    zookeeper: str | None,
    path_prefix: str | None,
    ask: Callable[[Client], T],
) -> Iterator[list[T]]:
    """Ask each of the servers that the flags name, for a `with` block that prints the answers.

    Raises:
        ClientError: at the end of the block, if some servers did not answer; at once, if none did.
    """
    answers: list[T] = []
    errors: list[ClientError] = []
    named = membership(servers, zookeeper, path_prefix)
    named.start()
    try:
        addresses = sorted({*named.reads(), *named.writes()})
    finally:
        named.close()
    for address in addresses:
        options = client_options(None, servers)
        with Client(FixedMembership((address,)), options=options) as client:
            try:
                answers.append(ask(client))
            except ClientError as error:
                errors.append(error)
    if not addresses:
        raise ServerUnavailable("no server is known")
    if errors and not answers:
        raise join_errors(errors)
    yield answers
    if errors:
        print(end="", flush=True)
        raise join_errors(errors)


def check_exists(client: Client, queue: str) -> None:
    """Check that a server has the queue: reading it would create it, and so hide a misspelled name.

    Raises:
        KestrelError: no server has it, or not every server could be asked.
    """
    if not client.exists(queue):
        raise no_queue(queue)


def no_queue(queue: str | None) -> KestrelError:
    """Return the error for a queue that no server has."""
    return KestrelError(f"no server has a queue {queue!r}")


def ask_to_confirm(question: str, *, yes: bool) -> None:
    """Ask the user at a terminal to confirm what cannot be undone, unless `yes` is set.

    Raises:
        typer.Abort: the user did not confirm.
    """
    if not yes and sys.stdin is not None and sys.stdin.isatty():
        typer.confirm(question, abort=True, err=True)
