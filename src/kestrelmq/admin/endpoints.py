"""The routes outside the API's operations: Ostrich's, health, metrics and the OpenAPI document."""

from aiohttp import web

from kestrelmq.access.users import NOBODY
from kestrelmq.admin import openapi, ostrich
from kestrelmq.admin.errors import ApiError
from kestrelmq.admin.guard import USER, marked
from kestrelmq.admin.health import health_of
from kestrelmq.admin.large_replies import LargeReplies
from kestrelmq.admin.prometheus import CONTENT_TYPE, Exposition
from kestrelmq.admin.serverwide import config_in_force
from kestrelmq.names import MAX_NAME_BYTES
from kestrelmq.protocol.rights import Right
from kestrelmq.server.context import ServerContext
from kestrelmq.server.loop.threads import in_thread
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
        for path, read, right in (
            ("/stats", self._stats_json, Right.SIGNED_IN),
            ("/stats.json", self._stats_json, Right.SIGNED_IN),
            ("/stats.txt", self._stats_text, Right.SIGNED_IN),
            ("/ping", self._ping, Right.ANYONE),
            ("/ping.json", self._ping_json, Right.ANYONE),
            ("/ping.txt", self._ping, Right.ANYONE),
            ("/server_info", self._server_info, Right.SIGNED_IN),
            ("/server_info.json", self._server_info, Right.SIGNED_IN),
            ("/server_info.txt", self._server_info_text, Right.SIGNED_IN),
            ("/config.json", self._config, Right.ADMIN),
            ("/health", self._health, Right.ANYONE),
            ("/health/live", self._live, Right.ANYONE),
            ("/health/ready", self._ready, Right.ANYONE),
            ("/metrics", self._metrics, Right.SIGNED_IN),
            ("/api/v1/openapi.json", self._openapi, Right.ANYONE),
        ):
            app.router.add_get(path, marked(read, right))
        app.router.add_post("/reload", marked(self._reload, Right.ADMIN, action="reload"))
        app.router.add_post("/quiesce", marked(self._quiesce, Right.ADMIN, action="status"))
        app.router.add_post("/shutdown", marked(self._shutdown, Right.ADMIN, action="shutdown"))

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
        # Byte for byte as from Ostrich: some compare the text.
        return web.Response(text='{"response":"pong"}', content_type="application/json")

    async def _server_info(self, _request: web.Request) -> web.Response:
        return web.json_response(ostrich.server_info(self._context))

    async def _server_info_text(self, _request: web.Request) -> web.Response:
        info = ostrich.server_info(self._context)
        return web.Response(text="".join(f"{name}: {value}\n" for name, value in info.items()))

    async def _config(self, _request: web.Request) -> web.Response:
        return web.json_response(config_in_force(self._context))

    async def _health(self, request: web.Request) -> web.Response:
        health = await health_of(self._context)
        body = health.as_json()
        if request[USER] is NOBODY:  # the reasons name queues
            del body["reasons"], body["problems"]
        return web.json_response(body, status=200 if health.is_ready else 503)

    async def _live(self, _request: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def _ready(self, request: web.Request) -> web.Response:
        health = await health_of(self._context)
        body: dict[str, object] = {"ready": health.is_ready, "status": health.status}
        if request[USER] is not NOBODY:
            body["reasons"] = health.reasons
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
        left = await self._context.reload()
        return web.Response(text="".join(f"{one}\n" for one in ("ok", *left)))

    async def _quiesce(self, _request: web.Request) -> web.Response:
        self._context.status.set(Status.QUIESCENT)
        return web.Response(text="ok\n")

    async def _shutdown(self, _request: web.Request) -> web.Response:
        # Wait so that the reply is sent first.
        self._context.loop.call_later(0.1, self._context.shutdown)
        return web.Response(text="ok\n")
