"""The flags that say which servers a command uses, and what commands with servers share."""

import logging
import os
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final, TypeVar

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

YesFlag = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask first, as is done on a terminal.")
]


@dataclass(frozen=True)
class Access:
    """The flags that say as whom to sign in at servers, and whether over TLS."""

    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            help=f"Sign in as this user; otherwise that of the variable {USER_VARIABLE}, if any.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    password_file: Annotated[
        str | None,
        typer.Option(
            "--password-file",
            metavar="FILE",
            help="A file whose first line is the user's password; otherwise that of the variable"
            f" {PASSWORD_VARIABLE}.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    tls: Annotated[
        bool,
        typer.Option(
            "--tls",
            help="Speak TLS; the flags --tls-ca and --tls-certificate mean that, too.",
            rich_help_panel=_PANEL,
        ),
    ] = False
    tls_ca: Annotated[
        str | None,
        typer.Option(
            "--tls-ca",
            metavar="FILE",
            help="The authorities that sign servers' certificates; otherwise those of the system.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    tls_certificate: Annotated[
        str | None,
        typer.Option(
            "--tls-certificate",
            metavar="FILE",
            help="The certificate to show.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    tls_key: Annotated[
        str | None,
        typer.Option(
            "--tls-key",
            metavar="FILE",
            help="Its key, if that is in another file.",
            rich_help_panel=_PANEL,
        ),
    ] = None

    @property
    def addresses(self) -> str:
        """The servers that are named, which may say a user and TLS; empty if none are."""
        return os.environ.get(SERVERS_VARIABLE, "")

    @cached_property
    def credentials(self) -> tuple[str, str] | None:
        """The user and the password that flags, variables or addresses name; None for neither.

        Raises:
            typer.BadParameter: only one of the two is known, or the password cannot be read.
        """
        try:
            user = self.user or user_of(self.addresses) or os.environ.get(USER_VARIABLE)
        except InvalidRequest as error:
            raise wrong("--servers", error) from error
        file = self.password_file or os.environ.get(PASSWORD_VARIABLE)
        if not user:
            if self.password_file:
                raise typer.BadParameter("--password-file needs a --user")
            return None
        if not file:
            raise typer.BadParameter(f"user {user} needs a --password-file, or {PASSWORD_VARIABLE}")
        try:
            return user, read_password(Path(file))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise wrong("--password-file", f"{file}: {reason}") from None

    @cached_property
    def tls_context(self) -> ssl.SSLContext | None:
        """The TLS that flags or addresses ask for; None for none.

        Raises:
            typer.BadParameter: a file cannot be used.
        """
        try:
            if self.tls or self.tls_ca or self.tls_certificate or self.tls_key:
                return tls_context(self.tls_ca, self.tls_certificate, self.tls_key)
            return tls_of(self.addresses)
        except InvalidRequest as error:
            raise wrong("--tls", error) from error

    def options(self, base: ClientOptions | None = None) -> ClientOptions:
        """Return options of a client; by default, a person does not wait for a restart."""
        options = base or ClientOptions(restart_patience=0)
        if self.tls_context is not None:
            options = replace(options, tls=self.tls_context)
        if self.credentials is None:
            return options
        user, password = self.credentials
        return replace(options, user=user, password=password)


@dataclass(frozen=True)
class Servers(Access):
    """The flags that say which servers a command uses."""

    servers: Annotated[
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
    ] = None
    zookeeper: Annotated[
        str | None,
        typer.Option(
            "--zookeeper",
            metavar="HOST:PORT,...",
            help="Ask ZooKeeper for the servers, together with --path-prefix.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    path_prefix: Annotated[
        str | None,
        typer.Option(
            "--path-prefix",
            metavar="PATH",
            help="The path in ZooKeeper; the servers are in PATH/read and PATH/write.",
            rich_help_panel=_PANEL,
        ),
    ] = None

    @property
    def addresses(self) -> str:
        """Those of the flag, or of the variable."""
        return super().addresses if self.servers is None else self.servers

    @property
    def are_named(self) -> bool:
        """Whether flags say which servers."""
        return any((self.servers, self.zookeeper, self.path_prefix))

    @property
    def named(self) -> str | None:
        """The servers that the flags or the variable name; None if ZooKeeper knows them.

        Raises:
            typer.BadParameter: the flags contradict each other.
        """
        if (self.zookeeper is None) != (self.path_prefix is None):
            raise typer.BadParameter("--zookeeper and --path-prefix go together")
        if self.zookeeper is None:
            return self.addresses if self.servers is not None else self.addresses or DEFAULT_SERVER
        if self.servers is not None:
            raise typer.BadParameter("give either --servers or --zookeeper")
        return None

    def membership(self) -> Membership:
        """Return the servers that the flags name.

        Raises:
            typer.BadParameter: the flags contradict each other, or do not name a server.
        """
        named = self.named
        if named is not None:
            try:
                return membership_of(named)
            except InvalidRequest as error:
                flag = "--servers" if self.servers is not None else SERVERS_VARIABLE
                raise wrong(flag, error) from error
        from kestrelmq.client.discovery import ZooKeeperMembership  # noqa: PLC0415 # kazoo is large

        # What it says of each attempt to connect, the error says in the end.
        logging.getLogger("kazoo").addHandler(logging.NullHandler())
        try:
            return ZooKeeperMembership(self.zookeeper or "", self.path_prefix or "")
        except InvalidRequest as error:
            raise wrong("--zookeeper", error) from error

    def connect(self, options: ClientOptions | None = None) -> Client:
        """Return a client of the servers that the flags name."""
        return Client(self.membership(), options=self.options(options))

    @contextmanager
    def asking_each(self, ask: Callable[[Client], T]) -> Iterator[list[T]]:
        """Ask each of the servers, for a `with` block that prints the answers.

        Raises:
            ClientError: at the end of the block, if some servers did not answer; at once, if none
                did.
        """
        answers: list[T] = []
        errors: list[ClientError] = []
        named = self.membership()
        named.start()
        try:
            addresses = sorted({*named.reads(), *named.writes()})
        finally:
            named.close()
        for address in addresses:
            with Client(FixedMembership((address,)), options=self.options()) as client:
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


def complete_queue(context: typer.Context, incomplete: str) -> list[str]:
    """Return the queues of the servers that begin with `incomplete`, for a shell; none if unknown.

    A user and TLS are those of the variables and the address: the other flags are not parsed yet.
    """
    try:
        with Servers(servers=context.params.get("servers")).connect(_COMPLETION) as client:
            return [one.name for one in client.queues() if one.name.startswith(incomplete)]
    except (KestrelError, typer.BadParameter):
        return []


QueueArgument = Annotated[
    str,
    typer.Argument(metavar="QUEUE", help="The queue's name.", autocompletion=complete_queue),
]


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
