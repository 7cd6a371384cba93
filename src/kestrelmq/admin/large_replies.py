"""Large replies: those about all queues, which may be many megabytes.

They are rendered one at a time and sent in parts. The total of rendered but unsent bytes is
bounded, and a client that takes too long to receive a reply is disconnected.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from kestrelmq.admin.errors import busy

UNSENT_BUDGET: Final = 64 << 20
"""While more bytes than this are rendered but unsent, no further reply is rendered."""
_SENT_AT_ONCE: Final = 1 << 20
"""Bytes after which other tasks run: a client that reads fast never makes the sending wait."""
SEND_TIMEOUT: Final = 60.0
"""Seconds within which a client must take a reply, or a part of one that is sent in parts."""


class LargeReplies:
    """Renders and sends large replies."""

    __slots__ = ("_held", "_rendering")

    def __init__(self) -> None:
        self._rendering = asyncio.Lock()
        self._held = 0

    async def send(
        self, request: web.Request, content_type: str, render: Callable[[], Awaitable[list[bytes]]]
    ) -> web.StreamResponse:
        """Send the parts that `render` returns; only headers in reply to a HEAD.

        Raises ApiError: too much is unsent already.
        """
        response = web.StreamResponse(headers={"Content-Type": content_type})
        if request.method == "HEAD":
            await response.prepare(request)
            return response
        async with self._rendering:
            if self._held > UNSENT_BUDGET:
                raise busy(
                    "too_many_replies", "too many replies wait for their clients to take them"
                )
            parts = await render()
        size = sum(map(len, parts))
        response.content_length = size
        response.enable_compression()  # if the client takes it
        self._held += size
        try:
            async with asyncio.timeout(SEND_TIMEOUT):
                await response.prepare(request)
                parts.reverse()
                sent = 0
                while parts:  # freed one by one: all at once, 100 MiB take 30 ms
                    part = parts.pop()
                    await response.write(part)
                    sent += len(part)
                    if sent >= _SENT_AT_ONCE:
                        sent = 0
                        await asyncio.sleep(0)
                await response.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._held -= size
        return response
