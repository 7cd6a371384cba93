"""`kestrelmq health`: whether a server lives or is ready, for the health checks of containers."""

import json
import socket
import ssl
from base64 import b64encode
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Annotated, Any, Final

import typer

from kestrelmq.cli.servers import Access
from kestrelmq.cli.tables import JsonFlag
from kestrelmq.cli.values import duration, wrong
from kestrelmq.client.address import Address, parse_address
from kestrelmq.errors import InvalidRequest, KestrelError, ServerUnavailable

_PORT: Final = 2223
_VARIABLE: Final = "KESTRELMQ_ADMIN"


@dataclass(frozen=True)
class AdminServer(Access):
    """The flags that say which admin service is asked, and how."""

    server: Annotated[
        str,
        typer.Option(
            "--server",
            metavar="HOST[:PORT]|unix:PATH",
            envvar=_VARIABLE,
            show_default=False,
            help=f"Its admin service (127.0.0.1:{_PORT}).",
            rich_help_panel="Which server",
        ),
    ] = "127.0.0.1"

    @property
    def addresses(self) -> str:
        """The server, whose address may say a user and TLS."""
        return self.server


def health(
    *,
    live: Annotated[bool, typer.Option("--live", help="Only whether it answers.")] = False,
    ready: Annotated[
        bool, typer.Option("--ready", help="Whether it can serve; this is the default.")
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            parser=duration,
            metavar="TIME",
            show_default="3s",
            help="Wait this long for its answer.",
        ),
    ] = 3.0,
    as_json: JsonFlag = False,
    where: AdminServer,
) -> None:
    """Ask a server's admin service for its health: exit status 0 if it is well, 1 if it is not.

    \b
    kestrelmq health
    kestrelmq health --live
    kestrelmq health --server unix:/run/kestrelmq/admin --json

    A server is ready when every queue is loaded, the queue path is there, and its status allows
    reads or writes. No user is needed, but a server that has users tells only them what is wrong.
    """  # noqa: D301 # \b is for the help
    if live and ready:
        raise typer.BadParameter("give either --live or --ready")
    what = "live" if live else "ready"
    try:
        address = parse_address(where.server, _PORT)
    except InvalidRequest as error:
        raise wrong("--server", error) from error
    found = _answer(_Connection(address, where.tls_context, timeout), f"/health/{what}", where)
    if as_json:
        print(json.dumps(found, indent=2))
    elif found.get(what):
        print(what)
    if not found.get(what):
        reasons = found.get("reasons") or [f"the status is {found.get('status')}"]
        raise KestrelError(f"{address} is not {what}: {'; '.join(reasons)}")


class _Connection(HTTPConnection):
    """A connection to the admin service, perhaps over TLS or a Unix socket."""

    def __init__(self, address: Address, secure: ssl.SSLContext | None, timeout: float) -> None:
        super().__init__(address.host or "localhost", address.port or None, timeout=timeout)
        self._path = address.path
        self._secure = secure

    def connect(self) -> None:
        """Connect. Raises OSError."""
        if self._path:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(self.timeout)
            self.sock.connect(self._path)
            return
        super().connect()
        if self._secure is not None:
            self.sock = self._secure.wrap_socket(self.sock, server_hostname=self.host)


def _answer(connection: _Connection, path: str, where: AdminServer) -> dict[str, Any]:
    """Return what the server says. Raises ServerUnavailable: it did not answer."""
    headers = {}
    user = where.credentials
    if user is not None:
        headers["Authorization"] = f"Basic {b64encode(':'.join(user).encode()).decode()}"
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        found = dict(json.loads(response.read()))
    except (OSError, HTTPException, TypeError, ValueError) as error:
        raise ServerUnavailable(f"{where.server}: {str(error) or type(error).__name__}") from error
    finally:
        connection.close()
    if response.status not in {200, 503}:
        told = found.get("error")
        reason = told.get("message", found) if isinstance(told, dict) else found
        raise ServerUnavailable(f"{where.server}: {reason}")
    return found
