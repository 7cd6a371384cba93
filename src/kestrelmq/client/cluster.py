"""The choice of a server for each operation.

Servers never talk to each other, so any of them can serve an operation: the choice is random. With
affinity, each queue lives on one of them instead, its home, so that its order holds: see
`by_affinity`.

A server that failed is set aside for a time that doubles with each failure in a row. The time is
partly random, so that many clients do not return to a server at once. The server is tried again
when that time is over, or earlier if no other server answers. Nothing here does I/O.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from random import Random
from threading import Lock
from typing import Final, Protocol, runtime_checkable

from kestrelmq.client.address import Address, parse_addresses
from kestrelmq.names import master_of

FIRST_BACKOFF: Final = 0.1
LONGEST_BACKOFF: Final = 30.0


@lru_cache(maxsize=10_000)
def by_affinity(servers: frozenset[Address], queue: str) -> tuple[Address, ...]:
    """Return servers in the order in which they are the home of a queue.

    The home is the first; if that leaves, the next one. Each server has a weight for each queue:
    the SHA-256 of its address, a zero byte and the queue's name. The largest comes first. So
    clients that know the same servers agree, and only the queues of a server that leaves or joins
    get another home (D. Thaler, C. Ravishankar, "Using Name-Based Mappings to Increase Hit Rates",
    IEEE/ACM Transactions on Networking 6, 1998: rendezvous hashing).

    A fanout child lives where its master does.
    """
    family = (master_of(queue) or queue).encode()

    def weight(server: Address) -> bytes:
        return sha256(str(server).encode() + b"\0" + family).digest()

    return tuple(sorted(servers, key=weight, reverse=True))


@runtime_checkable
class Membership(Protocol):
    """The servers that a client uses now. Only `start` may block. All methods are thread-safe."""

    def start(self) -> None:
        """Find the servers and begin to follow changes; a second call does nothing."""

    def reads(self) -> Sequence[Address]:
        """Return the servers that items can be read from."""

    def writes(self) -> Sequence[Address]:
        """Return the servers that items can be added to."""

    def close(self) -> None:
        """Stop following changes; if `start` is running, wait for its end first."""


@dataclass(frozen=True, slots=True)
class FixedMembership:
    """A list of servers that never changes."""

    addresses: tuple[Address, ...]

    def start(self) -> None:
        """Do nothing: the servers are known."""

    def reads(self) -> Sequence[Address]:
        """Return all servers."""
        return self.addresses

    def writes(self) -> Sequence[Address]:
        """Return all servers."""
        return self.addresses

    def close(self) -> None:
        """Do nothing: there are no changes to follow."""


def membership_of(servers: str | Iterable[str] | Membership) -> Membership:
    """Return the membership for the `servers` argument of a client.

    Raises:
        InvalidRequest: they are no servers.
    """
    if isinstance(servers, Membership):
        return servers
    return FixedMembership(parse_addresses(servers))


@dataclass(frozen=True, slots=True)
class _FailedServer:
    times: int
    retry_at: float


@dataclass(frozen=True, slots=True)
class ServerChoice:
    """Servers in the order to try them: first `ready`, then, if none of those answers, `aside`.

    With affinity, `home` is the one on which the queue lives.
    """

    ready: tuple[Address, ...]
    aside: tuple[Address, ...]
    home: Address | None = None


class ServerSet:
    """The servers for one kind of operation, and their recent failures. Thread-safe.

    `members` is called for each choice, so its result may change. `clock` returns seconds.
    """

    def __init__(
        self,
        members: Callable[[], Iterable[Address]],
        clock: Callable[[], float],
        random: Random,
    ) -> None:
        self._members = members
        self._clock = clock
        self._random = random
        self._failed: dict[Address, _FailedServer] = {}
        self._lock = Lock()

    def choose(self, queue: str | None = None) -> ServerChoice:
        """Return the servers in a new random order, with those that are set aside apart.

        Those are sorted by the time at which they are to be tried again. With a `queue`, the order
        is that of `by_affinity`.
        """
        members = list(dict.fromkeys(self._members()))
        home = None
        now = self._clock()
        with self._lock:
            # Forget servers that left the set: one that joins again has been restarted.
            self._failed = {a: failed for a, failed in self._failed.items() if a in members}
            failed = dict(self._failed)
            if queue is None:
                self._random.shuffle(members)
            else:
                members = list(by_affinity(frozenset(members), queue))
                home = next(iter(members), None)
        ready = [a for a in members if a not in failed or failed[a].retry_at <= now]
        aside = [a for a in members if a not in ready]
        aside.sort(key=lambda address: failed[address].retry_at)
        return ServerChoice(tuple(ready), tuple(aside), home)

    def home(self, queue: str) -> ServerChoice:
        """Return the home of a queue alone, whether it is set aside or not."""
        home = by_affinity(frozenset(self._members()), queue)[:1]
        return ServerChoice(home, (), next(iter(home), None))

    def failed(self, address: Address) -> bool:
        """Set a server aside; return False if it is set aside already, which changes nothing."""
        with self._lock:
            now = self._clock()
            before = self._failed.get(address)
            if before is not None and before.retry_at > now:
                # The same fault may fail many operations at once; it counts once.
                return False
            times = before.times + 1 if before else 1
            longest = min(LONGEST_BACKOFF, FIRST_BACKOFF * 2 ** min(times - 1, 30))
            delay = longest * (0.5 + self._random.random() / 2)
            self._failed[address] = _FailedServer(times, now + delay)
            return True

    def succeeded(self, address: Address) -> None:
        """Forget a server's failures."""
        if address in self._failed:
            with self._lock:
                self._failed.pop(address, None)
