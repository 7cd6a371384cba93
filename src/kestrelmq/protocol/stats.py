"""Every statistic of a queue and of the server, declared once.

Everything that shows statistics renders these lists: memcache `stats` and `dump_stats`, Ostrich's
`/stats.json`, Prometheus' `/metrics`, the JSON API with the console, the client (which finds the
statistics of queues by their names), and `docs/statistics.md`.

To add a statistic, add a line to a list. Its `source` is where the server finds the value: an
attribute of the queue (`queue.queue.Queue`), of one of its parts, or of the server's numbers
(`queues.stats.ServerNumbers`).
"""

from dataclasses import dataclass
from typing import Final, Literal

StatisticKind = Literal["counter", "gauge", "limit", "flag", "text"]
"""counter: only grows · gauge: goes up and down · limit: a gauge, omitted when there is no limit ·
flag: yes or no · text: omitted when empty."""

Unit = Literal["", "items", "bytes", "ms", "seconds"]

Visibility = Literal["everywhere", "admin", "metrics"]
"""Where a statistic is shown: `admin` is the admin service only, `metrics` is `/metrics` only.

Clients find the name of a queue in `queue_NAME_stat` by the statistics' names that they know at the
end of it. `queue_work_put_items` could be the `items` of a queue `work_put`, so they do not get it.
"""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric family of `/metrics`.

    Attributes:
        name: its name without the prefix `kestrelmq_`.
        help: its help text; empty to use the help of the statistic.
        label: the label that distinguishes the statistics in the family.
    """

    name: str
    help: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class Statistic:
    """One statistic.

    Attributes:
        name: its name in `stats`.
        kind: how its value behaves over time.
        unit: the unit of its value; `/metrics` shows milliseconds as seconds.
        help: its meaning.
        source: the dotted path of the attribute that holds its value.
        metric: its family in `/metrics`; None when another statistic there says the same.
        label: the value of the family's label for it.
        shown: where it is shown.
    """

    name: str
    kind: StatisticKind
    unit: Unit
    help: str
    source: str
    metric: Metric | None = None
    label: str = ""
    shown: Visibility = "everywhere"

    @property
    def adds_up(self) -> bool:
        """Whether a sum over several queues or servers has a meaning."""
        return self.kind in {"counter", "gauge"} and self.unit != "ms"


_COMMANDS: Final = Metric("commands", "requests", label="command")
_GETS: Final = Metric("gets", "reads, by result", label="result")
_REFUSALS: Final = Metric("queue_refusals", "requests refused, by reason", label="reason")
_OLDEST: Final = Metric(
    "queue_oldest_item_timestamp_seconds",
    "when the oldest waiting item was added; 0 when there is none",
)

# fmt: off
QUEUE_STATS: Final = (
    Statistic("items", "gauge", "items", "items waiting",
              "backlog.items", Metric("queue_items")),
    Statistic("bytes", "gauge", "bytes", "bytes of data waiting",
              "backlog.size", Metric("queue_bytes")),
    Statistic("total_items", "counter", "items", "items ever added",
              "backlog.total_items"),
    Statistic("logsize", "gauge", "bytes", "bytes of journal",
              "journal.size", Metric("queue_journal_bytes")),
    Statistic("expired_items", "counter", "items", "items expired",
              "counts.expired_items", Metric("queue_expired_items")),
    Statistic("expired_set_aside", "gauge", "items",
              "expired items that expire_to_queue could not take yet",
              "reads.items_aside", Metric("queue_expired_set_aside")),
    Statistic("delayed", "gauge", "items", "items that wait until they may be read",
              "delayed", Metric("queue_delayed_items")),
    Statistic("dead_lettered", "counter", "items",
              "items moved to dead_letter_queue",
              "counts.dead_lettered", Metric("queue_dead_lettered_items")),
    Statistic("redelivered", "counter", "items",
              "items back in the queue after a delivery, to be delivered again",
              "counts.redelivered", Metric("queue_redelivered_items")),
    Statistic("mem_items", "gauge", "items", "items held in memory",
              "backlog.memory_items", Metric("queue_memory_items")),
    Statistic("mem_bytes", "gauge", "bytes", "bytes of data held in memory",
              "backlog.memory_bytes", Metric("queue_memory_bytes")),
    Statistic("age", "gauge", "ms", "how long the last item read had waited",
              "age"),
    Statistic("discarded", "counter", "items", "items dropped from a full queue",
              "adding.discarded", Metric("queue_discarded_items")),
    Statistic("waiters", "gauge", "", "readers waiting",
              "waiters.readers", Metric("queue_waiters")),
    Statistic("open_transactions", "gauge", "", "reads open",
              "reads.held", Metric("queue_open_reads")),
    Statistic("transactions", "counter", "", "transactional reads",
              "counts.transactions", Metric("queue_transactions")),
    Statistic("canceled_transactions", "counter", "", "transactional reads given back",
              "counts.canceled_transactions", Metric("queue_canceled_transactions")),
    Statistic("total_flushes", "counter", "", "times flushed",
              "counts.total_flushes", Metric("queue_flushes")),
    Statistic("age_msec", "gauge", "ms", "how long the last item read had waited",
              "age", Metric("queue_last_wait_seconds")),
    Statistic("create_time", "gauge", "ms", "when the queue was created",
              "create_time", Metric("queue_created_timestamp_seconds")),
    Statistic("put_items", "counter", "items", "items added",
              "backlog.total_items", Metric("queue_added_items"), shown="admin"),
    Statistic("put_bytes", "counter", "bytes", "bytes of data added",
              "backlog.put_bytes", Metric("queue_added_bytes"), shown="admin"),
    Statistic("get_items_hit", "counter", "", "reads that got an item",
              "counts.get_hits", Metric("queue_get_hits")),
    Statistic("get_items_miss", "counter", "", "reads that found none",
              "counts.get_misses", Metric("queue_get_misses")),
    Statistic("journal_rewrites", "counter", "",
              "times the journal, or its part before a checkpoint, was rewritten to its live items",
              "journal.rewrites", Metric("queue_journal_rewrites")),
    Statistic("journal_syncs", "counter", "", "times the journal was forced to disk",
              "journal.syncs", Metric("queue_journal_syncs")),
    Statistic("journal_rotations", "counter", "", "new journal files started",
              "journal.rotations", Metric("queue_journal_rotations")),
    Statistic("refused_too_large", "counter", "", "items refused: larger than max_item_size",
              "refusals.too_large", _REFUSALS, "too_large", shown="admin"),
    Statistic("refused_full_items", "counter", "", "items refused: max_items was reached",
              "refusals.full_items", _REFUSALS, "full_items", shown="admin"),
    Statistic("refused_full_bytes", "counter", "", "items refused: max_size was reached",
              "refusals.full_bytes", _REFUSALS, "full_bytes", shown="admin"),
    Statistic("refused_memory", "counter", "",
              "items refused: the queue keeps no journal, and max_memory_size was reached",
              "refusals.memory", _REFUSALS, "memory", shown="admin"),
    Statistic("refused_paused", "counter", "", "items refused: writes are paused",
              "refusals.paused", _REFUSALS, "paused", shown="admin"),
    Statistic("refused_forbidden", "counter", "",
              "adds and reads refused: the user may not, or allowed_client_ids_*"
              " do not name the client",
              "refusals.forbidden", _REFUSALS, "forbidden", shown="admin"),
    Statistic("refused_disk", "counter", "", "items refused: less than min_free_disk was free",
              "refusals.disk", _REFUSALS, "disk", shown="admin"),
    Statistic("refused_failed", "counter", "",
              "changes undone because the journal could not be written",
              "refusals.failed", _REFUSALS, "failed", shown="admin"),
    Statistic("max_items", "limit", "items", "most items that the queue may hold",
              "config.max_items", Metric("queue_max_items"), shown="admin"),
    Statistic("max_size", "limit", "bytes", "most bytes of data that the queue may hold",
              "config.max_size", Metric("queue_max_bytes"), shown="admin"),
    Statistic("max_item_size", "limit", "bytes", "most bytes of data in one item",
              "config.max_item_size", Metric("queue_max_item_bytes"), shown="admin"),
    Statistic("max_memory_size", "limit", "bytes", "most bytes of data held in memory",
              "config.max_memory_size", Metric("queue_max_memory_bytes"), shown="admin"),
    Statistic("children", "text", "", "its fanout children",
              "children"),
    Statistic("paused", "text", "", "what is paused: reads, writes or all",
              "paused"),
    Statistic("failure", "text", "", "why its journal cannot be written, or was not loaded",
              "core.problem"),
    Statistic("oldest", "gauge", "ms", "when the oldest waiting item was added",
              "backlog.oldest", _OLDEST, shown="metrics"),
    Statistic("read_behind", "flag", "", "1 while part of the queue is on disk only",
              "backlog.read_behind", Metric("queue_read_behind"), shown="metrics"),
    Statistic("reads_paused", "flag", "", "1 while reads are paused",
              "state.limits.reads_paused", Metric("queue_reads_paused"), shown="metrics"),
    Statistic("writes_paused", "flag", "", "1 while writes are paused",
              "state.limits.writes_paused", Metric("queue_writes_paused"), shown="metrics"),
    Statistic("failing", "flag", "",
              "1 while the queue's journal cannot be written; after an add for which the disk had "
              "no room, until one succeeds",
              "core.is_failing", Metric("queue_failing"), shown="metrics"),
)
"""The statistics of a queue, in the order of `stats`."""

SERVER_STATS: Final = (
    Statistic("uptime", "gauge", "seconds", "seconds since the start",
              "uptime", Metric("uptime_seconds")),
    Statistic("time", "gauge", "seconds", "the server's time",
              "time"),
    Statistic("version", "text", "", "the server's version",
              "version"),
    Statistic("curr_items", "gauge", "items", "items waiting",
              "items"),
    Statistic("total_items", "counter", "items", "items added",
              "total_items", Metric("added_items")),
    Statistic("bytes", "gauge", "bytes", "bytes of data waiting",
              "bytes"),
    Statistic("reserved_memory_ratio", "gauge", "",
              "fraction in use of the memory that queues may use",
              "memory_ratio"),
    Statistic("cmd_get", "counter", "", "reads",
              "gets", _COMMANDS, "get"),
    Statistic("get_hits", "counter", "", "reads that got an item",
              "get_hits", _GETS, "hit"),
    Statistic("get_misses", "counter", "", "reads that found none",
              "get_misses", _GETS, "miss"),
    Statistic("bytes_read", "counter", "bytes", "bytes read from clients",
              "counters.bytes_read", Metric("received_bytes")),
    Statistic("bytes_written", "counter", "bytes", "bytes written to clients",
              "counters.bytes_written", Metric("sent_bytes")),
    Statistic("cmd_monitor", "counter", "", "requests to monitor",
              "counters.cmd_monitor", _COMMANDS, "monitor"),
    Statistic("cmd_monitor_get", "counter", "items", "items sent to monitors",
              "counters.cmd_monitor_get", Metric("monitored_items")),
    Statistic("cmd_peek", "counter", "", "requests to peek",
              "counters.cmd_peek", _COMMANDS, "peek"),
    Statistic("cmd_set", "counter", "", "requests to add an item",
              "counters.cmd_set", _COMMANDS, "set"),
    Statistic("curr_connections", "gauge", "", "clients connected",
              "counters.curr_connections", Metric("connections")),
    Statistic("total_connections", "counter", "", "clients ever connected",
              "counters.total_connections", Metric("accepted_connections")),
    Statistic("failed_sign_ins", "counter", "", "sign-ins with a wrong name, password or token",
              "counters.failed_sign_ins", Metric("failed_sign_ins"), shown="admin"),
    Statistic("forbidden_requests", "counter", "",
              "requests refused: the user may not make them, or nobody has signed in",
              "counters.forbidden_requests", Metric("forbidden_requests"), shown="admin"),
    Statistic("rate_limited_requests", "counter", "",
              "requests refused: their user had made as many as rate_limit allows",
              "counters.rate_limited_requests", Metric("rate_limited_requests"), shown="admin"),
    Statistic("refused_connections", "counter", "",
              "clients refused: max_connections or max_connections_per_address was reached",
              "counters.refused_connections", Metric("refused_connections"), shown="admin"),
    Statistic("failed_handshakes", "counter", "",
              "clients that did not finish the handshake of TLS, or not in time",
              "counters.failed_handshakes", Metric("failed_handshakes"), shown="admin"),
    Statistic("buffered_bytes", "gauge", "bytes",
              "unfinished large input, unread output, and the buffers of TLS",
              "counters.buffered.held", Metric("buffered_bytes"), shown="admin"),
    Statistic("queue_creates", "counter", "", "queues created",
              "collection.creates", Metric("queue_creates")),
    Statistic("queue_deletes", "counter", "", "queues deleted, including expired ones",
              "collection.deletes", Metric("queue_deletes")),
    Statistic("queue_expires", "counter", "", "queues that expired",
              "collection.expires", Metric("queue_expires")),
    Statistic("queues_loading", "gauge", "", "queues still to be loaded",
              "loading"),
    Statistic("disk_free", "gauge", "bytes", "bytes free on the disk of the queue path",
              "collection.disk_space.free", Metric("disk_free_bytes"), shown="admin"),
    Statistic("disk_total", "gauge", "bytes", "size of the disk of the queue path",
              "collection.disk_space.total", Metric("disk_size_bytes"), shown="admin"),
)
"""The statistics of the whole server, in the order of `stats`."""
# fmt: on
