"""Connections that do not sign in are closed after some time; no clock is read for that."""

import asyncio
from pathlib import Path

import pytest

from kestrelmq.access.users import NOBODY, User
from kestrelmq.server.clients import close_unsigned
from tests.support.turning import Turning


def test_only_who_has_not_signed_in_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that connects between two looks has time until the look after the next."""
    looks: asyncio.Queue[None] = asyncio.Queue()

    async def until_told(_seconds: float) -> None:
        await looks.get()
        looks.task_done()

    async def look() -> None:
        looks.put_nowait(None)
        await looks.join()
        for _ in range(3):
            await real_sleep(0)

    real_sleep = asyncio.sleep
    monkeypatch.setattr("kestrelmq.server.clients.asyncio.sleep", until_told)

    async def scenario() -> None:
        watching = asyncio.ensure_future(close_unsigned(turning.connections))
        first, signed, everyone = (turning.connect("text") for _ in range(3))
        turning.connections[first.fileno()].user = NOBODY
        turning.connections[signed.fileno()].user = User("alice")
        await look()
        late = turning.connect("text")
        turning.connections[late.fileno()].user = NOBODY
        assert len(turning.connections) == 4
        await look()
        assert list(turning.connections) == [one.fileno() for one in (signed, everyone, late)]
        turning.connections[late.fileno()].user = User("bob")
        await look()
        assert len(turning.connections) == 3
        watching.cancel()
        for one in (first, signed, everyone, late):
            one.close()

    with Turning(tmp_path) as turning:
        turning.run(scenario())
