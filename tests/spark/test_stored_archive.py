"""Archives in a store: each batch once, whatever is killed, and a plain table for anyone."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow.dataset import dataset
from pyspark.sql import SparkSession

from kestrelmq.cli.main import main
from kestrelmq.client import Client
from kestrelmq.errors import ConfigError
from kestrelmq.format.records import AddX
from kestrelmq.spark.live.options import ClusterOptions
from kestrelmq.spark.pipelines import (
    ArchiveOptions,
    JournalArchiveOptions,
    archive,
    archive_journals,
    archived,
    read_archive,
    restore,
)
from kestrelmq.spark.pipelines.archive import ArchivedQueue
from kestrelmq.spark.sources.stored_tables import StoredBatchOfTable, table_files
from kestrelmq.spark.storage import Location, located
from tests.spark.spools import NOW, load, write
from tests.spark.streams import QUEUE, numbered
from tests.support.object_store import BUCKET, ObjectStore
from tests.support.patience import PATIENCE
from tests.support.server import ServerProcess


class Crash(BaseException):
    """The driver is no more."""


def at(store: ObjectStore, path: str) -> Location:
    """Return a location in the bucket."""
    found = located(f"s3://{BUCKET}/{path}", store.options)
    assert isinstance(found, Location)
    return found


def items_of(store: ObjectStore, path: str) -> list[bytes]:
    """Return the items of an archive, as anyone reads the table, in the order of reading."""
    table = dataset(f"{BUCKET}/{path}", filesystem=store.file_system, partitioning="hive")
    rows = table.to_table().select(["position", "data"]).to_pylist()
    return [row["data"] for row in sorted(rows, key=lambda row: row["position"])]


def forget_last_commit(checkpoint: Path) -> None:
    """Do as if the driver had died before Spark knew that the last batch is done."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink()


@pytest.mark.parametrize("step", ["decided", "moved", "placed"])
def test_a_batch_is_in_the_table_once(store: ObjectStore, step: str) -> None:
    """When a driver dies as it commits, the next one finishes that, and takes no other files."""
    table, hits = at(store, f"once-{step}"), 0

    def reached(point: str) -> None:
        nonlocal hits
        hits += point == step
        if hits == 2 or (hits and step != "moved"):
            raise Crash

    def attempt(batch: StoredBatchOfTable, name: str) -> list[str]:
        files = [f"queue=q/{name}-{number}" for number in range(3)]
        for file in files:
            (batch.work / file).write(b"rows")
        return files

    before = StoredBatchOfTable(table, "query", 6)
    before.commit(attempt(before, "before"))
    attempt(before, "late")
    dying = StoredBatchOfTable(table, "query", 7, reached)
    first = attempt(dying, "first")
    with pytest.raises(Crash):
        dying.commit(first)
    again = StoredBatchOfTable(table, "query", 7)
    again.commit(attempt(again, "again"))

    assert table_files(table) == [
        *(f"queue=q/before-{number}" for number in range(3)),
        *first,
    ]
    left = [name for name, size in table.files() if size and not name.startswith("queue=")]
    assert left == ["_batches/query/0000000007.json"]


def test_live_queues_are_archived_once(
    spark: SparkSession, server: ServerProcess, store: ObjectStore, tmp_path: Path
) -> None:
    """In several runs, one of which is run again; it can be restored, and keeps its checkpoint."""
    output, checkpoint = f"s3://{BUCKET}/live", str(tmp_path / "checkpoint")
    options = ArchiveOptions(
        ClusterOptions(server.address),
        [QUEUE, "other"],
        output,
        max_items_per_batch=40,
        checkpoint=checkpoint,
        storage=store.options,
    )
    assert read_archive(spark, output, store.options).count() == 0
    with Client(server.address) as client:
        client.put("other", b"one")
        for start in (0, 50):
            client.put_many(QUEUE, numbered(50, start))
            assert archive(spark, options).awaitTermination(PATIENCE)
            forget_last_commit(tmp_path / "checkpoint")
        assert archive(spark, options).awaitTermination(PATIENCE)
        assert client.get(QUEUE) is None

    assert archived(spark, output, store.options) == [
        ArchivedQueue("other", 1, 3),
        ArchivedQueue(QUEUE, 100, sum(map(len, numbered(100)))),
    ]
    assert [item for item in items_of(store, "live") if item != b"one"] == numbered(100)
    assert restore(spark, output, str(tmp_path / "back"), storage=store.options) == 101
    assert [item.data for item in load(tmp_path / "back")[QUEUE]] == numbered(100)

    with pytest.raises(ConfigError, match=r"was not begun with the checkpoint in .*another"):
        archive(spark, replace(options, checkpoint=str(tmp_path / "another")))
    with pytest.raises(ConfigError, match="holds other,work, not work"):
        archive(spark, replace(options, queues=[QUEUE]))
    for given in (None, "s3://bucket/checkpoint"):
        with pytest.raises(ConfigError, match="give --checkpoint"):
            archive(spark, replace(options, checkpoint=given))
    with pytest.raises(ConfigError, match="give no other"):
        archive(spark, replace(options, output=str(tmp_path / "table")))
    journals = JournalArchiveOptions(
        str(server.queue_path), output, checkpoint=checkpoint, storage=store.options
    )
    with pytest.raises(ConfigError, match="is an archive of live queues"):
        archive_journals(spark, journals)


def test_journals_are_archived_once(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    """A batch that is run again adds nothing; a new checkpoint, which would, is refused."""
    spool = tmp_path / "spool"
    write(spool / QUEUE, [AddX(NOW, 0, item) for item in numbered(30)])
    options = JournalArchiveOptions(
        str(spool),
        f"s3://{BUCKET}/journals",
        checkpoint=str(tmp_path / "checkpoint"),
        storage=store.options,
    )
    for _ in range(2):
        assert archive_journals(spark, options).awaitTermination(PATIENCE)
        forget_last_commit(tmp_path / "checkpoint")
    assert archive_journals(spark, options).awaitTermination(PATIENCE)
    assert items_of(store, "journals") == numbered(30)

    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(ConfigError, match="was not begun with the checkpoint"):
        archive_journals(spark, options)


def test_the_command_takes_a_checkpoint(
    spark: SparkSession,
    server: ServerProcess,
    store: ObjectStore,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It prints what the archive has; without a checkpoint it says what to give."""
    assert spark is not None  # the command uses its session
    words = ["pipeline", "archive", QUEUE, "--servers", server.address]
    words += ["-o", f"s3://{BUCKET}/command"]
    for name, value in store.options.items():
        words += ["--storage-option", f"{name}={value}"]
    with Client(server.address) as client:
        client.put_many(QUEUE, numbered(40))
        for more, status in ([], 1), (["--checkpoint", str(tmp_path / "checkpoint")], 0):
            with pytest.raises(SystemExit) as ended:
                main([*words, *more])
            assert ended.value.code == status
        assert client.get(QUEUE) is None
    printed, errors = capsys.readouterr()
    assert "give --checkpoint" in errors
    assert printed.split()[-3:-1] == [QUEUE, "40"]
    assert items_of(store, "command") == numbered(40)
