"""One Spark session for the whole run: starting one takes longer than most tests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from kestrelmq.spark.session import local_session

SECONDS: Final = 600
"""A test's limit. On a busy machine Spark's start alone may take a minute; and one that is cut off
in the midst of a call to Spark makes all later ones fail."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test of Spark a limit that a busy machine does not reach."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(SECONDS), append=False)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two cores with kestrelmq's sources, which runs a failed task once more."""
    with local_session("local[2,2]", quick=True) as session:
        session.sparkContext.setLogLevel("OFF")
        yield session
