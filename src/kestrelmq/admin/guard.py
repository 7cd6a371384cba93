"""Access control for HTTP requests.

- Only POST, PUT and DELETE requests change anything. The rules below hold for these.
- Such a request must not come from a page of another origin, nor must one that reads items: it may
  search. Browsers say where a request comes from (`Sec-Fetch-Site`, `Origin`); a request without
  these headers does not come from a browser.
- With `admin_tokens`, such a request needs a token, and so does a request that reads items.
- Without `admin_tokens`, such a request is served only over a Unix socket, or if the port is on a
  loopback address and the request uses a name of this machine. So a page of another origin that
  resolves its own name to 127.0.0.1 is refused. With `allow_remote_admin`, actions on the whole
  server are served on any address.
- Where there are users, the rules above for `admin_tokens` and loopback do not count: each request
  is one of a user, who shows a password (`Authorization: Basic`), a token (`Bearer`; it stands for
  an admin) or the cookie of a session, or is known on a Unix socket or by a certificate. Each
  route says which right it takes.
- A peer that sends wrong tokens is slowed down. Changes are logged with the client's address; those
  that are the traffic of items, with less severity.
"""

import base64
import hmac
import logging
from typing import Final
from urllib.parse import quote, urlsplit

from aiohttp import web

from kestrelmq.access.users import NOBODY, TOKEN_USER, User
from kestrelmq.admin.connections import peer_of
from kestrelmq.admin.errors import CHALLENGE, ApiError, Handler
from kestrelmq.admin.sessions import Sessions
from kestrelmq.admin.signins import SignIns
from kestrelmq.names import queue_name_error
from kestrelmq.protocol.rights import Right
from kestrelmq.server.certificates import certificate_name
from kestrelmq.server.context import ServerContext
from kestrelmq.server.server_actions import Action, is_loopback
from kestrelmq.server.sockets import GONE, is_unix, peer_name, peer_uid

CHANGES: Final = frozenset({"POST", "PUT", "DELETE", "PATCH"})
RIGHT: Final = "right"
"""Attribute of a route's handler: the right that it takes; without it, `Right.ADMIN`."""
USER: Final = "user"
"""Key of a request: who sends it; None where there are no users."""
GUARDED: Final = "guarded"
"""Attribute of a route's handler: whether it reads items, which takes a token and our origin."""
SERVER_ACTION: Final = "server_action"
"""Attribute of a route's handler: the action on the whole server that it carries out."""
TRAFFIC: Final = "traffic"
"""Attribute of a route's handler: whether it is an `ApiOperation.is_traffic`."""


class Guard:
    """Checks each request before it reaches its handler."""

    __slots__ = ("_context", "_loopback", "_remote", "_sessions", "_signins", "_tokens")

    def __init__(self, context: ServerContext, sessions: Sessions) -> None:
        """Guard the service of a server, with the sessions of its console."""
        config = context.config
        self._context = context
        self._sessions = sessions
        self._loopback = is_loopback(config.addresses.get("admin", ""))
        self._tokens = [token.get_secret_value().encode() for token in config.admin_tokens]
        self._remote = config.allow_remote_admin
        self._signins = SignIns(failures=context.sign_ins.failures)

    async def check(self, request: web.Request, handler: object) -> None:
        """Check that `request` is allowed, and log it if it changes something.

        Args:
            request: the request to check.
            handler: the handler of its route, with the attributes that this module defines.

        Raises:
            ApiError: the request is not allowed.
            KestrelError: the user may not do this, or the client not act on the whole server.
        """
        self._check_name(request)
        changes = request.method in CHANGES
        action: Action | None = getattr(handler, SERVER_ACTION, None)
        is_guarded = changes or getattr(handler, GUARDED, False)
        if is_guarded:
            _check_origin(request)
        user = request[USER] = await self._user(request) if self._context.users else None
        if user is None and is_guarded:
            self._check_token(request, action)
        if request.match_info.http_exception is not None:
            return
        right = getattr(handler, RIGHT, Right.ADMIN)
        if user is not None and right is not Right.ANYONE:
            self._context.count_request(user)
        self._check_right(request, right, user)
        if not changes:
            return
        peer = address_of(request)
        actions = self._context.actions
        if action is not None:
            actions.check(action, "http", peer, has_token=bool(self._tokens), user=user)
        else:
            path = quote(request.rel_url.raw_path, safe="/%", errors="surrogateescape")
            level = logging.DEBUG if getattr(handler, TRAFFIC, False) else logging.INFO
            action_name = f"{request.method} {path}"
            actions.log_request(action_name, "http", peer, _queue(request), user=user, level=level)

    async def _user(self, request: web.Request) -> User:
        """Return who sends a request. Raises SignInRefused or ApiError: it says so, and is not."""
        authorization = request.headers.get("Authorization", "")
        kind, _, given = authorization.partition(" ")
        if kind.lower() == "basic":
            try:
                decoded = base64.b64decode(given.strip(), validate=True).decode()
            except ValueError:
                decoded = ""
            name, _, password = decoded.partition(":")
            return await self._context.user_of(name, password, "http", address_of(request))
        if authorization:
            self._sign_in(request, authorization)
            return TOKEN_USER
        found = self._sessions.user(request)
        if found is None:
            found = self._context.users.first(_uid(request), _certificate_name(request))
        return NOBODY if found is None else found

    def _check_right(self, request: web.Request, right: Right, user: User | None) -> None:
        """Check a right. One for queues that the body names is checked where that is read.

        Raises:
            ClientForbidden: the user has not this right.
        """
        name = _queue(request)
        if right not in {Right.READ, Right.SEE, Right.WRITE}:
            self._context.check_right(user, right)
        elif name is None:
            self._context.check_right(user, Right.SIGNED_IN)
        else:
            self._context.check_queue(user, right, name)

    def _check_name(self, request: web.Request) -> None:
        if not self._loopback or self._tokens or self._context.users or _is_over_unix(request):
            return
        host = urlsplit(f"//{request.host}").hostname if _is_host(request.host) else None
        if host is None or not is_loopback(host):
            raise ApiError(403, "wrong_host", "ask for it as localhost, or configure admin_tokens")

    def _check_token(self, request: web.Request, action: Action | None) -> None:
        if not self._tokens:
            if self._loopback or _is_over_unix(request) or (self._remote and action is not None):
                return
            raise ApiError(
                403, "token_not_configured", "this needs admin_tokens in the configuration"
            )
        authorization = request.headers.get("Authorization", "")
        if authorization:
            self._sign_in(request, authorization)
            return
        raise _token_needed()

    def _sign_in(self, request: web.Request, authorization: str) -> None:
        address = address_of(request)
        peer = peer_of((address.rpartition(":")[0],))
        self._signins.check(peer)
        kind, _, given = authorization.partition(" ")
        shown = given.strip().encode(errors="surrogateescape")
        # Compare every token, even after a match, so that the time taken reveals nothing.
        fits = [hmac.compare_digest(shown, token) for token in self._tokens]
        if kind.lower() != "bearer" or not any(fits):
            self._context.counters.failed_sign_ins += 1
            self._signins.failed(peer, address)
            raise _token_needed()


def _token_needed() -> ApiError:
    return ApiError(
        401,
        "token_needed",
        "this needs an admin token (Authorization: Bearer ...)",
        {"WWW-Authenticate": CHALLENGE},
    )


def address_of(request: web.Request) -> str:
    """Return the client's address, as `HOST:PORT` or `unix:PID`."""
    transport = request.transport
    if transport is None:
        return GONE
    return peer_name(transport.get_extra_info("socket"), transport.get_extra_info("peername"))


def _queue(request: web.Request) -> str | None:
    """Return the queue that the path names; None if it names none."""
    name = request.match_info.get("name")
    return None if name is None or queue_name_error(name) is not None else name


def _uid(request: web.Request) -> int | None:
    transport = request.transport
    return None if transport is None else peer_uid(transport.get_extra_info("socket"))


def _certificate_name(request: web.Request) -> str | None:
    transport = request.transport
    return None if transport is None else certificate_name(transport.get_extra_info("peercert"))


def _is_over_unix(request: web.Request) -> bool:
    transport = request.transport
    return transport is not None and is_unix(transport.get_extra_info("socket"))


def _is_host(text: str) -> bool:
    try:
        urlsplit(f"//{text}").port  # noqa: B018 # raises when it is none
    except ValueError:
        return False
    return True


def _check_origin(request: web.Request) -> None:
    site = request.headers.get("Sec-Fetch-Site", "none")
    origin = request.headers.get("Origin")
    host = request.host.lower()
    is_ours = origin is None or origin.lower() in {f"http://{host}", f"https://{host}"}
    if site not in {"same-origin", "none"} or not is_ours:
        raise ApiError(403, "cross_origin", "this is not for pages of another origin")


def marked(
    serve: Handler,
    right: Right,
    *,
    action: Action | None = None,
    reads_items: bool = False,
    is_traffic: bool = False,
) -> Handler:
    """Return a handler that calls `serve`, with the attributes that the guard looks at."""

    async def handler(request: web.Request) -> web.StreamResponse:
        return await serve(request)

    setattr(handler, RIGHT, right)
    setattr(handler, SERVER_ACTION, action)
    setattr(handler, GUARDED, reads_items)
    setattr(handler, TRAFFIC, is_traffic)
    return handler


def guarded(guard: Guard) -> Handler:
    """Return the middleware that has `guard` check each request."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        # `handler` may be another middleware; the attributes are on the route's own handler.
        route = request.match_info.handler
        await guard.check(request, route)
        return await handler(request)

    return middleware  # type: ignore[return-value] # aiohttp types a middleware as what it wraps
