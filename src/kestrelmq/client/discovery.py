"""Discovery of servers in ZooKeeper, from the two server sets `PREFIX/read` and `PREFIX/write`.

Each member is a node whose data is ServerSet JSON. The sets are watched from the first operation
on. While ZooKeeper cannot be reached, the client keeps using the servers that it knew last: they
may well be up although ZooKeeper is not.
"""

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.hosts import collect_hosts

from kestrelmq.arguments import is_host, is_node_path
from kestrelmq.client.address import Address
from kestrelmq.errors import ClientClosed, InvalidRequest, ServerUnavailable
from kestrelmq.forks import PerProcess

_MEMBER: Final = "member_"
_ENDPOINT: Final = "memcache"

_log: Final = logging.getLogger("kestrelmq.client")


def member_address(data: bytes) -> Address | None:
    """Return the memcache address of a server set's member; None if it has none or is not up.

    `data` is ServerSet JSON. A member that has additional endpoints, but no `memcache` among them,
    serves only other protocols.
    """
    try:
        member = json.loads(data)
        if member.get("status", "ALIVE") != "ALIVE":
            return None
        others = member.get("additionalEndpoints") or {}
        endpoint = others.get(_ENDPOINT) if others else member["serviceEndpoint"]
        if endpoint is None:
            return None
        host, port = endpoint["host"], endpoint["port"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    usable = isinstance(host, str) and isinstance(port, int) and 0 < port < 65536
    return Address(host, port) if usable and is_host(host) else None


@dataclass(slots=True)
class _Session:
    """The connection to ZooKeeper of one process, and a lock for those who make or end it."""

    is_closed: bool
    zookeeper: Any = None
    lock: Lock = field(default_factory=Lock)


class ZooKeeperMembership:
    """The servers that are registered under a path prefix, kept up to date. Thread-safe."""

    def __init__(self, hosts: str, path_prefix: str, *, timeout: float = 10.0) -> None:
        """Prepare to connect to ZooKeeper at `hosts`, for at most `timeout` seconds.

        Raises:
            InvalidRequest: the hosts are no addresses, or the path prefix is no path.
        """
        given: dict[str, object] = {"zookeeper_hosts": hosts, "path_prefix": path_prefix}
        for what, text in given.items():
            if not isinstance(text, str) or not text:
                raise InvalidRequest(f"{what} is text, not {text!r}")
        usable = False
        with suppress(ValueError):
            usable = all(is_host(host) for host, _ in collect_hosts(hosts)[0])
        if not usable:
            raise InvalidRequest(f"{hosts!r} are not ZooKeeper addresses like 'localhost:2181'")
        self._prefix = "/" + path_prefix.strip("/")
        if not is_node_path(self._prefix):
            raise InvalidRequest(f"path_prefix is a path of ZooKeeper, not {path_prefix!r}")
        self._timeout = timeout
        self._hosts = hosts
        self._members: dict[str, tuple[Address, ...]] = {"read": (), "write": ()}
        self._session = PerProcess[_Session](
            lambda parents: _Session(is_closed=parents is not None and parents.is_closed)
        )

    def start(self) -> None:
        """Connect to ZooKeeper and read both sets; a second call does nothing.

        Raises:
            ServerUnavailable: ZooKeeper did not answer in time, or with an error.
            ClientClosed: it was closed before.
        """
        session = self._session.get()
        if session.zookeeper is not None:
            return
        with session.lock:
            if session.is_closed:  # nobody would disconnect it any more
                raise ClientClosed("the client is closed")
            if session.zookeeper is None:
                session.zookeeper = self._connected()

    def reads(self) -> Sequence[Address]:
        """Return the members of the read set."""
        return self._members["read"]

    def writes(self) -> Sequence[Address]:
        """Return the members of the write set."""
        return self._members["write"]

    def close(self) -> None:
        """Disconnect from ZooKeeper."""
        session = self._session.get()
        with session.lock:
            session.is_closed = True
            zookeeper, session.zookeeper = session.zookeeper, None
        if zookeeper is not None:
            _end(zookeeper)

    def _connected(self) -> Any:
        zookeeper = KazooClient(hosts=self._hosts, timeout=self._timeout, read_only=True)
        try:
            zookeeper.start(timeout=self._timeout)
            for kind in self._members:
                self._watch(zookeeper, kind)
        except (KazooException, KazooTimeoutError) as error:
            _end(zookeeper)
            raise ServerUnavailable(f"ZooKeeper at {self._hosts}: {error}") from error
        return zookeeper

    def _watch(self, zookeeper: Any, kind: str) -> None:
        path = f"{self._prefix}/{kind}"
        watched: set[str] = set()

        # The node of a set exists only after a server has joined it; the data watch is called when
        # it is created or deleted.
        @zookeeper.DataWatch(path)  # type: ignore[untyped-decorator]
        def exists(_data: bytes | None, stat: object) -> None:
            if stat is None:
                watched.discard(path)
                self._members[kind] = ()
            elif path not in watched:
                watched.add(path)
                zookeeper.ChildrenWatch(path)(self._reader(zookeeper, kind, path))

    def _reader(self, zookeeper: Any, kind: str, path: str) -> Callable[[list[str]], None]:
        def changed(children: list[str]) -> None:
            addresses = {_read(zookeeper, f"{path}/{c}") for c in children if c.startswith(_MEMBER)}
            members = tuple(sorted(address for address in addresses if address is not None))
            if members != self._members[kind]:
                _log.info("servers in %s: %s", path, ", ".join(map(str, members)) or "none")
            self._members[kind] = members

        return changed


def _read(zookeeper: Any, path: str) -> Address | None:
    try:
        data, _ = zookeeper.get(path)
    except NoNodeError:
        return None
    return member_address(data)


def _end(zookeeper: Any) -> None:
    zookeeper.stop()
    zookeeper.close()
