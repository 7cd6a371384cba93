"""API operations that send or take the items of a queue as lines of JSON: export and import.

Both are streams: however many items there are, only a part of them is in memory. JSON is read and
written in a thread.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Final, TypeVar
from urllib.parse import quote

from aiohttp import web

from kestrelmq.admin.bodies import SHORT_JSON, check_parts
from kestrelmq.admin.calls import LINES, ONE, Call, now, operation
from kestrelmq.admin.errors import ApiError, translated
from kestrelmq.admin.large_replies import SEND_TIMEOUT
from kestrelmq.admin.models import Imported
from kestrelmq.errors import JournalError, KestrelError, QueueUnavailable
from kestrelmq.format.records import ADDX_HEADER, Item, item_times, record_of
from kestrelmq.protocol.rights import Right
from kestrelmq.queue.queue import Queue
from kestrelmq.scheduling.worker import LARGE_ITEM
from kestrelmq.server.long_reply import in_slices
from kestrelmq.server.loop.threads import in_thread
from kestrelmq.server.requests import changes
from kestrelmq.server.requests.put import put
from kestrelmq.tools.export_rows import ExportRow, dead_letter_fields, json_pieces, live_rows

_SENT_AT_ONCE: Final = 256 << 10
"""Bytes of lines that are made and sent at once."""
_AT_ONCE: Final = 200
"""Items that are added before others are served."""
_BYTES_AT_ONCE: Final = LARGE_ITEM - 1
"""Bytes of data that are added before others are served."""
_SLICE: Final = 0.00025
"""Seconds that a thread works between two pauses."""
_LONGEST_SLEEP: Final = 0.001
"""Seconds of the longest pause."""

T = TypeVar("T")


@operation(
    "GET", f"{ONE}/export", "items", Right.READ, failures=(404, 503), secret=True, sends_lines=True
)
async def export_items(call: Call) -> web.StreamResponse:
    """Send all waiting items of a queue as lines of JSON, and leave them there.

    The lines are those of `kestrelmq export`; an import takes them. Items of open reads and delayed
    items are not included. What is read from the queue meanwhile may make it leave out or repeat
    some items. An error after the first lines breaks the connection off.
    """
    queue = call.queue()
    browser, request = call.admin.context.browser, call.request
    with call.admin.transfers.one():
        async with aclosing(browser.parts(queue)) as parts:
            part = await anext(parts, None)  # an error so far has a reply of its own
            response = web.StreamResponse(headers=_headers(queue.name))
            await response.prepare(request)
            if request.method == "HEAD":
                return response
            try:
                place = 0
                while part is not None:
                    pieces = _paced(_pieces(queue.name, place, part))
                    while some := await in_thread(_some, pieces):
                        async with asyncio.timeout(SEND_TIMEOUT):
                            await response.write(some)
                    place += len(part)
                    part = await anext(parts, None)
                await response.write_eof()
            except (KestrelError, TimeoutError):
                if request.transport is not None:
                    request.transport.abort()
    return response


def _headers(queue: str) -> dict[str, str]:
    name = quote(f"{queue}.jsonl", safe="")
    return {"Content-Type": LINES, "Content-Disposition": f"attachment; filename*=UTF-8''{name}"}


def _pieces(queue: str, place: int, records: Sequence[Item]) -> Iterator[bytes]:
    """Yield the lines of some items, which begin at `place`, in short pieces."""
    for number, one in enumerate(records, place):
        data = memoryview(record_of(one))[ADDX_HEADER:]
        where: dict[str, object] = {"queue": queue, "position": number}
        if (dead := dead_letter_fields(one)) is not None:
            where["dead_letter"] = dead
        for piece in json_pieces(where, data, item_times(one)):
            yield piece.encode()
        yield b"\n"


def _some(pieces: Iterator[bytes]) -> bytes:
    """Return some of the next pieces, joined; nothing at the end. Runs in a thread."""
    some, size = [], 0
    for piece in pieces:
        some.append(piece)
        size += len(piece)
        if size >= _SENT_AT_ONCE:
            break
    return b"".join(some)


def _paced(some: Iterable[T]) -> Iterator[T]:
    """Yield `some`; sleep as long as was worked, often: the loop waits for a thread that works."""
    worked_from = time.monotonic()
    for one in some:
        yield one
        worked = time.monotonic() - worked_from
        if worked > _SLICE:
            time.sleep(min(worked, _LONGEST_SLEEP))
            worked_from = time.monotonic()


@operation(
    "POST",
    f"{ONE}/import",
    "items",
    Right.WRITE,
    failures=(408, 409, 413, 415, 503),
    takes_lines=True,
)
async def import_items(call: Call) -> Imported:
    """Add the items of lines of JSON to a queue, whatever queue the lines name.

    The lines are those of an export: `data` or `data_base64`, perhaps `expiry` and `due`; each has
    at most 16 MiB. The items are new ones: they keep their expiry, but not the time when they were
    added. Those that have expired are left out, and those that are not due are delayed. What is
    added before a line that is wrong, or an item that is refused, stays; the message says how many.
    """
    name = call.name
    call.admin.context.check_writable()
    target = _Target(call, name)
    with call.admin.transfers.one():
        async with aclosing(call.lines()) as batches:
            try:
                async for lines in batches:
                    await target.add(lines)
            except ApiError as error:
                said = f"{error}; {target.added} items added"
                raise ApiError(error.status, error.code, said, error.headers) from None
    return Imported(added=target.added)


def _in_slices(rows: Sequence[ExportRow]) -> Iterator[list[ExportRow]]:
    """Yield rows that are added before others are served; a large one, which waits, alone."""
    some: list[ExportRow] = []
    size = 0
    for row in rows:
        if some and (len(some) == _AT_ONCE or size + len(row.data) > _BYTES_AT_ONCE):
            yield some
            some, size = [], 0
        some.append(row)
        size += len(row.data)
    if some:
        yield some


class _Target:
    """The queue that an import adds to, or the alias.

    Attributes:
        added: how many items were added.
    """

    def __init__(self, call: Call, name: str) -> None:
        self._call = call
        self._name = name
        self._lines = 0
        self.added = 0

    async def add(self, lines: Sequence[bytes]) -> None:
        """Add the items of some lines, and wait until they are durable.

        Raises:
            ApiError: a line is wrong, or an item was refused; those before it were added.
        """
        for line in [line for line in lines if len(line) > SHORT_JSON]:
            await in_slices(check_parts(line))
        rows, wrong = await in_thread(self._parsed, lines)
        self._lines += len(lines)
        for some in _in_slices(rows):
            await self._add_rows(some)
        if wrong is not None:
            raise ApiError(400, "invalid_body", wrong)

    def _parsed(self, lines: Sequence[bytes]) -> tuple[list[ExportRow], str | None]:
        """Return the rows up to one that is wrong, and why that is; runs in a thread."""
        rows: list[ExportRow] = []
        try:
            for row in live_rows(_paced(lines), self._name, now, self._lines + 1):
                rows.append(row)  # noqa: PERF402 # what is read before an error is kept
        except JournalError as error:
            return rows, str(error)
        return rows, None

    async def _add_rows(self, rows: Sequence[ExportRow]) -> None:
        context = self._call.admin.context
        collection, touched = context.collection, dict[Queue, None]()
        refusal: ApiError | None = None
        count = 0
        for row in rows:
            try:
                context.check_writable()
                stored = await put(context, self._name, row.data, row.expiry, due=row.due)
            except (JournalError, QueueUnavailable) as error:
                refusal = translated(error)
                break
            touched |= dict.fromkeys(collection.destinations(self._name))
            if not stored:
                reason = f"{self._name} is full, or the item is too large for it"
                refusal = ApiError(409, "item_refused", reason)
                break
            count += 1
        try:
            await changes.wait_until_durable(context, *touched)
        except JournalError as error:
            raise translated(error) from None
        self.added += count
        if refusal is not None:
            raise refusal
        await asyncio.sleep(0)
