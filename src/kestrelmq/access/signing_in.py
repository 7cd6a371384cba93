"""Signing in: the check of a name and a password, for every protocol.

Passwords are hashed in one thread, one after the other, because each takes 30 ms and 16 MiB. So
that many clients of one user may come back at once, the last right password of each user is
remembered (as a digest under a key of this process), and equal attempts share one check. A name
that is no user's costs as much as a wrong password.

Few attempts may wait, and fewer of one peer. The peers take turns: otherwise one that guesses would
keep all others out. A peer that failed often must wait, see `failures`.
"""

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final

from kestrelmq.access.failures import Failures
from kestrelmq.access.users import User, Users
from kestrelmq.clock import Pause
from kestrelmq.errors import KestrelError
from kestrelmq.passwords import TOO_MANY, WRONG_PASSWORD, PasswordHash
from kestrelmq.scheduling.worker import Worker

MOST_WAITING: Final = 64
"""Attempts that may wait to be checked."""
MOST_OF_ONE: Final = 16
"""Attempts of one peer that may wait."""


class SignInRefused(KestrelError):  # noqa: N818 # says what it is
    """A sign-in is refused."""


class WrongPassword(SignInRefused):
    """There is no user with this name and this password."""

    def __init__(self) -> None:
        super().__init__(WRONG_PASSWORD)


class SignInLater(SignInRefused):
    """The password was not looked at, because there were too many attempts.

    Attributes:
        seconds: when to try again.
    """

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


@dataclass(slots=True, eq=False)
class _Attempt:
    """A name and a password that are to be checked; `ended` is whether they are right."""

    user: User | None
    secret: PasswordHash
    password: str = field(repr=False)
    digest: bytes = field(repr=False)
    ended: "asyncio.Future[bool]"


class SignIns:
    """Checks the passwords of clients."""

    def __init__(self, users: Users, worker: Worker) -> None:
        """Prepare.

        Args:
            users: the users.
            worker: hashes passwords, in a thread that does nothing else.
        """
        self.failures = Failures()
        self._users = users
        self._worker = worker
        # What a name without a password is compared with; no password fits.
        self._dummy = PasswordHash(14, 8, 1, bytes(16), bytes(32))
        # Those that wait or are being checked, by digest; those that wait, by peer.
        self._attempts: dict[bytes, _Attempt] = {}
        self._waiting: OrderedDict[str, deque[_Attempt]] = OrderedDict()
        self._is_busy = False

    async def sign_in(self, name: str, password: str, peer: str) -> User:
        """Return the user of this name and password.

        Args:
            name: the name.
            password: the password.
            peer: what is slowed down after failures, such as the client's address.

        Raises:
            WrongPassword: there is no such user.
            SignInLater: it could not be found out.
        """
        seconds = self.failures.wait(peer)
        if seconds > 0:
            raise SignInLater(f"{TOO_MANY}failures; wait a moment", seconds)
        digest = self._users.digest(name, password)
        user = self._users.get(name)
        if user is not None and user.accepts(digest):
            return user
        attempt = self._attempts.get(digest) or self._begin(user, password, digest, peer)
        # Several may wait for it, and one may be cancelled.
        is_right = await asyncio.shield(attempt.ended)
        if is_right and user is not None and self._users.is_in_force(user):
            return user
        self.failures.count(peer)
        raise WrongPassword

    def _begin(self, user: User | None, password: str, digest: bytes, peer: str) -> _Attempt:
        line = self._waiting.get(peer, ())
        if len(self._attempts) > MOST_WAITING or len(line) >= MOST_OF_ONE:
            raise SignInLater(f"{TOO_MANY}sign-ins at once; try again", 1.0)
        secret = user.secret if user is not None else None
        attempt = _Attempt(
            user,
            secret if isinstance(secret, PasswordHash) else self._dummy,
            password,
            digest,
            asyncio.get_running_loop().create_future(),
        )
        self._attempts[digest] = attempt
        self._waiting.setdefault(peer, deque()).append(attempt)
        if not self._is_busy:
            self._check_next()
        return attempt

    def _check_next(self) -> None:
        """Have the next attempt checked: the first of the peer whose turn it is."""
        if not self._waiting:
            return
        peer, line = self._waiting.popitem(last=False)
        attempt = line.popleft()
        if line:
            self._waiting[peer] = line
        self._is_busy = True
        found: list[bool] = []

        def check(_: Pause) -> None:
            found.append(attempt.secret.fits(attempt.password))

        def checked(error: BaseException | None) -> None:
            self._is_busy = False
            self._end(attempt, is_right=error is None and found[0])
            self._check_next()

        self._worker.run(check, checked)

    def _end(self, attempt: _Attempt, *, is_right: bool) -> None:
        del self._attempts[attempt.digest]
        user = attempt.user
        # A reload may have changed the password meanwhile.
        is_right = is_right and user is not None and user.secret == attempt.secret
        if is_right and user is not None:
            user.accepted = attempt.digest
        attempt.ended.set_result(is_right)
