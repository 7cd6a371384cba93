"""A stream from live servers in a process of its own, which a test may kill.

    python -m tests.spark.stream_session ROOT ENGINE SERVERS QUEUE STEP NTH [OPTIONS]

ENGINE is `plain` for `tests.support.queries`, or says where Spark writes: `file` to `ROOT/table`,
`each` there too, by `foreachBatch`, and `queue` to the queue `out`. The process that is the NTH to
come to STEP of the protocol writes `ROOT/reached` and stands still: the test then kills the
session. OPTIONS are more options of reading, as JSON.
"""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from kestrelmq.spark.session import local_session, start_query
from kestrelmq.spark.sources.live import KestrelSource
from tests.support.queries import live, running

FORMAT: Final = "kestrel.stopping"


def stand_still(root: Path) -> NoReturn:
    """Tell that a process has come to its step, and never return."""
    (root / "reached").touch()
    while True:
        time.sleep(60)


def stopping_source(root: Path, step: str, nth: int) -> type[KestrelSource]:
    """Return the source, whose process that is the `nth` to come to `step` stands still."""
    # Each task has a copy of its own of what is here; a file is what they share.
    hits = root / "hits"
    hits.write_bytes(b"")

    def reached(point: str) -> None:
        if point != step:
            return
        with hits.open("ab") as file:
            file.write(b".")
        if hits.stat().st_size >= nth:
            stand_still(root)

    class StoppingSource(KestrelSource):
        """The source, told where to stop."""

        @classmethod
        def name(cls) -> str:
            """Return the format's name."""
            return FORMAT

    StoppingSource.reached = staticmethod(reached)
    return StoppingSource


def main(
    root: Path,
    engine: str,
    servers: str,
    queue: str,
    step: str,
    nth: int,
    options: Mapping[str, str],
) -> None:
    """Run the stream."""
    source = stopping_source(root, step, nth)
    given = {"maxItemsPerTrigger": "400", **options}
    relation = live(servers, source, queue=queue, **given)
    if engine == "plain":
        with running(relation, root) as query:
            while True:
                query.take()
    table = root / "table"

    def write_once(rows: DataFrame, batch: int) -> None:
        """Write a batch, unless an earlier run of it has done so."""
        unfinished = root / "unfinished"
        pq.write_table(rows.toArrow(), unfinished)
        table.mkdir(exist_ok=True)
        if not (table / f"{batch}.parquet").exists():
            unfinished.rename(table / f"{batch}.parquet")

    with local_session("local[2,2]", quick=True) as spark:
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(source)
        rows = spark.readStream.format(FORMAT).options(**relation.options).load()
        writer = rows.writeStream.option("checkpointLocation", str(root / "checkpoint"))
        match engine:
            case "each":
                writer = writer.foreachBatch(write_once)
            case "queue":
                writer = rows.select("data").writeStream.format("kestrel")
                writer = writer.options(servers=servers, queue="out")
                writer = writer.option("checkpointLocation", str(root / "checkpoint"))
            case _:
                writer = writer.format("parquet").option("path", str(table))
        start_query(writer).awaitTermination()


if __name__ == "__main__":
    root, engine, servers, queue, step, nth, *rest = sys.argv[1:]
    more = json.loads(rest[0]) if rest else {}
    main(Path(root), engine, servers, queue, step, int(nth), more)
