"""What several modules here share; each runs a `server` of its own kind."""

from collections.abc import Iterator

import pytest

from kestrelmq.client import Client
from tests.support.server import ServerProcess
from tests.support.wire import Wire


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    """Connect to the module's server, with all its queues empty."""
    with Client(server.address) as connected:
        connected.flush_all()
        yield connected


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[Wire]:
    """Return a connection."""
    with Wire(server) as connection:
        yield connection


@pytest.fixture
def other(server: ServerProcess) -> Iterator[Wire]:
    """Return another connection."""
    with Wire(server) as connection:
        yield connection
