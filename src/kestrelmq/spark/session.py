"""Start Spark sessions on this machine, and streaming queries."""

import atexit
import contextlib
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from kestrelmq.spark import register

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}
_ON_THIS_MACHINE: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Spark's default of 200 suits a cluster; on one machine most partitions would be empty.
    "spark.sql.shuffle.partitions": "16",
}
QUICK: Final = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "512m",
    # To compile the code that Spark generates for a query takes longer than to run it.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}
"""Settings for small data."""
WORKER_PYTHON: Final = """#!/bin/sh
# Start Python with the installed pyspark. Spark puts a zipped copy of it in front, which has no
# compiled files: each process would compile what it imports, for seconds on a busy machine.
# And start our daemon instead of Spark's: a setting of Spark replaces only that of tasks.
kept=
IFS=:
for entry in $PYTHONPATH; do
    case $entry in
        */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip) ;;
        *) kept=$kept${{kept:+:}}$entry ;;
    esac
done
if [ "$1 $2" = "-m pyspark.daemon" ]; then
    shift 2
    set -- -m kestrelmq.spark.worker_daemon "$@"
fi
PYTHONPATH=$kept exec {python} "$@"
"""
"""A program in the place of Python."""
_STARTS: Final = 30
"""How often to start a query whose source does not connect in time."""
_LOOK: Final = 0.1
"""Seconds between two checks of a query that is starting."""


@contextlib.contextmanager
def local_session(
    master: str = "local[*]",
    *,
    quick: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Start a session with the sources registered, and stop it at the end.

    If the process already has an active session, use that one unchanged, and do not stop it.

    Args:
        master: Spark's master URL. A session on a cluster takes from Spark what depends on the
            machines: addresses, folders and Python.
        quick: use settings for small data: few shuffle partitions, a small heap, and only the
            fast tier of the JIT compiler.
        settings: more Spark settings; they override ours.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        register(running)
        yield running
        return
    with tempfile.TemporaryDirectory(prefix="kestrelmq-spark-") as scratch:
        chosen = session_settings(master, scratch, (QUICK if quick else {}) | dict(settings or {}))
        if _is_local(chosen["spark.master"]):
            os.environ.setdefault("PYSPARK_PYTHON", _worker_python())
        builder = SparkSession.builder.appName("kestrelmq")
        for name, value in chosen.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        try:
            register(spark)
            yield spark
        finally:
            spark.stop()


def session_settings(master: str, scratch: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return all settings of a session whose temporary files are in `scratch`.

    `settings` override ours, `spark.master` too.
    """
    chosen = _SETTINGS | {"spark.sql.warehouse.dir": str(Path(scratch) / "warehouse")}
    if _is_local(settings.get("spark.master", master)):
        chosen |= _ON_THIS_MACHINE | {"spark.local.dir": scratch}
    return {"spark.master": master} | chosen | dict(settings)


def _is_local(master: str) -> bool:
    """Whether a master runs everything on this machine: `local`, `local[2]`, `local[2,4]`."""
    return master.startswith("local")


@cache
def _worker_python() -> str:
    """Return the command that Spark starts Python with; it is there until this process ends."""
    folder = tempfile.mkdtemp(prefix="kestrelmq-spark-python-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    command = Path(folder) / "python"
    command.write_text(WORKER_PYTHON.format(python=shlex.quote(sys.executable)))
    command.chmod(0o700)
    # No program can be started from some file systems.
    return str(command) if os.access(command, os.X_OK) else sys.executable


def start_query(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query; on this machine, return it once its sources are initialized or it has ended.

    Spark gives the Python process of a source 10 seconds to connect, and has no setting for that.
    If this machine is too busy for that, start the query again: nothing has been read yet.
    """
    query = writer.start()
    session = SparkSession.getActiveSession()
    is_here = session is not None and _is_local(session.conf.get("spark.master") or "")
    for _ in range(_STARTS if is_here else 0):
        while query.isActive and str(query.status["message"]).startswith("Initializing"):
            time.sleep(_LOOK)
        error = query.exception()
        if error is None or "Python worker failed to connect back" not in str(error):
            break
        query = writer.start()
    return query
