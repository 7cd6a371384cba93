"""Who may do what over HTTP.

- A request that changes something is a POST, PUT or DELETE; nothing else changes anything.
- Such a request must not come from a page of another origin. Browsers say where a request comes
  from (`Sec-Fetch-Site`, `Origin`); what says nothing is no browser.
- With `admin_tokens`, such a request must show one, and so must one that looks into items.
- Without `admin_tokens`, such a request is served only where nobody but this machine can reach
  the listener, and only under a name of this machine: a page of another origin that points its own
  name at 127.0.0.1 gets nothing.
"""

import hmac
import ipaddress
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from kestrelmq.admin.errors import ApiError, Handler

CHANGES: Final = frozenset({"POST", "PUT", "DELETE", "PATCH"})
GUARDED: Final = "guarded"
"""Set on a route's handler when what it reads is as secret as what it changes."""

_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach a listener at `address`."""
    if address.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False


class Guard:
    """Checks each request before it is served."""

    __slots__ = ("_loopback", "_tokens")

    def __init__(self, address: str, tokens: Sequence[str]) -> None:
        """`address` is where the service listens; `tokens` are those that are accepted."""
        self._loopback = is_loopback(address)
        self._tokens = [token.encode() for token in tokens]

    def check(self, request: web.Request, *, secret: bool) -> None:
        """Refuse what is not allowed. Raises ApiError.

        Args:
            request: what is asked for.
            secret: whether it needs a token even if it changes nothing.
        """
        self._check_name(request)
        changes = request.method in CHANGES
        if changes:
            _check_origin(request)
        if changes or secret:
            self._check_token(request)

    def _check_name(self, request: web.Request) -> None:
        if not self._loopback or self._tokens:
            return
        host = urlsplit(f"//{request.host}").hostname if _is_host(request.host) else None
        if host is None or not is_loopback(host):
            raise ApiError(403, "wrong_host", "ask for it as localhost, or configure admin_tokens")

    def _check_token(self, request: web.Request) -> None:
        if not self._tokens:
            if self._loopback:
                return
            raise ApiError(
                403, "token_not_configured", "this needs admin_tokens in the configuration"
            )
        kind, _, given = request.headers.get("Authorization", "").partition(" ")
        shown = given.strip().encode(errors="surrogateescape")
        # Every token is compared, whichever fits: the time taken tells nothing.
        fits = [hmac.compare_digest(shown, token) for token in self._tokens]
        if kind.lower() != "bearer" or not any(fits):
            raise ApiError(
                401,
                "token_needed",
                "this needs an admin token (Authorization: Bearer ...)",
                {"WWW-Authenticate": 'Bearer realm="kestrelmq"'},
            )


def _is_host(text: str) -> bool:
    try:
        urlsplit(f"//{text}").port  # noqa: B018 # raises when it is none
    except ValueError:
        return False
    return True


def _check_origin(request: web.Request) -> None:
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None and site not in {"same-origin", "none"}:
        raise ApiError(403, "cross_origin", "a page of another origin may change nothing")
    origin = request.headers.get("Origin")
    host = request.host.lower()
    if origin is not None and origin.lower() not in {f"http://{host}", f"https://{host}"}:
        raise ApiError(403, "cross_origin", "a page of another origin may change nothing")


def guarded(guard: Guard) -> Handler:
    """Return the middleware that asks `guard` and marks what browsers may do with a reply."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        # The route's own handler, whatever other middleware is in between.
        route = request.match_info.handler
        guard.check(request, secret=getattr(route, GUARDED, False))
        return await handler(request)

    return middleware  # type: ignore[return-value] # aiohttp types a middleware as what it wraps


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Tell browsers to load nothing from elsewhere and to be framed by nobody."""
    response.headers.update(_HEADERS)
    if request.path.startswith("/api/"):
        response.headers.setdefault("Cache-Control", "no-store")
