"""Where the server listens: TCP ports, and Unix sockets.

A Unix socket is a name in a directory. It outlives a server that was killed, so a start removes one
that nobody listens on; one that a server listens on stays, and the start fails. Two servers that
start at the same time do this one after the other: they lock the directory meanwhile.
"""

import errno
import grp
import ipaddress
import os
import pwd
import socket
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kestrelmq.config import ServerConfig
from kestrelmq.disk.locks import lock_directory
from kestrelmq.errors import KestrelError

UNIX: Final = "unix"
"""The host in the name of a client on a Unix socket, which is `unix:PID`."""
GONE: Final = "a client that is gone:0"
"""The name of a client that has gone before it was asked for."""
_IPV6_NETWORK: Final = 64
_LOCK_PATIENCE: Final = 5.0
"""Seconds to wait for another process that starts to listen in the same directory."""


@dataclass(frozen=True, slots=True)
class TcpEndpoint:
    """A port of an address; the system chooses a port of 0."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"

    def url(self, *, secure: bool) -> str:
        """Return the URL at which a browser on this machine finds an HTTP server here."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.address, self.address)
        host = f"[{host}]" if ":" in host else host
        return f"http{'s' if secure else ''}://{host}:{self.port}/"


@dataclass(frozen=True, slots=True)
class UnixEndpoint:
    """A Unix socket.

    Attributes:
        path: its path.
        mode: its permissions; who may write to it may connect.
        owner: `USER`, `USER:GROUP` or `:GROUP`; None for those of the process.
    """

    path: Path
    mode: int
    owner: str | None

    def __str__(self) -> str:
        return f"{UNIX}:{self.path}"


Endpoint = TcpEndpoint | UnixEndpoint


def endpoints(config: ServerConfig, listener: str) -> list[Endpoint]:
    """Return where a listener (memcache, text, thrift, admin) is to listen."""
    port, path = {
        "memcache": (config.memcache_listen_port, config.memcache_listen_path),
        "text": (config.text_listen_port, config.text_listen_path),
        "thrift": (config.thrift_listen_port, config.thrift_listen_path),
        "admin": (config.admin_http_port, config.admin_listen_path),
    }[listener]
    found: list[Endpoint] = []
    if port is not None:
        found.append(TcpEndpoint(config.addresses[listener], port))
    if path is not None:
        mode = int(config.listen_path_mode, 8)
        found.append(UnixEndpoint(path, mode, config.listen_path_owner))
    return found


class CannotListen(KestrelError):  # noqa: N818 # says what it is
    """A server cannot listen at an endpoint; the message says where, and why not."""


class ListeningSocket:
    """A socket that listens and does not block.

    Attributes:
        socket: the socket.
        endpoint: where it listens, with the port that it got.
    """

    def __init__(self, endpoint: Endpoint, backlog: int) -> None:
        """Listen.

        Args:
            endpoint: where.
            backlog: how many connections may wait to be accepted.

        Raises:
            CannotListen: the endpoint cannot be used.
        """
        self._identity = (0, 0)
        try:
            if isinstance(endpoint, TcpEndpoint):
                self.socket = _listen_on_port(endpoint, backlog)
                host, port, *_ = self.socket.getsockname()
                self.endpoint: Endpoint = TcpEndpoint(host, port)
            else:
                self.socket = _listen_on_path(endpoint, backlog)
                self.endpoint = endpoint
                self._identity = _identity(endpoint.path)
        except OSError as error:
            raise CannotListen(f"cannot listen on {endpoint}: {error.strerror or error}") from error

    def close(self) -> None:
        """Stop listening; a Unix socket is removed."""
        self.remove()
        self.socket.close()

    def remove(self) -> None:
        """Remove the Unix socket, unless something else has its name; new clients find none.

        This comes before it is closed: another server may replace a closed one at any time.
        """
        if isinstance(self.endpoint, UnixEndpoint):
            # It may be gone, or be in a directory that may not be changed any more.
            with suppress(OSError):
                if _identity(self.endpoint.path) == self._identity:
                    self.endpoint.path.unlink()


def peer_of(host: str) -> str:
    """Return the peer that an address counts as: an IPv4 address or an IPv6 network.

    All clients on a Unix socket are one peer. One host of an IPv6 network can have more addresses
    than the server has file descriptors.
    """
    try:
        parsed = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, _IPV6_NETWORK), strict=False))
    return host


def peer_name(client: socket.socket, address: object) -> str:
    """Return the name of a connected client: `HOST:PORT`, or `unix:PID` with its process.

    Args:
        client: the connection's socket.
        address: its peer's address, as `accept` returns it; None if it had gone by then.
    """
    if not is_unix(client):
        return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else GONE
    return f"{UNIX}:{_credentials(client)[0]}"


def peer_uid(client: socket.socket) -> int | None:
    """Return the user of the process at the other end of a Unix socket; None if that is unknown."""
    if not is_unix(client):
        return None
    process, user = _credentials(client)
    return user if process else None


def _credentials(client: socket.socket) -> tuple[int, int]:
    """Return the process at the other end of a Unix socket, and its user; 0 if unknown."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is not None:
        with suppress(OSError):  # the connection is closed already
            # struct ucred: process, user and group.
            process, user, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, option, 12))
            return process, user
    return 0, 0


def is_unix(client: socket.socket) -> bool:
    """Whether a connection is one over a Unix socket."""
    return client.family == socket.AF_UNIX


def _listen_on_port(endpoint: TcpEndpoint, backlog: int) -> socket.socket:
    family, kind, protocol, _, where = socket.getaddrinfo(
        endpoint.address, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.setblocking(False)
        listening.listen(backlog)
    except OSError:
        listening.close()
        raise
    return listening


def _listen_on_path(endpoint: UnixEndpoint, backlog: int) -> socket.socket:
    path = endpoint.path
    user, group = _ids(endpoint.owner)
    lock = lock_directory(path.parent, _LOCK_PATIENCE)
    try:
        _remove_stale(path)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.setblocking(False)
            listening.bind(str(path))
            try:
                # Nobody can connect before `listen`, so the permissions are never wider than asked.
                if (user, group) != (-1, -1):
                    os.chown(path, user, group)
                path.chmod(endpoint.mode)
                listening.listen(backlog)
            except OSError:
                path.unlink(missing_ok=True)
                raise
        except OSError:
            listening.close()
            raise
        return listening
    finally:
        os.close(lock)


def _remove_stale(path: Path) -> None:
    """Remove the socket of a server that has ended.

    Raises:
        OSError: there is something else, or a server listens on it.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise OSError(errno.EADDRINUSE, "there is a file that is not a socket", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass  # its backlog is full
    raise OSError(errno.EADDRINUSE, "a server listens on it", str(path))


def _ids(owner: str | None) -> tuple[int, int]:
    """Return the ids of `USER:GROUP`; -1 for what it does not name.

    Raises:
        OSError: the system has no such user or group.
    """
    user, _, group = (owner or "").partition(":")
    try:
        return (
            -1 if not user else int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid,
            -1 if not group else int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid,
        )
    except KeyError as error:
        raise OSError(errno.EINVAL, f"listen_path_owner: {error.args[0]}") from None


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino
