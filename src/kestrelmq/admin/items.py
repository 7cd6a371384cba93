"""API operations on items: browse, search, add and move them; and on open reads."""

import base64
import binascii
import time
from collections import deque
from math import inf
from typing import Final

from kestrelmq.admin.calls import ONE, Call, now, operation
from kestrelmq.admin.errors import ApiError
from kestrelmq.admin.models import (
    MovedAnswer,
    NewItem,
    NewPlace,
    OpenQuery,
    OpenRead,
    OpenReadsAnswer,
    PeekAnswer,
    PeekedItem,
    PeekedLetter,
    PeekQuery,
    Redrive,
    Requeue,
    Requeued,
    Stored,
)
from kestrelmq.admin.slices import slices
from kestrelmq.format.notes import dead_letter
from kestrelmq.format.records import (
    ADDX_HEADER,
    Item,
    item_add_time,
    item_deliveries,
    item_expiry,
    record_of,
)
from kestrelmq.idempotent_producers import PutMark, put_mark
from kestrelmq.journal import open_read
from kestrelmq.protocol.managing import Move
from kestrelmq.protocol.rights import Right
from kestrelmq.queue.queue import Queue
from kestrelmq.queues.browsing import parse_place, place_text
from kestrelmq.queues.searching import Search
from kestrelmq.server.clients import holders
from kestrelmq.server.connection import Connection
from kestrelmq.server.long_reply import in_slices
from kestrelmq.server.loop.threads import in_thread
from kestrelmq.server.requests import changes, moving
from kestrelmq.server.requests.put import put
from kestrelmq.server.requests.reads import HeldReadsReturn

_LONG: Final = 256 << 10
"""Characters of base64 that a thread decodes."""
_READS_AT_ONCE: Final = 2000
"""Open reads that are looked at before others are served: that takes about a millisecond."""


@operation("GET", f"{ONE}/items", "items", Right.READ, failures=(404, 503), secret=True)
async def peek_items(call: Call, query: PeekQuery) -> PeekAnswer:
    """Show items of a queue, or search them, without removing them.

    The items may be in memory or on disk. What is read or added meanwhile may move them by some
    places. To see all, go on from `next_offset` until that is null; to see each once, from `place`.
    """
    queue = call.queue()
    search = None
    if query.text is not None:
        search = Search(query.text.encode())
    elif query.pattern is not None:
        search = Search(query.pattern.encode(), is_pattern=True)
    browser = call.admin.context.browser
    start = None if query.place is None else parse_place(queue, query.place)
    looking = browser.page(queue, query.offset, query.limit, search, query.max_bytes, start)
    page = await (looking if search is None else call.while_connected(looking))
    return PeekAnswer(
        total=page.total,
        items=[_peeked(place, record, query.max_bytes) for place, record in page.items],
        next_offset=page.next_offset,
        place=place_text(queue, page.behind),
    )


def _peeked(position: int, one: Item, max_bytes: int) -> PeekedItem:
    record, letter = record_of(one), dead_letter(one)
    size = len(record) - ADDX_HEADER
    return PeekedItem(
        position=position,
        add_time=item_add_time(record),
        expiry=item_expiry(record),
        deliveries=item_deliveries(one),
        dead_letter=None if letter is None else PeekedLetter(**letter._asdict()),
        size=size,
        data=base64.b64encode(record[ADDX_HEADER : ADDX_HEADER + max_bytes]).decode(),
        truncated=size > max_bytes,
    )


@operation(
    "POST",
    f"{ONE}/items",
    "items",
    Right.WRITE,
    failures=(409, 503),
    statuses=(201,),
    is_traffic=True,
)
async def put_item(call: Call, body: NewItem) -> Stored:
    """Add an item to a queue, which is created if necessary, or to the queues of an alias."""
    name = call.name
    call.admin.context.check_writable()
    # Decoding what is long takes long.
    data = _data(body) if len(body.data or "") < _LONG else await in_thread(_data, body)
    context = call.admin.context
    due = context.due_after(round((body.delay or 0) * 1000))
    expiry = 0 if body.expires_in is None else (due or now()) + round(body.expires_in * 1000)
    collection = context.collection
    mark = _mark(body)
    stored = await put(context, name, data, expiry, due=due, mark=mark)
    destinations = collection.destinations(name)
    await changes.wait_until_durable(context, *destinations)
    if not stored:
        raise ApiError(409, "item_refused", f"{name} is full, or the item is too large for it")
    return Stored(queue=name, size=len(data))


def _mark(item: NewItem) -> PutMark | None:
    try:
        return put_mark(item.producer, item.sequence)
    except ValueError as error:
        raise ApiError(400, "invalid_body", str(error)) from None


def _data(item: NewItem) -> bytes:
    try:
        if item.data is not None:
            return base64.b64decode(item.data, validate=True)
        return (item.text or "").encode()
    except (binascii.Error, ValueError) as error:
        raise ApiError(400, "invalid_body", f"data: not base64: {error}") from None


@operation("POST", f"{ONE}/move", "items", Right.READ, failures=(404, 503))
async def move_items(call: Call, body: NewPlace) -> MovedAnswer:
    """Move the first items of a queue to another one, in order.

    An item is in the target before it leaves the queue: a crash may leave it in both. Where the
    target refuses an item, the move ends.
    """
    return await _move(call, Move(call.queue().name, body.target, body.count))


@operation("POST", f"{ONE}/copy", "items", Right.READ, failures=(404, 503))
async def copy_items(call: Call, body: NewPlace) -> MovedAnswer:
    """Copy the first items of a queue to another one, in order.

    What is read from the queue meanwhile may make it leave out or repeat some items.
    """
    return await _move(call, Move(call.queue().name, body.target, body.count, copies=True))


@operation("POST", f"{ONE}/redrive", "items", Right.READ, failures=(404, 503))
async def redrive(call: Call, body: Redrive) -> MovedAnswer:
    """Move all items of a dead-letter queue back to where they came from, or to another queue.

    Fanout children do not get them. Those from unknown queues stay, and `stopped` says how many.
    """
    return await _move(call, Move(call.queue().name, body.target, None, redrives=True))


async def _move(call: Call, request: Move) -> MovedAnswer:
    call.check(request)
    moved = await moving.move(call.admin.context, request, call.user)
    if moved is None:
        raise ApiError(404, "queue_not_found", "the queue was deleted")
    return MovedAnswer(count=moved.count, stopped=moved.stopped)


@operation("GET", f"{ONE}/open-reads", "open reads", Right.SEE, failures=(404, 503))
async def list_open_reads(call: Call, query: OpenQuery) -> OpenReadsAnswer:
    """List the open reads of a queue."""
    queue = call.queue()
    context = call.admin.context
    first: list[int] = []
    async for some in slices(queue.reads.open, _READS_AT_ONCE):
        first = sorted([*first, *filter(queue.reads.is_held, some)])[: query.limit]
    clients = await in_slices(holders(context, queue.name, frozenset(first)), context.turns)
    # Some may have ended meanwhile.
    reads = [_open_read(queue, xid, clients.get(xid)) for xid in first if queue.reads.is_held(xid)]
    return OpenReadsAnswer(total=queue.reads.held, open_reads=reads)


def _open_read(queue: Queue, xid: int, client: Connection | None) -> OpenRead:
    found = queue.reads.open[xid]
    record, reservation = found.record, found.reservation
    read = OpenRead(
        xid=xid,
        add_time=item_add_time(record),
        expiry=item_expiry(record),
        deliveries=found.deliveries + 1,
        size=len(record) - ADDX_HEADER,
        client=None if client is None else client.id,
        address=None if client is None else client.peer,
        owner=None,
        tag=None,
        lease_ends_in=None,
    )
    if reservation is not None:
        read.owner, read.tag = reservation.terms.owner, reservation.terms.tag
        left = queue.reads.reservations.lease_end(found) - time.monotonic()
        read.lease_ends_in = None if left == inf else round(max(0.0, left), 3)
    return read


@operation("POST", f"{ONE}/open-reads/requeue", "open reads", Right.ADMIN, failures=(404, 503))
async def requeue(call: Call, body: Requeue) -> Requeued:
    """Give open reads back: their items return to the head of the queue, the oldest first.

    A reader that still works on such an item can no longer confirm it, and another reader gets it.
    """
    wanted = body.xids
    queue = call.queue()
    reads: list[tuple[Queue, open_read.OpenRead]] = []
    is_in_order = True
    async for some in slices(queue.reads.open if wanted is None else set(wanted), _READS_AT_ONCE):
        held = sorted(filter(queue.reads.is_held, some))
        if reads and held and held[0] < reads[-1][1].xid:
            is_in_order = False
        reads += [(queue, queue.reads.open[xid]) for xid in held]
    if not is_in_order:  # all reads, of whom there may be a million, mostly are
        reads.sort(key=lambda read: read[1].xid)
    returning = HeldReadsReturn(queue, deque(reads), why="it was given back")
    await in_slices(queue.returns.in_pieces(returning), call.admin.context.turns)
    await changes.wait_until_durable(call.admin.context, queue)
    return Requeued(requeued=returning.count)
