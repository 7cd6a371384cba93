"""Options of the Spark sources: validated in one place, without Spark."""

import pytest

from kestrelmq.errors import ConfigError
from kestrelmq.spark.sources.journal import JournalSource
from kestrelmq.spark.sources.journal_options import (
    JournalReadOptions,
    JournalStreamOptions,
    QueueReadOptions,
    journal_options,
    journal_read_options,
    journal_stream_options,
    journal_write_path,
    queue_read_options,
)
from kestrelmq.spark.sources.queue import QueueSource


def test_only_the_path_is_needed() -> None:
    """Every other option has a default."""
    assert journal_read_options({"path": "/spool"}) == JournalReadOptions("/spool")
    assert queue_read_options({"path": "/spool"}) == QueueReadOptions("/spool")
    assert journal_write_path({"path": "/spool"}) == "/spool"


def test_names_are_read_in_any_case_and_values_are_parsed() -> None:
    """Spark gives names in lower case, users as they like; sizes have units."""
    given = {
        "PATH": "/spool",
        "Mode": "Permissive",
        "partitionbytes": "1 MiB",
        "batchRows": "7",
        "pushDown": "TRUE",
    }

    assert journal_read_options(given) == JournalReadOptions(
        "/spool", "permissive", 1 << 20, 7, pushdown=True
    )


def test_what_spark_adds_is_ignored() -> None:
    """As Spark 4.3 gives it for a glob, a streaming query, and a table that SQL creates."""
    query = {"queryname": "q", "checkpointlocation": "/c"}
    table = {
        "provider": "kestrel.journal",
        "owner": "me",
        "comment": "journals",
        "location": "file:/spool",
        "path": "file:/spool",
        "option.mode": "permissive",
        "mode": "permissive",
        "batchRows": "a property of the table, not an option",
    }

    assert journal_write_path({"path": "/spool", "paths": "[]", **query}) == "/spool"
    assert journal_read_options(table) == JournalReadOptions("/spool", "permissive")
    with pytest.raises(ConfigError, match="option 'moode' = 'x' of reading"):
        journal_read_options(table | {"option.moode": "x", "moode": "x"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "option 'path' of reading kestrel.journal is missing: it must be a queue path"),
        ({"paths": '["a","b"]'}, "give one path: it may be a glob"),
        (
            {"path": "p", "mode": "lenient"},
            "'lenient' is not allowed: it must be one of failfast, permissive, dropmalformed",
        ),
        ({"path": "p", "batchRows": "0"}, "'0' is not allowed: it must be a whole number from 1"),
        ({"path": "p", "batchRows": "many"}, "'many' is not allowed"),
        ({"path": "p", "partitionBytes": "-1"}, "'-1' is not allowed: it must be a size above 0"),
        ({"path": "p", "partitionBytes": "5 parsecs"}, "'5 parsecs' is not allowed"),
        ({"path": "p", "pushdown": "yes"}, "'yes' is not allowed: it must be true or false"),
        (
            {"path": "p", "Colour": "red"},
            "option 'Colour' = 'red' of reading kestrel.journal is unknown: allowed are batchRows",
        ),
    ],
)
def test_errors_name_option_value_and_what_is_allowed(given: dict[str, str], message: str) -> None:
    """A user can mend the option from the message alone."""
    with pytest.raises(ConfigError) as error:
        journal_read_options(given)

    assert message in str(error.value)


@pytest.mark.parametrize(
    ("written", "path"),
    [("file:///spool/x", "/spool/x"), ("file:/spool", "/spool"), ("spool:a", "spool:a")],
)
def test_file_urls_are_paths(written: str, path: str) -> None:
    """Spark's users write URLs; a colon alone makes none."""
    assert journal_write_path({"path": written}) == path


@pytest.mark.parametrize("url", ["s3n://bucket/spool", "hdfs:///spool", "file://host/spool"])
def test_other_urls_are_refused(url: str) -> None:
    """The error says which are allowed."""
    with pytest.raises(ConfigError, match=r"option 'path': '.*' is not allowed: it must be a "):
        journal_write_path({"path": url})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"secret_key": "hush"}, "option 'secret_key' of reading"),
        ({"output": "s3://me:hush@b/x?secret_key=hush"}, "option 'output' = 's3://b/x' of reading"),
    ],
)
def test_no_error_shows_what_may_be_secret(given: dict[str, str], message: str) -> None:
    """Also if a storage option lacks its prefix, or a URI is given to an unknown option."""
    with pytest.raises(ConfigError) as error:
        queue_read_options({"path": "s3://b/x", **given})

    assert "hush" not in str(error.value)
    assert message in str(error.value)


def test_columns_are_an_option() -> None:
    """In any case; one that is unknown, or none, is an error."""
    assert JournalSource({"path": "p", "columns": "Data, queue"}).schema().names == [
        "data",
        "queue",
    ]
    assert QueueSource({"path": "p", "columns": "spool"}).schema().names == ["spool"]
    with pytest.raises(ConfigError, match=r"'size2' is unknown: allowed are queue, position"):
        QueueSource({"path": "p", "columns": "queue,size2"}).schema()
    with pytest.raises(ConfigError, match="'queue,' is not allowed: it must be names, separated"):
        JournalSource({"path": "p", "columns": "queue,"}).schema()


def test_each_source_knows_its_own_options_only() -> None:
    """An option of another source is unknown."""
    with pytest.raises(ConfigError, match="'directBytes'"):
        journal_read_options({"path": "p", "directBytes": "1"})
    with pytest.raises(ConfigError, match="'pushdown'"):
        queue_read_options({"path": "p", "pushdown": "true"})
    with pytest.raises(ConfigError, match="'mode'"):
        journal_write_path({"path": "p", "mode": "failfast"})


@pytest.mark.parametrize(
    ("written", "starting"),
    [
        ("Earliest", "earliest"),
        ("LATEST", "latest"),
        ("1769853600000", 1769853600000),
        ("2026-01-31T10:00", 1769853600000),
        ("2026-01-31T12:00:00.5+02:00", 1769853600500),
    ],
)
def test_where_a_stream_begins(written: str, starting: str | int) -> None:
    """A time is UTC unless it has a zone, or milliseconds."""
    given = {"path": "p", "startingoffsets": written}
    assert journal_stream_options(given) == JournalStreamOptions("p", starting=starting)  # type: ignore[arg-type]


def test_a_stream_and_a_table_have_some_options_each() -> None:
    """The path can be found with those of either, but not of both."""
    stream = {"path": "p", "failOnDataLoss": "false", "maxBytesPerTrigger": "1 MiB", "wait": "2s"}
    assert journal_stream_options(stream) == JournalStreamOptions(
        "p", fails_on_loss=False, max_bytes_per_batch=1 << 20, wait=2.0
    )
    assert journal_options(stream).path == "p"
    assert journal_options({"path": "p", "pushdown": "true"}).path == "p"
    with pytest.raises(ConfigError, match="'failOnDataLoss'"):
        journal_read_options(stream)
    with pytest.raises(ConfigError, match="'pushdown'"):
        journal_options({**stream, "pushdown": "true"})
    with pytest.raises(ConfigError, match=r"maxBytesPerTrigger, mode, partitionBytes, path, push"):
        journal_options({"path": "p", "maxBytesPerBatch": "1 MiB"})
