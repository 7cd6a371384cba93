"""The options of the source and the sink of servers' queues."""

import pytest

from kestrelmq.errors import ConfigError
from kestrelmq.spark.cluster_options import ClusterOptions
from kestrelmq.spark.sinks.live_options import KestrelWriteOptions, kestrel_write_options
from kestrelmq.spark.sources.live_options import KestrelReadOptions, kestrel_read_options
from kestrelmq.spark.sources.queue_choice import QueueChoice

READ = {"servers": "a:1", "queue": "q"}


def test_options_are_parsed() -> None:
    """Names in any case; sizes and times have units."""
    given = {
        "Servers": "a, b:2",
        "queue": "work+copy",
        "MAXBYTESPERTRIGGER": "1 MiB",
        "maxItemsPerTrigger": "5",
        "minPartitions": "3",
        "wait": "500ms",
    }
    cluster = ClusterOptions("a:22133,b:2")

    assert kestrel_read_options(given) == KestrelReadOptions(
        cluster, QueueChoice.parse("work+copy"), 5, 1 << 20, 3, 0.5
    )
    del given["maxItemsPerTrigger"]
    given["maxOffsetsPerTrigger"] = "7"  # as Kafka calls it
    assert kestrel_read_options(given).max_items == 7
    assert not kestrel_read_options(READ | {"failOnDataLoss": "false"}).fails_on_loss
    assert kestrel_read_options(READ | {"queryName": "mine"}).query_name == "mine"
    assert kestrel_read_options(READ | {"queue": "b, a,o_*"}).queue == QueueChoice.parse("a,b,o_*")
    assert kestrel_read_options(READ | {"createChildren": "true"}).create_children
    assert kestrel_read_options(READ) == KestrelReadOptions(
        ClusterOptions("a:1"), QueueChoice.parse("q")
    )
    assert kestrel_write_options(
        {"servers": "a:1", "checkpointLocation": "/c"}
    ) == KestrelWriteOptions(ClusterOptions("a:1"))
    found = kestrel_write_options(
        {"zookeeper": "z:1", "pathPrefix": "/p", "patience": "5", "delay": "500ms"}
    )
    assert not kestrel_write_options({"servers": "a:1", "exactlyOnce": "false"}).exactly_once
    dead = kestrel_write_options({"servers": "a:1", "deadLetterPath": "file:///d"})
    assert dead.dead_letter_path == "/d"
    stored = {"servers": "a:1", "deadLetterPath": "s3://b/d", "storage.region": "x"}
    assert str(kestrel_write_options(stored).dead_letter_path) == "s3://b/d"
    assert found == KestrelWriteOptions(ClusterOptions(None, "z:1", "/p"), None, 5.0, 0.5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"queue": None}, "option 'queue' of reading kestrel is missing"),
        (
            {"stagingLocation": "/s"},
            "option 'stagingLocation' = '/s' of reading kestrel is unknown",
        ),
        ({"servers": None}, "give either 'servers'"),
        ({"zookeeper": "z", "pathPrefix": "p"}, "give either 'servers'"),
        ({"zookeeper": "z"}, "'zookeeper' and 'pathPrefix' of reading kestrel go together"),
        ({"servers": "a:0"}, "'a:0' is not allowed: it must be servers such as"),
        ({"queue": "a/b"}, "it must be a queue's name: a queue name must not contain '/'"),
        (
            {"queue": "a,,b"},
            "it must be names of queues, but '' is: a queue name must not be empty",
        ),
        ({"queue": "o/*"}, "it must be a queue's name: a queue name must not contain '/'"),
        ({"maxItemsPerTrigger": "0"}, "a whole number from 1 to 4194304"),
        ({"minPartitions": "2000"}, "a whole number from 1 to 1024"),
        ({"maxBytesPerTrigger": "much"}, "a size above 0"),
        ({"wait": "long"}, "a time such as '1s'"),
        ({"maxItemsPerSecond": "0"}, "a whole number from 1 to 1000000000"),
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


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        (
            "http://me:hush@b/x",
            "option 'deadLetterPath': 'http://b/x' is not allowed: it must be a path, or",
        ),
        ("s3://me:hush@b/x?regio=y", "storage option 'regio' is unknown"),
    ],
)
def test_errors_about_a_uri_show_no_credentials(uri: str, message: str) -> None:
    """They name the option once, and say what it must be."""
    with pytest.raises(ConfigError) as error:
        kestrel_write_options({"servers": "a:1", "queue": "q", "deadLetterPath": uri})

    assert "hush" not in str(error.value)
    assert str(error.value).startswith(message)
