"""Configuration files, and what is said about wrong ones."""

from pathlib import Path

import pytest

from kestrelmq.config import (
    ServerConfig,
    apply_overrides,
    changed_globals,
    config_from_toml,
    config_warnings,
    load_config,
)
from kestrelmq.errors import ConfigError


def problems(text: str) -> list[str]:
    """Return the lines that are said about `text`."""
    with pytest.raises(ConfigError) as caught:
        config_from_toml(text, "k.toml")
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        # unknown settings, at every depth
        ("listn_address = 'x'", "listn_address: unknown setting; did you mean listen_address?"),
        ("[default]\nmaxItems = 1", "default.maxItems: unknown setting; did you mean max_items?"),
        (
            '[queues."q+c"]\nmax-itms = 1',
            'queues."q+c".max-itms: unknown setting; did you mean max_items?',
        ),
        (
            "[aliases.a]\ndestination_queues = ['q']\ndestination = 1",
            "aliases.a.destination: unknown setting; did you mean destination_queues?",
        ),
        (
            "[zookeeper]\nhosts = ['a']\npath_prefix = '/k'\nhost = 1",
            "zookeeper.host: unknown setting; did you mean hosts?",
        ),
        (
            "[aliases.a]\ndestination_queues = ['q']\nzzz = 1",
            "aliases.a.zzz: unknown setting; allowed: destination_queues",
        ),
        # hosts that no resolver can be asked for
        (
            "listen_address = 'a..b'",
            'listen_address: found "a..b"; allowed: the name or the address of a host',
        ),
        (
            "[zookeeper]\nhosts = ['a..b:2181']\npath_prefix = '/k'",
            "zookeeper.hosts.0: found \"a..b:2181\"; allowed: 'host' or 'host:port'",
        ),
        # wrong types
        (
            "enable_session_trace = 'yes'",
            'enable_session_trace: found "yes"; allowed: true or false',
        ),
        ("[default]\nkeep_journal = 1", "default.keep_journal: found 1; allowed: true or false"),
        (
            "admin_http_port = '5'",
            'admin_http_port: found "5"; allowed: a whole number, 0 to 65535, or "none"',
        ),
        (
            "max_open_transactions = true",
            "max_open_transactions: found true; allowed: a whole number, 1 or more",
        ),
        ("queue_path = 3", "queue_path: found 3; allowed: text on one line, not empty"),
        ("default = 3", "default: found 3; allowed: a table"),
        ("[queues]\nq = 3", "queues.q: found 3; allowed: a table"),
        ("queues = 3", "queues: found 3; allowed: a table"),
        (
            "[default]\nexpire_to_queue = 3",
            "default.expire_to_queue: found 3; allowed: text in quotes",
        ),
        (
            "[default]\nallowed_client_ids_for_enqueue = 'bob'",
            (
                'default.allowed_client_ids_for_enqueue: found "bob"; '
                "allowed: a list of texts, such as ['one', 'two'], or \"everyone\", \"none\""
            ),
        ),
        # wrong values
        (
            "thrift_listen_port = 99999",
            'thrift_listen_port: found 99999; allowed: a whole number, 0 to 65535, or "none"',
        ),
        (
            "log_level = 'loud'",
            'log_level: found "loud"; allowed: debug, info, warning, error, critical',
        ),
        (
            "[default]\nmax_size = '16 XB'",
            (
                "default.max_size: found \"16 XB\"; unknown unit 'xb'; a size is a number of "
                "bytes or text such as '512k', '16 MiB' or '1 GB', or \"none\", \"unlimited\""
            ),
        ),
        (
            "[default]\nmax_memory_size = 1.5",
            (
                "default.max_memory_size: found 1.5; a size is a number of bytes or text such as "
                "'512k', '16 MiB' or '1 GB'"
            ),
        ),
        (
            "[default]\nmin_journal_compact_delay = -1",
            (
                "default.min_journal_compact_delay: found -1; must not be negative; a duration is "
                "a number of seconds or text such as '100ms', '1s', '30 minutes' or '1d', "
                'or "none", "unlimited"'
            ),
        ),
        (
            "[default]\nsync_journal = '1000 years'",
            (
                "default.sync_journal: found \"1000 years\"; unknown unit 'years'; a duration is a "
                "number of seconds or text such as '100ms', '1s', '30 minutes' or '1d', "
                'or "never", "none"'
            ),
        ),
        (
            "status_change_grace_period = '99999 weeks'",
            (
                'status_change_grace_period: found "99999 weeks"; a duration is at most 100 years, '
                'or "none"'
            ),
        ),
        (
            "[zookeeper]\nhosts = ['a']\npath_prefix = '/k'\nsession_timeout = 0",
            "zookeeper.session_timeout: found 0; must be longer than 0",
        ),
        # names
        ('[queues."a.b"]', "queues.\"a.b\": a queue name must not contain '.'"),
        ('[queues."a+b+c"]', "queues.\"a+b+c\": a queue name has at most one '+'"),
        (
            "[default]\nexpire_to_queue = 'a/b'",
            "default.expire_to_queue: found \"a/b\"; a queue name must not contain '/'",
        ),
        (
            "[aliases.a]\ndestination_queues = ['q', 'a/b']",
            "aliases.a.destination_queues.1: found \"a/b\"; a queue name must not contain '/'",
        ),
        # what is missing or empty
        ("[aliases.a]", "aliases.a.destination_queues: missing"),
        (
            "[aliases.a]\ndestination_queues = []",
            "aliases.a.destination_queues: found []; allowed: a list that is not empty",
        ),
        ("[zookeeper]\nhosts = ['a']", "zookeeper.path_prefix: missing"),
        (
            "[zookeeper]\nhosts = ['a', 'b:x']\npath_prefix = '/k'",
            "zookeeper.hosts.1: found \"b:x\"; allowed: 'host' or 'host:port'",
        ),
        (
            "[zookeeper]\nhosts = ['a']\npath_prefix = 'k'",
            (
                'zookeeper.path_prefix: found "k"; '
                "allowed: a ZooKeeper path that starts with '/', without '.' and '..'"
            ),
        ),
        (
            "[zookeeper]\nhosts = ['a']\npath_prefix = '/k/../l'",
            (
                'zookeeper.path_prefix: found "/k/../l"; '
                "allowed: a ZooKeeper path that starts with '/', without '.' and '..'"
            ),
        ),
        # rules over several settings
        (
            "memcache_listen_port = 7\nadmin_http_port = 7",
            "memcache_listen_port and admin_http_port are both 7",
        ),
        (
            "text_listen_port = 7\nadmin_http_port = 7\nadmin_http_address = '127.0.0.1'",
            "text_listen_port and admin_http_port are both 7",
        ),
        (
            "memcache_listen_path = '/r/s'\ntext_listen_path = '/r/../r/s'",
            "memcache_listen_path and text_listen_path are both /r/../r/s",
        ),
        (
            f"admin_listen_path = '/{'s' * 103}'",
            (
                f'admin_listen_path: found "/{"s" * 58}...; the path of a Unix socket has at most '
                '103 bytes, not 104, or "none"'
            ),
        ),
        (
            "listen_path_mode = '0999'",
            "listen_path_mode: found \"0999\"; allowed: octal permissions as text, such as '0660'",
        ),
        (
            "listen_path_owner = 'a b'",
            (
                "listen_path_owner: found \"a b\"; allowed: 'USER', 'USER:GROUP' or ':GROUP', "
                'or "none"'
            ),
        ),
        (
            "[aliases.a]\ndestination_queues = ['b']\n[aliases.b]\ndestination_queues = ['q', 'a']",
            "alias 'a' leads back to itself",
        ),
        (
            "[zookeeper]\nhosts = ['a']\npath_prefix = '/k'\nacl = 'everyone-read-creator-all'",
            (
                "zookeeper: acl = 'everyone-read-creator-all' needs credentials, "
                "or a client_initializer"
            ),
        ),
    ],
)
def test_a_wrong_setting_is_reported(text: str, line: str) -> None:
    """The report names file and key, what was found and what is allowed."""
    assert problems(text) == [f"k.toml: {line}"]


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 10_000,
        "a = " + "[" * 10_000 + "]" * 10_000,
        "a = " + "{a = " * 10_000,
        ".".join("a" * 5_000) + " = 1",
        "queues." + ".".join("a" * 5_000) + " = 1",
        "[" + ".".join("a" * 5_000) + "]",
        "max_open_transactions = " + "[" * 300 + "]" * 300,
    ],
    ids=range(7),
)
def test_what_is_nested_deeply_is_reported(text: str) -> None:
    """A file that no person wrote is an error like any other."""
    assert problems(text)[0].startswith("k.toml: ")


def test_a_number_that_is_too_long_is_reported() -> None:
    """Python refuses to read it."""
    assert problems("max_open_transactions = " + "9" * 5000)[0].startswith("k.toml: not TOML: ")


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ('status_file = "/q/jobs"', "status_file: /q/jobs would be taken for a queue's journal"),
        ('log_file = "/q/jobs.17"', "log_file: /q/jobs.17 would be taken for a queue's journal"),
        ('log_file = "/q/../q/./log"', "log_file: /q/../q/log would be taken for a queue's"),
        ('text_listen_path = "/q/s"', "text_listen_path: /q/s would be taken for a queue's"),
        ('admin_listen_path = "/q/~~status"', "admin_listen_path: /q/~~status is the status"),
        ('log_file = "/q"', "log_file: /q is the queue path"),
        ('status_file = "/q/~~lock"', "status_file: /q/~~lock is the lock of the queue path"),
        ('log_file = "/q/~~status"', "log_file: /q/~~status is the status file"),
        ('log_file = "/s"\nstatus_file = "/s"', "log_file: /s is the status file"),
    ],
)
def test_other_files_stay_out_of_the_journals_way(files: str, line: str) -> None:
    """A status or log file is never where a queue's journal, or the lock, would be."""
    (found,) = problems(f'queue_path = "/q"\n{files}')
    assert found.startswith(f"k.toml: {line}")


def test_other_files_may_be_in_the_queue_path_under_other_names() -> None:
    """What begins with ~~ is no journal's; elsewhere any name will do."""
    config = config_from_toml('queue_path = "/q"\nstatus_file = "/q/~~s"\nlog_file = "/l/q"', "t")
    assert config.status_path == Path("/q/~~s")
    assert config_from_toml('queue_path = "/q"\nlog_file = "/q/log/jobs"', "t").log_file


def test_everything_wrong_is_reported_at_once() -> None:
    """A file with many mistakes is mended in one round, rules over several settings included."""
    found = problems(
        """
        memcache_listen_port = 7
        text_listen_port = 7
        thrift_listen_port = -1
        log_format = "xml"
        [default]
        max_items = "many"
        [queues.q]
        max_itms = 1
        """
    )
    assert sorted(line.split(": ")[1] for line in found) == [
        "default.max_items",
        "log_format",
        "memcache_listen_port and text_listen_port are both 7",
        "queues.q.max_itms",
        "thrift_listen_port",
    ]


def test_a_wrong_port_does_not_collide_as_its_default() -> None:
    """Only what was written is reported."""
    found = problems("memcache_listen_port = 2222\ntext_listen_port = -1")
    assert [line.split(": ")[1] for line in found] == ["text_listen_port"]


def test_free_ports_and_listeners_that_are_off_never_collide() -> None:
    """Several listeners may ask for any free port, or be off."""
    config = config_from_toml(
        "memcache_listen_port = 0\ntext_listen_port = 0\n"
        "thrift_listen_port = 'none'\nadmin_http_port = 'none'",
        "test",
    )
    assert (config.memcache_listen_port, config.thrift_listen_port) == (0, None)


def test_credentials_never_show_in_a_report() -> None:
    """A report may be pasted anywhere."""
    line = "[zookeeper]\nhosts = ['a']\npath_prefix = '/k'\ncredentials = 'hunter2'"
    (told,) = problems(line)
    assert told.startswith("k.toml: zookeeper.credentials: found a value that is not shown; ")
    assert told.endswith("allowed: 'user:password', or \"none\"")


def test_a_long_value_is_cut_in_a_report() -> None:
    """A line of the report stays a line."""
    (line,) = problems(f"log_level = '{'x' * 1000}'")
    assert len(line) < 200


def test_text_that_is_no_toml_is_reported_with_its_place() -> None:
    """A syntax error names line and column."""
    (line,) = problems("a = 1\nb = = 2")
    assert line.startswith("k.toml: not TOML: ")
    assert "line 2" in line


def test_a_file_is_loaded(tmp_path: Path) -> None:
    """A good file gives its settings, and defaults for the rest."""
    file = tmp_path / "k.toml"
    file.write_text("[queues.q]\nmax_items = 3\n")
    assert load_config(file).queues["q"].max_items == 3


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    """A missing file and a file of other bytes are errors of the configuration."""
    with pytest.raises(ConfigError, match=r"k\.toml: cannot be read: No such file"):
        load_config(tmp_path / "k.toml")
    (tmp_path / "k.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(ConfigError, match=r"k\.toml: not UTF-8: .* at byte 5"):
        load_config(tmp_path / "k.toml")


def test_flags_override_the_file() -> None:
    """A flag that was given wins, one that was not given changes nothing."""
    config = config_from_toml(
        "listen_address = '0.0.0.0'\ntext_listen_port = 5\n[queues.q]\nmax_items = 3", "test"
    )
    changed = apply_overrides(
        config,
        {
            "listen_address": None,
            "memcache_listen_port": "0",
            "text_listen_port": "none",
            "admin_http_port": 81,
            "queue_path": Path("/q"),
        },
    )
    assert changed.listen_address == "0.0.0.0"
    assert changed.memcache_listen_port == 0
    assert changed.text_listen_port is None
    assert changed.admin_http_port == 81
    assert changed.queue_path == Path("/q")
    assert changed.queues == config.queues


def test_a_wrong_flag_is_reported() -> None:
    """Flags are held to the same rules as the file."""
    with pytest.raises(ConfigError, match=r"^command line: text_listen_port: found \"x\"; allowed"):
        apply_overrides(ServerConfig(), {"text_listen_port": "x"})


def test_only_queues_and_aliases_change_without_a_restart() -> None:
    """A reload can tell which changed settings it does not apply."""
    old = config_from_toml("log_level = 'info'\n[default]\nmax_items = 1", "test")
    new = config_from_toml(
        "log_level = 'debug'\ntext_listen_port = 5\n[default]\nmax_items = 2\n[queues.q]\n"
        "[aliases.a]\ndestination_queues = ['q']",
        "test",
    )
    assert changed_globals(old, new) == ["text_listen_port", "log_level"]
    assert changed_globals(old, old) == []


def test_an_alias_with_the_name_of_a_queue_is_warned_about() -> None:
    """It is allowed, and probably not meant."""
    config = config_from_toml("[queues.q]\n[aliases.q]\ndestination_queues = ['r']", "test")
    assert config_warnings(config) == ["aliases.q masks the queue of that name"]
    assert config_warnings(ServerConfig()) == []


@pytest.mark.parametrize("setting", ["status_file", "log_file"])
def test_other_files_are_not_the_configuration_file(tmp_path: Path, setting: str) -> None:
    """The server would write over it."""
    path, link = tmp_path / "k.toml", tmp_path / "link"
    link.symlink_to(path)
    path.write_text(f'{setting} = "{link}"')
    with pytest.raises(ConfigError, match=f"{setting}: .*link is this configuration file"):
        load_config(path)
