"""Which settings are in force for a queue."""

import pytest

from kestrelmq.config import QueueConfig, ServerConfig, config_from_toml, effective_settings

GUIDE = """
[default]
max_memory_size = "8MB"

[queues.q]
max_items = 500

[queues."q+fanout"]
max_age = "1 minute"

[queues.x]
max_memory_size = "16MB"
"""


@pytest.mark.parametrize(
    ("queue", "setting", "value"),
    [
        ("q", "max_memory_size", 8 * 1024**2),
        ("q+fanout", "max_memory_size", 8 * 1024**2),
        ("x", "max_memory_size", 16 * 1024**2),
        ("q", "max_items", 500),
        ("q+fanout", "max_items", 500),
        ("q+fanout", "max_age", 60.0),
    ],
)
def test_the_table_of_the_guide(queue: str, setting: str, value: object) -> None:
    """The example of the original's guide gives what Kestrel 2.3.4 and later give."""
    assert getattr(effective_settings(config_from_toml(GUIDE, "guide"), queue), setting) == value


def test_what_nobody_sets_is_built_in() -> None:
    """Without any configuration every queue has the built-in settings."""
    assert effective_settings(ServerConfig(), "any") == QueueConfig()
    assert effective_settings(ServerConfig(), "any+child") == QueueConfig()


def test_a_child_that_is_not_configured_is_like_its_master() -> None:
    """A fanout child needs no table of its own."""
    config = config_from_toml(GUIDE, "guide")
    assert effective_settings(config, "q+other") == effective_settings(config, "q")


def test_a_masters_settings_stay_its_own() -> None:
    """What a child sets reaches neither its master nor another queue."""
    config = config_from_toml(GUIDE, "guide")
    assert effective_settings(config, "q").max_age is None
    assert effective_settings(config, "x").max_items is None


def test_a_built_in_value_that_is_set_wins_over_an_inherited_one() -> None:
    """Set to the default is not the same as not set."""
    config = config_from_toml(
        """
        [default]
        max_items = 10
        keep_journal = false
        sync_journal = "1s"
        [queues.q]
        max_items = "unlimited"
        keep_journal = true
        [queues."q+child"]
        sync_journal = "never"
        """,
        "test",
    )
    master, child = effective_settings(config, "q"), effective_settings(config, "q+child")
    assert (master.max_items, master.keep_journal, master.sync_journal) == (None, True, 1.0)
    assert (child.max_items, child.keep_journal, child.sync_journal) == (None, True, None)


def test_fanout_only_is_not_inherited() -> None:
    """A master that keeps nothing passes everything to children that do keep it."""
    config = config_from_toml(
        """
        [default]
        fanout_only = true
        [queues.q]
        max_items = 5
        fanout_only = true
        [queues."q+none"]
        fanout_only = true
        """,
        "test",
    )
    assert effective_settings(config, "q").fanout_only
    assert effective_settings(config, "other").fanout_only
    child = effective_settings(config, "q+child")
    assert (child.fanout_only, child.max_items) == (False, 5)
    assert not effective_settings(config, "other+child").fanout_only
    assert effective_settings(config, "q+none").fanout_only


def test_what_is_declared_stands_between_what_is_inherited_and_the_queues_table() -> None:
    """For a master and for its child, which inherits all of its master's but `fanout_only`."""
    toml = '[default]\nmax_items = 1\n[queues.q]\nmax_items = 2\n[queues."q+c"]\nmax_age = 3\n'
    declared = {
        "q": QueueConfig(max_items=4, max_age=4, fanout_only=True, max_queue_age=4),
        "q+c": QueueConfig(max_items=5, max_age=5),
        "other": QueueConfig(max_items=6),
    }

    def found(queue: str) -> tuple[object, ...]:
        config = effective_settings(config_from_toml(toml, "test"), queue, declared)
        return config.max_items, config.max_age, config.max_queue_age, config.fanout_only

    assert found("q") == (2, 4.0, 4.0, True)
    assert found("q+c") == (5, 3.0, 4.0, False)
    assert found("q+d") == (2, 4.0, 4.0, False)
    assert found("other") == (6, None, None, False)
    assert found("none") == (1, None, None, False)


def test_a_queue_does_not_inherit_itself_as_dead_letter_queue() -> None:
    """It has none, then, and items that were delivered too often stay in it."""
    config = config_from_toml(
        """
        [default]
        max_deliveries = 3
        dead_letter_queue = "dead"
        max_items = 7
        [queues.work]
        dead_letter_queue = "work+bad"
        """,
        "test",
    )
    for name in ("dead", "work+bad"):
        settings = effective_settings(config, name)
        assert (settings.dead_letter_queue, settings.max_deliveries) == (None, None)
        assert settings.max_items == 7
    child = effective_settings(config, "work+other")
    assert (child.dead_letter_queue, child.max_deliveries) == ("work+bad", 3)
    assert effective_settings(config, "other") is config.default
