"""The server: starts and stops its parts in order.

Start: lock the queue path and load it, bind every listener, announce the listeners. Queues that
take long go on loading after that. Stop: close the services, accept no more clients, close the
connections (their open reads are given back), cancel the tasks, end the loading, write the
journals, release the lock. Whatever could begin new work ends before the work does.
"""

import asyncio
import gc
import logging
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from kestrelmq.access.users import NOBODY, User, Users
from kestrelmq.clock import TurnClock
from kestrelmq.config import ServerConfig, apply_overrides, changed_globals, load_config
from kestrelmq.errors import ConfigError, KestrelError
from kestrelmq.names import queue_name_error
from kestrelmq.protocol.memcache import Parser
from kestrelmq.queues.collection import QueueCollection
from kestrelmq.queues.counters import Counters
from kestrelmq.queues.startup import StartUp
from kestrelmq.scheduling.worker import InlineWorker, ThreadWorker, Worker
from kestrelmq.server.advertise import ENDPOINT_NAMES, advertised_host, member_data
from kestrelmq.server.certificates import Certificates, load_context
from kestrelmq.server.clients import close_removed, close_silent, close_unsigned
from kestrelmq.server.connection import Connection, Session
from kestrelmq.server.context import ServerContext
from kestrelmq.server.listener import Listener, SessionFactory
from kestrelmq.server.logs import reopen_log
from kestrelmq.server.long_reply import in_slices
from kestrelmq.server.loop.background import BackgroundTask, kept_running
from kestrelmq.server.loop.event_loop import ServerEventLoop
from kestrelmq.server.loop.threads import NoThread, in_thread
from kestrelmq.server.loop.turns import TurnLoop
from kestrelmq.server.membership import ServerSetMembership
from kestrelmq.server.memory_return import MOST_COLLECTED, MemoryReturn, find_trim
from kestrelmq.server.path_watcher import PathWatcher
from kestrelmq.server.server_actions import check_reachable
from kestrelmq.server.service_manager import ServiceManager
from kestrelmq.server.sessions.memcache import MemcacheSession
from kestrelmq.server.sessions.signing_in import SigningInSession
from kestrelmq.server.sessions.text import TextSession
from kestrelmq.server.sessions.thrift import ThriftSession
from kestrelmq.server.sessions.thrift_reads import ThriftOpenReads
from kestrelmq.server.sockets import CannotListen, Endpoint, TcpEndpoint, endpoints
from kestrelmq.server.status import ServerStatus, Status
from kestrelmq.server.tls import Handshakes
from kestrelmq.version import BUILD, VERSION

log = logging.getLogger(__name__)

Announce = Callable[[str], None]
_TIMER_PERIOD: Final = 0.05
"""Seconds between checks for open reads whose time is up and for periodic syncs."""
_SWITCH_INTERVAL: Final = 0.0001
"""Seconds after which a thread that holds the interpreter lock must yield it to the loop."""
_LOAD_TIMEOUT: Final = 0.75
"""Seconds that listing and loading the queues may take before the loaded ones are served."""
_FULL_COLLECTION_THRESHOLD: Final = 1000
"""The garbage collector's third threshold: collections of the middle generation before one of all
objects. There are a few of them a second."""
_COLLECTIONS_PER_UPKEEP: Final = 4
_DISK_PERIOD: Final = 1.0
"""Seconds between looks at how much room there is on the disk."""
_UPKEEP_PERIOD: Final = 1.0
"""Seconds between checks of the journals of idle queues."""


class Service(Protocol):
    """What runs in the server's loop beside the client listeners, such as the admin service.

    It opens after the listeners and closes before them.

    Attributes:
        name: its name in `NAME listening on ENDPOINT`.
    """

    name: str

    async def open(self, context: ServerContext) -> Sequence[Endpoint]:
        """Open; return where it listens, which is nowhere when it is turned off.

        Raises:
            CannotListen: an endpoint cannot be used.
        """

    async def close(self) -> None:
        """Stop, and release the port; may be called when `open` failed."""


class Server:
    """A kestrelmq server."""

    def __init__(
        self,
        config: ServerConfig,
        announce: Announce,
        *,
        config_file: Path | None = None,
        overrides: dict[str, object] | None = None,
        advertise: Callable[[str], str] = advertised_host,
        services: Sequence[Service] = (),
        wait: bool = False,
    ) -> None:
        """Prepare; nothing is opened yet.

        Args:
            config: the settings in force, overrides included.
            announce: called with one line for each listener and the console, then with `ready`.
            config_file: the file that `config` came from, for `reload`.
            overrides: settings from the command line; a reload applies them again.
            advertise: returns the host to announce in ZooKeeper for a listener's address.
            services: the services to run beside the client listeners.
            wait: serve no clients until every queue is loaded, however long that takes.
        """
        self._config = config
        self._announce = announce
        self._config_file = config_file
        self._overrides = overrides or {}
        self._services = services
        self._advertise = advertise
        self._hosts: dict[str, str] = {}
        self._clock = TurnClock()
        self._collection = QueueCollection(config, self._clock)
        self._turns = TurnLoop(self._clock, self._collection.commits)
        self._parser = Parser(config.memcache_dialect, queue_name_error)
        self._writer: Worker = InlineWorker()
        self._counters = Counters()
        self._users = Users()
        self._password_worker: Worker = InlineWorker()
        self._listeners: list[Listener] = []
        self._connections: dict[int, Connection] = {}
        self._certificates = Certificates()
        self._handshakes = Handshakes()
        self._ports: dict[str, int] = {}
        self._endpoints: dict[str, list[str]] = {}
        self._urls: list[str] = []
        self._stopping: asyncio.Event = asyncio.Event()
        self._wait = wait
        self._service_manager = ServiceManager()
        self._reloading = asyncio.Lock()
        self._reloads: set[asyncio.Task[None]] = set()
        self._watcher = PathWatcher(self._turns, config.queue_path, self._collection.check_path)

    def run(self) -> None:
        """Serve until SIGTERM, SIGINT or a client's `shutdown`.

        Raises:
            KestrelError: the queue path is in use, or a listener cannot be bound.
            ConfigError: the server cannot be announced in ZooKeeper; users cannot sign in as the
                configuration says, or there are none where they are needed; a file of `[tls]`
                cannot be used.
        """
        check_reachable(self._config)
        self._put_users_in_force(self._users.load(self._config))
        self._certificates.put_in_force(self._config, load_context(self._config))
        if self._config.zookeeper is not None:
            found = self._config.addresses
            hosts = {name: found[name] for name in ENDPOINT_NAMES if name in found}
            self._hosts = {name: self._advertise(address) for name, address in hosts.items()}
        _raise_file_limit()
        # The longest wait of the loop for a thread that packs a journal or runs an fsync.
        sys.setswitchinterval(_SWITCH_INTERVAL)
        loop = ServerEventLoop(self._turns.selector)
        try:
            loop.run_until_complete(self._serve(loop))
        finally:
            loop.close()

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        self._collection.commits.worker = ThreadWorker(loop.call_soon_threadsafe)
        self._writer = ThreadWorker(loop.call_soon_threadsafe)
        self._password_worker = ThreadWorker(
            loop.call_soon_threadsafe, "passwords", in_background=False
        )
        self._collection.commits.writer = self._writer
        self._collection.deletions.worker = self._collection.registry.worker = self._writer
        _keep_old_objects()
        begun = loop.time()
        loaded = asyncio.Event()
        start_up = StartUp(
            self._collection,
            ThreadWorker(loop.call_soon_threadsafe),
            self._clock,
            loaded.set,
            events=lambda: self._turns.served,
        )
        try:
            start_up.begin()
        except OSError as error:
            raise KestrelError(f"the queue path cannot be used: {error}") from error
        self._collection.guard.watched = self._watcher.open()
        try:
            for name in ("SIGTERM", "SIGINT"):
                loop.add_signal_handler(getattr(signal, name), self._stopping.set)
            loop.add_signal_handler(signal.SIGHUP, self._on_sighup)
            wait = None if self._wait else max(0.0, begun + _LOAD_TIMEOUT - loop.time())
            await _wait_for_either(loaded, self._stopping, wait)
            start_up.gently = True
            if not self._stopping.is_set():
                await self._serve_clients(self._new_context(loop), loaded)
        finally:
            for service in self._services:
                await service.close()
            self._cut_off_clients()
            await _cancel_other_tasks()
            start_up.stop()
            self._stop()

    async def _serve_clients(self, context: ServerContext, loaded: asyncio.Event) -> None:
        self._collection.disk_space.read()
        self._collection.look_at_disk()
        self._bind(context)
        await self._open_services(context)
        membership = self._join(context)
        gc.freeze()
        self._log_start()
        for name, found in self._endpoints.items():
            for endpoint in found:
                self._announce(f"{name} listening on {endpoint}")
        for url in self._urls:
            self._announce(f"console at {url}")
        self._announce("ready")
        self._service_manager.ready()
        tasks = [asyncio.create_task(kept_running(task)) for task in self._background(context)]
        if not loaded.is_set():
            tasks.append(asyncio.create_task(self._log_when_loaded(loaded)))
        await self._stopping.wait()
        self._service_manager.stopping()
        context.actions.log_counts()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        context.status.shutdown()
        if membership is not None:
            await membership.stop()

    async def _log_when_loaded(self, loaded: asyncio.Event) -> None:
        log.info(
            "%d queues are still loading; the others are served", len(self._collection.loading)
        )
        await loaded.wait()
        gc.freeze()
        log.info("every queue is loaded")

    def _cut_off_clients(self) -> None:
        """Serve no client any more: a request could begin a task, which nobody would cancel."""
        for listener in self._listeners:
            listener.stop_accepting()
        self._handshakes.close()
        for connection in list(self._connections.values()):
            connection.close()

    def _stop(self) -> None:
        self._watcher.close()
        self._writer.close()
        self._password_worker.close()
        self._turns.close()
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
        return ServerContext(
            config,
            self._collection,
            status,
            self._counters,
            self._turns,
            self._writer,
            loop,
            self._reload,
            self._stopping.set,
            self._connections,
            self._certificates,
            users=self._users,
            password_worker=self._password_worker,
        )

    def _put_users_in_force(self, found: Mapping[str, User]) -> None:
        self._users.put_in_force(found)
        self._collection.views = self._users.views
        close_removed(self._connections, self._users)

    def _bind(self, context: ServerContext) -> None:
        parser = self._parser
        thrift_reads = ThriftOpenReads()

        def signed_in(connection: Connection) -> Session:
            return MemcacheSession(connection, context, parser)

        def memcache(connection: Connection) -> Session:
            if connection.user is NOBODY:
                return SigningInSession(connection, context, parser, signed_in)
            return signed_in(connection)

        def text(connection: Connection) -> TextSession:
            return TextSession(connection, context)

        def thrift(connection: Connection) -> ThriftSession:
            return ThriftSession(connection, context, thrift_reads)

        sessions: tuple[tuple[str, SessionFactory], ...] = (
            ("memcache", memcache),
            ("text", text),
            ("thrift", thrift),
        )
        for protocol, new_session in sessions:
            for endpoint in endpoints(self._config, protocol):
                self._listen(context, protocol, endpoint, new_session)

    def _listen(
        self,
        context: ServerContext,
        protocol: str,
        endpoint: Endpoint,
        new_session: SessionFactory,
    ) -> None:
        listener = Listener(
            protocol,
            self._turns,
            self._counters,
            self._connections,
            new_session,
            context.admission,
            self._certificates,
            self._handshakes,
            users=self._users,
            trace=self._config.enable_session_trace,
        )
        self._listeners.append(listener)
        try:
            bound = listener.open(endpoint, self._config.connection_backlog)
        except CannotListen as error:
            raise KestrelError(f"{protocol} {error}") from error
        if isinstance(bound, TcpEndpoint):
            self._ports[protocol] = bound.port
        self._endpoints.setdefault(protocol, []).append(str(bound))

    def _join(self, context: ServerContext) -> ServerSetMembership | None:
        """Announce the server in ZooKeeper, if that is configured."""
        config = self._config.zookeeper
        if config is None:
            return None
        member = member_data(
            {name: (host, self._ports[name]) for name, host in self._hosts.items()}
        )
        membership = ServerSetMembership(config, member, context.loop.call_soon_threadsafe)
        context.status.listener = membership.status_changed
        membership.start(context.status.status)
        return membership

    async def _open_services(self, context: ServerContext) -> None:
        for service in self._services:
            try:
                bound = await service.open(context)
            except CannotListen as error:
                raise KestrelError(f"{service.name} {error}") from error
            if bound:
                self._endpoints[service.name] = [str(endpoint) for endpoint in bound]
            tls = self._config.tls
            secure = tls is not None and service.name in tls.listeners
            self._urls += [one.url(secure=secure) for one in bound if isinstance(one, TcpEndpoint)]

    def _log_start(self) -> None:
        """Log what started, and where."""
        path = self._config.queue_path
        listeners = {name: " and ".join(found) for name, found in self._endpoints.items()}
        log.info(
            "kestrelmq %s serves the queue path %s, %s; %s",
            VERSION,
            path,
            BUILD,
            ", ".join(f"{name} on {address}" for name, address in listeners.items())
            or "there is no listener",
            extra={
                "version": VERSION,
                "build": BUILD,
                "queue_path": str(path),
                "listeners": listeners,
            },
        )

    # --- while it runs ---

    def _background(self, context: ServerContext) -> list[BackgroundTask]:
        upkeep = partial(self._do_upkeep, context.actions.log_counts)
        unsigned = partial(close_unsigned, self._connections)
        tasks: list[BackgroundTask] = [
            self._run_timers,
            upkeep,
            self._watch_disk,
            unsigned,
            self._handshakes.watch,
        ]
        if self._service_manager.is_watching:
            tasks.append(self._service_manager.show_life)
        trim = find_trim()
        if trim is not None:
            tasks.append(self._memory_return(trim).run)
        if self._config.expiration_timer_frequency is not None:
            tasks.append(partial(self._sweep, self._config.expiration_timer_frequency))
        limits = (self._config.client_timeout, self._config.idle_timeout)
        if found := [limit for limit in limits if limit is not None]:
            tasks.append(partial(close_silent, self._connections, min(found)))
        return tasks

    async def _sweep(self, period: float) -> None:
        while True:
            await asyncio.sleep(period)
            await in_slices(self._collection.sweeping(), self._turns)

    async def _run_timers(self) -> None:
        """Serve the deadlines and run the syncs that are due; wait while there are neither."""
        commits, loop = self._collection.commits, asyncio.get_running_loop()
        timed = asyncio.Event()
        commits.on_timer_needed = timed.set
        while True:
            if not commits.needs_timer:
                timed.clear()
                await timed.wait()
            await asyncio.sleep(_TIMER_PERIOD)
            await in_slices(self._collection.checking_deadlines(), self._turns)
            commits.syncs.request(commits.syncs.take_due(loop.time()))

    async def _do_upkeep(self, log_counts: Callable[[], None]) -> None:
        """Do the upkeep of the log and the journals, and spare the garbage collector long queues.

        A collection takes 20 ms for a million items in the queues that it checks. So this makes a
        queue an old object before it can become long; see `_keep_old_objects`.
        """
        while True:
            for _ in range(_COLLECTIONS_PER_UPKEEP):
                await asyncio.sleep(_UPKEEP_PERIOD / _COLLECTIONS_PER_UPKEEP)
                gc.collect(1)
            log_counts()
            await in_slices(self._collection.ticking(), self._turns)

    async def _watch_disk(self) -> None:
        """Read the room on the disk, in a thread: it may be on another machine and slow."""
        while True:
            await asyncio.sleep(_DISK_PERIOD)
            with suppress(NoThread):  # the numbers stay as they are
                await in_thread(self._collection.disk_space.read)
            self._collection.look_at_disk()

    def _memory_return(self, trim: Callable[[int], int]) -> MemoryReturn:
        turns = self._turns
        return MemoryReturn(
            trim, lambda: turns.served + turns.turn_count, self._living, self._parser.forget
        )

    def _living(self) -> int:
        """Return how many queues, connections and, if these are few, items there are in memory."""
        queues = self._collection.queues.values()
        count = len(queues) + len(self._connections)
        if count < MOST_COLLECTED:
            count += sum(queue.held_items for queue in queues)
        return count

    def _on_sighup(self) -> None:
        if self._stopping.is_set():
            return
        task = asyncio.create_task(self._reload_and_log())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def _reload_and_log(self) -> None:
        try:
            reopen_log(self._config)
            await self._reload()
        except (KestrelError, OSError) as error:
            log.error("not reloaded, or only in part: %s", error)  # noqa: TRY400
        except Exception:
            log.exception("not reloaded, or only in part")

    async def _reload(self) -> list[str]:
        """Read the configuration file again; return the settings that need a restart.

        Raises:
            ConfigError: the file, or one that `[tls]` names, cannot be used, and nothing changed.
            NoThread: the system has no room for a thread, and nothing changed.
        """
        if self._config_file is None:
            return []
        async with self._reloading:
            try:
                loaded = await in_thread(load_config, self._config_file)
            except OSError as error:
                raise ConfigError(str(error)) from None
            config = apply_overrides(loaded, self._overrides)
            check_reachable(config)
            users = await in_thread(self._users.load, config)
            tls = await in_thread(load_context, config)
            changed = changed_globals(self._config, config)
            for name in changed:
                log.warning("%s changed; it takes a restart to put that in force", name)
            self._put_users_in_force(users)
            self._certificates.put_in_force(config, tls)
            staying = await in_slices(self._collection.reloading(config), self._turns)
            for one in staying:
                log.warning("not put in force: %s", one)
        log.info("configuration reloaded")
        return [*changed, *staying]


async def _wait_for_either(one: asyncio.Event, other: asyncio.Event, seconds: float | None) -> None:
    """Wait for one of two events, at most `seconds`; None waits for ever."""
    tasks = [asyncio.create_task(event.wait()) for event in (one, other)]
    await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


async def _cancel_other_tasks() -> None:
    """Cancel the tasks that still run: requested changes that are not answered yet."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _keep_old_objects() -> None:
    """Keep the garbage collector from checking again and again what stays.

    The objects that exist now are not checked any more, and other old ones very rarely: there may
    be very many, first of all the queues that are being loaded.
    """
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _FULL_COLLECTION_THRESHOLD)


def _raise_file_limit() -> None:
    """Raise the limit of open files to the maximum: each client and each queue takes one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
