"""The server: what starts and stops, and in which order.

Start: lock and load the queue path, then bind every listener, then say so. Stop: take no more
clients, end those there are (what they hold goes back), write the journals, give up the lock.
"""

import asyncio
import gc
import logging
import resource
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Final

from kestrelmq.clock import TurnClock
from kestrelmq.config import ServerConfig, apply_overrides, changed_globals, load_config
from kestrelmq.engine.collection import QueueCollection
from kestrelmq.engine.stats import Counters
from kestrelmq.errors import ConfigError, KestrelError
from kestrelmq.names import queue_name_error
from kestrelmq.protocol.memcache import Parser
from kestrelmq.server.connection import Connection
from kestrelmq.server.context import ServerContext
from kestrelmq.server.listener import Listener
from kestrelmq.server.logs import set_up_logging
from kestrelmq.server.memcache_session import MemcacheSession
from kestrelmq.server.status import ServerStatus, Status
from kestrelmq.server.turns import Turns

log = logging.getLogger(__name__)

Announce = Callable[[str], None]
_DEADLINES: Final = 0.05
"""Seconds between looks for open reads whose time is up."""


class Server:
    """A kestrelmq server."""

    def __init__(
        self,
        config: ServerConfig,
        announce: Announce,
        *,
        config_file: Path | None = None,
        overrides: dict[str, object] | None = None,
    ) -> None:
        """Prepare; nothing is opened yet.

        Args:
            config: the settings in force, overrides included.
            announce: told one line for each listener, then `ready`.
            config_file: where `config` came from, for `reload`.
            overrides: settings from the command line, put over the file's again at a reload.
        """
        self._config = config
        self._announce = announce
        self._config_file = config_file
        self._overrides = overrides or {}
        self._clock = TurnClock()
        self._collection = QueueCollection(config, self._clock)
        self._turns = Turns(self._clock, self._collection.commits)
        self._counters = Counters()
        self._listeners: list[Listener] = []
        self._stopping: asyncio.Event = asyncio.Event()

    def run(self) -> None:
        """Serve until SIGTERM, SIGINT or a client's `shutdown`.

        Raises:
            KestrelError: the queue path is in use, or a listener cannot be bound.
        """
        _raise_file_limit()
        loop = asyncio.SelectorEventLoop(self._turns)
        try:
            loop.run_until_complete(self._serve(loop))
        finally:
            loop.close()

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        self._collection.open()
        try:
            context = self._new_context(loop)
            for name in ("SIGTERM", "SIGINT"):
                loop.add_signal_handler(getattr(signal, name), self._stopping.set)
            loop.add_signal_handler(signal.SIGHUP, self._hang_up, context)
            self._bind(context)
            self._announce("ready")
            # What is there now stays; the collector need not look at it again and again.
            gc.collect()
            gc.freeze()
            tasks = [asyncio.create_task(task) for task in self._background()]
            await self._stopping.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            context.status.shutdown()
        finally:
            self._stop()

    def _stop(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._turns.syncs.close()
        self._collection.close()

    def _new_context(self, loop: asyncio.AbstractEventLoop) -> ServerContext:
        config = self._config
        status = ServerStatus(
            config.status_path,
            Status.parse(config.default_status),
            config.status_change_grace_period,
            self._clock,
            loop.call_later,
        )
        status.load()
        context = ServerContext(
            config,
            self._collection,
            status,
            self._counters,
            self._turns,
            loop,
            lambda: self._reload(context),
            self._stopping.set,
        )
        return context

    def _bind(self, context: ServerContext) -> None:
        parser = Parser(self._config.memcache_dialect, queue_name_error)

        def memcache(connection: Connection) -> MemcacheSession:
            return MemcacheSession(connection, context, parser)

        for protocol, port, new_session in (
            ("memcache", self._config.memcache_listen_port, memcache),
        ):
            if port is None:
                continue
            listener = Listener(
                protocol,
                self._turns,
                self._counters,
                new_session,
                trace=self._config.enable_session_trace,
            )
            self._listeners.append(listener)
            address = self._config.listen_address
            try:
                host, bound = listener.open(address, port, self._config.connection_backlog)
            except OSError as error:
                raise KestrelError(
                    f"{protocol} cannot listen on {address}:{port}: {error.strerror or error}"
                ) from error
            self._announce(f"{protocol} listening on {host}:{bound}")

    # --- while it runs ---

    def _background(self) -> list[Coroutine[None, None, None]]:
        tasks = [self._watch_deadlines()]
        if self._config.expiration_timer_frequency is not None:
            tasks.append(self._expire(self._config.expiration_timer_frequency))
        if self._config.client_timeout is not None:
            tasks.append(self._close_silent(self._config.client_timeout))
        return tasks

    async def _expire(self, period: float) -> None:
        while True:
            await asyncio.sleep(period)
            self._collection.sweep()

    async def _watch_deadlines(self) -> None:
        while True:
            await asyncio.sleep(_DEADLINES)
            self._collection.abort_overdue()

    async def _close_silent(self, timeout: float) -> None:
        """Close connections from which nothing came between two looks `timeout` apart."""
        seen: dict[Connection, int] = {}
        while True:
            await asyncio.sleep(timeout)
            connections = [one for each in self._listeners for one in each.connections]
            for connection in connections:
                if seen.get(connection) == connection.last_served and not connection.paused:
                    log.info("%s was silent for %s s, closing", connection.peer, timeout)
                    connection.close()
            seen = {one: one.last_served for one in connections}

    def _hang_up(self, context: ServerContext) -> None:
        set_up_logging(self._config)
        try:
            self._reload(context)
        except (ConfigError, OSError) as error:
            log.error("the configuration was not reloaded: %s", error)  # noqa: TRY400

    def _reload(self, context: ServerContext) -> list[str]:
        """Read the configuration file again; return the settings that need a restart."""
        if self._config_file is None:
            return []
        config = apply_overrides(load_config(self._config_file), self._overrides)
        changed = changed_globals(self._config, config)
        for name in changed:
            log.warning("%s changed; it takes a restart to put that in force", name)
        self._collection.reload(config)
        log.info("configuration reloaded")
        return changed


def _raise_file_limit() -> None:
    """Allow as many open files as the system lets us: each client and each queue takes one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
