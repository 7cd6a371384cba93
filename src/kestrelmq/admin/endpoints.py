"""The routes outside the API's operations: Ostrich's, health, metrics and the OpenAPI document."""

from aiohttp import web

from kestrelmq.admin import openapi, ostrich
from kestrelmq.admin.errors import ApiError, Handler
from kestrelmq.admin.guard import SERVER_ACTION
from kestrelmq.admin.health import health_of
from kestrelmq.admin.large_replies import LargeReplies
from kestrelmq.admin.prometheus import CONTENT_TYPE, Exposition
from kestrelmq.admin.serverwide import config_in_force
from kestrelmq.names import MAX_NAME_BYTES
from kestrelmq.server.context import ServerContext
from kestrelmq.server.loop.threads import in_thread
from kestrelmq.server.requests import changes
from kestrelmq.server.status import Status

_PLAIN = "text/plain; charset=utf-8"
_MOST_PATTERNS = 20
"""Most patterns of queue names in one request for metrics."""


class Endpoints:
    """Serves the routes that are not operations of the API."""

    __slots__ = ("_context", "_exposition", "_large", "_ostrich")

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._large = LargeReplies()
        self._ostrich = ostrich.Ostrich(context)
        self._exposition = Exposition(context)

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        for path, read in (
            ("/stats", self._stats_json),
            ("/stats.json", self._stats_json),
            ("/stats.txt", self._stats_text),
            ("/ping", self._ping),
            ("/ping.json", self._ping_json),
            ("/ping.txt", self._ping),
            ("/server_info", self._server_info),
            ("/server_info.json", self._server_info),
            ("/server_info.txt", self._server_info_text),
            ("/config.json", self._config),
            ("/health", self._health),
            ("/health/live", self._live),
            ("/health/ready", self._ready),
            ("/metrics", self._metrics),
            ("/api/v1/openapi.json", self._openapi),
        ):
            app.router.add_get(path, read)
        for path, change, action in (
            ("/reload", self._reload, "reload"),
            ("/quiesce", self._quiesce, "status"),
            ("/shutdown", self._shutdown, "shutdown"),
        ):
            app.router.add_post(path, _marked(change, action))

    async def _stats_json(self, request: web.Request) -> web.StreamResponse:
        period = ostrich.read_period(request.query.get("period"))
        return await self._large.send(
            request,
            "application/json",
            lambda: self._ostrich.rendered(period, ostrich.as_json),
        )

    async def _stats_text(self, request: web.Request) -> web.StreamResponse:
        period = ostrich.read_period(request.query.get("period"))
        return await self._large.send(
            request, _PLAIN, lambda: self._ostrich.rendered(period, ostrich.as_text)
        )

    async def _ping(self, _request: web.Request) -> web.Response:
        return web.Response(text="pong\n")

    async def _ping_json(self, _request: web.Request) -> web.Response:
        return web.json_response({"response": "pong"})

    async def _server_info(self, _request: web.Request) -> web.Response:
        return web.json_response(ostrich.server_info(self._context))

    async def _server_info_text(self, _request: web.Request) -> web.Response:
        info = ostrich.server_info(self._context)
        return web.Response(text="".join(f"{name}: {value}\n" for name, value in info.items()))

    async def _config(self, _request: web.Request) -> web.Response:
        return web.json_response(config_in_force(self._context))

    async def _health(self, _request: web.Request) -> web.Response:
        health = await health_of(self._context)
        return web.json_response(health.as_json(), status=200 if health.is_ready else 503)

    async def _live(self, _request: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def _ready(self, _request: web.Request) -> web.Response:
        health = await health_of(self._context)
        body = {"ready": health.is_ready, "status": health.status, "reasons": health.reasons}
        return web.json_response(body, status=200 if health.is_ready else 503)

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        patterns = request.query.getall("queues", [])
        if len(patterns) > _MOST_PATTERNS or any(len(one) > MAX_NAME_BYTES for one in patterns):
            raise ApiError(
                400,
                "invalid_query",
                f"queues: at most {_MOST_PATTERNS} patterns of up to {MAX_NAME_BYTES} characters",
            )
        return await self._large.send(
            request, CONTENT_TYPE, lambda: self._exposition.render(patterns)
        )

    async def _openapi(self, _request: web.Request) -> web.Response:
        # The first one takes as long as many turns.
        document = await in_thread(openapi.encoded_document)
        return web.Response(body=document, content_type="application/json")

    async def _reload(self, _request: web.Request) -> web.Response:
        await changes.reload(self._context)
        return web.Response(text="ok\n")

    async def _quiesce(self, _request: web.Request) -> web.Response:
        self._context.status.set(Status.QUIESCENT)
        return web.Response(text="ok\n")

    async def _shutdown(self, _request: web.Request) -> web.Response:
        # Wait so that the reply is sent first.
        self._context.loop.call_later(0.1, self._context.shutdown)
        return web.Response(text="ok\n")


def _marked(serve: Handler, action: str) -> Handler:
    """Return a handler that calls `serve`, marked with the server action that it carries out."""

    async def handler(request: web.Request) -> web.StreamResponse:
        return await serve(request)

    setattr(handler, SERVER_ACTION, action)
    return handler
