"""Configuration files of the original Kestrel."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrelmq.config import ServerConfig, config_from_toml, effective_settings
from kestrelmq.config.kestrel_scala import Imported, import_kestrel
from kestrelmq.errors import ConfigError

_FILE = Path(__file__).parents[2] / "data" / "production.scala"


def imported(body: str) -> Imported:
    """Import a file with these settings."""
    return import_kestrel(f"new KestrelConfig {{\n{body}\n}}\n", "file")


def loaded(text: str) -> ServerConfig:
    """Load a file that was imported."""
    return config_from_toml(text, "imported")


def test_a_whole_file() -> None:
    """It has everything that the files had which Kestrel came with."""
    found = import_kestrel(_FILE.read_text(), "production.scala")
    config = loaded(found.toml)
    assert config.thrift_listen_port is None
    assert config.memcache_listen_port == 22133
    assert config.client_timeout is None
    assert config.expiration_timer_frequency == 1.0
    assert config.default_status == "quiescent"
    assert config.log_level == "info"
    assert str(config.log_file) == "/var/log/kestrel/kestrel.log"
    assert config.default.max_memory_size == 128 << 20
    assert config.default.sync_journal == 0.01
    assert config.queues["weather_updates"].max_items == 1_500_000
    assert config.queues["jobs_pending"].max_age == 30.0
    assert config.queues["jobs_pending"].discard_old_when_full
    assert not config.queues["jobs_pending"].keep_journal
    assert config.aliases["a"].destination_queues == ("x", "y")
    assert config.zookeeper is not None
    assert config.zookeeper.path_prefix == "/kestrel/prod"
    lines = _FILE.read_text().splitlines()
    named = {remark.name: lines[remark.line - 1] for remark in found.remarks}
    assert named.keys() == {
        "listenAddress", "default.maxItems", "admin.statsNodes", "queues bad/name",
        "clientInitializer", "val", "loggers",
    }  # fmt: skip
    assert "8 * 1024" in named["default.maxItems"]
    assert "MyCode.init" in named["clientInitializer"]
    assert "QueueBuilder" in named["queues bad/name"]


def test_the_example_of_the_guide() -> None:
    """Queues have what Kestrel 2.3.4 and later gave them."""
    found = imported(
        """
       default.maxMemorySize = 8.megabytes

       queues = new QueueBuilder() {
           name = "q"
           maxItems = 500
       } :: new QueueBuilder() {
           name = "q+fanout"
           maxAge = 1.minute
       } :: new QueueBuilder() {
           name = "x"
           maxMemorySize = 16.megabytes
       }"""
    )
    assert found.remarks == []
    config = loaded(found.toml)
    settings = {name: effective_settings(config, name) for name in ("q", "q+fanout", "x")}
    assert [one.max_memory_size >> 20 for one in settings.values()] == [8, 8, 16]
    assert [one.max_items for one in settings.values()] == [500, 500, None]
    assert [one.max_age for one in settings.values()] == [None, 60.0, None]


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("colour = 3", "there is no such setting"),
        ("textListenPort = 70000", "65535"),
        ("default.maxItems = -1", "max_items"),
        ("default.keepJournal = 5.seconds", "keep_journal"),
        ("default.maxItems = limit(3)", "only constants"),
        ("default.maxItems = 3 + 4", "only constants"),
        ("default.maxItems = { 3 }", "only constants"),
        ("if (x) { default.maxItems = 3 }", "only constants"),
        ("queues = new QueueBuilder { maxItems = 3 }", "no name"),
        ("queues = others", "only constants"),
        ('zookeeper = new ZooKeeperBuilder { host = "h" }', "path_prefix"),
        ("zookeeper = None", "a table"),
        ('listenAddress = List("h")', "the name or the address of a host"),
        ('statusFile = "/q/.status"', "would be taken for a queue's journal"),
        ('aliases = new AliasBuilder { name = "a"; destinationQueues = List("a") }', "itself"),
    ],
)
def test_what_cannot_be_carried_over(setting: str, reason: str) -> None:
    """It is named, and everything else is carried over."""
    found = imported(f'{setting}\nqueuePath = "/q"')
    [remark] = found.remarks
    assert remark.line == 2
    assert reason in remark.reason
    assert loaded(found.toml) == ServerConfig(queue_path=Path("/q"))


def test_a_password_that_code_computes_is_left_out() -> None:
    """So is a port, and with it the servers."""
    begin = 'zookeeper = new ZooKeeperBuilder { host = "h"; pathPrefix = "/k"; username = "u"'
    found = imported(f'{begin}\npassword = sys.env("P") }}')
    assert [(one.line, one.name) for one in found.remarks] == [(3, "password")]
    config = loaded(found.toml).zookeeper
    assert config is not None
    assert (config.hosts, config.credentials) == (("h:2181",), None)
    found = imported(f"{begin}\nport = ports.zookeeper() }}")
    assert [one.name for one in found.remarks] == ["zookeeper", "port"]
    assert loaded(found.toml).zookeeper is None


def test_words_for_no_limit() -> None:
    """What has no limit in Scala has none here."""
    found = imported("default.maxItems = Int.MaxValue; default.maxSize = Some(3.kilobytes)")
    assert found.remarks == []
    assert loaded(found.toml).default.max_items is None
    assert loaded(found.toml).default.max_size == 3072


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "line 1: there is no `new KestrelConfig { ... }`"),
        ("new KestrelConfig {\n queues = List(", "a bracket is not closed"),
        ("new KestrelConfig {\n queues = new X {", "a bracket is not closed"),
        ("new KestrelConfig { x =" + "Some(" * 100_000, "nested too deeply"),
    ],
)
def test_a_file_that_is_not_a_configuration_is_an_error(text: str, reason: str) -> None:
    """There is one error, and no file."""
    with pytest.raises(ConfigError, match="file: ") as caught:
        import_kestrel(text, "file")
    assert reason in str(caught.value)


_WORDS = st.sampled_from(
    ["name", "=", "{", "}", "(", ")", "new", "QueueBuilder", "::", "queues", '"q"', "3", ".",
     "megabytes", "Some", "List", ",", ";", "\n", "default", "maxItems", "zookeeper", "loggers",
     "level", "None", '"', "//", "/*", "*/", "Nil", "queuePath", "statusFile", '"/q/s"', "aliases",
     "destinationQueues", "listenAddress"]
)  # fmt: skip


@given(st.lists(_WORDS, max_size=40))
def test_any_text_is_read_or_refused(words: list[str]) -> None:
    """What comes out loads."""
    try:
        found = imported(" ".join(words))
    except ConfigError:
        return
    loaded(found.toml)
