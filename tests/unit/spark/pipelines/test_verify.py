"""Checking files, without Spark."""

import os
from pathlib import Path

from kestrelmq.spark.pipelines.verify import check
from kestrelmq.spark.storage.spool import list_files
from tests.spark.spools import adds, write


def test_a_file_that_cannot_be_read_is_a_result(tmp_path: Path) -> None:
    """And no error, which would keep the results of all others from the user."""
    write(tmp_path / "good", adds([b"x"]))
    (tmp_path / "link").symlink_to("good")
    os.mkfifo(tmp_path / "pipe")

    good, link, pipe = [check(file) for file in list_files(str(tmp_path))]

    assert (good.is_good, good.records) == (True, 1)
    assert (link.is_good, link.damaged_at, link.records) == (False, None, 0)
    assert link.reason == "it is a symbolic link, which is not followed"
    assert (pipe.is_good, pipe.reason) == (False, "not a regular file")
