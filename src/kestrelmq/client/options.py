"""The options of a client, blocking or asyncio, and the expiry times that callers give."""

import math
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Literal, TypeAlias

from kestrelmq.arguments import client_name_error, given_count, given_number, given_time
from kestrelmq.errors import InvalidRequest
from kestrelmq.idempotent_producers import PutMark, put_mark
from kestrelmq.passwords import password_error, user_name_error
from kestrelmq.protocol.memcache import MAX_ITEM_BYTES

Expiry: TypeAlias = float | datetime | None
"""When an item expires: seconds from now, a point in time, or None for never."""

_RELATIVE_LIMIT: Final = 1_000_000
_LONGEST_TIME: Final = 1e9
"""Seconds that a connection or a reply may take."""
LONGEST_LEASE: Final = 1_000_000.0
"""Seconds; also the longest delay of an item that is released."""
LONGEST_DELAY: Final = 1e14
"""Seconds; in milliseconds, so many have 18 digits, which every server reads."""
_LONGEST_EXPIRY: Final = 1e14
"""Seconds; so many have as many digits as every server reads."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The options of a client. Times are in seconds, sizes in bytes.

    Attributes:
        connect_timeout: how long connecting to a server may take.
        operation_timeout: how long a reply may take, in addition to the timeout of the operation;
            for statistics and lists of clients, how long each part of them may take.
        poll_interval: how long a blocking read of a cluster waits at one server before it asks the
            next.
        retry_unknown: whether an add whose reply was lost is sent again, at the risk of a
            duplicate.
        restart_patience: how long an add is tried again while the only server cannot be reached, as
            during its restart; likewise ending a reserved read at its server.
        affinity: `"queue"` for a cluster in which each queue lives on one of the servers, so that
            its order holds; None to spread each queue over all of them.
        max_idle_connections: how many idle connections are kept for each server.
        max_item_bytes: the longest item accepted in a reply; a longer one is an error.
        name: what the client calls itself where a server lists its clients: 1 to 64 bytes of
            printable UTF-8 without spaces. None for nothing.
        user, password: as whom each connection signs in; None for a server without users.
        tls: True to speak TLS with servers that the system trusts; or what `ssl` makes of other
            authorities, or of a certificate to show. It does not concern Unix sockets.
    """

    connect_timeout: float = 2.0
    operation_timeout: float = 10.0
    poll_interval: float = 0.05
    retry_unknown: bool = False
    restart_patience: float = 5.0
    max_idle_connections: int = 8
    max_item_bytes: int = MAX_ITEM_BYTES
    affinity: Literal["queue"] | None = None
    name: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool | ssl.SSLContext = False

    def __post_init__(self) -> None:
        """Raise InvalidRequest: a value is not a number, out of range, or an unknown affinity."""
        for name in ("connect_timeout", "operation_timeout", "poll_interval"):
            if not 0 < checked_number(getattr(self, name), name) <= _LONGEST_TIME:
                raise InvalidRequest(f"{name} is more than 0 and at most {_LONGEST_TIME:.0f} s")
        for name in ("restart_patience", "max_idle_connections", "max_item_bytes"):
            if not checked_number(getattr(self, name), name) >= 0:
                raise InvalidRequest(f"{name} is 0 or more")
        if self.affinity is not None and self.affinity != "queue":
            raise InvalidRequest(f"the affinity is 'queue' or None, not {self.affinity!r}")
        if self.name is not None:
            if not isinstance(self.name, str):
                raise InvalidRequest(f"a name is text, not {type(self.name).__name__}")
            if (problem := client_name_error(self.name)) is not None:
                raise InvalidRequest(problem)
        if not isinstance(self.tls, bool | ssl.SSLContext):
            raise InvalidRequest(f"tls is a bool or an SSLContext, not {type(self.tls).__name__}")
        self._check_user()

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        """What TLS begins with; None for no TLS."""
        if isinstance(self.tls, ssl.SSLContext):
            return self.tls
        return ssl.create_default_context() if self.tls else None

    def _check_user(self) -> None:
        if self.user is None and self.password is None:
            return
        if not isinstance(self.user, str) or not isinstance(self.password, str):
            raise InvalidRequest("a user and a password are texts, and go together")
        problem = user_name_error(self.user) or password_error(self.password)
        if problem is not None:
            raise InvalidRequest(problem)


def options_of(
    options: ClientOptions | None,
    affinity: Literal["queue"] | None,
    name: str | None,
    user: str | None = None,
    password: str | None = None,
    *,
    tls: bool | ssl.SSLContext | None = None,
) -> ClientOptions:
    """Return the options of a client: `options`, overridden by those given by themselves.

    Raises:
        InvalidRequest: they are something else.
    """
    if options is None:
        options = ClientOptions()
    if not isinstance(options, ClientOptions):
        raise InvalidRequest(f"options are ClientOptions, not {type(options).__name__}")
    if affinity is not None:
        options = replace(options, affinity=affinity)
    if user is not None or password is not None:
        options = replace(options, user=user, password=password)
    if tls is not None:
        options = replace(options, tls=tls)
    if options.tls is True:  # not for each connection: that takes long
        options = replace(options, tls=ssl.create_default_context())
    return options if name is None else replace(options, name=name)


def checked_number(number: object, what: str) -> float:
    """Check a number, as `given_number`. Raises InvalidRequest: it is not a number."""
    try:
        return given_number(number, what)
    except TypeError as error:
        raise InvalidRequest(str(error)) from None


def checked_count(count: object, what: str) -> int:
    """Check a count, as `given_count`. Raises InvalidRequest: not a whole number from 0 on."""
    try:
        return given_count(count, what)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(str(error)) from None


@dataclass(frozen=True, slots=True)
class ItemTimes:
    """The times of an item as the protocol sends them.

    Attributes:
        expiry: see `protocol_expiry`.
        delay: milliseconds after which the item waits in the queue; 0 for at once.
    """

    expiry: int
    delay: int


def item_times(expiry: Expiry, delay: float | None) -> ItemTimes:
    """Return the times of an item that is due in `delay` seconds; its expiry counts from then.

    Raises:
        InvalidRequest: `delay` is negative, too long or no number; or as `protocol_expiry`.
    """
    if delay is None:
        return ItemTimes(protocol_expiry(expiry), 0)
    seconds = checked_number(delay, "the delay")
    if not 0 <= seconds <= LONGEST_DELAY:
        raise InvalidRequest(f"the delay must be from 0 to {LONGEST_DELAY:.0f} seconds")
    expires = protocol_expiry(expiry, lambda: time.time() + seconds)
    return ItemTimes(expires, math.ceil(seconds * 1000))


def times_of_row(expiry: int, due: int, now: int) -> ItemTimes:
    """Return the times of an item that is exported or imported; all are ms since the epoch.

    It has not expired, nor does it have to be due; 0 is never, and at once.
    """
    delay = min(max(0, due - now), int(LONGEST_DELAY * 1000)) if due else 0
    return ItemTimes(-(-expiry // 1000), delay)


def declared_time(seconds: float, what: str) -> int:
    """Return a declared time in milliseconds. Raises InvalidRequest: it is not a time."""
    if not 0 <= checked_number(seconds, what) <= LONGEST_DELAY:
        raise InvalidRequest(f"{what} must be from 0 to {LONGEST_DELAY:.0f} seconds")
    return math.ceil(seconds * 1000)


def mark_of(producer: str | None, sequence: int | None) -> PutMark | None:
    """Return a mark, as `put_mark`. Raises InvalidRequest instead of ValueError."""
    try:
        return put_mark(producer, sequence)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def end_of_wait(timeout: float | None, now: float) -> float:
    """Return when a wait of `timeout` seconds ends that begins `now`.

    Raises:
        InvalidRequest: `timeout` is not a number.
    """
    if timeout is None:
        return now
    seconds = checked_number(timeout, "a timeout")
    if math.isnan(seconds):
        raise InvalidRequest("a timeout is a number of seconds")
    return now + seconds


def checked_long_lease(seconds: float) -> float:
    """Check a lease, as `checked_lease`, but accept 0, which is without end."""
    return 0.0 if checked_number(seconds, "a lease") == 0 else checked_lease(seconds)


def checked_lease(seconds: float) -> float:
    """Return a lease. Raises InvalidRequest: nothing can be reserved for so long."""
    if not 0 < checked_number(seconds, "a lease") <= LONGEST_LEASE:
        raise InvalidRequest(f"a lease is more than 0 and at most {LONGEST_LEASE:.0f} seconds")
    return seconds


def check_grace(seconds: float) -> None:
    """Raise InvalidRequest: nothing can stay reserved for so long after its owner has gone."""
    if not 0 <= checked_number(seconds, "a grace") <= LONGEST_LEASE:
        raise InvalidRequest(f"a grace must be from 0 to {LONGEST_LEASE:.0f} seconds")


def check_delay(delay: float | None) -> None:
    """Raise InvalidRequest: nothing can be released with such a delay."""
    if delay is not None and not 0 <= checked_number(delay, "the delay") <= LONGEST_LEASE:
        raise InvalidRequest(f"the delay must be from 0 to {LONGEST_LEASE:.0f} seconds")


def protocol_expiry(expiry: Expiry, now: Callable[[], float] = time.time) -> int:
    """Return `expiry` as the protocol sends it, rounded up to whole seconds.

    The protocol takes numbers from 1,000,000 on for seconds since 1970. So a longer time from `now`
    is sent as the absolute time at which it ends. A time in the past is sent as -1.

    Raises:
        InvalidRequest: `expiry` is not finite, too long, or a datetime without a time zone.
    """
    if expiry is None:
        return 0
    if isinstance(expiry, datetime):
        try:
            seconds = math.ceil(given_time(expiry))
        except ValueError as error:
            raise InvalidRequest(str(error)) from None
        # A smaller number would be taken for seconds from now.
        return seconds if seconds >= _RELATIVE_LIMIT else -1
    given = checked_number(expiry, "the expiry")
    if not math.isfinite(given):
        raise InvalidRequest("the expiry must be finite; None is never")
    if given > _LONGEST_EXPIRY:
        raise InvalidRequest(f"the expiry is at most {_LONGEST_EXPIRY:.0f} seconds; None is never")
    if given <= 0:
        return -1
    seconds = math.ceil(given)
    return seconds if seconds < _RELATIVE_LIMIT else math.ceil(now() + given)
