"""`verify`: check every journal of a queue path, in parallel."""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession

from kestrelmq.errors import DamagedJournal
from kestrelmq.spark.reading import map_on, place_of
from kestrelmq.spark.storage.locations import GivenPath
from kestrelmq.spark.storage.opening import open_view
from kestrelmq.spark.storage.spool import SpoolFile, list_files


@dataclass(frozen=True, slots=True)
class FileCheck:
    """The result of checking one journal file.

    Attributes:
        queue: the queue it belongs to.
        file: its path, or its URI.
        size: its size in bytes.
        records: number of whole records, up to the damage if there is any.
        damaged_at: where the damage begins; None if the file is good, or cannot be read.
        reason: what is wrong there, or why the file cannot be read.
        torn_at: where the torn record at the end begins; None if there is none. A server cuts it
            off by itself, so such a file is good.
    """

    queue: str
    file: str
    size: int
    records: int
    damaged_at: int | None = None
    reason: str | None = None
    torn_at: int | None = None

    @property
    def is_good(self) -> bool:
        """Whether a server can load it."""
        return self.reason is None


def verify(
    spark: SparkSession, path: GivenPath, *, storage: Mapping[str, str] | None = None
) -> list[FileCheck]:
    """Check every journal file of `path`; return the results in replay order."""
    return map_on(spark, check, list_files(place_of(spark, path, storage)))


def check(file: SpoolFile) -> FileCheck:
    """Check one journal file."""
    records = 0
    damaged_at, reason, torn_at = None, None, None
    try:
        view = open_view(file)
        for chunk in view.chunks():
            records += len(chunk)
        torn_at = view.torn_at
    except DamagedJournal as damage:
        damaged_at, reason = damage.position, damage.reason
    except OSError as error:
        # A symbolic link, or no right to read it: the other files are checked nevertheless.
        reason = error.strerror or str(error)
    return FileCheck(file.queue, file.path, file.size, records, damaged_at, reason, torn_at)
