"""The options of the source and the sink of servers' queues."""

import pytest

from kestrelmq.errors import ConfigError
from kestrelmq.spark.live.options import (
    ClusterOptions,
    KestrelReadOptions,
    KestrelWriteOptions,
    kestrel_read_options,
    kestrel_write_options,
)
from kestrelmq.spark.live.queue_choice import QueueChoice

READ = {"servers": "a:1", "queue": "q", "staging_location": "/s"}


def test_options_are_parsed() -> None:
    """Names in any case; sizes and times have units."""
    given = {
        "Servers": "a, b:2",
        "queue": "work+copy",
        "staging_location": "file:///s",
        "MAX_BYTES_PER_BATCH": "1 MiB",
        "max_items_per_batch": "5",
        "min_partitions": "3",
        "wait": "500ms",
    }
    cluster = ClusterOptions("a:22133,b:2")

    assert kestrel_read_options(given) == KestrelReadOptions(
        cluster, QueueChoice.parse("work+copy"), "/s", 5, 1 << 20, 3, 0.5
    )
    assert kestrel_read_options(READ | {"lease": "1 hour"}).lease == 3600.0
    assert kestrel_read_options(READ | {"queue": "b, a,o_*"}).queue == QueueChoice.parse("a,b,o_*")
    assert kestrel_read_options(READ | {"create_children": "true"}).create_children
    assert kestrel_read_options(READ) == KestrelReadOptions(
        ClusterOptions("a:1"), QueueChoice.parse("q"), "/s"
    )
    assert kestrel_write_options(
        {"servers": "a:1", "checkpointLocation": "/c"}
    ) == KestrelWriteOptions(ClusterOptions("a:1"))
    found = kestrel_write_options(
        {"zookeeper": "z:1", "path_prefix": "/p", "patience": "5", "delay": "500ms"}
    )
    dead = kestrel_write_options({"servers": "a:1", "dead_letter_path": "file:///d"})
    assert dead.dead_letter_path == "/d"
    stored = {"servers": "a:1", "dead_letter_path": "s3://b/d", "storage.region": "x"}
    assert str(kestrel_write_options(stored).dead_letter_path) == "s3://b/d"
    assert found == KestrelWriteOptions(ClusterOptions(None, "z:1", "/p"), None, 5.0, 0.5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"queue": None}, "option 'queue' of reading kestrel is missing"),
        ({"staging_location": None}, "'staging_location' of reading kestrel is missing"),
        ({"staging_location": "s3n://b/x"}, "option 'staging_location': 's3n://b/x'"),
        ({"servers": None}, "give either 'servers'"),
        ({"zookeeper": "z", "path_prefix": "p"}, "give either 'servers'"),
        ({"zookeeper": "z"}, "'zookeeper' and 'path_prefix' of reading kestrel go together"),
        ({"servers": "a:0"}, "'a:0' is not allowed: it must be servers such as"),
        ({"queue": "a/b"}, "it must be a queue's name: a queue name must not contain '/'"),
        (
            {"queue": "a,,b"},
            "it must be names of queues, but '' is: a queue name must not be empty",
        ),
        ({"queue": "o/*"}, "it must be a queue's name: a queue name must not contain '/'"),
        ({"max_items_per_batch": "0"}, "a whole number from 1 to 4194304"),
        ({"min_partitions": "2000"}, "a whole number from 1 to 1024"),
        ({"max_bytes_per_batch": "much"}, "a size above 0"),
        ({"wait": "long"}, "a time such as '1s'"),
        ({"max_items_per_second": "0"}, "a whole number from 1 to 1000000000"),
        ({"lease": "0s"}, "a time from '1s' to '11d'"),
        ({"lease": "12d"}, "a time from '1s' to '11d'"),
        ({"queues": "q"}, "option 'queues' = 'q' of reading kestrel is unknown"),
    ],
)
def test_errors_name_option_value_and_what_is_allowed(
    given: dict[str, str | None], message: str
) -> None:
    """A user can mend the option from the message alone."""
    options = {name: value for name, value in (READ | given).items() if value is not None}

    with pytest.raises(ConfigError) as error:
        kestrel_read_options(options)

    assert message in str(error.value)


@pytest.mark.parametrize("name", ["staging_location", "dead_letter_path"])
@pytest.mark.parametrize(
    ("uri", "message"),
    [
        (
            "http://me:hush@b/x",
            "option '{name}': 'http://b/x' is not allowed: it must be a path, or",
        ),
        ("s3://me:hush@b/x?regio=y", "storage option 'regio' is unknown"),
    ],
)
def test_errors_about_a_uri_show_no_credentials(name: str, uri: str, message: str) -> None:
    """They name the option once, and say what it must be."""
    given = {"servers": "a:1", "queue": "q", name: uri}
    options = kestrel_read_options if name == "staging_location" else kestrel_write_options

    with pytest.raises(ConfigError) as error:
        options(given)

    assert "hush" not in str(error.value)
    assert str(error.value).startswith(message.format(name=name))
