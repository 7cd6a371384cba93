"""Error replies of the admin service.

All have the same form:

    {"error": {"code": "queue_not_found", "message": "there is no queue orders"}}

`code` is for programs and never changes; `message` is for people.
"""

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from kestrelmq.access.signing_in import SignInLater, WrongPassword
from kestrelmq.errors import (
    ConfigError,
    InvalidQueueName,
    JournalError,
    KestrelError,
    NoDeadLetterQueue,
    PatternRefused,
    PlaceRefused,
    QueueUnavailable,
    ReadersChanged,
    TagRefused,
)
from kestrelmq.server.browsing import TooManySearches
from kestrelmq.server.context import ClientForbidden, Forbidden, NotSignedIn, TooManyRequests
from kestrelmq.server.loop.threads import NoThread
from kestrelmq.server.server_actions import RemoteAdminRefused
from kestrelmq.server.status import StatusNotSaved

CHALLENGE: Final = 'Bearer realm="kestrelmq"'
"""How to sign in with a token."""

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ApiError(Exception):
    """The request is refused.

    Attributes:
        status: the HTTP status.
        code: the reason, for programs.
        headers: extra headers of the reply.
    """

    def __init__(
        self, status: int, code: str, message: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers or {}


def busy(code: str, message: str) -> ApiError:
    """Return the refusal of what the server may do a second later."""
    return ApiError(503, code, f"{message}; try again", {"Retry-After": "1"})


_CODES: Final[tuple[tuple[type[KestrelError], int, str], ...]] = (
    (InvalidQueueName, 400, "invalid_queue_name"),
    (RemoteAdminRefused, 403, "remote_admin_refused"),
    (PatternRefused, 400, "invalid_pattern"),
    (PlaceRefused, 409, "place_refused"),
    (TagRefused, 409, "tag_refused"),
    (NoDeadLetterQueue, 409, "no_dead_letter_queue"),
    (NotSignedIn, 401, "sign_in_needed"),
    (TooManyRequests, 429, "too_many_requests"),
    (ClientForbidden, 403, "client_not_allowed"),
    (WrongPassword, 401, "authentication_failure"),
    (SignInLater, 429, "too_many_failures"),
    (Forbidden, 503, "refused_by_status"),
    (TooManySearches, 503, "too_many_searches"),
    (ReadersChanged, 403, "client_not_allowed"),
    (QueueUnavailable, 503, "queue_unavailable"),
    (JournalError, 503, "journal_error"),
    (StatusNotSaved, 503, "status_not_saved"),
    (NoThread, 503, "no_thread"),
    (ConfigError, 422, "invalid_configuration"),
)


def error_reply(error: ApiError) -> web.Response:
    """Return the reply for `error`."""
    return web.json_response(
        {"error": {"code": error.code, "message": str(error)}},
        status=error.status,
        headers=error.headers,
    )


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every exception of `handler` into an error reply."""
    try:
        return await handler(request)
    except ApiError as error:
        return error_reply(error)
    except KestrelError as error:
        refusal = translated(error)
        if refusal.status == 401:
            refusal.headers = {"WWW-Authenticate": _challenge(request)}
        return error_reply(refusal)
    except web.HTTPException as error:
        return error_reply(_of_http(error))
    except (ConnectionError, TimeoutError):
        raise  # the client disconnected: nobody would get the reply
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return error_reply(ApiError(500, "internal_error", "internal error; see the log"))


def translated(error: KestrelError) -> ApiError:
    """Return the refusal that tells a client of `error`."""
    for kind, status, code in _CODES:
        if isinstance(error, kind):
            return ApiError(status, code, str(error), _headers(error))
    return ApiError(500, "internal_error", str(error))


def _headers(error: KestrelError) -> dict[str, str] | None:
    if isinstance(error, SignInLater):
        return {"Retry-After": str(math.ceil(error.seconds))}
    if isinstance(error, TooManyRequests):
        return {"Retry-After": "1"}
    return None


def _challenge(request: web.Request) -> str:
    """Return how to sign in where there are users.

    A browser is not told of Basic. It would open a window of its own, also over the console, whose
    sign-in page it needs instead; and what is typed there it sends until it ends.
    """
    if request.headers.get("User-Agent", "").startswith("Mozilla/"):
        return CHALLENGE
    return f'Basic realm="kestrelmq", charset="UTF-8", {CHALLENGE}'


def _of_http(error: web.HTTPException) -> ApiError:
    allow = error.headers.get("Allow")
    code = error.reason.lower().replace(" ", "_")
    return ApiError(error.status, code, error.reason, {"Allow": allow} if allow else None)
