"""API operations on reserved reads: reserve items, and finish, release or extend the reads.

The rules are those of the other protocols (`server.reserving`). An HTTP request is no connection of
an owner: clients and proxies keep and drop their connections as they like.
"""

import asyncio
import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Final, TypeVar

from aiohttp import web

from kestrelmq.admin.calls import ONE, Call, operation
from kestrelmq.admin.errors import ApiError
from kestrelmq.admin.large_replies import SEND_TIMEOUT
from kestrelmq.admin.models import (
    Extended,
    Extending,
    ExtendingOwner,
    Finished,
    Finishing,
    HeldEntry,
    OwnerEntry,
    OwnerPage,
    OwnersQuery,
    Released,
    Releasing,
    ReleasingOwner,
    ReservedAnswer,
    ReservedItem,
    Reserving,
    Retired,
    Retiring,
)
from kestrelmq.admin.slices import slices
from kestrelmq.format.records import (
    ADDX_HEADER,
    item_add_time,
    item_deliveries,
    item_expiry,
    record_of,
)
from kestrelmq.protocol.reserving import (
    EndsReads,
    Extend,
    ExtendOwner,
    Finish,
    Reads,
    Release,
    Reserve,
    Retire,
    nonce_text,
    parse_reads,
    read_text,
)
from kestrelmq.protocol.rights import Right
from kestrelmq.server.requests.reserving import AwaitedRequest, HeldReads, Reserved, held_of

_SLICE: Final = 50
"""Owners that are listed at once."""
_PART: Final = 64 << 10
"""Bytes of an answer that are sent at once, or a few more."""
_ENCODED_AT_ONCE: Final = 3 * _PART
"""Bytes of an item to encode at once; a multiple of three, so that the parts are one text."""
_BEFORE_ITEMS: Final = b'{"done":false,"items":['
_AFTER_DATA: Final = b'"}'
_DONE: Final = b'{"done":true,"items":[]}'
_AFTER_ITEMS: Final = b"]}"
_SHORTEST_LEASE: Final = 0.001

Item = tuple[ReservedItem, bytes]
"""An item without its data, and its record."""
Request = TypeVar("Request")


@operation(
    "POST",
    "/reserve",
    "reserved reads",
    Right.READ,
    failures=(409, 503),
    is_traffic=True,
    answer=ReservedAnswer,
)
async def reserve_items(call: Call, body: Reserving) -> web.StreamResponse:
    """Reserve items of the first of some queues that have any; their reads end by their names.

    A read ends by `finish`, by `release`, or when its lease ends: then its item goes back. If there
    is no item, wait up to `timeout`; the next request on the connection ends the wait. If the
    client disconnects before that, nothing is reserved; if it disconnects before it was sent the
    answer, the items go back at once.
    """
    request = _checked(lambda: _reserve(body))
    call.check(request)
    with call.admin.reserves.one():
        awaited = AwaitedRequest(call.admin.context)
        try:
            with call.connection.waiting(awaited.cancel, awaited.input_arrived):
                reserved = await awaited.reserve(request)
        except ConnectionError:
            if call.connection.transport is None:
                raise
            if call.connection.may_be_gone:
                reason = "a client that reserves items must not end its side of the connection"
                raise ApiError(400, "bad_request", reason) from None
            raise ApiError(503, "shutting_down", "the server is shutting down") from None
        if reserved is None:
            return web.Response(body=_DONE, content_type="application/json")
        try:
            response = await _send(call, reserved, held_of(reserved) if request.nodata else [])
        except BaseException:
            awaited.cancel()
            raise
        awaited.sent()
        return response


def _reserve(body: Reserving) -> Reserve:
    if 0 < body.lease < _SHORTEST_LEASE:
        raise ValueError("a lease is 0.001 s or more, or 0, which is without end")
    return Reserve(
        tuple(body.queues),
        body.count,
        _milliseconds(body.lease),
        _milliseconds(body.timeout),
        body.tag or "",
        body.owner or "",
        _milliseconds(body.grace),
        body.again,
        body.nodata,
    )


async def _send(call: Call, reserved: Reserved, held: Sequence[HeldReads]) -> web.StreamResponse:
    """Send what was reserved; return once the socket has all of it. Raises ConnectionError."""
    request = call.request
    items = [] if held else _items(reserved)
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    try:
        async with asyncio.timeout(SEND_TIMEOUT):
            await response.prepare(request)
        for part in _parts(items, held):
            async with asyncio.timeout(SEND_TIMEOUT):
                await response.write(part)
            await asyncio.sleep(0)
        async with asyncio.timeout(SEND_TIMEOUT):
            await response.write_eof()
            await call.connection.all_sent(request)
    except TimeoutError:
        call.connection.abort()
        raise ConnectionResetError("the client does not read the answer") from None
    return response


def _items(reserved: Reserved) -> list[Item]:
    found: list[Item] = []
    for queue, reservation in reserved:
        for xid, one in zip(*queue.reserved.reads_of(reservation), strict=True):
            record = record_of(one)
            item = ReservedItem(
                queue=queue.name,
                read=read_text(xid, reservation.nonce),
                deliveries=item_deliveries(one) + 1,
                add_time=item_add_time(record),
                expiry=item_expiry(record),
                size=len(record) - ADDX_HEADER,
                data="",
            )
            found.append((item, record))
    return found


def _parts(items: Sequence[Item], held: Sequence[HeldReads]) -> Iterator[bytes]:
    """Yield a `ReservedAnswer` as JSON, in parts."""
    parts: list[bytes] = []
    size = 0
    for piece in _pieces(items, held):
        parts.append(piece)
        size += len(piece)
        if size >= _PART:
            yield b"".join(parts)
            parts, size = [], 0
    yield b"".join(parts)


def _pieces(items: Sequence[Item], held: Sequence[HeldReads]) -> Iterator[bytes]:
    between = _BEFORE_ITEMS
    for item, record in items:
        yield between + item.__pydantic_serializer__.to_json(item).removesuffix(_AFTER_DATA)
        data = memoryview(record)[ADDX_HEADER:]
        for at in range(0, len(data), _ENCODED_AT_ONCE):
            yield base64.b64encode(data[at : at + _ENCODED_AT_ONCE])
        yield _AFTER_DATA
        between = b","
    if not items:
        yield _BEFORE_ITEMS
    if not held:
        yield _AFTER_ITEMS
        return
    entries = [
        HeldEntry(queue=one.queue, nonce=nonce_text(one.nonce), count=one.count, bytes=one.size)
        for one in held
    ]
    yield b'],"held":[%b]}' % b",".join([one.model_dump_json().encode() for one in entries])


@operation(
    "POST", f"{ONE}/finish", "reserved reads", Right.READ, failures=(409, 503), is_traffic=True
)
async def finish_reads(call: Call, body: Finishing) -> Finished:
    """Finish reserved reads: their items are gone for good.

    Reads that have ended are left out. A tag that is done is answered as the first time.
    """
    count = await _ended(call, lambda: Finish(call.name, _reads(body.reads), body.tag or ""))
    return Finished(finished=count)


@operation(
    "POST", f"{ONE}/release", "reserved reads", Right.READ, failures=(409, 503), is_traffic=True
)
async def release_reads(call: Call, body: Releasing) -> Released:
    """Give reserved reads back, as failed deliveries unless `uncounted`.

    Their items are read again, or go to the dead-letter queue after `max_deliveries`.
    """
    count = await _ended(
        call,
        lambda: Release(
            call.name,
            _reads(body.reads),
            body.tag or "",
            body.owner or "",
            None if body.delay is None else _milliseconds(body.delay),
            body.uncounted,
            body.dead,
        ),
    )
    return Released(released=count)


@operation(
    "POST",
    "/release-owner",
    "reserved reads",
    Right.SIGNED_IN,
    failures=(409, 503),
    is_traffic=True,
)
async def release_owner(call: Call, body: ReleasingOwner) -> Released:
    """Give the reserved reads of an owner back, those of all queues."""
    count = await _ended(
        call,
        lambda: Release(
            "",
            (),
            "",
            body.owner,
            None if body.delay is None else _milliseconds(body.delay),
            body.uncounted,
            body.dead,
        ),
    )
    return Released(released=count)


@operation("GET", "/owners", "reserved reads", Right.ADMIN)
async def list_owners(call: Call, query: OwnersQuery) -> OwnerPage:
    """List the owners of reserved reads, in the order of their names."""
    found: list[OwnerEntry] = []
    total = 0
    async for some in slices(call.admin.context.collection.owners.holding(query.pattern), _SLICE):
        for one in filter(None, some):
            total += 1
            if query.offset < total <= query.offset + query.limit:
                found.append(OwnerEntry(**asdict(one)))
    return OwnerPage(total=total, offset=query.offset, owners=found)


@operation(
    "POST", f"{ONE}/extend", "reserved reads", Right.READ, failures=(409, 503), is_traffic=True
)
async def extend_reads(call: Call, body: Extending) -> Extended:
    """Let the leases of reserved reads end so many seconds from now."""
    lease = _milliseconds(body.lease)
    count = await _ended(call, lambda: Extend(call.name, lease, _reads(body.reads), body.tag or ""))
    return Extended(extended=count)


@operation("POST", "/extend-owner", "reserved reads", Right.SIGNED_IN, is_traffic=True)
async def extend_owner(call: Call, body: ExtendingOwner) -> Extended:
    """Let the leases of all reads of an owner, of all queues, end so many seconds from now."""
    count = await _ended(call, lambda: ExtendOwner(body.owner, _milliseconds(body.lease)))
    return Extended(extended=count)


@operation(
    "POST", f"{ONE}/retire", "reserved reads", Right.READ, failures=(409, 503), is_traffic=True
)
async def retire_tags(call: Call, body: Retiring) -> Retired:
    """Refuse the tags of a name up to an epoch from now on, and forget those that are done.

    The reads of those that are open are given back; they were no deliveries. A name is forgotten 30
    days after that.
    """
    count = await _ended(call, lambda: Retire(call.name, body.name, body.epoch))
    return Retired(retired=count)


async def _ended(call: Call, make: Callable[[], EndsReads]) -> int:
    """Carry out the request that `make` returns; return how many reads or tags it changed."""
    request = _checked(make)
    call.check(request)
    return await AwaitedRequest(call.admin.context).end_reads(request)


def _checked(make: Callable[[], Request]) -> Request:
    """Return the request that `make` returns. Raises ApiError: it asks for what cannot be."""
    try:
        return make()
    except ValueError as error:
        raise ApiError(400, "invalid_body", str(error)) from None


def _reads(reads: Sequence[str]) -> Reads:
    return parse_reads([read.encode() for read in reads])


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
