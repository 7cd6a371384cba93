"""One Spark session for the whole run: starting one takes longer than most tests."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from kestrelmq.spark.session import local_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two cores with kestrelmq's sources, which runs a failed task once more."""
    with local_session("local[2,2]", quick=True) as session:
        session.sparkContext.setLogLevel("OFF")
        yield session
