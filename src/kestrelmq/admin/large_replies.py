"""Replies about all queues, which may be many megabytes: made one at a time, sent in parts.

What is made and not sent yet is bounded; a client that takes too long for a reply loses it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from kestrelmq.admin.errors import ApiError

BUDGET: Final = 64 << 20
"""Bytes of replies that are made and not sent; with so many, no further one is made."""
SECONDS: Final = 60.0
"""How long a reply may take to be sent."""


class LargeReplies:
    """Makes and sends large replies."""

    __slots__ = ("_held", "_making")

    def __init__(self) -> None:
        self._making = asyncio.Lock()
        self._held = 0

    async def send(
        self, request: web.Request, content_type: str, make: Callable[[], Awaitable[list[bytes]]]
    ) -> web.StreamResponse:
        """Reply with what `make` returns. Raises ApiError: too much waits to be sent."""
        async with self._making:
            if self._held > BUDGET:
                raise ApiError(
                    503,
                    "too_many_replies",
                    "too many replies wait for their clients to take them; try again",
                    {"Retry-After": "1"},
                )
            parts = await make()
        size = sum(map(len, parts))
        response = web.StreamResponse(headers={"Content-Type": content_type})
        response.content_length = size
        self._held += size
        try:
            async with asyncio.timeout(SECONDS):
                await response.prepare(request)
                for part in parts if request.method != "HEAD" else ():
                    await response.write(part)
                await response.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._held -= size
        return response
