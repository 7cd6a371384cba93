"""What the tests of crashes share."""

import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def root() -> Iterator[Path]:
    """Return a directory in memory, where there is one: nothing here depends on a disk."""
    memory = Path("/dev/shm")  # noqa: S108 # a directory of our own is made in it
    path = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    logging.disable(logging.CRITICAL)
    yield path
    logging.disable(logging.NOTSET)
    shutil.rmtree(path)
