"""The sessions of the console: a random token in a cookie stands for a user who has signed in.

They are in memory only, and end when the user signs out, is removed or gets another password, after
`LIFETIME`, and with the server.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from kestrelmq.access.users import User, Users
from kestrelmq.passwords import PasswordHash

LIFETIME: Final = 12 * 3600.0
"""Seconds after which a session ends."""
_MOST: Final = 1000


@dataclass(frozen=True, slots=True)
class _Session:
    user: User
    secret: PasswordHash | bytes | None
    ends: float


class Sessions:
    """The sessions of one admin service; `cookie` is the name of its cookie."""

    __slots__ = ("_clock", "_sessions", "_users", "cookie")

    def __init__(
        self, users: Users, port: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`port` tells the services of one host apart, which share cookies."""
        self.cookie = f"kestrelmq_session_{port}"
        self._users = users
        self._clock = clock
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    def user(self, request: web.Request) -> User | None:
        """Return the user of the session that a request belongs to; None if it has none."""
        session = self._sessions.get(request.cookies.get(self.cookie, ""))
        if session is None or session.ends <= self._clock():
            return None
        is_valid = self._users.is_in_force(session.user) and session.user.secret == session.secret
        return session.user if is_valid else None

    def begin(self, user: User, response: web.StreamResponse, *, over_tls: bool) -> None:
        """Begin a session of a user, and tell the browser; only over TLS, if this is."""
        token = secrets.token_urlsafe(32)
        self._sessions[token] = _Session(user, user.secret, self._clock() + LIFETIME)
        if len(self._sessions) > _MOST:
            self._sessions.popitem(last=False)
        response.set_cookie(
            self.cookie, token, httponly=True, samesite="Strict", path="/", secure=over_tls
        )

    def end(self, request: web.Request, response: web.StreamResponse) -> None:
        """End the session that a request belongs to, if any."""
        self._sessions.pop(request.cookies.get(self.cookie, ""), None)
        response.del_cookie(self.cookie, httponly=True, samesite="Strict", path="/")
