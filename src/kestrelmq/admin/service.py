"""The admin service: HTTP, on a port and a Unix socket, for the API, the metrics and the console.

It runs in the server's event loop and keeps nothing that must survive a crash.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from kestrelmq.admin.calls import AdminContext, LongRequests
from kestrelmq.admin.connections import (
    Connections,
    HttpConnection,
    TlsBeforeHttp,
    marked_as_serving,
)
from kestrelmq.admin.console import add_console
from kestrelmq.admin.endpoints import Endpoints
from kestrelmq.admin.errors import errors_as_json
from kestrelmq.admin.events import QueueEvents
from kestrelmq.admin.guard import Guard, guarded, marked
from kestrelmq.admin.headers import add_headers
from kestrelmq.admin.operations import add_operations
from kestrelmq.admin.sampling import Sampler
from kestrelmq.admin.sessions import Sessions
from kestrelmq.protocol.rights import Right
from kestrelmq.server.context import ServerContext
from kestrelmq.server.listener import Exhaustion
from kestrelmq.server.loop.background import kept_running
from kestrelmq.server.server_actions import is_loopback
from kestrelmq.server.sockets import Endpoint, ListeningSocket, TcpEndpoint, endpoints

STATIC: Final = Path(__file__).parent / "static"


class AdminService:
    """Serves HTTP from `open` to `close`."""

    name = "admin"

    def __init__(self) -> None:
        self._runner: web.AppRunner | None = None
        self._listening: list[ListeningSocket] = []
        self._servers: list[asyncio.Server] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._events: QueueEvents | None = None
        self._connections: Connections | None = None

    async def open(self, context: ServerContext) -> Sequence[Endpoint]:
        """Listen as the configuration says; return where, which is nowhere if it is turned off.

        Raises:
            CannotListen: an endpoint cannot be used.
        """
        config = context.config
        wanted = endpoints(config, "admin")
        if not wanted:
            return ()
        sampler = Sampler(context)
        self._connections = connections = Connections(context.admission)
        # They may wait, and must leave connections for others.
        reserves = LongRequests(
            connections.most // 2, "requests to reserve items", "too_many_reserves"
        )
        is_local = is_loopback(config.addresses.get(self.name, ""))
        admin = AdminContext(
            context,
            sampler,
            token_needed=bool(config.admin_tokens),
            changes_allowed=bool(config.admin_tokens)
            or is_local
            or config.admin_listen_path is not None,
            reserves=reserves,
            sessions=Sessions(context.users, config.admin_http_port or 0),
        )
        self._events = QueueEvents(admin)
        app = self._application(admin, self._events, Guard(context, admin.sessions))
        self._runner = runner = web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()

        server = runner.server
        if server is None:
            raise RuntimeError("a runner that was set up has a server")

        def connected() -> HttpConnection:
            return HttpConnection(connections, server)

        def connected_to_port() -> HttpConnection | TlsBeforeHttp:
            tls = context.certificates.context(self.name)
            return connected() if tls is None else TlsBeforeHttp(connected(), connections, tls)

        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_errors_of_accept(Exhaustion(self.name)))
        for endpoint in wanted:
            listening = ListeningSocket(endpoint, config.connection_backlog)
            self._listening.append(listening)
            # asyncio also uses the backlog as the number of times it calls accept in a row, also
            # after one that failed for lack of descriptors. So it is given 1, and the socket is
            # then set to the configured backlog again.
            factory = connected_to_port if isinstance(endpoint, TcpEndpoint) else connected
            self._servers.append(
                await loop.create_server(factory, sock=listening.socket, backlog=1)
            )
            listening.socket.listen(config.connection_backlog)
        self._tasks = [
            loop.create_task(kept_running(run)) for run in (sampler.run, connections.watch)
        ]
        return [listening.endpoint for listening in self._listening]

    @staticmethod
    def _application(admin: AdminContext, events: QueueEvents, guard: Guard) -> web.Application:
        app = web.Application(
            middlewares=[marked_as_serving, errors_as_json, guarded(guard)],  # type: ignore[list-item]
        )
        app.on_response_prepare.append(add_headers)
        add_operations(app, admin)
        Endpoints(admin.context).add_to(app)
        app.router.add_get("/api/v1/events", marked(events.serve, Right.SIGNED_IN))
        add_console(app, STATIC)
        return app

    async def close(self) -> None:
        """Stop every request and every listening."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listening in self._listening:
            listening.remove()
        for server in self._servers:
            server.close()
        for listening in self._listening:
            listening.close()
        if self._events is not None:
            self._events.close()
        if self._connections is not None:
            self._connections.end_waits()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None


def _errors_of_accept(
    exhaustion: Exhaustion,
) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Return a handler of the loop's errors that leaves those of `accept` to `exhaustion`.

    asyncio tries to accept once a second while descriptors lack, and reports each failure.
    """

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and "socket" in context:
            exhaustion.log(error)
        else:
            loop.default_exception_handler(context)

    return handle
