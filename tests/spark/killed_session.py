"""Two streams and a write of journals in a process of their own, which a test kills.

    python -m tests.spark.killed_session ROOT SPOOL SERVERS

One stream, to `ROOT/journals`, follows SPOOL, and stands still in its third batch. The other one,
to `ROOT/live`, takes the items of SERVERS. When both stand still, rows are written to `ROOT/spool`;
at the last one, the process touches `ROOT/reached` and stands still.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from kestrelmq.spark.session import local_session, start_query
from kestrelmq.spark.sources.journal import JournalSource
from kestrelmq.spark.sources.journal_options import journal_stream_options
from kestrelmq.spark.sources.journal_stream import JournalStreamReader
from tests.spark import stream_session
from tests.spark.stream_session import stand_still, stopping_source
from tests.spark.streams import stream
from tests.support.patience import until

FORMAT: Final = "kestrel.journal.stopping"
ROWS: Final = 50_000
"""More than fit the buffers of Spark and of a part, so that some are on disk."""


def followed(spark: SparkSession, root: Path, spool: str) -> DataFrame:
    """Return the stream of journals."""

    class StoppingReader(JournalStreamReader):
        """The reader, which stands still."""

        planned = 0

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
            """Number the batches."""
            self.planned += 1
            found = super().partitions(start, end)
            for one in found:
                one.stops = self.planned == 3  # type: ignore[attr-defined]
            return found

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            """Yield half of the batch, and stand still, if it is the third."""
            batches = super().read(partition)
            if getattr(partition, "stops", False):
                next(batches)
                stand_still(root)
            yield from batches

    class StoppingSource(JournalSource):
        """The source, told where to stop."""

        @classmethod
        def name(cls) -> str:
            """Return the format's name."""
            return FORMAT

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 # Spark's
            """Return a reader that stands still."""
            return StoppingReader(journal_stream_options(self.options), schema)

    spark.dataSource.register(StoppingSource)
    schema = "queue string, operation string, size int, data binary, sequence long, file string"
    rows = spark.readStream.format(FORMAT).schema(schema)
    return rows.option("maxBytesPerTrigger", "20 KiB").load(spool)


def written(spark: SparkSession, root: Path) -> DataFrame:
    """Return the rows, the last of which does not come."""

    def stopping(number: int) -> str:
        if number == ROWS - 1:
            stand_still(root)
        return str(number)

    data = f.udf(stopping, "string", useArrow=False)("id").alias("data")
    return spark.range(0, ROWS, 1, 1).select(f.lit("q").alias("queue"), data)


def main(root: Path, spool: str, servers: str) -> None:
    """Run the streams, and write."""
    with local_session("local[6,2]", quick=True) as spark:
        spark.sparkContext.setLogLevel("ERROR")
        journals, live = root / "journals", root / "live"
        live.mkdir()
        journals.mkdir()
        spark.dataSource.register(stopping_source(live, "yielding", 2))
        taken = stream(spark, servers, form=stream_session.FORMAT, maxItemsPerTrigger="400")
        for rows, place in ((followed(spark, journals, spool), journals), (taken, live)):
            writer = rows.writeStream.format("parquet").option("path", str(place / "table"))
            start_query(writer.option("checkpointLocation", str(place / "checkpoint")))
            until((place / "reached").exists)
        rows = written(spark, root)
        rows.write.format("kestrel.journal").mode("append").save(str(root / "spool"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
