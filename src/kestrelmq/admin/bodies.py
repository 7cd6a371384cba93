"""Bodies of requests: received within a time, inflated within a size, all of them within a budget.

Nothing is received, and nothing inflated, of a request that needs no body.
"""

import asyncio
import zlib
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from kestrelmq.admin.errors import ApiError

MOST: Final = 16 << 20
"""Bytes of the largest body, as it is sent and as it is inflated."""
BUDGET: Final = 64 << 20
"""Bytes of all bodies together that are being received."""
SECONDS = 30.0
"""How long a body may take to come."""
_STEP: Final = 256 << 10
"""Bytes inflated before others may run."""

_TOO_LARGE: Final = f"a body has at most {MOST} bytes"
_GZIP: Final = 16 + zlib.MAX_WBITS
_DEFLATE: Final = zlib.MAX_WBITS
_RAW_DEFLATE: Final = -zlib.MAX_WBITS


class Bodies:
    """Receives bodies.

    Attributes:
        held: bytes of bodies that are being received.
    """

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = 0

    async def read(self, request: web.Request) -> bytes:
        """Return the whole body of `request`, inflated.

        Raises:
            ApiError: it is too large, too slow, or damaged, or too much is received already.
            ConnectionError: the client is gone.
        """
        encoding = request.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in {"", "identity", "gzip", "x-gzip", "deflate"}:
            raise ApiError(
                415,
                "unknown_encoding",
                "Content-Encoding: allowed: gzip, deflate",
                {"Accept-Encoding": "gzip, deflate"},
            )
        try:
            async with asyncio.timeout(SECONDS):
                sent = await self._receive(request)
        except TimeoutError:
            raise ApiError(
                408, "body_too_slow", f"the body did not come within {SECONDS:g} s"
            ) from None
        except (web.RequestPayloadError, HttpProcessingError):
            raise ApiError(400, "invalid_body", "the body is no valid HTTP body") from None
        if encoding in {"", "identity"} or not sent:
            return sent
        return await _inflated(sent, _window_bits(encoding, sent))

    async def _receive(self, request: web.Request) -> bytes:
        if (request.content_length or 0) > MOST:
            raise ApiError(413, "body_too_large", _TOO_LARGE)
        parts = []
        size = 0
        try:
            async for part in request.content.iter_any():
                parts.append(part)
                size += len(part)
                self.held += len(part)
                self._check(size)
        finally:
            self.held -= size
        return b"".join(parts)

    def _check(self, size: int) -> None:
        if size > MOST:
            raise ApiError(413, "body_too_large", _TOO_LARGE)
        if self.held > BUDGET:
            raise ApiError(
                503,
                "too_many_bodies",
                "too much is being received; try again",
                {"Retry-After": "1"},
            )


def _window_bits(encoding: str, sent: bytes) -> int:
    if encoding != "deflate":
        return _GZIP
    # What is called deflate is a zlib stream; some clients leave its wrapping out.
    is_wrapped = sent[0] & 0x0F == 8 and len(sent) > 1 and (sent[0] << 8 | sent[1]) % 31 == 0
    return _DEFLATE if is_wrapped else _RAW_DEFLATE


async def _inflated(sent: bytes, window_bits: int) -> bytes:
    """Return what `sent` holds. Raises ApiError: it is damaged, or holds too much."""
    inflater = zlib.decompressobj(window_bits)
    parts = []
    size = 0
    rest = sent
    try:
        while not inflater.eof:
            part = inflater.decompress(rest, _STEP)
            rest = inflater.unconsumed_tail
            if not part and not rest:
                break
            parts.append(part)
            size += len(part)
            if size > MOST:
                raise ApiError(413, "body_too_large", _TOO_LARGE)
            await asyncio.sleep(0)
    except zlib.error as error:
        raise ApiError(400, "invalid_body", f"the body cannot be inflated: {error}") from None
    if not inflater.eof or inflater.unused_data:
        raise ApiError(400, "invalid_body", "the body cannot be inflated: its end is wrong")
    return b"".join(parts)
