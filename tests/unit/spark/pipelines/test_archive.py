"""What `archive` checks before it begins."""

from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from kestrelmq.errors import ServerUnavailable
from kestrelmq.spark.cluster_options import ClusterOptions
from kestrelmq.spark.pipelines import ArchiveOptions, archive

NOBODY = ClusterOptions("127.0.0.1:1")
UNUSED = cast(SparkSession, None)


def test_an_archive_that_cannot_begin_takes_no_directory(tmp_path: Path) -> None:
    """Other queues can be archived there afterwards."""
    output = tmp_path / "archive"
    with pytest.raises(ServerUnavailable, match=r"127\.0\.0\.1:1: connection refused"):
        archive(UNUSED, ArchiveOptions(NOBODY, ["work"], str(output)))
    assert not output.exists()
