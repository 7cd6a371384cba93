"""Spark sessions for one machine: quick to start, and all its cores; and starting streams."""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from kestrelmq.spark import register

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # Spark's 200 are for a cluster; here most would be empty.
    "spark.sql.shuffle.partitions": "16",
}
_QUICK: Final = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}
_STARTS: Final = 30
"""How often a query is started whose source does not come up in time."""
_LOOK: Final = 0.1
"""Seconds between looks at a query that starts."""


@contextlib.contextmanager
def local_session(
    master: str = "local[*]",
    *,
    quick: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Start a session with the sources registered, and stop it at the end.

    In a process that has a session already, that one is used as it is, and goes on.

    Args:
        master: Spark's master URL.
        quick: settings for small data: few shuffle partitions, a small heap, the quick compiler.
        settings: more Spark settings; they win over ours.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        register(running)
        yield running
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(prefix="kestrelmq-spark-") as scratch:
        chosen = dict(_SETTINGS)
        chosen["spark.sql.warehouse.dir"] = str(Path(scratch) / "warehouse")
        chosen["spark.local.dir"] = scratch
        chosen |= (_QUICK if quick else {}) | dict(settings or {})
        builder = SparkSession.builder.master(master).appName("kestrelmq")
        for name, value in chosen.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        try:
            register(spark)
            yield spark
        finally:
            spark.stop()


def started(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query, and return it when its sources are there, or it has ended.

    Spark gives the Python process of a source 10 seconds to connect, and has no setting for that.
    If the machine is too busy, the query is started again: nothing was read yet.
    """
    query = writer.start()
    for _ in range(_STARTS):
        while query.isActive and str(query.status["message"]).startswith("Initializing"):
            time.sleep(_LOOK)
        error = query.exception()
        if error is None or "Python worker failed to connect back" not in str(error):
            break
        query = writer.start()
    return query
