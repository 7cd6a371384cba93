"""Sessions on this machine."""

import os
from pathlib import Path

from pyspark.sql import SparkSession


def where_pyspark_is(_number: int) -> str:
    """Return where a process of Spark imported pyspark from."""
    import pyspark  # noqa: PLC0415 # in that process

    return str(pyspark.__file__)


def test_workers_import_the_installed_pyspark(spark: SparkSession) -> None:
    """Not Spark's zipped copy, which each process would have to compile anew."""
    (found,) = spark.sparkContext.parallelize([1], 1).map(where_pyspark_is).collect()
    assert ".zip" not in found


def what_forks_processes(_number: int) -> tuple[str, int]:
    """Return the command of what forked this process of Spark, and how many threads it has."""
    parent = Path(f"/proc/{os.getppid()}")
    return (parent / "cmdline").read_text(), len(list((parent / "task").iterdir()))


def test_processes_are_forked_by_our_daemon(spark: SparkSession) -> None:
    """It has imported what they need, and that has started no thread, which a fork would lose."""
    (forking,) = spark.sparkContext.parallelize([1], 1).map(what_forks_processes).collect()
    command, threads = forking
    assert ("kestrelmq.spark.worker_daemon" in command, threads) == (True, 1)
