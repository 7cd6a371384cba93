"""Every setting: its default and the values it takes."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from kestrelmq.config import QueueConfig, ServerConfig, ZooKeeperConfig, config_from_toml
from kestrelmq.config.model import default_queue_path
from kestrelmq.errors import ConfigError


def test_built_in_queue_settings_are_those_of_the_original() -> None:
    """A queue without any configuration gets the documented defaults."""
    assert dict(QueueConfig()) == {
        "max_items": None,
        "max_size": None,
        "max_item_size": None,
        "max_age": None,
        "default_journal_size": 16 * 1024**2,
        "max_memory_size": 128 * 1024**2,
        "max_journal_size": 1024**3,
        "min_journal_compact_delay": 60.0,
        "keep_replaced_journals": 0.0,
        "discard_old_when_full": False,
        "keep_journal": True,
        "sync_journal": None,
        "expire_to_queue": None,
        "max_deliveries": None,
        "dead_letter_queue": None,
        "retry_delay": 0.0,
        "retry_backoff": 2.0,
        "max_retry_delay": 3600.0,
        "producer_ttl": 7 * 86_400.0,
        "max_expire_sweep": None,
        "fanout_only": False,
        "max_queue_age": None,
        "enable_trace": False,
        "disable_aggressive_rewrites": False,
        "open_transaction_timeout": None,
        "allowed_client_ids_for_dequeue": None,
        "allowed_client_ids_for_enqueue": None,
        "journal_dialect": "documented",
    }


@pytest.mark.parametrize(
    "name",
    [name for name, value in QueueConfig() if value is None]
    + ["min_journal_compact_delay", "max_retry_delay"],
)
def test_every_queue_setting_that_can_be_switched_off_takes_none(name: str) -> None:
    """However else it may be said."""
    config = config_from_toml(f'[default]\n{name} = "none"\n', "test")
    assert getattr(config.default, name) is None


@pytest.mark.parametrize(
    "name",
    [
        "client_timeout",
        "idle_timeout",
        "expiration_timer_frequency",
        "connection_limit_refuse_reads",
        "connection_limit_refuse_writes",
        "memcache_listen_port",
        "text_listen_port",
        "thrift_listen_port",
        "admin_http_port",
        "admin_listen_path",
        "listen_path_owner",
        "log_file",
        "status_file",
    ],
)
def test_every_server_setting_that_can_be_switched_off_takes_none(name: str) -> None:
    """Among them the listeners."""
    assert getattr(config_from_toml(f'{name} = "none"\n', "test"), name) is None


@pytest.mark.parametrize(
    "text",
    [
        '[default]\nretry_delay = "none"',
        '[default]\nkeep_replaced_journals = "NONE"',
        'status_change_grace_period = "none"',
    ],
)
def test_a_duration_that_may_be_0_takes_none(text: str) -> None:
    """It means 0."""
    assert config_from_toml(text, "test") == ServerConfig()


def test_no_credentials() -> None:
    """They can be switched off in the same way."""
    table = '[zookeeper]\nhosts = ["a"]\npath_prefix = "/k"\ncredentials = "none"\n'
    found = config_from_toml(table, "test").zookeeper
    assert found is not None
    assert found.credentials is None


def test_built_in_server_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without any configuration listens on loopback only, at the original's ports."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    config = ServerConfig()
    assert dict(config) == {
        "listen_address": "127.0.0.1",
        "memcache_listen_address": None,
        "text_listen_address": None,
        "thrift_listen_address": None,
        "admin_http_address": None,
        "memcache_listen_port": 22133,
        "text_listen_port": 2222,
        "thrift_listen_port": 2229,
        "admin_http_port": 2223,
        "memcache_listen_path": None,
        "text_listen_path": None,
        "thrift_listen_path": None,
        "admin_listen_path": None,
        "listen_path_mode": "0600",
        "listen_path_owner": None,
        "admin_tokens": (),
        "allow_remote_admin": False,
        "queue_path": tmp_path / "kestrelmq",
        "min_free_disk": 64 << 20,
        "expiration_timer_frequency": 1.0,
        "client_timeout": None,
        "idle_timeout": None,
        "max_open_transactions": 1,
        "max_monitor_transactions": 100,
        "max_buffered_bytes": 512 * 1024**2,
        "connection_backlog": 1024,
        "status_file": None,
        "default_status": "up",
        "log_level": "info",
        "log_format": "text",
        "log_file": None,
        "memcache_dialect": "kestrel",
        "status_change_grace_period": 0.0,
        "enable_session_trace": False,
        "connection_limit_refuse_writes": None,
        "connection_limit_refuse_reads": None,
        "zookeeper": None,
        "default": QueueConfig(),
        "queues": {},
        "aliases": {},
        "users": {},
        "allow_unauthenticated": False,
        "tls": None,
        "max_connections": None,
        "max_connections_per_address": None,
        "max_queues": None,
    }
    assert config.status_path == tmp_path / "kestrelmq" / "~~status"


def test_a_queue_is_configured_from_python() -> None:
    """The library takes the texts of the configuration file as well as plain numbers."""
    config = QueueConfig(max_items=1000, max_age="1 minute", max_size="1 MiB", sync_journal="0ms")
    assert (config.max_items, config.max_age) == (1000, 60.0)
    assert (config.max_size, config.sync_journal) == (1024**2, 0.0)
    assert QueueConfig(max_age=2.5, max_items=None).max_age == 2.5


def test_wrong_settings_from_python_are_a_config_error() -> None:
    """Python code gets the lines that a file gets, all of them, as an error of this package."""
    with pytest.raises(ConfigError) as caught:
        QueueConfig(keep_journal=3, max_itms=3)  # type: ignore[call-arg] # it is refused
    assert str(caught.value).splitlines() == [
        "QueueConfig: keep_journal: found 3; allowed: true or false",
        "QueueConfig: max_itms: unknown setting; did you mean max_items?",
    ]
    assert isinstance(caught.value, ValueError)


def test_a_configuration_never_changes() -> None:
    """Settings can be shared between threads because nobody can set them."""
    with pytest.raises(ValidationError, match="frozen"):
        QueueConfig().max_items = 3  # type: ignore[misc] # that it is refused is the point


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('max_items = "unlimited"', None),
        ('max_items = "none"', None),
        ("max_items = 0", 0),
        ('max_size = "2k"', 2048),
        ("max_size = 7", 7),
        ('max_age = "Unlimited"', None),
        ("max_age = 1.5", 1.5),
        ('sync_journal = "never"', None),
        ('sync_journal = "0ms"', 0.0),
        ('sync_journal = "1s"', 1.0),
        ('expire_to_queue = "dead"', "dead"),
        ('expire_to_queue = ""', None),
        ("max_expire_sweep = 5", 5),
        ('max_queue_age = "1d"', 86400.0),
        ('open_transaction_timeout = "30 minutes"', 1800.0),
        ('allowed_client_ids_for_dequeue = ["a", "b"]', ("a", "b")),
        ("allowed_client_ids_for_enqueue = []", ()),
        ('allowed_client_ids_for_enqueue = "everyone"', None),
        ('journal_dialect = "Kestrel-2"', "kestrel-2"),
        ("keep_journal = false", False),
    ],
)
def test_a_queue_setting_takes_what_people_write(line: str, value: object) -> None:
    """Each setting takes plain values, texts with units, and a word for none."""
    config = config_from_toml(f"[default]\n{line}", "test")
    assert getattr(config.default, line.split(maxsplit=1)[0]) == value


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('listen_address = "0.0.0.0"', "0.0.0.0"),
        ('admin_http_address = "::1"', "::1"),
        ('text_listen_address = "none"', None),
        ("memcache_listen_port = 0", 0),
        ('text_listen_port = "none"', None),
        ('queue_path = "/var/spool/kestrel"', Path("/var/spool/kestrel")),
        ('queue_path = "~/q"', Path.home() / "q"),
        ('status_file = "~~status"', Path("~~status")),
        ('log_file = "stderr"', None),
        ('log_file = "/var/log/k"', Path("/var/log/k")),
        ('expiration_timer_frequency = "none"', None),
        ('client_timeout = "1m"', 60.0),
        ('default_status = "ReadOnly"', "readonly"),
        ('log_level = "DEBUG"', "debug"),
        ('memcache_dialect = "memcached"', "memcached"),
        ("connection_limit_refuse_writes = 9", 9),
    ],
)
def test_a_server_setting_takes_what_people_write(line: str, value: object) -> None:
    """Paths know the home directory, listeners can be off, words are in any case."""
    assert getattr(config_from_toml(line, "test"), line.split(maxsplit=1)[0]) == value


def test_zookeeper_settings() -> None:
    """ZooKeeper needs its hosts and a path; the rest has defaults."""
    config = config_from_toml(
        '[zookeeper]\nhosts = ["a:2181", "b"]\npath_prefix = "/kestrel"\ncredentials = "u:secret"',
        "test",
    ).zookeeper
    assert config is not None
    assert (config.hosts, config.path_prefix) == (("a:2181", "b"), "/kestrel")
    assert (config.session_timeout, config.acl) == (10.0, "open-unsafe")
    assert config.credentials is not None
    assert config.credentials.get_secret_value() == "u:secret"
    assert "secret" not in repr(config)


def test_an_initializer_can_stand_in_for_credentials() -> None:
    """An access list for the creator only needs someone to say who the creator is."""
    config = ZooKeeperConfig(
        hosts=["a"],
        path_prefix="/k",
        acl="everyone-read-creator-all",
        client_initializer="site.zk:client",
    )
    assert config.client_initializer == "site.zk:client"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("/state", "/state/kestrelmq"),
        ("", "/home/ann/.local/state/kestrelmq"),
        ("relative", "/home/ann/.local/state/kestrelmq"),
    ],
)
def test_the_queue_path_follows_the_xdg_rules(state: str, expected: str) -> None:
    """The state directory of the user, or its place in the home directory."""
    found = default_queue_path({"XDG_STATE_HOME": state}, Path("/home/ann"))
    assert found == Path(expected)


@pytest.mark.parametrize("model", [QueueConfig, ServerConfig, ZooKeeperConfig])
def test_every_setting_is_explained(
    model: type[QueueConfig] | type[ServerConfig] | type[ZooKeeperConfig],
) -> None:
    """The schema has a sentence for every setting."""
    missing = [name for name, field in model.model_fields.items() if not field.description]
    assert missing == []
