"""Spark sessions for one machine: quick to start, and all its cores."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

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
