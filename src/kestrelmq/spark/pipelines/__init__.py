"""Pipelines over journals and servers' queues: functions that take a Spark session and paths.

What several of them take:

    path           a queue path, a journal file, or a glob of either, perhaps in a store
    output, source a table: any path that the session can write or read
    mode           of `output`: what to do if there is something already
    table_format   the table's format, such as `parquet`, `delta` or `iceberg`
    storage        options of the stores that journals are in; see `docs/spark.md`
"""

from kestrelmq.spark.pipelines.archive import (
    ArchiveOptions,
    JournalArchiveOptions,
    archive,
    archive_journals,
    archived,
    read_archive,
)
from kestrelmq.spark.pipelines.history import history
from kestrelmq.spark.pipelines.pack import pack
from kestrelmq.spark.pipelines.replay import replay
from kestrelmq.spark.pipelines.report import report
from kestrelmq.spark.pipelines.restore import restore, restore_live
from kestrelmq.spark.pipelines.verify import verify

__all__ = [
    "ArchiveOptions",
    "JournalArchiveOptions",
    "archive",
    "archive_journals",
    "archived",
    "history",
    "pack",
    "read_archive",
    "replay",
    "report",
    "restore",
    "restore_live",
    "verify",
]
