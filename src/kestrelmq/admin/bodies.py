"""Request bodies: a time limit for receiving one, a size limit, and a budget for all together.

A body is neither received nor inflated for an operation that takes none.
"""

import asyncio
import re
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from kestrelmq.admin.errors import ApiError, busy
from kestrelmq.queues.counters import BufferedBytes
from kestrelmq.server.long_reply import in_slices

MAX_BODY_BYTES: Final = 16 << 20
"""Largest body in bytes, both as sent and inflated."""
BODY_BUDGET: Final = 64 << 20
"""Most bytes of bodies that are being received at the same time."""
BODY_TIMEOUT = 30.0
"""How long receiving a body may take."""
_STEP: Final = 256 << 10
"""Bytes inflated before other tasks may run."""
SHORT_JSON: Final = 64 << 10
"""Bytes of JSON that are parsed in little time, whatever they are."""
_MOST_STRINGS: Final = 2000
"""Most strings in longer JSON; nothing that is asked for has more."""
_PART_OF_STRING: Final = re.compile(rb'(?:[^"\\]{1,1024}+|\\.){0,500}+', re.DOTALL)
"""Matches what takes little time of the inside of a JSON string."""

_TOO_LARGE: Final = f"a body, or a line of an import, has at most {MAX_BODY_BYTES} bytes"
_GZIP: Final = 16 + zlib.MAX_WBITS
_DEFLATE: Final = zlib.MAX_WBITS
_RAW_DEFLATE: Final = -zlib.MAX_WBITS


class BodyReader:
    """Receives request bodies.

    Attributes:
        held: bytes received so far of bodies that are not complete yet.
    """

    __slots__ = ("_buffered", "held")

    def __init__(self, buffered: BufferedBytes) -> None:
        """`buffered` is the account of what is held for all clients of the server."""
        self._buffered = buffered
        self.held = 0

    async def read(self, request: web.Request) -> bytes:
        """Return the whole body of `request`, inflated: JSON that can be parsed in little time.

        Raises:
            ApiError: the body is too large, too slow or damaged, has too many parts, or the budget
                is used up.
            ConnectionError: the client disconnected.
        """
        body = await self._read(request)
        await in_slices(check_parts(body))
        return body

    async def _read(self, request: web.Request) -> bytes:
        encoding = request.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in {"", "identity", "gzip", "x-gzip", "deflate"}:
            raise ApiError(
                415,
                "unknown_encoding",
                "Content-Encoding: allowed: gzip, deflate",
                {"Accept-Encoding": "gzip, deflate"},
            )
        async with _receiving():
            sent = await self._receive(request)
        if encoding in {"", "identity"} or not sent:
            return sent
        return await _inflated(sent, _window_bits(encoding, sent))

    async def lines(self, request: web.Request) -> AsyncGenerator[list[bytes], None]:
        """Yield the lines of a body of any size as they come, some at a time.

        Raises:
            ApiError: a line is too large, or what `read` raises; a part of the body may be slow.
            ConnectionError: the client disconnected.
        """
        if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            raise ApiError(415, "unknown_encoding", "lines are taken as they are, not compressed")
        rest = bytearray()
        try:
            while True:
                async with _receiving():
                    part = await request.content.readany()
                if not part:
                    break
                begin = len(rest)
                rest += part
                self._count(len(part))
                self._check(len(rest))
                end = rest.rfind(b"\n", begin)
                if end >= 0:
                    with memoryview(rest) as whole:
                        lines = bytes(whole[:end]).split(b"\n")
                    yield lines
                    del rest[: end + 1]
                    self._count(-end - 1)
            if rest:
                yield [bytes(rest)]
        finally:
            self._count(-len(rest))

    async def _receive(self, request: web.Request) -> bytes:
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise ApiError(413, "body_too_large", _TOO_LARGE)
        parts = []
        size = 0
        try:
            async for part in request.content.iter_any():
                parts.append(part)
                size += len(part)
                self._count(len(part))
                self._check(size)
        finally:
            self._count(-size)
        return b"".join(parts)

    def _count(self, change: int) -> None:
        self.held += change
        self._buffered.count(change)

    def _check(self, size: int) -> None:
        if size > MAX_BODY_BYTES:
            raise ApiError(413, "body_too_large", _TOO_LARGE)
        if self.held > BODY_BUDGET or self._buffered.is_full:
            raise busy(
                "too_many_bodies", "the server is receiving too many bodies at the same time"
            )


def check_parts(json: bytes) -> Generator[None, None, None]:
    """Check that JSON has few parts, however long its strings are; yield after each short look.

    16 MiB of small numbers or names take a parser seconds, in which nobody else is served, and
    hundreds of megabytes. A parser is done with a long string at once.

    Raises ApiError: there are too many.
    """
    if len(json) <= SHORT_JSON:
        return
    at = outside = strings = 0
    while (begin := json.find(b'"', at)) >= 0:
        outside += begin - at
        strings += 1
        if outside > SHORT_JSON or strings > _MOST_STRINGS:
            raise _too_many_parts()
        at = begin + 1
        while (end := _PART_OF_STRING.match(json, at).end()) > at:  # type: ignore[union-attr] # it matches nothing, too
            at = end
            yield
        at += 1  # the quote at its end
    if outside + len(json) - at > SHORT_JSON:
        raise _too_many_parts()


def _too_many_parts() -> ApiError:
    return ApiError(413, "too_many_parts", "the JSON has too many parts: names, numbers, strings")


@asynccontextmanager
async def _receiving() -> AsyncIterator[None]:
    """Receive within the `async with` block. Raises ApiError: nothing valid came in time."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            yield
    except TimeoutError:
        text = f"the body did not come within {BODY_TIMEOUT:g} s"
        raise ApiError(408, "body_too_slow", text) from None
    except (web.RequestPayloadError, HttpProcessingError):
        raise ApiError(400, "invalid_body", "the body is not a valid HTTP body") from None


def _window_bits(encoding: str, sent: bytes) -> int:
    if encoding != "deflate":
        return _GZIP
    # "deflate" means a zlib stream, but some clients send it without the zlib header.
    is_wrapped = sent[0] & 0x0F == 8 and len(sent) > 1 and (sent[0] << 8 | sent[1]) % 31 == 0
    return _DEFLATE if is_wrapped else _RAW_DEFLATE


async def _inflated(sent: bytes, window_bits: int) -> bytes:
    """Return `sent` inflated. Raises ApiError: it is damaged, or inflates to too much."""
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
            if size > MAX_BODY_BYTES:
                raise ApiError(413, "body_too_large", _TOO_LARGE)
            await asyncio.sleep(0)
    except zlib.error as error:
        raise ApiError(400, "invalid_body", f"the body cannot be inflated: {error}") from None
    if not inflater.eof or inflater.unused_data:
        raise ApiError(400, "invalid_body", "the body cannot be inflated: its end is wrong")
    return b"".join(parts)
