"""Pipelines over journals and servers' queues: functions that take a Spark session and paths."""

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
