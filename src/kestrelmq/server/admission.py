"""How many clients may connect, in all and from one address."""

from collections import Counter

from kestrelmq.config import ServerConfig
from kestrelmq.queues.counters import Counters
from kestrelmq.server.sockets import UNIX, peer_of


class Admission:
    """Counts the clients of all listeners, those whose handshakes are not finished, too."""

    __slots__ = ("_by_peer", "_count", "_counters", "_most", "_most_per_peer")

    def __init__(self, config: ServerConfig, counters: Counters) -> None:
        """Count refusals in `counters`; the settings say how many clients there may be."""
        self._most = config.max_connections
        self._most_per_peer = config.max_connections_per_address
        self._counters = counters
        self._count = 0
        self._by_peer: Counter[str] = Counter()

    @property
    def is_full(self) -> bool:
        """Whether there may be no further client, wherever it comes from."""
        return self._most is not None and self._count >= self._most

    def is_full_for(self, peer: str) -> bool:
        """Whether there may be no further client from this address, whoever leaves elsewhere."""
        if self._most_per_peer is None:
            return False
        host = _peer_of(peer)
        return host != UNIX and self._by_peer[host] >= self._most_per_peer

    def admit(self, peer: str) -> str | None:
        """Count a client that has connected; return why it is refused instead, or None.

        Args:
            peer: its address, as `peer_name` returns it.
        """
        if self.is_full:
            self._counters.refused_connections += 1
            return f"too many connections (max_connections is {self._most})"
        if self.is_full_for(peer):
            self._counters.refused_connections += 1
            most = self._most_per_peer
            return f"too many connections from there (max_connections_per_address is {most})"
        if self._most_per_peer is not None:
            self._by_peer[_peer_of(peer)] += 1
        self._count += 1
        return None

    def leave(self, peer: str) -> None:
        """Free the place of a client that was admitted and is gone."""
        self._count -= 1
        if self._most_per_peer is not None:
            host = _peer_of(peer)
            self._by_peer[host] -= 1
            if not self._by_peer[host]:
                del self._by_peer[host]


def _peer_of(peer: str) -> str:
    return peer_of(peer.rpartition(":")[0])
