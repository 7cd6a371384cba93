"""Large frames of the thrift protocol are decoded in a thread."""

import struct
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

import pytest

from kestrelmq.clock import Pause
from kestrelmq.protocol import thrift
from tests.support.held_worker import HeldWorker
from tests.support.turning import Turning
from tests.unit.server.test_closed_connections import frame, thrift_get, thrift_put

ITEM: Final = b"x" * 1000
COUNT: Final = 400
PUT: Final = thrift_put(b"work", *[ITEM] * COUNT)
ADDED: Final = struct.pack(">bhix", 8, 0, COUNT)
"""How the answer ends."""


def run(path: Path, worker: HeldWorker, scenario: Coroutine[Any, Any, None], left: int) -> None:
    """Run `scenario` with a server whose thread is `worker`; so many items must be there then."""
    with turnings[path] as turning:
        turning.run(scenario)
        assert len(turning.collection.obtain("work")) == left
        assert not worker.step()


turnings: dict[Path, Turning] = {}


@pytest.fixture
def worker(tmp_path: Path) -> HeldWorker:
    """Return what decodes the frames of a server when the test says so."""
    found = HeldWorker()
    turnings[tmp_path] = Turning(tmp_path, writer=found)
    return found


@pytest.mark.compiled
def test_others_are_served_while_a_frame_is_decoded(tmp_path: Path, worker: HeldWorker) -> None:
    """What its client sent after it is served after it."""
    turning = turnings[tmp_path]

    async def scenario() -> None:
        client, other = turning.connect("thrift"), turning.connect("memcache")
        await turning.send(client, PUT + thrift_get(b"work", 1, 0))
        await turning.send(other, b"get work\r\n")
        assert await turning.receive(other, b"END\r\n") == b"END\r\n"
        assert worker.step()
        assert ADDED in await turning.receive(client, b"\n\0\2" + bytes(8) + b"\0\0")
        client.close()
        other.close()
        await turning.until(lambda: not turning.connections)

    run(tmp_path, worker, scenario(), COUNT - 1)


def test_a_client_leaves_while_its_frame_is_decoded(tmp_path: Path, worker: HeldWorker) -> None:
    """Its request is dropped."""
    turning = turnings[tmp_path]

    async def scenario() -> None:
        client = turning.connect("thrift")
        await turning.send(client, PUT)
        turning.connections[client.fileno()].close()
        client.close()
        assert worker.step()
        await turning.turn()

    run(tmp_path, worker, scenario(), 0)


def test_a_large_frame_that_is_no_message(tmp_path: Path, worker: HeldWorker) -> None:
    """The connection is closed."""
    turning = turnings[tmp_path]

    async def scenario() -> None:
        client = turning.connect("thrift")
        await turning.send(client, frame(b"\xff" * len(PUT)))
        assert worker.step()
        await turning.until(lambda: not turning.connections)
        assert client.recv(1) == b""
        client.close()

    run(tmp_path, worker, scenario(), 0)


def test_a_bug_while_a_large_frame_is_decoded(
    tmp_path: Path, worker: HeldWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is closed; others are served."""
    turning = turnings[tmp_path]

    def broken(_frame: bytes, _pause: Pause) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(thrift, "decode", broken)

    async def scenario() -> None:
        client, other = turning.connect("thrift"), turning.connect("memcache")
        await turning.send(client, PUT)
        assert worker.step()
        await turning.until(lambda: client.fileno() not in turning.connections)
        assert client.recv(1) == b""
        await turning.send(other, b"version\r\n")
        await turning.receive(other, b"\r\n")
        client.close()
        other.close()
        await turning.until(lambda: not turning.connections)

    run(tmp_path, worker, scenario(), 0)
