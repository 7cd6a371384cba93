"""The models of the API's queries, bodies and replies; the OpenAPI document is made from them."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kestrelmq.admin.history import Range
from kestrelmq.admin.sampling import State
from kestrelmq.idempotent_producers import MAX_PRODUCER, MAX_SEQUENCE
from kestrelmq.protocol.managing import MAX_SEARCH
from kestrelmq.protocol.reserving import (
    MAX_MILLISECONDS,
    MAX_OWNER,
    MAX_RESERVED,
    MAX_RESERVED_QUEUES,
)
from kestrelmq.server.connection import ClientState
from kestrelmq.tags import MAX_EPOCH, MAX_TAG

MAX_PAGE = 1000
MAX_PEEK = 100
MAX_PEEK_BYTES = 1 << 20
MAX_TEXT = 4 << 20

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, le=MAX_MILLISECONDS // 1000)]
QueueName = Annotated[str, Field(min_length=1, max_length=200)]
Reads = Annotated[list[str], Field(max_length=MAX_RESERVED)]
Tag = Annotated[str, Field(min_length=1, max_length=MAX_TAG)]
Owner = Annotated[str, Field(min_length=1, max_length=MAX_OWNER)]
SortKey = Literal[
    "name", "items", "bytes", "put_rate", "get_rate", "oldest", "open_reads", "waiters"
]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


# --- queries and bodies ---


class NewSession(_Model):
    """Who signs in."""

    user: Annotated[str, Field(min_length=1, max_length=200)]
    """The user's name."""
    password: Annotated[str, Field(min_length=1, max_length=1000), Field(repr=False)]
    """The user's password."""


class ListQuery(_Model):
    """Which queues to list, and in which order."""

    filter: Annotated[str, Field(max_length=200)] = ""
    """Only queues whose name contains this text; upper and lower case are the same."""
    state: State | None = None
    """Only queues in this state."""
    sort: SortKey = "name"
    """The field to sort by; queues with equal values are sorted by name."""
    order: Literal["ascending", "descending"] = "ascending"
    """The direction of the order."""
    offset: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """How many queues to skip."""
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100
    """How many queues to return at most."""


class PeekQuery(_Model):
    """Which items of a queue to show."""

    offset: Annotated[int, Field(ge=0, le=1 << 53)] = 0
    """How many items to pass over, from the head."""
    place: Annotated[str, Field(min_length=1, max_length=40)] | None = None
    """Where to begin instead: the `place` of an earlier page, whatever was read or added since."""
    limit: Annotated[int, Field(ge=1, le=MAX_PEEK)] = 20
    """How many items to return at most."""
    text: Annotated[str, Field(min_length=1, max_length=MAX_SEARCH)] | None = None
    """Only items that contain this text, as UTF-8; upper and lower case differ."""
    pattern: Annotated[str, Field(min_length=1, max_length=MAX_SEARCH)] | None = None
    """Only items that have a match of this regular expression (of Python, on bytes)."""
    max_bytes: Annotated[int, Field(ge=0, le=MAX_PEEK_BYTES)] = 16 * 1024
    """How many bytes of each item to return at most."""

    @model_validator(mode="after")
    def _at_most_one(self) -> Self:
        if self.text is not None and self.pattern is not None:
            raise ValueError("give either text or pattern")
        return self


class HistoryQuery(_Model):
    """How far back a history goes."""

    range: Range = "minutes"
    """`minutes`: every sample of the last minutes; `hour` or `day`: averages over steps of 15
    seconds or 5 minutes, of queues that changed."""


class OpenQuery(_Model):
    """How many open reads to list."""

    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100
    """How many to return at most, in the order of their xids."""


class PageQuery(_Model):
    """Which part of a list to return."""

    offset: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """How many entries to skip."""
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100
    """How many entries to return at most."""


class OwnersQuery(PageQuery):
    """Which part of the list of owners to return."""

    pattern: Annotated[str, Field(min_length=1, max_length=MAX_OWNER)] = "*"
    """A pattern of their names, as of files in a shell."""


class Declaration(_Model):
    """Settings that a queue has for itself; those that are absent are as for other queues."""

    fanout_only: bool | None = None
    """Whether items go only to the fanout children and none is kept in this queue."""
    keep_journal: bool | None = None
    """Whether items are written to disk."""
    max_queue_age: Annotated[float, Field(ge=0)] | None = None
    """Seconds after which the queue is deleted when it is empty."""
    max_age: Annotated[float, Field(ge=0)] | None = None
    """The longest time in seconds that an item may wait."""
    max_items: Annotated[int, Field(ge=0)] | None = None
    """The most items that the queue may hold."""


class NewQueue(_Model):
    """A queue to create."""

    name: QueueName
    """Its name; `MASTER+CHILD` is a fanout child."""
    declared: Declaration | None = None
    """Settings of its own; if absent, an existing queue stays as it is."""


class NewItem(_Model):
    """An item to add, either as text or in base64."""

    text: Annotated[str, Field(max_length=MAX_TEXT)] | None = None
    """The item, as text; it is stored as UTF-8."""
    data: Annotated[str, Field(max_length=2 * MAX_TEXT)] | None = None
    """The item, in base64."""
    expires_in: Annotated[float, Field(gt=0, le=100 * 366 * 86_400)] | None = None
    """Seconds until it expires, from when it is due; if absent, it never expires."""
    delay: Annotated[float, Field(ge=0, le=1e14)] | None = None
    """Seconds until it is due; only then it waits in the queue. If absent, it is due at once."""
    producer: Annotated[str, Field(min_length=1, max_length=MAX_PRODUCER)] | None = None
    """Whose item it is, if the request may be repeated; it needs `sequence`."""
    sequence: Annotated[int, Field(ge=0, le=MAX_SEQUENCE)] | None = None
    """Its number; it is stored only if that is above the number of the producer's last item."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.text is None) == (self.data is None):
            raise ValueError("give either text or data")
        return self


class Operations(_Model):
    """What to pause or to resume."""

    operations: Literal["reads", "writes", "all"] = "all"
    """Which operations of clients."""


class NewPlace(_Model):
    """Where to move or copy items."""

    target: QueueName
    """The queue, or the alias, that they are added to."""
    count: Annotated[int, Field(ge=0)] | None = None
    """How many of the first items; if absent, all that wait."""


class Redrive(_Model):
    """Where to move dead letters."""

    target: QueueName | None = None
    """The queue that they are added to; if absent, each goes to the queue that it came from."""


class Requeue(_Model):
    """Which open reads to give back."""

    xids: Annotated[list[int], Field(max_length=MAX_PAGE)] | None = None
    """Their xids; if absent, all open reads of the queue."""


class Reserving(_Model):
    """Which items to reserve, for how long and for whom."""

    queues: Annotated[list[QueueName], Field(min_length=1, max_length=MAX_RESERVED_QUEUES)]
    """The queues, in the order in which they are asked."""
    count: Annotated[int, Field(ge=1, le=MAX_RESERVED)] = 1
    """How many items at most; an answer has about 1 MiB of data, or one item."""
    lease: Seconds
    """Seconds for which the items are reserved, unless that is extended; from 0.001 on, or 0, which
    is without end, whatever becomes of the owner."""
    timeout: Seconds = 0.0
    """Seconds to wait for an item; it is answered as soon as there is one."""
    tag: Tag | None = None
    """The step that the reads belong to, `NAME:EPOCH:PART`; with it the request can be repeated."""
    owner: Owner | None = None
    """Whose they are."""
    grace: Seconds = 5.0
    """Seconds for which they stay reserved after the owner's last connection has ended, if it had
    any; a request to the API is none."""
    again: bool = False
    """Whether only what the tag has already is wanted: nothing is taken."""
    nodata: bool = False
    """Whether the answer only says how much is reserved: it has `held` and no items."""


class Finishing(_Model):
    """Which reserved reads to finish: `reads`, or those of a `tag`."""

    reads: Reads = []
    """The reads."""
    tag: Tag | None = None
    """The tag; it is done from then on, and this request may be repeated."""


class Releasing(_Model):
    """Which reserved reads to give back: `reads`, or those of a `tag` or of an `owner`."""

    reads: Reads = []
    """The reads."""
    tag: Tag | None = None
    """Those of this tag."""
    owner: Owner | None = None
    """Those of this owner."""
    delay: Seconds | None = None
    """Seconds until the items may be read again; if absent, as the settings of the queue say."""
    uncounted: bool = False
    """Whether this was no delivery."""
    dead: bool = False
    """Whether the items go to the dead-letter queue; `delay` and `uncounted` are for those that it
    cannot take."""


class ReleasingOwner(_Model):
    """Whose reserved reads to give back, in all queues; the rest as for the reads of one queue."""

    owner: Owner
    """The owner."""
    delay: Seconds | None = None
    """Seconds until the items may be read again; if absent, as the settings of the queues say."""
    uncounted: bool = False
    """Whether this was no delivery."""
    dead: bool = False
    """Whether the items go to the dead-letter queues."""


class Extending(_Model):
    """Which leases to extend: those of `reads`, or of a `tag`."""

    lease: Seconds
    """Seconds from now on until they end."""
    reads: Reads = []
    """The reads."""
    tag: Tag | None = None
    """Those of this tag."""


class ExtendingOwner(_Model):
    """Whose leases to extend."""

    owner: Owner
    """The owner."""
    lease: Seconds
    """Seconds from now on until they end."""


class Retiring(_Model):
    """Which tags are over."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_TAG)]
    """The name in the tags."""
    epoch: Annotated[int, Field(ge=0, le=MAX_EPOCH)]
    """The last epoch that is over."""


class NewStatus(_Model):
    """A status to change to."""

    status: Annotated[str, Field(max_length=40)]
    """UP, WRITEAVOID, READONLY or QUIESCENT, in upper or lower case."""


# --- answers ---


class QueueSummary(_Model):
    """A queue in a list; the rates are at most a few seconds old."""

    name: str
    """Its name."""
    state: State
    """Whether it works, and if not, why."""
    items: Count
    """Number of waiting items."""
    bytes: Count
    """Bytes of data in the waiting items."""
    put_rate: float
    """Items added per second."""
    get_rate: float
    """Items read per second."""
    oldest: Count
    """When the oldest waiting item was added (ms since the epoch); 0 if there is none."""
    open_reads: Count
    """Number of open reads."""
    waiters: Count
    """Number of readers that wait for an item."""
    paused: str
    """What is paused: `reads`, `writes` or `all`; empty for nothing."""


class QueuePage(_Model):
    """Part of a list of queues."""

    total: Count
    """How many queues match the query."""
    offset: Count
    """How many of them were skipped."""
    queues: list[QueueSummary]
    """The queues."""


class JournalFile(_Model):
    """A file of a queue's journal."""

    name: str
    """Its name in the queue path."""
    bytes: Count
    """Its size."""


class RelatedQueue(_Model):
    """A queue that another one sends items to, or gets items from."""

    name: str
    """Its name."""
    items: Count
    """Number of items waiting in it."""


class QueueDetail(_Model):
    """Everything about one queue."""

    name: str
    """Its name."""
    state: State
    """Whether it works, and if not, why."""
    problem: str | None
    """What is wrong, if anything is."""
    paused: str
    """What is paused: `reads`, `writes` or `all`; empty for nothing."""
    time: Count
    """When these values were read (ms since the epoch)."""
    oldest: Count
    """When the oldest waiting item was added (ms since the epoch); 0 if there is none."""
    stats: dict[str, int]
    """Every statistic of the queue, by name."""
    settings: dict[str, str]
    """The settings in force."""
    master: str | None
    """The queue that feeds this one, if it is a fanout child."""
    children: list[RelatedQueue]
    """Its fanout children."""
    dead_letter_queue: RelatedQueue | None
    """The queue that its dead letters go to; null if it has none."""
    dead_letters_of: list[RelatedQueue]
    """The queues whose dead letters come to this one; of more than a hundred only the first."""
    journal: list[JournalFile]
    """The newest files of its journal, in the order of replay."""
    latencies: dict[str, "LatencySummary"]
    """How long operations took (microseconds), from samples."""


class LatencySummary(_Model):
    """A distribution of times, in microseconds."""

    count: Count
    """Number of samples."""
    minimum: Count
    """The shortest."""
    maximum: Count
    """The longest."""
    average: Count
    """The mean."""
    p50: Count
    """The 50th percentile, the median."""
    p90: Count
    """The 90th percentile."""
    p99: Count
    """The 99th percentile."""


class HistoryPoint(_Model):
    """The state of a queue from one time until the next point."""

    time: Count
    """The time from which it is valid (ms since the epoch)."""
    items: Count
    """Number of waiting items."""
    put_rate: float
    """Items added per second."""
    get_rate: float
    """Items read per second."""
    oldest: Count
    """When the oldest item was added (ms since the epoch); 0 if there was none."""


class HistoryAnswer(_Model):
    """The history of a queue."""

    points: list[HistoryPoint]
    """The points, oldest first."""


class PeekedLetter(_Model):
    """Where a dead letter came from."""

    origin: str
    """The queue that it was in."""
    died: int
    """When it was moved (ms since the epoch)."""
    why: str
    """Why it was given back the last time."""


class PeekedItem(_Model):
    """A waiting item."""

    position: Count
    """Its place in the queue; 0 is the head."""
    add_time: int
    """When it was added (ms since the epoch)."""
    expiry: int
    """When it expires (ms since the epoch); 0 for never."""
    deliveries: Count
    """How often it was handed out."""
    dead_letter: PeekedLetter | None
    """Where it came from, if it is a dead letter."""
    size: Count
    """Bytes of data in it."""
    data: str
    """The first bytes of its data, in base64."""
    truncated: bool
    """Whether the item has more bytes than `data` shows."""


class PeekAnswer(_Model):
    """Items of a queue, which stay there."""

    total: Count
    """Number of items waiting in the queue."""
    items: list[PeekedItem]
    """Those that were asked for, perhaps fewer than `limit`: an answer has about 1 MiB, and one
    search looks at a part of the queue only."""
    next_offset: int | None
    """The offset to go on from; null at the end of the queue."""
    place: str
    """The place behind these items, to go on from, as long as the queue stays loaded."""


class OpenRead(_Model):
    """An item that a reader has read but not confirmed yet."""

    xid: int
    """The xid of the read."""
    add_time: int
    """When the item was added (ms since the epoch)."""
    expiry: int
    """When it expires (ms since the epoch); 0 for never."""
    deliveries: Count
    """How often it was handed out, this time included."""
    size: Count
    """Bytes of data in it."""
    client: Count | None
    """The id of the client that has it; null if it belongs to none, or that is not known."""
    address: str | None
    """Where that client connected from."""
    owner: str | None
    """The owner for whom it is reserved, perhaps empty; null if it is not reserved."""
    tag: str | None
    """The tag under which it is reserved, perhaps empty; null likewise."""
    lease_ends_in: float | None
    """Seconds until the reservation ends, unless it is extended; null likewise, or if it has no
    end."""


class OpenReadsAnswer(_Model):
    """The open reads of a queue."""

    total: Count
    """How many there are."""
    open_reads: list[OpenRead]
    """The first of them, in the order of their xids."""


class Created(_Model):
    """A queue that was created or existed already."""

    name: str
    """Its name."""
    created: bool
    """Whether the request created it."""


class Stored(_Model):
    """An item that was added."""

    queue: str
    """The queue that it was added to."""
    size: Count
    """Bytes of data in it."""


class Flushed(_Model):
    """A queue that was flushed."""

    flushed: Count
    """How many items were dropped."""


class PausedAnswer(_Model):
    """A queue that was paused or resumed."""

    paused: str
    """What is paused now: `reads`, `writes` or `all`; empty for nothing."""


class MovedAnswer(_Model):
    """Items that were moved or copied."""

    count: Count
    """How many."""
    stopped: str | None
    """Why it ended early; null if it did not."""


class Imported(_Model):
    """Items that were added to a queue."""

    added: Count
    """How many."""


class Requeued(_Model):
    """Open reads that were given back."""

    requeued: Count
    """How many were given back."""


class ReservedItem(_Model):
    """An item that is reserved."""

    queue: str
    """The queue that it is of."""
    read: str
    """The name of the read, which ends it."""
    deliveries: Count
    """How often it was handed out, this time included."""
    add_time: int
    """When it was added (ms since the epoch)."""
    expiry: int
    """When it expires (ms since the epoch); 0 for never."""
    size: Count
    """Bytes of data in it."""
    data: str
    """Its data, in base64."""


class HeldEntry(_Model):
    """How much of a queue is reserved."""

    queue: str
    """The queue."""
    nonce: str
    """What the names of the reads end with."""
    count: Count
    """How many reads."""
    bytes: Count
    """Bytes of data in their items."""


class ReservedAnswer(_Model):
    """Items that were reserved."""

    done: bool
    """Whether the tag is done: its items were finished before, and there are none."""
    items: list[ReservedItem]
    """The items; none if there were none within the time."""
    held: list[HeldEntry] = []
    """How much is reserved of each queue; only if `nodata` was asked for."""


class Finished(_Model):
    """Reserved reads that are finished."""

    finished: Count
    """How many: of reads, those that were reserved still; of a tag, as many as the first time."""


class Released(_Model):
    """Reserved reads that were given back."""

    released: Count
    """How many were reserved still."""


class Extended(_Model):
    """Leases that were extended."""

    extended: Count
    """How many reads were reserved still."""


class Retired(_Model):
    """Tags that are over."""

    retired: Count
    """How many were open or done."""


class OwnerEntry(_Model):
    """An owner of reserved reads."""

    owner: str
    """Its name."""
    reads: Count
    """How many reads it has."""
    queues: Count
    """In how many queues those are."""
    tags: Count
    """How many of its tags are open."""
    age: float
    """For how many seconds it has had reads without a break; since the start of the server at
    most."""
    connections: Count
    """How many connections have named it."""


class OwnerPage(_Model):
    """Part of the list of owners."""

    total: Count
    """How many there are whose names are of the pattern."""
    offset: Count
    """How many of them were skipped."""
    owners: list[OwnerEntry]
    """The owners, in the order of their names."""


class ClientEntry(_Model):
    """A connected client."""

    id: Count
    """Its number; a later client of the same server has a higher one."""
    name: str | None
    """What it calls itself; null if it has not said."""
    user: str | None
    """The user as whom it has signed in; null if it has not."""
    address: str
    """Where it connected from, as `HOST:PORT`, or `unix:PID` on a Unix socket."""
    protocol: str
    """memcache, text or thrift."""
    since: Count
    """When it connected (ms since the epoch)."""
    commands: Count
    """How many commands were answered; a monitor counts for each item."""
    state: ClientState
    """What it does: idle, waiting for an item, working on a long request, or stalled because it
    does not read its replies."""
    queue: str | None
    """The queue that its present request reads or adds to, if it takes time; written as the list of
    a `reserve`, which may wait on several."""
    open_reads: dict[str, Count]
    """How many reads it holds open, by queue; of more than a thousand only the first."""


class ClientPage(_Model):
    """Part of the list of connected clients."""

    total: Count
    """How many clients are connected."""
    offset: Count
    """How many of them were skipped."""
    clients: list[ClientEntry]
    """The clients, in the order in which they connected."""


class StatusAnswer(_Model):
    """The status of the server."""

    status: str
    """UP, WRITEAVOID, READONLY, QUIESCENT or DOWN."""
    since: Count
    """When it was set (ms since the epoch)."""
    reads_allowed: bool
    """Whether items may be read now."""
    writes_allowed: bool
    """Whether queues may be changed now."""


class ServerAnswer(_Model):
    """The server."""

    version: str
    """Its version."""
    build: Literal["compiled", "interpreted"]
    """Whether its hot path is compiled."""
    stats: dict[str, int | str]
    """The statistics of the server, by name."""
    status: StatusAnswer
    """Its status."""
    damaged: dict[str, str]
    """The damaged queues, and the reason for each."""
    loading: list[str]
    """The queues that are not loaded yet."""
    token_needed: bool
    """Whether changes need an admin token."""
    changes_allowed: bool
    """Whether changes can be made over HTTP at all."""


class SessionAnswer(_Model):
    """Who sends a request."""

    has_users: bool
    """Whether the server has users, and so needs everyone to sign in."""
    user: str | None
    """The user; null if nobody has signed in, or there are no users."""
    admin: bool
    """Whether the request may do everything."""
    can_read: bool
    """Whether it may read the queue that was asked about; if none was, whether it may any."""
    can_write: bool
    """The same of adding to it."""


class SessionQuery(_Model):
    """Of what to show rights."""

    queue: str | None = None
    """The queue or alias; without it, what there is for any."""


class ConfigAnswer(_Model):
    """The configuration in force."""

    config: dict[str, Any]
    """Every setting; secrets are left out."""


class Reloaded(_Model):
    """The result of a reload of the configuration."""

    needs_restart: list[str]
    """Settings that changed but take effect only after a restart; for queues, which of them."""


class ErrorDetail(_Model):
    """What went wrong."""

    code: str
    """The kind of error, for programs."""
    message: str
    """A description, for people."""


class ErrorAnswer(_Model):
    """A request that failed."""

    error: ErrorDetail
    """What went wrong."""
