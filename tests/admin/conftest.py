"""A real server with an admin listener, and a plain way to ask it."""

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kestrelmq import Client
from tests.support.patience import PATIENCE
from tests.support.server import ServerProcess, running_server

TOKEN = "0123456789abcdef-token"  # noqa: S105 # of a server that lives for one test


@dataclass(frozen=True, slots=True)
class Reply:
    """What the server answered."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.content)

    @property
    def text(self) -> str:
        """The body, as text."""
        return self.content.decode()

    @property
    def code(self) -> str:
        """What is wrong, for programs."""
        return str(self.json["error"]["code"])


@dataclass(slots=True)
class Admin:
    """Asks the admin service of a server."""

    server: ServerProcess
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.server.ports["admin"]

    @property
    def url(self) -> str:
        """Where it listens, as a URL."""
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        """Send one request; keyword arguments are headers, `_` standing for `-`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        sent = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        if content is not None:
            sent.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, content, sent)
            response = connection.getresponse()
            return Reply(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        """Send a GET."""
        return self.ask("GET", path, **headers)

    def client(self) -> Client:
        """Return a memcache client of the same server."""
        return Client(self.server.address)


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[Admin]:
    """A server as it comes: on loopback, without tokens."""
    with running_server(tmp_path) as server:
        yield Admin(server)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    """A server for all tests of a module that leave nothing behind."""
    with running_server(tmp_path_factory.mktemp("shared")) as server:
        yield Admin(server)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Admin]:
    """A server that asks for a token."""
    with running_server(tmp_path, config=f'admin_tokens = ["{TOKEN}"]\n') as server:
        yield Admin(server)
