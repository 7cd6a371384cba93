"""The users of a configuration, and what each may do.

A right is a pattern of queue names: `*` stands for any text and `?` for one character, but neither
for the `+` of a fanout child's name. Patterns only add up; none takes a right away. An admin may
do everything.

On the hot path nothing is compared: a user has two dictionaries with the queues that were found to
be readable and writable, and a session looks its queues up there.
"""

import hmac
import os
import pwd
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from kestrelmq.config import ServerConfig, UserConfig, effective_settings
from kestrelmq.errors import ConfigError
from kestrelmq.passwords import PasswordHash, read_password
from kestrelmq.queue.queue import Queue


@dataclass(slots=True, eq=False)
class User:
    """A user.

    Attributes:
        name: the name.
        is_admin: whether everything is allowed.
        read, write: the patterns of the queues that may be read, and added to.
        secret: the hash of the password; of one that is known, what `Users.digest` returns for it;
            None if there is none.
        uid: the user of the system that is this one on a Unix socket; None for none.
        certificate_name: the name in the client certificate of this user; None for none.
        rate_limit: how many requests a second are served; None for any number. Each must be
            counted, so a user with a limit has no `readable` and `writable`.
        counted_until: when all requests so far are forgotten (monotonic seconds).
        accepted: what `Users.digest` returned for the password that was right last.
        readable, writable: queues that may be read, and added to, by name: those asked for so far.
            `QueueCollection.views` has them, so that none outlives its queue.
    """

    name: str
    is_admin: bool = False
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    secret: PasswordHash | bytes | None = field(default=None, repr=False)
    uid: int | None = None
    certificate_name: str | None = None
    rate_limit: int | None = None
    counted_until: float = 0.0
    accepted: bytes = field(default=b"", repr=False)
    readable: dict[str, Queue] = field(default_factory=dict, repr=False)
    writable: dict[str, Queue] = field(default_factory=dict, repr=False)

    def may(self, queue: str, *, write: bool) -> bool:
        """Whether the user may read a queue, or add to it; an alias is not a queue."""
        return self.why(queue, write=write) is not None

    def why(self, queue: str, *, write: bool) -> str | None:
        """Return what allows the user to read a queue, or to add to it; None if nothing does."""
        if self.is_admin:
            return "admin = true"
        kind, patterns = ("write", self.write) if write else ("read", self.read)
        found = next((one for one in patterns if matches(one, queue)), None)
        return None if found is None else f'{kind} = "{found}"'

    def accepts(self, digest: bytes) -> bool:
        """Whether a password with this digest was right before."""
        return bool(self.accepted) and hmac.compare_digest(self.accepted, digest)

    def count_request(self, now: float) -> bool:
        """Count a request at `now` (monotonic seconds); return False if it exceeds the limit."""
        if self.rate_limit is None:
            return True
        share, begin = 1 / self.rate_limit, max(self.counted_until, now)
        if begin + share > now + 1 + share / 4:  # sums of shares are not exact
            return False
        self.counted_until = begin + share
        return True

    def change_to(self, other: "User") -> None:
        """Take over the rights and the password of `other`; they count from the next request on."""
        if self.secret != other.secret:
            self.secret, self.accepted = other.secret, other.accepted
        self.is_admin, self.read, self.write = other.is_admin, other.read, other.write
        self.uid, self.certificate_name = other.uid, other.certificate_name
        self.rate_limit = other.rate_limit
        self.readable.clear()
        self.writable.clear()


NOBODY: Final = User("")
"""Who has not signed in, where there are users."""
TOKEN_USER: Final = User("admin token", is_admin=True)
"""Who shows an admin token over HTTP; no user of a configuration has a name with a blank."""


def matches(pattern: str, queue: str) -> bool:
    """Whether the pattern of a right stands for a queue."""
    parts, names = pattern.replace("[", "[[]").split("+"), queue.split("+")
    return len(parts) == len(names) and all(map(fnmatchcase, names, parts))


class Users:
    """The users in force; false if there are none, and everyone may do everything."""

    def __init__(self) -> None:
        self._by_name: dict[str, User] = {}
        self._key = os.urandom(32)

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def __iter__(self) -> Iterator[User]:
        return iter(self._by_name.values())

    def get(self, name: str) -> User | None:
        """Return the user of that name; None if there is none."""
        return self._by_name.get(name)

    def digest(self, name: str, password: str) -> bytes:
        """Return a digest of a user's password, for this process to recognise it."""
        text = f"{name}\0{password}".encode(errors="surrogateescape")
        return hmac.digest(self._key, text, "sha256")

    def first(self, uid: int | None, certificate_name: str | None = None) -> User | None:
        """Return who a client is that has just connected.

        Args:
            uid: its user of the system, if it is known; None over TCP.
            certificate_name: the name in the certificate that it has shown; None without one.

        Returns:
            None if there are no users.
        """
        if not self._by_name:
            return None
        for user in self:
            if uid is not None and user.uid == uid:
                return user
            if certificate_name is not None and user.certificate_name == certificate_name:
                return user
        return NOBODY

    def is_in_force(self, user: User | None) -> bool:
        """Whether a client of this user may go on: the user was not removed."""
        if user is None or user is NOBODY:
            return bool(self) is (user is NOBODY)
        return user is TOKEN_USER or self._by_name.get(user.name) is user

    @property
    def views(self) -> tuple[dict[str, Queue], ...]:
        """The dictionaries with queues of all users, for `QueueCollection.views`."""
        return tuple(view for user in self for view in (user.readable, user.writable))

    def load(self, config: ServerConfig) -> dict[str, User]:
        """Return the users of a configuration; they are not in force yet; from any thread.

        Raises:
            ConfigError: a password file cannot be used, or the system has no such user.
        """
        return {name: self._load(name, settings) for name, settings in config.users.items()}

    def put_in_force(self, found: Mapping[str, User]) -> None:
        """Put other users in force. Those of the same names stay the same objects."""
        for name, user in found.items():
            known = self._by_name.get(name)
            if known is not None:
                known.change_to(user)
        self._by_name = {name: self._by_name.get(name, user) for name, user in found.items()}

    def _load(self, name: str, settings: UserConfig) -> User:
        user = User(name, settings.admin, settings.read, settings.write)
        text = ""
        if settings.password_hash is not None:
            text = settings.password_hash.get_secret_value()
        elif settings.password_file is not None:
            try:
                text = read_password(settings.password_file)
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                where = f"users.{name}: password_file: {settings.password_file}"
                raise ConfigError(f"{where}: {reason}") from None
        if PasswordHash.is_hash(text):
            try:
                user.secret = PasswordHash.parse(text)
            except ValueError as error:
                raise ConfigError(f"users.{name}: {error}") from None
        elif text:
            user.secret = user.accepted = self.digest(name, text)
        user.certificate_name = settings.certificate_name
        user.rate_limit = settings.rate_limit
        if settings.unix_user is not None:
            user.uid = _uid(name, settings.unix_user)
        return user


def _uid(name: str, unix_user: str) -> int:
    try:
        return int(unix_user) if unix_user.isdecimal() else pwd.getpwnam(unix_user).pw_uid
    except KeyError:
        raise ConfigError(
            f"users.{name}: unix_user: the system has no user {unix_user!r}"
        ) from None


class ExplainedRight(NamedTuple):
    """Whether a user may do something, and why."""

    to: str
    allowed: bool
    why: str

    def __str__(self) -> str:
        return f"{self.to}: {'yes' if self.allowed else 'no'}, {self.why}"


def explain(
    config: ServerConfig, user: User, queue: str, leaves: Collection[str]
) -> list[ExplainedRight]:
    """Return what a user may do with a queue, and why.

    `leaves` are the queues that an alias stands for; of a queue, itself.
    """
    rights: list[ExplainedRight] = []
    for write, names in ((False, (queue,)), (True, leaves)):
        verb = "write" if write else "read"
        for name in names:
            settings = effective_settings(config, name)
            allowed = (
                settings.allowed_client_ids_for_enqueue
                if write
                else settings.allowed_client_ids_for_dequeue
            )
            why = user.why(name, write=write)
            kind = "enqueue" if write else "dequeue"
            is_named = allowed is None or user.name in allowed
            if why is None:
                reason = f"no pattern in {verb} matches it"
            else:
                reason = why if is_named else f"allowed_client_ids_for_{kind} does not name it"
            rights.append(ExplainedRight(f"{verb} {name}", why is not None and is_named, reason))
    admin = "admin = true" if user.is_admin else "admin is false"
    return [*rights, ExplainedRight(f"flush, delete and pause {queue}", user.is_admin, admin)]
