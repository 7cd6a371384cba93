"""Queries without Spark: they call a data source as Spark does, in this process.

A stream goes through Spark's own code for its Python processes as far as there is one: options,
pickled sources, readers and partitions, offsets and limits as JSON, checked batches of rows. What
is here is the order of the calls, which Spark's `MicroBatchExecution` has, and a checkpoint.
Whatever is a fault of Spark, or of how we use it, is not found here: `tests/spark` has a test with
Spark of each source, sink and pipeline.
"""

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer, read_int
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceStreamReader
from pyspark.sql.datasource_internal import ReadLimitRegistry
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType
from pyspark.sql.worker.plan_data_source_read import write_read_func_and_partitions

from kestrelmq.spark.sources.journal import JournalSource
from kestrelmq.spark.sources.live import KestrelSource
from kestrelmq.spark.tables import TableSource, arrow_schema

QUEUE: Final = "work"
ATTEMPTS: Final = 2
"""How often a task is run whose process dies, as in the sessions of the tests."""
_PICKLED: Final[Any] = CloudPickleSerializer()  # type: ignore[no-untyped-call]
_next_int: Callable[[BytesIO], int] = read_int
_LIMITS: Final = ReadLimitRegistry()

Row = dict[str, Any]


@dataclass(frozen=True)
class Relation:
    """What a query reads: a data source, its options, and the columns that are requested."""

    source: type[TableSource]
    options: Mapping[str, str]
    columns: Sequence[str] = ()

    def made(self) -> tuple[TableSource, StructType]:
        """Make the data source, and return it with the requested columns."""
        source = self.source(CaseInsensitiveDict(self.options))
        schema = source.schema()
        if self.columns:
            known = {field.name: field for field in [*source.table, *source.on_demand]}
            schema = StructType([known[name] for name in self.columns])
        return _copied(source), schema


def live(
    cluster: str,
    source: type[KestrelSource] = KestrelSource,
    /,
    *,
    queue: str = QUEUE,
    **options: str,
) -> Relation:
    """Return queues of live servers."""
    return Relation(source, {"servers": cluster, "queue": queue, "wait": "200ms", **options})


def journals(path: Path, *columns: str, **options: str) -> Relation:
    """Return the journals of a queue path."""
    return Relation(JournalSource, {"path": str(path), **options}, columns)


class Query:
    """A streaming query to a table: `ROOT/table` has a file for each batch.

    It goes on where an earlier one ended, by `ROOT/checkpoint`. A batch that was in the table
    already must be the same when it is run again.
    """

    def __init__(
        self,
        relation: Relation,
        root: Path,
        *,
        ends: bool = False,
        each: Callable[[pa.Table], object] | None = None,
        forked: bool = False,
    ) -> None:
        """Begin.

        Args:
            relation: what to read.
            root: the directory of its table and its checkpoint.
            ends: whether to read only what is there now, as `availableNow` does.
            each: called with the rows of a batch before they are in the table.
            forked: whether each task has a process of its own, which may be killed.
        """
        self._source, self._schema = relation.made()
        self._root, self._each, self._forked = root, each, forked
        for name in ("offsets", "commits", "table"):
            self._directory(name).mkdir(parents=True, exist_ok=True)
        self.reader: DataSourceStreamReader = self._source.streamReader(self._schema)
        if ends:
            assert isinstance(self.reader, SupportsTriggerAvailableNow)
            self.reader.prepareForTriggerAvailableNow()
        # As in Spark, tasks have another reader than the driver.
        planned = _copied(self._source).streamReader(self._schema)
        self._read = _pickled_tasks(planned, self._source, self._schema)[0]

    def take(self) -> int | None:
        """Run the next batch; return how many rows it has, or None if nothing is new."""
        logged = self._count("offsets")
        if self._count("commits") < logged:
            return self._run(logged - 1)
        start = self._offset(logged - 1)
        limit = self.reader.getDefaultReadLimit()
        given = json.dumps({**asdict(limit), "_type": type(limit).__name__})  # type: ignore[call-overload]
        end = _as_json(self.reader.latestOffset(start, _LIMITS.get(json.loads(given))))
        if end == start:
            return None
        self._log("offsets", logged, f"v1\n{{}}\n{json.dumps(end)}".encode())
        if logged:
            self.reader.commit(self._offset(logged - 1))
        return self._run(logged)

    def backlog(self) -> Any:
        """Return what the progress of the query tells of the source."""
        return _as_json(self.reader.reportLatestOffset())

    def close(self) -> None:
        """End."""
        self.reader.stop()

    def _run(self, batch: int) -> int:
        planned = self.reader.partitions(self._offset(batch - 1), self._offset(batch))
        partitions = [_PICKLED.dumps(one) for one in planned]
        run = _run_forked if self._forked else _run_task
        none = arrow_schema(self._schema).empty_table()
        rows = pa.concat_tables([none, *(run(self._read, one) for one in partitions)])
        if self._each is not None:
            self._each(rows)
        file = self._file("table", batch)
        if file.exists():
            assert _table(file.read_bytes()) == rows
        self._log("table", batch, _bytes(rows))
        self._log("commits", batch, b"")
        return int(rows.num_rows)

    def _offset(self, batch: int) -> Any:
        if batch < 0:
            return _as_json(self.reader.initialOffset())
        return json.loads(self._file("offsets", batch).read_bytes().splitlines()[2])

    def _directory(self, name: str) -> Path:
        return self._root / "table" if name == "table" else self._root / "checkpoint" / name

    def _file(self, name: str, batch: int) -> Path:
        return self._directory(name) / f"{batch:06d}"

    def _count(self, name: str) -> int:
        return len(list(self._directory(name).glob("*[0-9]")))

    def _log(self, name: str, batch: int, content: bytes) -> None:
        file = self._file(name, batch)
        unfinished = file.with_suffix(".new")
        unfinished.write_bytes(content)
        unfinished.rename(file)


@contextmanager
def running(relation: Relation, root: Path, **how: Any) -> Iterator[Query]:
    """Run a query during a `with` block."""
    query = Query(relation, root, **how)
    try:
        yield query
    finally:
        query.close()


def drain(relation: Relation, root: Path, **how: Any) -> list[int]:
    """Take what is there now to the table; return the rows of each batch that has any."""
    with running(relation, root, ends=True, **how) as query:
        return [rows for rows in iter(query.take, None) if rows]


def rows_in(root: Path) -> list[Row]:
    """Return the rows of the table of a query, batch by batch."""
    files = sorted((root / "table").glob("*[0-9]"))
    return [row for file in files for row in _table(file.read_bytes()).to_pylist()]


def read(relation: Relation) -> list[Row]:
    """Return the rows of a table, which is read once."""
    source, schema = relation.made()
    reader = source.reader(schema)
    task, partitions = _pickled_tasks(reader, source, schema)
    return [row for one in partitions for row in _run_task(task, one).to_pylist()]


def _pickled_tasks(
    reader: Any, source: TableSource, schema: StructType
) -> tuple[bytes, list[bytes]]:
    """Return the function of the tasks of a reader, and their partitions, unless it streams."""
    sent = BytesIO()
    write_read_func_and_partitions(
        sent,
        reader=reader,
        data_source=source,
        schema=schema,
        max_arrow_batch_size=10_000,
        binary_as_bytes=True,
    )
    sent.seek(0)
    task = sent.read(_next_int(sent))
    return task, [sent.read(_next_int(sent)) for _ in range(_next_int(sent))]


def _run_task(task: bytes, partition: bytes) -> pa.Table:
    function, schema = _PICKLED.loads(task)
    given = pa.record_batch([pa.array([partition], pa.binary())], ["partition"])
    return pa.Table.from_batches(function(iter([given])), arrow_schema(schema))


def _run_forked(task: bytes, partition: bytes) -> pa.Table:
    """Run a task in a process of its own, and once more if that dies."""
    for _ in range(ATTEMPTS):
        ours, theirs = multiprocessing.Pipe(duplex=False)
        send = partial(_send, theirs, task, partition)
        process = multiprocessing.get_context("fork").Process(target=send)
        process.start()
        theirs.close()
        try:
            return _table(ours.recv_bytes())
        except EOFError:
            continue
        finally:
            process.join()
            ours.close()
    raise RuntimeError("all processes of a task died")


def _send(to: Any, task: bytes, partition: bytes) -> None:
    to.send_bytes(_bytes(_run_task(task, partition)))
    os._exit(0)  # nothing of the test's is to be closed here


def _bytes(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def _table(content: bytes) -> pa.Table:
    return pa.ipc.open_file(content).read_all()


def _copied(thing: Any) -> Any:
    return _PICKLED.loads(_PICKLED.dumps(thing))


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))
