"""One Spark session for the whole run: starting one takes longer than most tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kestrelmq.client import Client
from kestrelmq.spark.session import local_session
from tests.support.object_store import ObjectStore, running_store
from tests.support.server import ServerProcess, running_server


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two cores with kestrelmq's sources, which runs a failed task once more."""
    with local_session("local[2,2]", quick=True) as session:
        session.sparkContext.setLogLevel("OFF")
        yield session


@pytest.fixture(scope="session")
def store() -> Iterator[ObjectStore]:
    """Run an S3 server, for the whole run."""
    with running_store() as running:
        yield running


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[ServerProcess]]:
    """Run a cluster of two."""
    with running_server(tmp_path / "a") as a, running_server(tmp_path / "b") as b:
        yield [a, b]


@pytest.fixture
def cluster(servers: list[ServerProcess]) -> str:
    """Return its addresses."""
    return ",".join(server.address for server in servers)


@pytest.fixture
def client(cluster: str) -> Iterator[Client]:
    """Return a client of it."""
    with Client(cluster) as client:
        yield client


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """Run a server with the `CONFIG` of the test's module, if it has one."""
    with running_server(tmp_path, config=getattr(request.module, "CONFIG", None)) as process:
        yield process
