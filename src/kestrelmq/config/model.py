"""Every setting there is: one documented field each, with its built-in default.

The models are immutable. Sizes are bytes and durations are seconds; None means unlimited, never or
none. Which fields were set explicitly stays known (`model_fields_set`), and so "not set here" is
distinct from "set to the default": inheritance builds on that.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kestrelmq.config.values import (
    Count,
    Credentials,
    Duration,
    FilePath,
    Flag,
    LogFile,
    NodePath,
    OptionalCount,
    OptionalDuration,
    OptionalFilePath,
    OptionalFunction,
    OptionalPeriod,
    OptionalPositive,
    OptionalQueueName,
    OptionalSize,
    OptionalTextList,
    Period,
    Port,
    QueueList,
    QueueName,
    Size,
    SyncPeriod,
    Text,
    TextList,
    Tokens,
    one_of,
)

LISTENERS = ("memcache_listen_port", "text_listen_port", "thrift_listen_port", "admin_http_port")


def default_queue_path(environment: Mapping[str, str], home: Path) -> Path:
    """Return where the queues are kept when no setting says so."""
    state = environment.get("XDG_STATE_HOME", "")
    # A relative path there is to be ignored, says the XDG specification.
    base = Path(state) if state.startswith("/") else home / ".local" / "state"
    return base / "kestrelmq"


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class QueueConfig(_Settings):
    """The settings of one queue: `QueueConfig(max_items=1000, max_age="1 minute")`."""

    max_items: OptionalCount = None
    """Most items the queue may hold; adding to a full queue is refused."""
    max_size: OptionalSize = None
    """Most bytes of item data the queue may hold; adding to a full queue is refused."""
    max_item_size: OptionalSize = None
    """Most bytes of data in one item; a larger item is always refused."""
    max_age: OptionalDuration = None
    """Longest time an item may wait, counted from when it was added; a later expiry is cut."""
    default_journal_size: Size = 16 * 1024**2
    """When the queue is empty and its journal is larger than this, a new journal file is begun."""
    max_memory_size: Size = 128 * 1024**2
    """Most bytes of item data held in memory; items beyond are read from the journal when due."""
    max_journal_size: Size = 1024**3
    """When the journal is larger than this, it is rewritten to hold only live items."""
    min_journal_compact_delay: OptionalDuration = 60.0
    """Shortest time between two rewrites of the journal; None never delays one."""
    discard_old_when_full: Flag = False
    """Whether a full queue drops its oldest items to make room instead of refusing new ones."""
    keep_journal: Flag = True
    """Whether items are written to disk; without a journal they are lost when the server stops."""
    sync_journal: SyncPeriod = None
    """How often the journal is forced to disk; 0 is before every acknowledgement, None is never."""
    expire_to_queue: OptionalQueueName = None
    """Queue that receives expired items; without one they are dropped."""
    max_expire_sweep: OptionalPositive = None
    """Most expired items that one background sweep removes."""
    fanout_only: Flag = False
    """Whether items go only to the fanout children and none is kept in this queue."""
    max_queue_age: OptionalDuration = None
    """An empty queue that was created longer ago than this is deleted."""
    enable_trace: Flag = False
    """Whether every operation on this queue is logged."""
    disable_aggressive_rewrites: Flag = False
    """Whether a journal is rewritten only when full, not as soon as most of it is dead."""
    open_transaction_timeout: OptionalPeriod = None
    """How long a read may stay open; then its item goes back to the head of the queue."""
    allowed_client_ids_for_dequeue: OptionalTextList = None
    """Ids of the clients that may read; None is everyone."""
    allowed_client_ids_for_enqueue: OptionalTextList = None
    """Ids of the clients that may add; None is everyone."""
    journal_dialect: Annotated[
        Literal["documented", "kestrel-2"], one_of("documented", "kestrel-2")
    ] = "documented"
    """Journal dialect that is written: the documented one, or what Kestrel 2.4 reads."""


class AliasConfig(_Settings):
    """A name that adds to other queues and holds nothing itself."""

    destination_queues: QueueList
    """The queues that receive every item added to the alias."""


class ZooKeeperConfig(_Settings):
    """Where and how the server announces itself to its clients."""

    hosts: TextList = Field(min_length=1)
    """ZooKeeper servers, each `host` or `host:port`."""
    path_prefix: NodePath
    """Absolute path under which the sets `read` and `write` are kept."""
    session_timeout: Period = 10.0
    """How long ZooKeeper waits for a silent server before it drops it from the sets."""
    credentials: Credentials = None
    """Digest credentials, `user:password`."""
    acl: Annotated[
        Literal["open-unsafe", "everyone-read-creator-all"],
        one_of("open-unsafe", "everyone-read-creator-all"),
    ] = "open-unsafe"
    """Who may change the announcement: anyone, or only the one who made it."""
    client_initializer: OptionalFunction = None
    """`module:function` that is called to make the ZooKeeper client."""
    server_set_initializer: OptionalFunction = None
    """`module:function` that is called to make each server set."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (
            self.acl == "everyone-read-creator-all"
            and self.credentials is None
            and self.client_initializer is None
        ):
            raise ValueError(
                "acl = 'everyone-read-creator-all' needs credentials, or a client_initializer"
            )
        return self


def _own_queue_path() -> Path:
    return default_queue_path(os.environ, Path.home())


class ServerConfig(_Settings):
    """The whole configuration of a server."""

    listen_address: Text = "127.0.0.1"
    """Address that every listener binds; 0.0.0.0 is every interface."""
    memcache_listen_port: Port = 22133
    """Port of the memcache protocol."""
    text_listen_port: Port = 2222
    """Port of the text protocol."""
    thrift_listen_port: Port = 2229
    """Port of the thrift protocol."""
    admin_http_port: Port = 2223
    """Port of the admin HTTP service."""
    admin_tokens: Tokens = ()
    """Secrets that admin requests which change anything must show one of; without any, such
    requests are only served on a loopback address."""
    allow_remote_admin: Flag = False
    """Whether clients on other machines may shut the server down, reload it and set its status."""
    queue_path: FilePath = Field(default_factory=_own_queue_path)
    """Directory of the journals."""
    expiration_timer_frequency: OptionalPeriod = 1.0
    """How often expired items and queues are looked for in the background; None is not at all."""
    client_timeout: OptionalPeriod = None
    """A connection that is silent for this long is closed."""
    max_open_transactions: Count = 1
    """Most reads one connection may hold open on one queue with `/open`."""
    max_monitor_transactions: Count = 100
    """Most reads one connection may hold open on one queue with `monitor` or thrift `get`."""
    connection_backlog: Count = 1024
    """Connections that may wait to be accepted, per listener."""
    status_file: OptionalFilePath = None
    """File that keeps the server's status over a restart; None is `~~status` in the queue path."""
    default_status: Annotated[
        Literal["up", "writeavoid", "readonly", "quiescent"],
        one_of("up", "writeavoid", "readonly", "quiescent"),
    ] = "up"
    """Status at the first start, while there is no status file."""
    log_level: Annotated[
        Literal["debug", "info", "warning", "error", "critical"],
        one_of("debug", "info", "warning", "error", "critical"),
    ] = "info"
    """Least severity that is logged."""
    log_format: Annotated[Literal["text", "json"], one_of("text", "json")] = "text"
    """One event a line, for people or for machines."""
    log_file: LogFile = None
    """File the log is written to, opened again on SIGHUP; None is standard error."""
    memcache_dialect: Annotated[Literal["kestrel", "memcached"], one_of("kestrel", "memcached")] = (
        "kestrel"
    )
    """How the memcache listener answers: as the original, or as ordinary memcached clients need."""
    status_change_grace_period: Duration = 0.0
    """How long what a stricter status forbids is still allowed after the change."""
    enable_session_trace: Flag = False
    """Whether the start and end of every connection is logged."""
    connection_limit_refuse_writes: OptionalPositive = None
    """With more client connections than this, adding is refused."""
    connection_limit_refuse_reads: OptionalPositive = None
    """With more client connections than this, reading is refused."""
    zookeeper: ZooKeeperConfig | None = None
    """ZooKeeper server sets to join."""
    default: QueueConfig = QueueConfig()
    """Settings of every queue that does not set its own."""
    queues: Mapping[QueueName, QueueConfig] = Field(default_factory=dict)
    """Settings of single queues; a fanout child inherits from its master."""
    aliases: Mapping[QueueName, AliasConfig] = Field(default_factory=dict)
    """Names that stand for several queues."""

    @property
    def status_path(self) -> Path:
        """The status file in force."""
        return self.status_file or self.queue_path / "~~status"

    @model_validator(mode="after")
    def _check_ports(self) -> Self:
        users: dict[int, str] = {}
        for listener in LISTENERS:
            port: int | None = getattr(self, listener)
            if not port:
                continue
            if port in users:
                raise ValueError(f"{users[port]} and {listener} are both {port}")
            users[port] = listener
        return self

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        """Refuse other files where journals are; what begins with `~~` is no journal."""
        inside = Path(os.path.realpath(self.queue_path))
        found = {"status_file": self.status_file, "log_file": self.log_file}
        places = {name: Path(os.path.realpath(path)) for name, path in found.items() if path}
        for name, place in places.items():
            if place == inside:
                raise ValueError(f"{name}: {found[name]} is the queue path")
            if place.parent == inside and not place.name.startswith("~~"):
                raise ValueError(
                    f"{name}: {found[name]} would be taken for a queue's journal: "
                    "in the queue path, its name must begin with ~~"
                )
            if place == inside / "~~lock":
                raise ValueError(f"{name}: {found[name]} is the lock of the queue path")
        if places.get("log_file") == Path(os.path.realpath(self.status_path)):
            raise ValueError(f"log_file: {self.log_file} is the status file")
        return self

    @model_validator(mode="after")
    def _check_aliases(self) -> Self:
        for alias in self.aliases:
            if alias in self._reached_from(alias):
                raise ValueError(f"alias {alias!r} leads back to itself")
        return self

    def _reached_from(self, alias: str) -> set[str]:
        reached: set[str] = set()
        waiting = [alias]
        while waiting:
            followed = self.aliases.get(waiting.pop())
            new = set(followed.destination_queues) - reached if followed else set()
            reached |= new
            waiting.extend(new)
        return reached
