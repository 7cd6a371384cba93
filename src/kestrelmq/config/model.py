"""Every setting: one documented field each, with its built-in default.

The models are immutable. Sizes are in bytes and durations in seconds; None means unlimited, never
or none. `model_fields_set` records which fields were set explicitly, so "not set here" differs from
"set to the default"; inheritance depends on that.

To add a setting, add a field with its kind (`values`), its default and its help, and use it in the
server. Loading, checking, inheritance, writing and the documentation all work from these fields.
"""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Self, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kestrelmq.config.problems import problem_lines, table_of
from kestrelmq.config.values import (
    CHOICE,
    OPTIONAL_HOST,
    PORT,
    SOCKET_PATH,
    Count,
    CountLimit,
    Credentials,
    Duration,
    DurationLimit,
    DurationOrOff,
    Factor,
    FilePath,
    Flag,
    Host,
    Listeners,
    LogFile,
    Mode,
    NodePath,
    OptionalDuration,
    OptionalFilePath,
    OptionalFunction,
    OptionalHost,
    OptionalOwner,
    OptionalPasswordHash,
    OptionalPeriod,
    OptionalPositive,
    OptionalQueueName,
    OptionalText,
    OptionalTextList,
    Period,
    Port,
    PositiveLimit,
    QueueList,
    QueueName,
    QueuePatterns,
    Size,
    SizeLimit,
    SizeOrOff,
    SocketPath,
    SyncPeriod,
    Tokens,
    UserName,
    ValueKind,
    ZooKeeperHosts,
    value_kind_of,
)
from kestrelmq.errors import ConfigError
from kestrelmq.names import master_of

RELOADED: Final = frozenset({"default", "queues", "aliases", "users", "tls"})
"""The tables that a reload puts in force; every other setting needs a restart."""


def default_queue_path(environment: Mapping[str, str], home: Path) -> Path:
    """Return where the queues are kept when no setting says so."""
    state = environment.get("XDG_STATE_HOME", "")
    # The XDG specification says to ignore a relative path.
    base = Path(state) if state.startswith("/") else home / ".local" / "state"
    return base / "kestrelmq"


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def __init__(self, **settings: Any) -> None:
        """Check the settings.

        Raises:
            ConfigError: they cannot be used.
        """
        try:
            super().__init__(**settings)
        except ValidationError as error:
            name = type(self).__name__
            lines = problem_lines(error, type(self))
            raise ConfigError("\n".join(f"{name}: {line}" for line in lines)) from None

    # Pydantic checks a table within a table without this __init__, as it does with its own; so all
    # problems of a file are found at once.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


class QueueConfig(_Settings):
    """The settings of one queue: `QueueConfig(max_items=1000, max_age="1 minute")`."""

    max_items: CountLimit = None
    """Most items the queue may hold; adding to a full queue is refused."""
    max_size: SizeLimit = None
    """Most bytes of item data the queue may hold; adding to a full queue is refused."""
    max_item_size: SizeLimit = None
    """Most bytes of data in one item; a larger item is always refused."""
    max_age: DurationLimit = None
    """Longest time an item may wait after it was added; a later expiry is shortened."""
    default_journal_size: Size = 16 * 1024**2
    """When the queue is empty and its journal is larger than this, a new journal is started."""
    max_memory_size: Size = 128 * 1024**2
    """Most bytes of item data held in memory; further items are read from the journal when due."""
    max_journal_size: Size = 1024**3
    """When the journal is larger than this, it is rewritten to hold only live items."""
    min_journal_compact_delay: OptionalDuration = 60.0
    """Shortest time between two rewrites of the journal; None never delays one."""
    keep_replaced_journals: DurationOrOff = 0.0
    """How long journal files that were packed stay on disk, for programs that follow them."""
    discard_old_when_full: Flag = False
    """Whether a full queue drops its oldest items to make room instead of refusing new ones."""
    keep_journal: Flag = True
    """Whether items are written to disk; without a journal they are lost when the server stops."""
    sync_journal: SyncPeriod = None
    """How often the journal is forced to disk; 0 is before every acknowledgement, None is never."""
    expire_to_queue: OptionalQueueName = None
    """Queue that receives expired items; without one they are dropped."""
    max_deliveries: PositiveLimit = None
    """An item that is given back after so many deliveries goes to `dead_letter_queue`."""
    dead_letter_queue: OptionalQueueName = None
    """Queue that receives the items that were delivered `max_deliveries` times."""
    retry_delay: DurationOrOff = 0.0
    """How long an item that was given back waits until it may be read again."""
    retry_backoff: Factor = 2.0
    """By how much that time grows with each further delivery of the same item."""
    max_retry_delay: DurationLimit = 3600.0
    """Longest time that an item waits until it may be read again."""
    producer_ttl: Duration = 7 * 86_400.0
    """How long after its last item a producer may repeat an add without storing it twice."""
    max_expire_sweep: PositiveLimit = None
    """Most expired items that one background sweep removes."""
    fanout_only: Flag = False
    """Whether items go only to the fanout children and none is kept in this queue."""
    max_queue_age: OptionalDuration = None
    """An empty queue that was created longer ago than this is deleted."""
    enable_trace: Flag = False
    """Whether every operation that changes this queue is logged, as `journal dump` prints it."""
    disable_aggressive_rewrites: Flag = False
    """Whether a journal is rewritten only when full, not as soon as most of it is dead."""
    open_transaction_timeout: OptionalPeriod = None
    """How long a read may stay open; then its item goes back to the head of the queue."""
    allowed_client_ids_for_dequeue: OptionalTextList = None
    """Ids of the clients that may read; None is everyone."""
    allowed_client_ids_for_enqueue: OptionalTextList = None
    """Ids of the clients that may add; None is everyone."""
    journal_dialect: Annotated[Literal["documented", "kestrel-2"], CHOICE] = "documented"
    """Journal dialect that is written: the documented one, or what Kestrel 2.4 reads."""


class AliasConfig(_Settings):
    """A name that adds to other queues and holds nothing itself."""

    destination_queues: QueueList
    """The queues that receive every item added to the alias."""


class ZooKeeperConfig(_Settings):
    """Where and how the server announces itself to its clients."""

    hosts: ZooKeeperHosts
    """ZooKeeper servers, each `host` or `host:port`."""
    path_prefix: NodePath
    """Absolute path under which the sets `read` and `write` are kept."""
    session_timeout: Period = 10.0
    """How long ZooKeeper waits for a silent server before it drops it from the sets."""
    credentials: Credentials = None
    """Digest credentials, `user:password`."""
    acl: Annotated[Literal["open-unsafe", "everyone-read-creator-all"], CHOICE] = "open-unsafe"
    """Who may change the announcement: anyone, or only its creator."""
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


class TlsConfig(_Settings):
    """TLS on the ports: the certificate that clients are shown, and those that they may show."""

    certificate: FilePath
    """File (PEM) with the server's certificate, and after it those between it and its root."""
    key: OptionalFilePath = None
    """File (PEM) with the certificate's key, not encrypted; None if `certificate` has it."""
    client_ca: OptionalFilePath = None
    """File (PEM) with the authorities that sign clients' certificates; a client may then show
    one."""
    require_client_certificate: Flag = False
    """Whether a client must show a certificate that `client_ca` has signed."""
    listeners: Listeners = ("memcache", "text", "thrift", "admin")
    """Listeners whose ports speak TLS, and nothing else. Unix sockets never do."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.require_client_certificate and self.client_ca is None:
            raise ValueError("require_client_certificate needs a client_ca")
        return self


class UserConfig(_Settings):
    """A user: how the user signs in, and what is allowed then."""

    password_hash: OptionalPasswordHash = None
    """Hash of the password, as `kestrelmq user hash` prints it."""
    password_file: OptionalFilePath = None
    """File whose first line is the password, or its hash."""
    unix_user: OptionalText = None
    """User of the system, a name or a number, that is this user on the Unix sockets without a
    password."""
    certificate_name: OptionalText = None
    """Name in the client certificate of this user, who needs no password over TLS then: the common
    name, or without one the first DNS name or URI."""
    read: QueuePatterns = ()
    """Queues that may be read: names in which `*` is any text and `?` one character. A fanout child
    matches only a pattern with a `+`."""
    write: QueuePatterns = ()
    """Queues that may be added to, as for `read`, and created by that."""
    admin: Flag = False
    """Whether everything is allowed: reading and adding to every queue, flushing, deleting and
    pausing queues, and acting on the server."""
    rate_limit: PositiveLimit = None
    """Most requests a second, of all connections of the user together; a further one is refused.
    After a pause, those of a second may come at once."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        ways = ("password_hash", "password_file", "unix_user", "certificate_name")
        if all(getattr(self, way) is None for way in ways):
            raise ValueError(f"a user needs a {', a '.join(ways[:-1])} or a {ways[-1]}")
        if self.password_hash is not None and self.password_file is not None:
            raise ValueError("give either password_hash or password_file")
        return self


def _own_queue_path() -> Path:
    return default_queue_path(os.environ, Path.home())


class ServerConfig(_Settings):
    """The whole configuration of a server."""

    listen_address: Host = "127.0.0.1"
    """Address on which the ports are bound; 0.0.0.0 is every interface."""
    memcache_listen_address: OptionalHost = None
    """Address of the memcache port; None is `listen_address`."""
    text_listen_address: OptionalHost = None
    """Address of the text port; None is `listen_address`."""
    thrift_listen_address: OptionalHost = None
    """Address of the thrift port; None is `listen_address`."""
    admin_http_address: OptionalHost = None
    """Address of the admin service's port; None is `listen_address`."""
    memcache_listen_port: Port = 22133
    """Port of the memcache protocol."""
    text_listen_port: Port = 2222
    """Port of the text protocol."""
    thrift_listen_port: Port = 2229
    """Port of the thrift protocol."""
    admin_http_port: Port = 2223
    """Port of the admin HTTP service."""
    memcache_listen_path: SocketPath = None
    """Unix socket of the memcache protocol, beside its port."""
    text_listen_path: SocketPath = None
    """Unix socket of the text protocol, beside its port."""
    thrift_listen_path: SocketPath = None
    """Unix socket of the thrift protocol, beside its port."""
    admin_listen_path: SocketPath = None
    """Unix socket of the admin HTTP service, beside its port."""
    listen_path_mode: Mode = "0600"
    """Permissions of the Unix sockets: a user who may write to one may connect."""
    listen_path_owner: OptionalOwner = None
    """Owner of the Unix sockets, `USER`, `USER:GROUP` or `:GROUP`; None is the server's own."""
    admin_tokens: Tokens = ()
    """Secrets for the admin service. A request that changes anything must send one of them; without
    any, such requests are only served on a loopback address."""
    allow_remote_admin: Flag = False
    """Whether clients on other machines may shut the server down, reload it, set its status and
    disconnect its clients."""
    allow_unauthenticated: Flag = False
    """Whether to serve other machines although there are no users: then whoever reaches a port may
    read, change and delete every queue."""
    queue_path: FilePath = Field(default_factory=_own_queue_path)
    """Directory of the journals; if not set, `$XDG_STATE_HOME/kestrelmq` or
    `~/.local/state/kestrelmq`."""
    min_free_disk: SizeOrOff = 64 * 1024**2
    """With less room than this on the disk of the queue path, adding to a queue with a journal is
    refused; reading goes on."""
    expiration_timer_frequency: OptionalPeriod = 1.0
    """How often a background sweep looks for expired items and queues; None is never."""
    client_timeout: OptionalPeriod = None
    """A connection that is silent for this long, and at most a quarter longer, is closed. A client
    that waits for an item is not silent; one that does not read its replies is."""
    idle_timeout: OptionalPeriod = None
    """Another name of `client_timeout`; if both are set, the shorter one counts."""
    max_connections: PositiveLimit = None
    """Most clients of all listeners at a time, those of the admin service, too; a further one is
    refused. One over HTTP takes the place of another over HTTP that has no request, if there is
    one."""
    max_connections_per_address: PositiveLimit = None
    """The same for the clients of one address; an IPv6 network of 64 bits counts as one address,
    and Unix sockets do not count."""
    max_queues: PositiveLimit = None
    """Most queues, fanout children included; what would create a further one is refused."""
    max_open_transactions: Count = 1
    """Most reads one connection may hold open on one queue with `/open`."""
    max_monitor_transactions: Count = 100
    """Most reads one connection may hold open on one queue with `monitor` or thrift `get`."""
    max_buffered_bytes: SizeLimit = 512 * 1024**2
    """Most bytes of unfinished input, of replies that clients have not read, and of the buffers of
    TLS (20 KiB a connection), of all connections together; less than 16 KiB of a connection do not
    count. Beyond that, larger items are neither taken nor handed out, and no further client is
    served over TLS."""
    connection_backlog: Count = 1024
    """Connections that may wait to be accepted, per listener."""
    status_file: OptionalFilePath = None
    """File that keeps the server's status over a restart; None is `~~status` in the queue path."""
    default_status: Annotated[Literal["up", "writeavoid", "readonly", "quiescent"], CHOICE] = "up"
    """Status at the first start, while there is no status file."""
    log_level: Annotated[Literal["debug", "info", "warning", "error", "critical"], CHOICE] = "info"
    """Least severity that is logged."""
    log_format: Annotated[Literal["text", "json"], CHOICE] = "text"
    """`text` for people or `json` for machines, one event per line."""
    log_file: LogFile = None
    """File the log is written to, opened again on SIGHUP; None is standard error."""
    memcache_dialect: Annotated[Literal["kestrel", "memcached"], CHOICE] = "kestrel"
    """How the memcache listener answers: like Kestrel, or as ordinary memcached clients need, which
    otherwise lose what they read with options."""
    status_change_grace_period: DurationOrOff = 0.0
    """How long after a change of status the operations that it forbids are still allowed."""
    enable_session_trace: Flag = False
    """Whether the start and end of every connection is logged."""
    connection_limit_refuse_writes: OptionalPositive = None
    """With more client connections than this, adding is refused."""
    connection_limit_refuse_reads: OptionalPositive = None
    """With more client connections than this, reading is refused."""
    zookeeper: ZooKeeperConfig | None = None
    """ZooKeeper server sets to join."""
    tls: TlsConfig | None = None
    """TLS on the ports; without it they speak none."""
    default: QueueConfig = QueueConfig()
    """Settings of every queue that does not set its own."""
    queues: Mapping[QueueName, QueueConfig] = Field(default_factory=dict)
    """Settings of single queues; a fanout child inherits from its master."""
    aliases: Mapping[QueueName, AliasConfig] = Field(default_factory=dict)
    """Names that stand for several queues."""
    users: Mapping[UserName, UserConfig] = Field(default_factory=dict)
    """Who may use the server; without any, everyone who can connect may do everything."""

    @property
    def status_path(self) -> Path:
        """The status file in force."""
        return self.status_file or self.queue_path / "~~status"

    @property
    def addresses(self) -> Mapping[str, str]:
        """The address of each listener that has a port."""
        return {
            listener: getattr(self, LISTEN_ADDRESSES[listener]) or self.listen_address
            for listener, setting in LISTEN_PORTS.items()
            if getattr(self, setting) is not None
        }

    @model_validator(mode="after")
    def _check_listeners(self) -> Self:
        users: dict[object, str] = {}
        for listener, setting in (*LISTEN_PORTS.items(), *LISTEN_PATHS.items()):
            found: int | Path | None = getattr(self, setting)
            if not found:
                continue
            place = (
                os.path.realpath(found)
                if isinstance(found, Path)
                else (self.addresses[listener], found)
            )
            if place in users:
                raise ValueError(f"{users[place]} and {setting} are both {found}")
            users[place] = setting
        return self

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        """Refuse a path where a journal could be; names that begin with `~~` are safe."""
        inside = Path(os.path.realpath(self.queue_path))
        found = {name: getattr(self, name) for name in ("status_file", "log_file")}
        found |= {name: getattr(self, name) for name in LISTEN_PATHS.values()}
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
            if place == inside / "~~queues":
                raise ValueError(f"{name}: {found[name]} is where the server keeps queues' states")
            if name != "status_file" and place == Path(os.path.realpath(self.status_path)):
                raise ValueError(f"{name}: {found[name]} is the status file")
        return self

    @model_validator(mode="after")
    def _check_aliases(self) -> Self:
        for alias in self.aliases:
            if alias in self._reached_from(alias):
                raise ValueError(f"alias {alias!r} leads back to itself")
        return self

    @model_validator(mode="after")
    def _check_dead_letters(self) -> Self:
        layers = {"default": self.default} | {
            f"queues.{name}": effective_settings(self, name) for name in self.queues
        }
        for table, settings in layers.items():
            if settings.max_deliveries is not None and settings.dead_letter_queue is None:
                raise ValueError(f"{table}: max_deliveries needs a dead_letter_queue")
        for name, settings in self.queues.items():
            if settings.dead_letter_queue == name:
                raise ValueError(f"queues.{name}: dead_letter_queue is the queue itself")
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


def _listener_settings(kind: ValueKind) -> dict[str, str]:
    """Return the settings of a kind by the listener that they are about."""
    fields = ServerConfig.model_fields.items()
    return {name.split("_")[0]: name for name, field in fields if value_kind_of(field) is kind}


LISTEN_ADDRESSES: Final = _listener_settings(OPTIONAL_HOST)
"""The setting of the address of each listener's port, by the listener."""
LISTEN_PORTS: Final = _listener_settings(PORT)
"""The setting of each listener's port, by the listener: memcache, text, thrift, admin."""
LISTEN_PATHS: Final = _listener_settings(SOCKET_PATH)
"""The setting of each listener's Unix socket."""


def effective_settings(
    config: ServerConfig,
    queue_name: str,
    declared: Mapping[str, QueueConfig] = MappingProxyType({}),
) -> QueueConfig:
    """Return the settings in force for `queue_name`; pure, so callers may cache the result.

    A fanout child uses its own settings, then those of its master, then `[default]`, then the
    built-in values, as in Kestrel 2.3.4 and later. Only `fanout_only` is never inherited by a
    child: it means that items go to the children only. A queue's own settings are those of its
    table in the configuration, then those that clients `declared` for it.

    A queue that inherits itself as `dead_letter_queue` has none: its bad items stay in it.
    """
    master = master_of(queue_name)
    has_own = master is not None or queue_name in config.queues or queue_name in declared
    if not has_own and config.default.dead_letter_queue != queue_name:
        return config.default  # shared: there may be very many such queues
    merged = _explicit(config.default)
    if master is not None:
        merged |= _explicit(declared.get(master)) | _explicit(config.queues.get(master))
        merged.pop("fanout_only", None)
    merged |= _explicit(declared.get(queue_name)) | _explicit(config.queues.get(queue_name))
    if merged.get("dead_letter_queue") == queue_name:
        merged |= {"dead_letter_queue": None, "max_deliveries": None}
    # Each layer's values have been validated already.
    return QueueConfig.model_construct(**merged)


def _explicit(layer: QueueConfig | None) -> dict[str, Any]:
    """Return the settings that a layer sets explicitly."""
    if layer is None:
        return {}
    return {name: getattr(layer, name) for name in layer.model_fields_set}


@cache
def value_kinds(model: type[BaseModel]) -> dict[str, ValueKind]:
    """Return the kind of each setting of a model, tables excluded."""
    found = {name: value_kind_of(field) for name, field in model.model_fields.items()}
    return {name: kind for name, kind in found.items() if kind is not None}


def secret_settings(model: type[BaseModel]) -> dict[str, Any]:
    """Return the settings that are never shown, in the form for `model_dump(exclude=...)`."""
    found: dict[str, Any] = {name: True for name, kind in value_kinds(model).items() if kind.secret}
    for name, field in model.model_fields.items():
        if value_kind_of(field) is None and (within := secret_settings(table_of(field))):
            is_mapping = get_origin(field.annotation) is Mapping
            found[name] = {"__all__": within} if is_mapping else within
    return found
