"""An S3 server for the tests of what is in a store."""

from collections.abc import Iterator

import pytest

from tests.support.object_store import ObjectStore, running_store


@pytest.fixture(scope="session")
def store() -> Iterator[ObjectStore]:
    """Run an S3 server, for the whole run."""
    with running_store() as running:
        yield running
