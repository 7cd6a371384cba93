"""What a caller may choose about a client; the same for the blocking and the asyncio one."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeAlias

from kestrelmq.errors import InvalidRequest
from kestrelmq.protocol.memcache_client import MAX_ITEM_BYTES

Expiry: TypeAlias = float | datetime | None
"""When an item expires: seconds from now, a point in time, or None for never."""

_RELATIVE_LIMIT: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Times in seconds, sizes in bytes.

    Attributes:
        connect_timeout: how long making a connection may take.
        operation_timeout: how long a reply may take, beyond the wait the operation itself asks for.
        poll_interval: how long a blocking read of a cluster waits at one server before it looks at
            the next.
        retry_unknown: whether an add whose reply was lost is sent again, at the risk of a
            duplicate.
        max_idle_connections: how many unused connections are kept for each server.
        max_item_bytes: a longer item in a reply is an error.
    """

    connect_timeout: float = 2.0
    operation_timeout: float = 10.0
    poll_interval: float = 0.05
    retry_unknown: bool = False
    max_idle_connections: int = 8
    max_item_bytes: int = MAX_ITEM_BYTES


def protocol_expiry(expiry: Expiry, now: Callable[[], float] = time.time) -> int:
    """Return `expiry` as the protocol wants it, rounded up to whole seconds.

    From 1,000,000 seconds on the protocol counts from 1970, so a longer time is sent as its end.
    A time that has passed already is sent as -1.

    Raises:
        InvalidRequest: it is no time.
    """
    if expiry is None:
        return 0
    if isinstance(expiry, datetime):
        if expiry.tzinfo is None:
            raise InvalidRequest("the expiry needs a time zone, such as datetime.UTC")
        seconds = math.ceil(expiry.astimezone(UTC).timestamp())
        # A number this small would be taken for seconds from now.
        return seconds if seconds >= _RELATIVE_LIMIT else -1
    if not math.isfinite(expiry):
        raise InvalidRequest("the expiry must be finite; None is never")
    if expiry <= 0:
        return -1
    seconds = math.ceil(expiry)
    return seconds if seconds < _RELATIVE_LIMIT else math.ceil(now() + expiry)
