"""The server's membership in its ZooKeeper server sets, `PREFIX/read` and `PREFIX/write`.

One thread, `kestrelmq-zookeeper`, does everything that may wait for ZooKeeper. The event loop only
passes it the status, and is called back when the sets agree with the status. The thread keeps no
record of its earlier actions: it looks up which nodes the session owns, and creates or deletes the
ones that differ. So it is correct after a lost reply, a lost connection and a lost session.
ZooKeeper answers a session's requests in order: when a look-up is answered, an earlier request that
timed out was either served or never will be.

While ZooKeeper cannot be reached, a set cannot be left. A stricter status then waits only as long
as `ServerStatus` waits for its listener, and the sets are corrected at the next connection. If
there is none, ZooKeeper drops the member when the session times out. A crash leaves the members in
their sets for `session_timeout` seconds.

Site-specific code has two hooks. `client_initializer` is called with the `ZooKeeperConfig` and
returns a `KazooClient` that is not started. `server_set_initializer` is called with the
`ZooKeeperConfig`, that client and the path of a set, and returns a `ServerSetEntry`.
"""

import asyncio
import importlib
import logging
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from kestrelmq.config import ZooKeeperConfig
from kestrelmq.errors import ConfigError
from kestrelmq.server.status import Status

_log: Final = logging.getLogger(__name__)

# Seconds until the next attempt after a failure; an event from ZooKeeper may start it earlier.
_RETRY_AFTER: Final = 1.0
_ACLS: Final = {
    "open-unsafe": OPEN_ACL_UNSAFE,
    "everyone-read-creator-all": CREATOR_ALL_ACL + READ_ACL_UNSAFE,
}


class ServerSetEntry(Protocol):
    """This server's entry in one server set, as `server_set_initializer` returns it."""

    def keep(self, member: bytes | None) -> None:
        """Put this server in the set with the data `member`, or take it out if `member` is None.

        It is called in the membership's thread whenever something may have changed, so it must
        check by itself whether there is anything to do. It may wait. After an exception of kazoo, a
        TimeoutError or an OSError it is called again soon.
        """


class ServerSetNode:
    """This server's entry in a server set: an ephemeral node `member_NNNNNNNNNN`."""

    def __init__(
        self, client: KazooClient, path: str, wait: float, changed: Callable[[], None]
    ) -> None:
        """Use the set at `path`.

        Args:
            client: the ZooKeeper client; its default ACL is used for every node created here.
            path: the node of the set, which is created when needed.
            wait: the most seconds to wait for each answer.
            changed: called in a thread of the client when this server's node disappears.
        """
        self._client = client
        self._path = path
        self._wait = wait
        self._changed = changed

    def keep(self, member: bytes | None) -> None:
        """Make sure that the set has one node of this session, or none."""
        mine = self._own_nodes()
        for spare in mine if member is None else mine[1:]:
            self._delete(spare)
        if member is not None:
            node = mine[0] if mine else self._create(member)
            self._client.exists_async(node, watch=self._node_changed).get(timeout=self._wait)

    def _own_nodes(self) -> list[str]:
        session = self._client.client_id[0]
        try:
            children = self._client.get_children_async(self._path).get(timeout=self._wait)
        except NoNodeError:
            return []
        mine = []
        for name in sorted(children):
            path = f"{self._path}/{name}"
            stat = self._client.exists_async(path).get(timeout=self._wait)
            if stat is not None and stat.owner_session_id == session:
                mine.append(path)
        return mine

    def _delete(self, path: str) -> None:
        try:
            self._client.delete_async(path).get(timeout=self._wait)
        except NoNodeError:
            return
        _log.info("left %s", path)

    def _create(self, member: bytes) -> str:
        self._client.ensure_path_async(self._path).get(timeout=self._wait)
        path: str = self._client.create_async(
            f"{self._path}/member_", member, ephemeral=True, sequence=True
        ).get(timeout=self._wait)
        _log.info("joined %s", path)
        return path

    def _node_changed(self, _event: object) -> None:
        self._changed()


class ServerSetMembership:
    """Keeps the server in the sets that its status requires, until it is stopped.

    Attributes:
        agrees: whether the sets agreed with the status at the last check, over a connection that
            has not been lost since.
    """

    def __init__(
        self,
        config: ZooKeeperConfig,
        member: bytes,
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        """Prepare; `start` begins the membership.

        Args:
            config: the settings for ZooKeeper.
            member: the data of this server's nodes, from `advertise.member_data`.
            call_soon: calls a function on the event loop; may be used from any thread.
        """
        self._config = config
        self._member = member
        self._call_soon = call_soon
        self._condition = threading.Condition()
        self._status = Status.DOWN
        self._acted: list[Callable[[], None]] = []
        self._due = False
        self._stopping = False
        self._stopped: asyncio.Event | None = None
        self._client: Any = None
        self._entries: dict[str, ServerSetEntry] = {}
        self.agrees = False

    def start(self, status: Status) -> None:
        """Begin to connect, and join the sets of `status` once connected; return at once.

        Raises:
            ConfigError: an initializer cannot be imported, or fails.
        """
        self._client = self._make_client()
        self._entries = {kind: self._make_entry(kind) for kind in ("read", "write")}
        self._stopped = asyncio.Event()
        self._status = status
        self._client.add_listener(self._connection_changed)
        threading.Thread(target=self._run, name="kestrelmq-zookeeper", daemon=True).start()

    def status_changed(self, status: Status, acted: Callable[[], None]) -> None:
        """Join or leave sets as `status` requires; then call `acted` on the event loop."""
        with self._condition:
            self._status = status
            self._acted.append(acted)
            self.agrees = False
            self._due = True
            self._condition.notify()

    async def stop(self, limit: float = 5.0) -> None:
        """Leave every set and disconnect; this takes at most `limit` seconds.

        If ZooKeeper cannot be reached, it drops the members itself when the session times out.
        """
        if self._stopped is None:
            return
        with self._condition:
            self._stopping = True
            self._condition.notify()
        try:
            await asyncio.wait_for(self._stopped.wait(), limit)
        except TimeoutError:
            _log.warning(
                "ZooKeeper does not answer; it drops this server when the session times out"
            )

    def _run(self) -> None:
        """Connect and keep the sets correct, whatever fails, until `stop` is called."""
        started = False
        delay: float | None = 0.0
        while self._wait(delay):
            try:
                if not started:
                    self._client.start_async()
                    started = True
                delay = self._update_sets()
            except Exception:  # noqa: BLE001 # a site's own client may raise anything
                _log.exception("the membership in ZooKeeper failed; trying again")
                delay = _RETRY_AFTER
        self._disconnect()

    def _wait(self, delay: float | None) -> bool:
        """Wait for a possible change, at most `delay` seconds; return False when stopping."""
        with self._condition:
            self._condition.wait_for(lambda: self._due or self._stopping, delay)
            self._due = False
            return not self._stopping

    def _update_sets(self) -> float | None:
        """Make the sets agree with the status; return the seconds until a retry, None for none."""
        if not self._client.connected:
            return None  # the next event of the connection wakes this thread
        with self._condition:
            status, acted = self._status, self._acted
            self._acted = []
        try:
            self._entries["write"].keep(self._member if status.in_write_set else None)
            self._entries["read"].keep(self._member if status.in_read_set else None)
        except (KazooException, TimeoutError, OSError, self._client.handler.timeout_exception) as e:
            _log.warning("ZooKeeper: %s: %s; trying again", type(e).__name__, e)
        except Exception:  # noqa: BLE001 # a site's own set may raise anything
            _log.exception("the server sets could not be updated; trying again")
        else:
            self.agrees = True
            for call in acted:
                self._on_loop(call)
            return None
        with self._condition:
            self._acted = acted + self._acted
        return _RETRY_AFTER

    def _on_loop(self, call: Callable[[], None]) -> None:
        try:
            self._call_soon(call)
        except RuntimeError:
            _log.debug("the event loop has ended")

    def _disconnect(self) -> None:
        # Ending the session deletes its nodes.
        try:
            self._client.stop()
            self._client.close()
        except Exception:  # noqa: BLE001 # the server stops in any case
            _log.warning("the ZooKeeper session did not end cleanly", exc_info=True)
        if self._stopped is not None:
            self._on_loop(self._stopped.set)

    def _wake(self) -> None:
        with self._condition:
            self._due = True
            self._condition.notify()

    def _connection_changed(self, state: KazooState) -> None:
        # Called in kazoo's connection thread, which must not be blocked.
        if state == KazooState.CONNECTED:
            _log.info("connected to ZooKeeper")
            self._wake()
            return
        self.agrees = False
        if not self._stopping:
            lost = "session" if state == KazooState.LOST else "connection"
            _log.warning("ZooKeeper %s lost; reconnecting", lost)

    def _make_client(self) -> Any:
        config = self._config
        if config.client_initializer is not None:
            return _call(config.client_initializer, config)
        secret = config.credentials
        return KazooClient(
            hosts=",".join(config.hosts),
            timeout=config.session_timeout,
            auth_data=None if secret is None else [("digest", secret.get_secret_value())],
            default_acl=_ACLS[config.acl],
            connection_retry=KazooRetry(max_tries=-1, max_delay=_RETRY_AFTER),
        )

    def _make_entry(self, kind: str) -> ServerSetEntry:
        path = f"{self._config.path_prefix.rstrip('/')}/{kind}"
        if self._config.server_set_initializer is not None:
            made: ServerSetEntry = _call(
                self._config.server_set_initializer, self._config, self._client, path
            )
            return made
        return ServerSetNode(self._client, path, self._config.session_timeout, self._wake)


def _call(initializer: str, *arguments: object) -> Any:
    module, _, function = initializer.partition(":")
    try:
        return getattr(importlib.import_module(module), function)(*arguments)
    except Exception as error:
        raise ConfigError(f"[zookeeper] {initializer}: {type(error).__name__}: {error}") from error
