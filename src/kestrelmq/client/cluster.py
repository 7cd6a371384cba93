"""Which server an operation goes to.

Servers never talk to each other, so any of them will do: the choice is random for each operation. A
server that failed is set aside, for a time that doubles with each failure in a row and is spread
by chance, so that many clients don't return to it at once. It is tried again when that time is
over, or earlier when no other server answers. Nothing here does I/O.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from threading import Lock
from typing import Final, Protocol

from kestrelmq.client.address import Address, parse_addresses

FIRST_BACKOFF: Final = 0.1
LONGEST_BACKOFF: Final = 30.0


class Membership(Protocol):
    """Who the servers are, now. `start` may block; the others don't. All are thread-safe."""

    def start(self) -> None:
        """Learn who the servers are; a second call does nothing."""

    def reads(self) -> Sequence[Address]:
        """Return the servers that give items."""

    def writes(self) -> Sequence[Address]:
        """Return the servers that take items."""

    def close(self) -> None:
        """Stop learning."""


@dataclass(frozen=True, slots=True)
class FixedMembership:
    """A list of servers that never changes."""

    addresses: tuple[Address, ...]

    def start(self) -> None:
        """Nothing is left to learn."""

    def reads(self) -> Sequence[Address]:
        """Return all servers."""
        return self.addresses

    def writes(self) -> Sequence[Address]:
        """Return all servers."""
        return self.addresses

    def close(self) -> None:
        """Nothing is left to stop."""


def membership_of(servers: str | Iterable[str] | Membership) -> Membership:
    """Return who the servers are, from what the caller of a client gave."""
    if isinstance(servers, str | Iterable):
        return FixedMembership(parse_addresses(servers))
    return servers


@dataclass(frozen=True, slots=True)
class _Failed:
    times: int
    retry_at: float


@dataclass(frozen=True, slots=True)
class Choice:
    """Servers in the order to try them: `ready` first, `aside` only when none of those answers."""

    ready: tuple[Address, ...]
    aside: tuple[Address, ...]


class ServerSet:
    """The servers for one kind of operation, and which of them failed lately. Thread-safe.

    `members` is asked each time, so that it may change; `clock` counts seconds.
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
        self._failed: dict[Address, _Failed] = {}
        self._lock = Lock()

    def choose(self) -> Choice:
        """Return the servers in a new random order, those that are set aside apart."""
        members = list(dict.fromkeys(self._members()))
        now = self._clock()
        with self._lock:
            # A server that left is forgotten: when it joins again it was started again.
            self._failed = {a: failed for a, failed in self._failed.items() if a in members}
            failed = dict(self._failed)
            self._random.shuffle(members)
        ready = [a for a in members if a not in failed or failed[a].retry_at <= now]
        aside = [a for a in members if a not in ready]
        aside.sort(key=lambda address: failed[address].retry_at)
        return Choice(tuple(ready), tuple(aside))

    def failed(self, address: Address) -> bool:
        """Set a server aside and return True; one that already is stays so until its time."""
        with self._lock:
            now = self._clock()
            before = self._failed.get(address)
            if before is not None and before.retry_at > now:
                # Many operations may fail by the same fault; it counts once.
                return False
            times = before.times + 1 if before else 1
            longest = min(LONGEST_BACKOFF, FIRST_BACKOFF * 2 ** min(times - 1, 30))
            delay = longest * (0.5 + self._random.random() / 2)
            self._failed[address] = _Failed(times, now + delay)
            return True

    def succeeded(self, address: Address) -> None:
        """Forget a server's failures."""
        if address in self._failed:
            with self._lock:
                self._failed.pop(address, None)
