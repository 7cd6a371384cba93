"""A stream of journals to Parquet in a process of its own, which a test may kill.

    python -m tests.spark.journal_session ROOT SPOOL

The task that reads the third batch touches `ROOT/reached` and stands still.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from kestrelmq.spark.session import local_session, start_query
from kestrelmq.spark.sources.journal import JournalSource
from kestrelmq.spark.sources.journal_options import journal_stream_options
from kestrelmq.spark.sources.journal_stream import JournalStreamReader

FORMAT = "kestrel.journal.stopping"


def main(root: Path, spool: str) -> None:
    """Run the stream."""

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
                (root / "reached").touch()
                while True:
                    time.sleep(60)
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

    with local_session("local[2,2]", quick=True) as spark:
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(StoppingSource)
        schema = "queue string, operation string, size int, data binary, sequence long, file string"
        rows = spark.readStream.format(FORMAT).schema(schema)
        writer = (
            rows.option("maxBytesPerTrigger", "20 KiB")
            .load(spool)
            .writeStream.format("parquet")
            .option("path", str(root / "table"))
            .option("checkpointLocation", str(root / "checkpoint"))
        )
        start_query(writer).awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
