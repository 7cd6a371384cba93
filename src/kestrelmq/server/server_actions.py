"""Who may act on the whole server: stop or reload it, set its status, disconnect its clients.

Clients on this machine may, over every protocol. Those on a Unix socket are on this machine.
Clients on other machines may if `allow_remote_admin` is set, or over HTTP with a token. Every such
request is logged with the client's address, and so is each that drops or moves items, deletes a
queue or pauses it, which every client may make. Of very many, the rest are counted.
"""

import ipaddress
import logging
from typing import Final, Literal

from kestrelmq.config import LISTEN_PORTS, ServerConfig
from kestrelmq.errors import KestrelError
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
        level: int = logging.INFO,
    ) -> None:
        """Log that a client requests `action`, of the queue `queue` if it concerns only that.

        The action of an HTTP request has the queue in its path. Of one client, `MOST_LINES` of a
        second are logged; `log_counts` tells how many others there were.
        """
        if not log.isEnabledFor(level):
            return
        key = (peer.rpartition(":")[0], level)
        if len(self._requests) >= _MOST_CLIENTS and key not in self._requests:
            key = (_OTHERS, level)
        count = self._requests[key] = self._requests.get(key, 0) + 1
        if count > MOST_LINES:
            return
        what = action if queue is None or protocol == "http" else f"{action} {queue}"
        fields = {"action": action, "peer": peer, "protocol": protocol}
        if queue is not None:
            fields["queue"] = queue
        log.log(level, "%s: asked for by %s (%s)", what, peer, protocol, extra=fields)

    def log_counts(self) -> None:
        """Log how many requests were not logged; to be called once a second."""
        for (host, level), count in self._requests.items():
            if count > MOST_LINES:
                fields = {"peer": host, "count": count - MOST_LINES}
                text = "%s asked for %d more changes, which are not logged one by one"
                log.log(level, text, host, count - MOST_LINES, extra=fields)
        self._requests.clear()

    def check(self, action: Action, protocol: str, peer: str, *, has_token: bool = False) -> None:
        """Log that a client requests `action`, and refuse it if the client may not.

        Args:
            action: the action that the client requests.
            protocol: the protocol of its connection.
            peer: its address, `HOST:PORT` or `unix:PID`.
            has_token: whether it sent an admin token.

        Raises:
            RemoteAdminRefused: the client is on another machine, and that is not allowed.
        """
        host = peer.rpartition(":")[0]
        is_local = host == UNIX or is_loopback(host)
        if has_token or self._config.allow_remote_admin or is_local:
            self.log_request(action, protocol, peer)
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


def warn_if_open(config: ServerConfig) -> None:
    """Log a warning about what clients may do if other machines can reach the server."""
    has_port = any(getattr(config, setting) is not None for setting in LISTEN_PORTS.values())
    if has_port and not is_loopback(config.listen_address):
        log.warning(
            "listen_address %s can be reached from other machines, and clients need no password:"
            " any client that reaches it may read and change every queue%s",
            config.listen_address,
            ", and stop the server" if config.allow_remote_admin else "",
        )
