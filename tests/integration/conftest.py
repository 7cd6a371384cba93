"""What several modules here share; each runs a `server` of its own kind."""

from collections.abc import Iterator

import pytest

from kestrelmq.client import Client
from tests.support.server import ServerProcess


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    """Connect to the module's server, with all its queues empty."""
    with Client(server.address) as connected:
        connected.flush_all()
        yield connected
