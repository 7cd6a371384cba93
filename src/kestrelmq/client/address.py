"""Server addresses: `host:port`, `[IPv6]:port`, a host alone for the default port, `unix:PATH`.

Each may be written as a URL, `kestrel://USER@host:port?tls=1`, which says as whom to sign in, and
whether to speak TLS.
"""

import socket
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from kestrelmq.arguments import given_list, is_host
from kestrelmq.errors import InvalidRequest

DEFAULT_PORT: Final = 22133
SCHEME: Final = "kestrel://"
"""What an address begins with that is a URL."""
UNIX: Final = "unix:"
"""What the address of a Unix socket begins with."""
CONNECT_PAUSE: Final = 0.01
"""Seconds until the next attempt to connect to a Unix socket that has no room for another one."""


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """The address of one listener of a server: a TCP port, or a Unix socket.

    Attributes:
        host: the host; empty for a Unix socket.
        port: the port; 0 for a Unix socket.
        path: the path of the Unix socket; empty for a port.
    """

    host: str
    port: int = DEFAULT_PORT
    path: str = ""

    def __post_init__(self) -> None:
        """Raise InvalidRequest: no host can have this name."""
        if not self.path and not is_host(self.host):
            raise InvalidRequest(f"{self.host!r} is not the name or the address of a host")

    def __str__(self) -> str:
        if self.path:
            return f"{UNIX}{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> Address:
    """Parse a server address; `default_port` is used if `text` has no port.

    What begins with `unix:` is the path of a Unix socket.

    Raises:
        InvalidRequest: `text` is not a server address.
    """
    _, text, _ = _split_url(text.strip())
    if text.startswith(UNIX):
        path = text.removeprefix(UNIX)
        if not path or "\0" in path:
            raise InvalidRequest(f"{text!r} is not a Unix socket like 'unix:/run/kestrelmq.sock'")
        return Address("", 0, path)
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        port = rest.removeprefix(":") if rest else str(default_port)
        usable = bool(bracket) and (not rest or rest.startswith(":"))
    elif text.count(":") > 1:
        # A bare IPv6 address: every colon is part of it.
        host, port, usable = text, str(default_port), True
    else:
        host, colon, port = text.partition(":")
        port, usable = (port, True) if colon else (str(default_port), True)
    if not usable or not is_host(host) or not _is_port(port):
        raise InvalidRequest(f"{text!r} is not a server address like 'localhost:{default_port}'")
    return Address(host, int(port))


def parse_addresses(servers: str | Iterable[str]) -> tuple[Address, ...]:
    """Parse server addresses, given as one comma-separated text or as several texts.

    Duplicates are dropped.

    Raises:
        InvalidRequest: one of them is not an address, or there is none.
    """
    texts = given_list(servers, str)
    for text in texts:
        if not isinstance(text, str):
            raise InvalidRequest(f"a server address is text, not {type(text).__name__}")
    words = [word for text in texts for word in text.split(",") if word.strip()]
    if not words:
        raise InvalidRequest("no server address was given")
    return tuple(dict.fromkeys(parse_address(word) for word in words))


def user_of(servers: object) -> str | None:
    """Return the user that addresses name, which are URLs then; None if they name none.

    Raises:
        InvalidRequest: they name several, or a password, which the error does not show.
    """
    users = {user for user, _, _ in _urls(servers) if user is not None}
    if len(users) > 1:
        raise InvalidRequest("the addresses of one client name one user")
    return users.pop() if users else None


def queries_of(servers: object) -> list[str]:
    """Return what follows the `?` in addresses, which are URLs then."""
    return [query for _, _, query in _urls(servers) if query]


def _urls(servers: object) -> list[tuple[str | None, str, str]]:
    texts = [text for text in given_list(servers, str) if isinstance(text, str)]
    return [_split_url(word.strip()) for text in texts for word in text.split(",")]


def _split_url(text: str) -> tuple[str | None, str, str]:
    """Return the user that an address names, if any, the address alone, and what follows a `?`."""
    if not text.startswith(SCHEME):
        return None, text, ""
    whole, _, query = text.removeprefix(SCHEME).partition("?")
    before, at, rest = whole.rpartition("@")
    if ":" in before:
        raise InvalidRequest("a password does not belong in an address: give it by itself")
    return (unquote(before) if at else None), rest.removesuffix("/"), query


def open_socket(
    address: Address, timeout: float, tls: ssl.SSLContext | None = None
) -> socket.socket:
    """Return a socket that is connected to a server, and has `timeout` (seconds) for what follows.

    With `tls` it speaks that, but not over a Unix socket.

    Raises:
        OSError: the server cannot be reached within the timeout.
    """
    if not address.path:
        opened = socket.create_connection((address.host, address.port), timeout)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened if tls is None else tls.wrap_socket(opened, server_hostname=address.host)
    give_up = time.monotonic() + timeout
    while (connected := try_unix_socket(address.path)) is None:
        if time.monotonic() > give_up:
            raise TimeoutError("timed out")
        time.sleep(CONNECT_PAUSE)
    connected.settimeout(timeout)
    return connected


def try_unix_socket(path: str) -> socket.socket | None:
    """Return a socket that is connected to a Unix socket and does not block.

    It never waits: None means that the server's backlog is full, and that it must accept others
    first.

    Raises:
        OSError: nobody listens there.
    """
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    opened.setblocking(False)
    try:
        opened.connect(path)
    except BlockingIOError:
        opened.close()
        return None
    except OSError:
        opened.close()
        raise
    return opened


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65536
