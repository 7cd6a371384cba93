"""Spark finds the data sources by itself: by the names of modules that begin with `pyspark_`."""

import pickle
from io import BytesIO
from struct import unpack

from pyspark.sql.worker import lookup_data_sources

from kestrelmq.spark.sources.journal import JournalSource
from kestrelmq.spark.sources.live import KestrelSource
from kestrelmq.spark.sources.queue import QueueSource


def test_spark_finds_the_sources() -> None:
    """With what Spark itself runs to look for them."""
    written = BytesIO()
    lookup_data_sources._main(BytesIO(), written)
    written.seek(0)

    def part() -> bytes:
        return written.read(*unpack(">i", written.read(4)))

    (count,) = unpack(">i", written.read(4))
    found = {part().decode(): pickle.loads(part()) for _ in range(count)}  # noqa: S301 # ours

    assert found == {
        "kestrel": KestrelSource,
        "kestrel.journal": JournalSource,
        "kestrel.queue": QueueSource,
    }
