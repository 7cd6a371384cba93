"""Who may act on the whole server: stop or reload it, set its status, disconnect its clients.

Where there are users, their rights decide. Otherwise clients on this machine may, over every
protocol; those on a Unix socket are on this machine.
Clients on other machines may if `allow_remote_admin` is set, or over HTTP with a token. Every such
request is logged with the client's address, and so is each that drops or moves items, deletes a
queue or pauses it, which every client may make. Of very many, the rest are counted.
"""

import ipaddress
import logging
from collections.abc import Iterator, Mapping
from typing import Final, Literal

from kestrelmq.access.users import User
from kestrelmq.config import ServerConfig
from kestrelmq.errors import ConfigError, KestrelError
from kestrelmq.server.logs import LogThrottle
from kestrelmq.server.sockets import UNIX

log = logging.getLogger(__name__)

MOST_LINES: Final = 10
"""Requests of one client that are logged in a second."""
_MOST_CLIENTS: Final = 1024
"""Clients whose requests are counted one by one; all others are one client."""
_OTHERS: Final = "other clients"

Action = Literal["shutdown", "reload", "status", "client kill"]


class RemoteAdminRefused(KestrelError):  # noqa: N818 # says what it is
    """The action is refused to clients on other machines."""


def is_loopback(address: str) -> bool:
    """Whether `address` (without a port) is one that only this machine uses or can reach."""
    if address.lower() == "localhost":
        return True
    try:
        parsed = ipaddress.ip_address(address.strip("[]").partition("%")[0])
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


class ServerActionGuard:
    """Decides who may act on the whole server, and logs what clients ask for."""

    __slots__ = ("_config", "_refusals", "_requests")

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._refusals = LogThrottle()
        self._requests: dict[tuple[str, int], int] = {}
        """How many requests of each client, and of each level, there were in this second."""

    def log_request(
        self,
        action: str,
        protocol: str,
        peer: str,
        queue: str | None = None,
        *,
        user: User | None = None,
        level: int = logging.INFO,
    ) -> None:
        """Log that a client requests `action`, of the queue `queue` if it concerns only that.

        The action of an HTTP request has the queue in its path. Of one client, `MOST_LINES` of a
        second are logged; `log_counts` tells how many others there were.
        """
        if not self._has_room(peer, level):
            return
        what = action if queue is None or protocol == "http" else f"{action} {queue}"
        fields = {"action": action, "peer": peer, "protocol": protocol}
        if queue is not None:
            fields["queue"] = queue
        who = peer
        if user is not None:
            fields["user"] = user.name
            who = f"{user.name}, {peer}"
        log.log(level, "%s: asked for by %s (%s)", what, who, protocol, extra=fields)

    def log_failed_sign_in(self, name: str | None, protocol: str, peer: str) -> None:
        """Log that a sign-in failed, as the requests of a client are logged.

        `name` is None if there is no user of that name.
        """
        if self._has_room(peer, logging.WARNING):
            fields = {"action": "sign in", "peer": peer, "protocol": protocol, "user": name}
            who = "an unknown user" if name is None else f"user {name}"
            log.warning("sign-in of %s failed: %s (%s)", who, peer, protocol, extra=fields)

    def log_forbidden(self, user: User, what: str, kind: str = "forbidden") -> None:
        """Log that a user may not do what was asked for: now and then for each user and kind."""
        count = self._refusals.count((user.name, kind))
        if count:
            fields = {"user": user.name, "count": count}
            text = "user %s may not %s; %d such refusals since the last message"
            log.warning(text, user.name or "(nobody)", what, count, extra=fields)

    def _has_room(self, peer: str, level: int) -> bool:
        """Count a line about a client; return whether it is to be logged."""
        if not log.isEnabledFor(level):
            return False
        key = (peer.rpartition(":")[0], level)
        if len(self._requests) >= _MOST_CLIENTS and key not in self._requests:
            key = (_OTHERS, level)
        count = self._requests[key] = self._requests.get(key, 0) + 1
        return count <= MOST_LINES

    def log_counts(self) -> None:
        """Log how many requests were not logged; to be called once a second."""
        for (host, level), count in self._requests.items():
            if count > MOST_LINES:
                fields = {"peer": host, "count": count - MOST_LINES}
                what = "sign-ins" if level == logging.WARNING else "changes"
                text = f"%s asked for %d more {what}, which are not logged one by one"
                log.log(level, text, host, count - MOST_LINES, extra=fields)
        self._requests.clear()

    def check(
        self,
        action: Action,
        protocol: str,
        peer: str,
        *,
        has_token: bool = False,
        user: User | None = None,
    ) -> None:
        """Log that a client requests `action`, and refuse it if the client may not.

        Args:
            action: the action that the client requests.
            protocol: the protocol of its connection.
            peer: its address, `HOST:PORT` or `unix:PID`.
            has_token: whether it sent an admin token.
            user: who it is; an admin may act from every machine.

        Raises:
            RemoteAdminRefused: the client is on another machine, and that is not allowed.
        """
        host = peer.rpartition(":")[0]
        is_local = host == UNIX or is_loopback(host)
        is_admin = has_token or (user is not None and user.is_admin)
        if is_admin or self._config.allow_remote_admin or is_local:
            self.log_request(action, protocol, peer, user=user)
            return
        count = self._refusals.count((action, protocol, host))
        if count:
            log.warning(
                "%s: refused to %s (%s), which is not on this machine; %d such requests since the"
                " last message",
                action,
                peer,
                protocol,
                count,
                extra={"action": action, "peer": peer, "protocol": protocol, "count": count},
            )
        raise RemoteAdminRefused(
            f"{action} is refused to clients on other machines (see allow_remote_admin)"
        )


_NEEDS_USERS: Final = """\
listen_address {address} can be reached from other machines, and there are no users: whoever \
reaches a port could read, change and delete every queue. Make a user, with the hash that \
`kestrelmq user hash` prints:

    [users.NAME]
    password_hash = "scrypt:..."
    admin = true

or, if something else protects the ports, set allow_unauthenticated = true"""


def unsafe(config: ServerConfig) -> Iterator[str]:
    """Yield what is not safe about the ports of a server, to show when it starts."""
    if not config.addresses:
        return
    exposed = _exposed(config)
    if not config.users:
        who = (
            f"whoever reaches {_addresses(exposed)}" if exposed else "every program on this machine"
        )
        yield f"no users: {who} can read, change and delete every queue"
    secure = () if config.tls is None else config.tls.listeners
    plain = [name for name in exposed if name not in secure]
    if plain:
        yield f"no TLS ({', '.join(plain)}): passwords and items cross the network readable"


def check_reachable(config: ServerConfig) -> None:
    """Check that a server which other machines can reach has users, or is meant to have none.

    Raises:
        ConfigError: it has none; the message says how to make one.
    """
    exposed = _exposed(config)
    if not exposed or config.users:
        return
    if not config.allow_unauthenticated:
        raise ConfigError(_NEEDS_USERS.format(address=_addresses(exposed)))
    log.warning(
        "listen_address %s can be reached from other machines, and clients need no password:"
        " any client that reaches it may read and change every queue%s",
        _addresses(exposed),
        ", and stop the server" if config.allow_remote_admin else "",
    )


def _exposed(config: ServerConfig) -> dict[str, str]:
    """Return the address of each listener whose port other machines can reach."""
    found = config.addresses.items()
    return {listener: address for listener, address in found if not is_loopback(address)}


def _addresses(exposed: Mapping[str, str]) -> str:
    return " and ".join(dict.fromkeys(exposed.values()))
