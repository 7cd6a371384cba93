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
- A peer that sends wrong tokens is slowed down. Changes are logged with the client's address; those
  that are the traffic of items, with less severity.
"""

import hmac
import logging
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote, urlsplit

from aiohttp import web

from kestrelmq.admin.connections import peer_of
from kestrelmq.admin.errors import ApiError, Handler
from kestrelmq.admin.signins import SignIns
from kestrelmq.names import queue_name_error
from kestrelmq.server.server_actions import Action, ServerActionGuard, is_loopback
from kestrelmq.server.sockets import GONE, is_unix, peer_name

CHANGES: Final = frozenset({"POST", "PUT", "DELETE", "PATCH"})
GUARDED: Final = "guarded"
"""Attribute of a route's handler: whether it reads items, which takes a token and our origin."""
SERVER_ACTION: Final = "server_action"
"""Attribute of a route's handler: the action on the whole server that it carries out."""
TRAFFIC: Final = "traffic"
"""Attribute of a route's handler: whether it is an `ApiOperation.is_traffic`."""


class Guard:
    """Checks each request before it reaches its handler."""

    __slots__ = ("_actions", "_loopback", "_remote", "_signins", "_tokens")

    def __init__(
        self,
        address: str,
        tokens: Sequence[str],
        actions: ServerActionGuard,
        *,
        remote: bool = False,
    ) -> None:
        """Guard the service whose port is on `address`.

        Args:
            address: the address of its port.
            tokens: the accepted admin tokens.
            actions: decides which clients may act on the whole server.
            remote: whether clients on other machines may act on it without a token.
        """
        self._loopback = is_loopback(address)
        self._tokens = [token.encode() for token in tokens]
        self._actions = actions
        self._remote = remote
        self._signins = SignIns()

    def check(self, request: web.Request, handler: object) -> None:
        """Check that `request` is allowed, and log it if it changes something.

        Args:
            request: the request to check.
            handler: the handler of its route, with the attributes that this module defines.

        Raises:
            ApiError: the request is not allowed.
            RemoteAdminRefused: the client may not act on the whole server.
        """
        self._check_name(request)
        changes = request.method in CHANGES
        action: Action | None = getattr(handler, SERVER_ACTION, None)
        if changes or getattr(handler, GUARDED, False):
            _check_origin(request)
            self._check_token(request, action)
        if not changes:
            return
        peer = _address(request)
        if action is not None:
            self._actions.check(action, "http", peer, has_token=bool(self._tokens))
        elif request.match_info.http_exception is None:
            path = quote(request.rel_url.raw_path, safe="/%", errors="surrogateescape")
            level = logging.DEBUG if getattr(handler, TRAFFIC, False) else logging.INFO
            action_name = f"{request.method} {path}"
            self._actions.log_request(action_name, "http", peer, _queue(request), level=level)

    def _check_name(self, request: web.Request) -> None:
        if not self._loopback or self._tokens or _is_over_unix(request):
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
        address = _address(request)
        peer = peer_of((address.rpartition(":")[0],))
        self._signins.check(peer)
        kind, _, given = authorization.partition(" ")
        shown = given.strip().encode(errors="surrogateescape")
        # Compare every token, even after a match, so that the time taken reveals nothing.
        fits = [hmac.compare_digest(shown, token) for token in self._tokens]
        if kind.lower() != "bearer" or not any(fits):
            self._signins.failed(peer, address)
            raise _token_needed()


def _token_needed() -> ApiError:
    return ApiError(
        401,
        "token_needed",
        "this needs an admin token (Authorization: Bearer ...)",
        {"WWW-Authenticate": 'Bearer realm="kestrelmq"'},
    )


def _address(request: web.Request) -> str:
    """Return the client's address, as `HOST:PORT` or `unix:PID`."""
    transport = request.transport
    if transport is None:
        return GONE
    return peer_name(transport.get_extra_info("socket"), transport.get_extra_info("peername"))


def _queue(request: web.Request) -> str | None:
    """Return the queue that the path names; None if it names none."""
    name = request.match_info.get("name")
    return None if name is None or queue_name_error(name) is not None else name


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


def guarded(guard: Guard) -> Handler:
    """Return the middleware that has `guard` check each request."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        # `handler` may be another middleware; the attributes are on the route's own handler.
        route = request.match_info.handler
        guard.check(request, route)
        return await handler(request)

    return middleware  # type: ignore[return-value] # aiohttp types a middleware as what it wraps
