"""What the API takes and answers; the OpenAPI document is made from these."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kestrelmq.admin.sampling import State

MAX_PAGE = 1000
MAX_PEEK = 100
MAX_PEEK_BYTES = 1 << 20
MAX_TEXT = 4 << 20

Count = Annotated[int, Field(ge=0)]
SortKey = Literal[
    "name", "items", "bytes", "put_rate", "get_rate", "oldest", "open_reads", "waiters"
]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


# --- queries and bodies ---


class ListQuery(_Model):
    """Which queues to list, and in which order."""

    filter: Annotated[str, Field(max_length=200)] = ""
    """Only names that contain this text, whatever its case."""
    state: State | None = None
    """Only queues in this state."""
    sort: SortKey = "name"
    """What to sort by; equal ones are sorted by name."""
    order: Literal["ascending", "descending"] = "ascending"
    """In which order."""
    offset: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """How many to skip."""
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100
    """How many to return at most."""


class PeekQuery(_Model):
    """How far to look into a queue."""

    limit: Annotated[int, Field(ge=1, le=MAX_PEEK)] = 20
    """How many items to return at most, from the head."""
    max_bytes: Annotated[int, Field(ge=0, le=MAX_PEEK_BYTES)] = 16 * 1024
    """How many bytes of each item to return at most."""


class OpenQuery(_Model):
    """How many open reads to list."""

    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100
    """How many to return at most, those with the lowest xid first."""


class NewQueue(_Model):
    """A queue to create."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    """Its name; `MASTER+CHILD` is a fanout child."""


class NewItem(_Model):
    """An item to add: either as text or as bytes."""

    text: Annotated[str, Field(max_length=MAX_TEXT)] | None = None
    """The item, as text; it is stored as UTF-8."""
    data: Annotated[str, Field(max_length=2 * MAX_TEXT)] | None = None
    """The item, in base64."""
    expires_in: Annotated[float, Field(gt=0, le=100 * 366 * 86_400)] | None = None
    """Seconds until it expires; without it, never."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.text is None) == (self.data is None):
            raise ValueError("give either text or data")
        return self


class Requeue(_Model):
    """Which open reads to give back."""

    xids: Annotated[list[int], Field(max_length=MAX_PAGE)] | None = None
    """Their xids; without it, every open read of the queue."""


class NewStatus(_Model):
    """A status to change to."""

    status: Annotated[str, Field(max_length=40)]
    """UP, WRITEAVOID, READONLY or QUIESCENT, in any case."""


# --- answers ---


class QueueSummary(_Model):
    """A queue in a list, as of at most a few seconds ago."""

    name: str
    """Its name."""
    state: State
    """Whether it is in order."""
    items: Count
    """Items waiting."""
    bytes: Count
    """Bytes of data waiting."""
    put_rate: float
    """Items added a second."""
    get_rate: float
    """Items read a second."""
    oldest: Count
    """When the oldest waiting item was added (ms since the epoch); 0 when there is none."""
    open_reads: Count
    """Reads that are open."""
    waiters: Count
    """Readers that wait for an item."""


class QueuePage(_Model):
    """Part of a list of queues."""

    total: Count
    """How many queues fit the query."""
    offset: Count
    """How many were skipped."""
    queues: list[QueueSummary]
    """The queues."""


class JournalFile(_Model):
    """A file of a queue's journal."""

    name: str
    """Its name in the queue path."""
    bytes: Count
    """Its size."""


class FanoutMember(_Model):
    """A queue that items of a master go to."""

    name: str
    """Its name."""
    items: Count
    """Items waiting in it."""


class QueueDetail(_Model):
    """Everything about one queue."""

    name: str
    """Its name."""
    state: State
    """Whether it is in order."""
    problem: str | None
    """What is wrong, if anything is."""
    time: Count
    """When this was so (ms since the epoch)."""
    oldest: Count
    """When the oldest waiting item was added (ms since the epoch); 0 when there is none."""
    stats: dict[str, int]
    """Every statistic of the queue by its name."""
    settings: dict[str, str]
    """The settings in force."""
    master: str | None
    """The queue that feeds this one, if it is a fanout child."""
    children: list[FanoutMember]
    """Its fanout children."""
    journal: list[JournalFile]
    """The files of its journal, in the order of replay."""
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
    """Half were no longer."""
    p90: Count
    """90 % were no longer."""
    p99: Count
    """99 % were no longer."""


class HistoryPoint(_Model):
    """How a queue was from a time on, until the next point."""

    time: Count
    """From when on (ms since the epoch)."""
    items: Count
    """Items waiting."""
    put_rate: float
    """Items added a second."""
    get_rate: float
    """Items read a second."""
    oldest: Count
    """When the oldest item had been added (ms since the epoch); 0 when there was none."""


class HistoryAnswer(_Model):
    """The recent past of a queue."""

    points: list[HistoryPoint]
    """Oldest first."""


class PeekedItem(_Model):
    """An item that waits."""

    position: Count
    """Its place in the queue; 0 is the head."""
    add_time: int
    """When it was added (ms since the epoch)."""
    expiry: int
    """When it expires (ms since the epoch); 0 for never."""
    size: Count
    """Bytes of data in it."""
    data: str
    """The first bytes of it, in base64."""
    truncated: bool
    """Whether there are more bytes than `data` has."""


class PeekAnswer(_Model):
    """The first items of a queue."""

    total: Count
    """Items waiting in the queue."""
    items: list[PeekedItem]
    """The first of them that are in memory."""


class OpenRead(_Model):
    """An item that a reader has and has not confirmed yet."""

    xid: int
    """The number of the read."""
    add_time: int
    """When the item was added (ms since the epoch)."""
    expiry: int
    """When it expires (ms since the epoch); 0 for never."""
    size: Count
    """Bytes of data in it."""


class OpenReadsAnswer(_Model):
    """Open reads of a queue."""

    total: Count
    """How many there are."""
    open_reads: list[OpenRead]
    """The first of them."""


class Created(_Model):
    """A queue that is there now."""

    name: str
    """Its name."""
    created: bool
    """Whether it was not there before."""


class Stored(_Model):
    """An item that was added."""

    queue: str
    """To which queue."""
    size: Count
    """Bytes of data in it."""


class Flushed(_Model):
    """A queue that was flushed."""

    flushed: Count
    """How many items were dropped."""


class Requeued(_Model):
    """Open reads that were given back."""

    requeued: Count
    """How many."""


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
    stats: dict[str, int | str]
    """The global statistics by name."""
    status: StatusAnswer
    """Its status."""
    damaged: dict[str, str]
    """The queues that could not be loaded, and why."""
    loading: list[str]
    """The queues that are still to be loaded."""
    token_needed: bool
    """Whether changes need an admin token."""
    changes_allowed: bool
    """Whether changes can be made here at all."""


class ConfigAnswer(_Model):
    """The configuration in force."""

    config: dict[str, Any]
    """Every setting; secrets are left out."""


class Reloaded(_Model):
    """The configuration was read again."""

    needs_restart: list[str]
    """Settings that changed and take a restart."""


class ErrorDetail(_Model):
    """What went wrong."""

    code: str
    """For programs."""
    message: str
    """For people."""


class ErrorAnswer(_Model):
    """A request that failed."""

    error: ErrorDetail
    """What went wrong."""
