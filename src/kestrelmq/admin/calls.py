"""Requests to the API, and the operation that serves each.

The table of operations yields both the routes and the OpenAPI document.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import get_annotations
from typing import Any, Final, Literal, TypeVar
from urllib.parse import unquote

from aiohttp import web
from pydantic import BaseModel, ValidationError

from kestrelmq.access.users import User
from kestrelmq.admin.bodies import BodyReader
from kestrelmq.admin.connections import HttpConnection
from kestrelmq.admin.errors import ApiError, busy
from kestrelmq.admin.guard import USER
from kestrelmq.admin.sampling import Sampler
from kestrelmq.admin.sessions import Sessions
from kestrelmq.clock import SystemClock
from kestrelmq.names import queue_name_error
from kestrelmq.protocol.rights import Right
from kestrelmq.queue.queue import Queue
from kestrelmq.server.context import ServerContext
from kestrelmq.server.server_actions import Action

Model = TypeVar("Model", bound=BaseModel)
Result = TypeVar("Result")
Method = Literal["GET", "POST", "PUT", "DELETE"]
ONE: Final = "/queues/{name}"
"""The path of a queue."""
LINES: Final = "application/x-ndjson"
"""The media type of lines of JSON."""
LINES_ACCEPTED: Final = frozenset({LINES, "application/jsonl", "application/json"})
"""The media types that a body of lines may have."""
MAX_TRANSFERS: Final = 8
"""The most exports and imports at the same time."""
now: Final = SystemClock().now
"""Returns the time (ms since the epoch)."""
_BROKEN_ESCAPE: Final = re.compile("%(?![0-9A-Fa-f]{2})")


class LongRequests:
    """Counts the requests of a kind that may take long, and limits how many are served."""

    __slots__ = ("_code", "_count", "_kind", "_most")

    def __init__(self, most: int, kind: str, code: str) -> None:
        """Serve at most `most` at a time, of that `kind`; any more are refused with `code`."""
        self._most = most
        self._kind = kind
        self._code = code
        self._count = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Serve one. Raises ApiError: there are too many."""
        if self._count >= self._most:
            raise busy(self._code, f"{self._most} {self._kind} are being served")
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1


@dataclass(frozen=True, slots=True)
class AdminContext:
    """The parts of the server that the handlers of operations use.

    Attributes:
        context: the server's context.
        sampler: the recent samples of the queues.
        token_needed: whether changes need a token.
        changes_allowed: whether changes can be made at all.
        reserves: the requests to reserve items that are served.
        sessions: those of the console.
        transfers: the exports and imports that are served.
    """

    context: ServerContext
    sampler: Sampler
    token_needed: bool
    changes_allowed: bool
    reserves: LongRequests
    sessions: Sessions
    transfers: LongRequests = field(
        default_factory=lambda: LongRequests(
            MAX_TRANSFERS, "exports and imports", "too_many_transfers"
        )
    )


class Call:
    """One request to an operation."""

    __slots__ = ("_bodies", "admin", "request")

    def __init__(self, admin: AdminContext, request: web.Request, bodies: BodyReader) -> None:
        self.admin = admin
        self.request = request
        self._bodies = bodies

    @property
    def connection(self) -> HttpConnection:
        """The client's connection."""
        connection = self.request.protocol
        assert isinstance(connection, HttpConnection)  # noqa: S101 # the service makes no others
        return connection

    @property
    def name(self) -> str:
        """The queue name in the path. Raises ApiError: it is not a valid queue name."""
        name = self.request.match_info["name"]
        encoded = self.request.rel_url.raw_path
        problem = _encoding_error(encoded, "a queue name") or queue_name_error(name)
        if problem is not None:
            raise ApiError(400, "invalid_queue_name", problem)
        return name

    def queue(self) -> Queue:
        """Return the queue that the path names.

        Raises:
            ApiError: there is no such queue, or the name is not valid.
            QueueUnavailable: the queue cannot be used now.
        """
        name, collection = self.name, self.admin.context.collection
        queue = collection.queues.get(name)
        if queue is not None:
            return queue
        collection.check_usable(name)
        raise ApiError(404, "queue_not_found", f"there is no queue {name}")

    def query(self, model: type[Model]) -> Model:
        """Return the query parameters as a `model`. Raises ApiError: they are not valid."""
        problem = _encoding_error(self.request.rel_url.raw_query_string, "the query")
        if problem is not None:
            raise ApiError(400, "invalid_query", problem)
        given: dict[str, str] = {}
        for key, value in self.request.query.items():
            if key in given:
                raise ApiError(400, "invalid_query", f"{key}: given twice")
            given[key] = value
        try:
            return model.model_validate(given)
        except ValidationError as error:
            raise ApiError(400, "invalid_query", problems(error)) from None

    async def body(self, model: type[Model]) -> Model:
        """Return the body as a `model`. Raises ApiError: it is not valid."""
        received = await self._bodies.read(self.request)
        if self.request.content_type != "application/json":
            raise ApiError(415, "not_json", "the body must be application/json")
        try:
            return model.model_validate_json(received, strict=True)
        except ValidationError as error:
            raise ApiError(400, "invalid_body", problems(error)) from None

    def lines(self) -> AsyncGenerator[list[bytes], None]:
        """Yield the lines of the body as they come, some at a time. Raises ApiError."""
        if self.request.content_type not in LINES_ACCEPTED:
            raise ApiError(415, "not_json", f"the body must be {LINES}")
        return self._bodies.lines(self.request)

    async def while_connected(self, search: Coroutine[Any, Any, Result]) -> Result:
        """Return what `search` returns; it is cancelled if the client disconnects.

        Raises:
            ConnectionError: the client has disconnected.
            ApiError: it has ended its side, which looks alike, or the server is shutting down.
        """
        task = asyncio.ensure_future(search)
        try:
            with self.connection.waiting(task.cancel, lambda: None):
                return await task
        except (asyncio.CancelledError, ConnectionError):
            if self.connection.transport is None:
                raise ConnectionResetError from None
            if self.connection.may_be_gone:
                reason = "a client that searches must not end its side of the connection"
                raise ApiError(400, "bad_request", reason) from None
            raise ApiError(503, "shutting_down", "the server is shutting down") from None
        finally:
            task.cancel()

    @property
    def user(self) -> User | None:
        """Who sends the request; None where there are no users."""
        user: User | None = self.request.get(USER)
        return user

    def sees(self, queue: str) -> bool:
        """Whether lists of queues have this one for the client."""
        return self.user is None or self.user.may(queue, write=False)

    def check(self, asked: object) -> None:
        """Check the rights that a request of `protocol/rights.py` takes: it names other queues.

        Raises:
            ClientForbidden: the client may not make it.
        """
        self.admin.context.check_rights(self.user, asked)


def _encoding_error(encoded: str, what: str) -> str | None:
    """Return why a part of the address cannot be decoded, or None if it can.

    The router does not check this: it leaves what it cannot decode as it is, or replaces it.
    """
    if _BROKEN_ESCAPE.search(encoded):
        return f"a '%' in {what} must be followed by two hexadecimal digits"
    try:
        unquote(encoded, errors="strict")
    except UnicodeDecodeError:
        return f"{what} must be valid UTF-8"
    return None


def problems(error: ValidationError) -> str:
    """Describe all errors of a validation in one line."""
    found = []
    for detail in error.errors(include_url=False, include_input=False, include_context=False):
        where = ".".join(str(step) for step in detail["loc"])
        found.append(f"{where}: {detail['msg']}" if where else str(detail["msg"]))
    return "; ".join(found)


ApiHandler = Callable[..., Awaitable[BaseModel | web.StreamResponse | None]]
"""Takes a call, and as `query` or `body` what came with it; a response that it returns is sent."""


@dataclass(frozen=True, slots=True)
class ApiOperation:
    """One operation of the API.

    Attributes:
        method, path: its HTTP method and path; `{name}` in the path stands for a queue name, `{id}`
            for the number of a client.
        tag: its group in the document.
        right: the right that it takes. One for queues is for that in the path; if the body names
            the queues, the handler checks it with `Call.check`.
        serve: the handler; the first line of its docstring is the summary in the document.
        answer: the model of its reply; None if the reply has no body.
        query, body: the models of its query parameters and its request body.
        statuses: the HTTP statuses of success.
        failures: the HTTP statuses of errors that only some operations return.
        secret: whether it needs a token (where tokens are configured) although it only reads.
        sends_lines, takes_lines: whether its reply, or the request's body, are lines of JSON.
        action: the action on the whole server that it carries out, if any.
        is_traffic: whether it puts items or reads them, as programs do all the time. It is logged
            at DEBUG then; any other change at INFO.
    """

    method: Method
    path: str
    tag: str
    right: Right
    serve: ApiHandler
    answer: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    body: type[BaseModel] | None = None
    statuses: tuple[int, ...] = (200,)
    failures: tuple[int, ...] = ()
    secret: bool = False
    sends_lines: bool = False
    takes_lines: bool = False
    action: Action | None = None
    is_traffic: bool = False

    @property
    def changes(self) -> bool:
        """Whether it changes anything."""
        return self.method != "GET"


def operation(
    method: Method, path: str, tag: str, right: Right, **more: Any
) -> Callable[[ApiHandler], ApiOperation]:
    """Return a decorator that makes an operation of a handler.

    The handler's annotations are the models of its query, its body and its answer. `more` are other
    attributes of the operation, such as the answer of a handler that sends this itself.
    """

    def made(serve: ApiHandler) -> ApiOperation:
        models = get_annotations(serve)
        answer = models["return"]
        if answer is None:
            found = {"statuses": (204,)}
        else:
            found = {"answer": answer} if issubclass(answer, BaseModel) else {}
        found |= {name: models[name] for name in ("query", "body") if name in models}
        return ApiOperation(method, path, tag, right, serve, **found | more)

    return made


def json_response(answer: BaseModel, status: int) -> web.Response:
    """Return `answer` as an HTTP response."""
    return web.Response(
        body=answer.__pydantic_serializer__.to_json(answer),
        status=status,
        content_type="application/json",
    )


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of `model`; it refers to nested models as OpenAPI components."""
    return model.model_json_schema(ref_template="#/components/schemas/{model}")
