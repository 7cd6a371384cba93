"""What becomes of requests that need a thread when the system has no room for one."""

import asyncio
from pathlib import Path

import pytest

from kestrelmq.scheduling.worker import LARGE_ITEM
from kestrelmq.server.loop.threads import NoThread, in_thread
from tests.support.limits import no_new_threads
from tests.support.turning import Turning


def test_what_a_thread_does_is_passed_on() -> None:
    """Its result or its error; or that there is no thread, and with room for one all is well."""

    def fail() -> None:
        raise RuntimeError("broken")

    async def scenario() -> None:
        refused = pytest.raises(NoThread, match="no thread for that now: can't start new thread")
        with no_new_threads(), refused:
            await in_thread(int, "7")
        assert await in_thread(int, "7") == 7
        with pytest.raises(RuntimeError, match=r"^broken$"):
            await in_thread(fail)

    asyncio.run(scenario())


@pytest.mark.compiled
def test_a_large_item_without_a_thread(tmp_path: Path) -> None:
    """It is refused, with the reason; the next one is taken."""
    turning, size = Turning(tmp_path), LARGE_ITEM
    add = b"set work 0 0 %d\r\n" % size + bytes(size) + b"\r\n"

    async def scenario() -> None:
        client = turning.connect("memcache")
        with no_new_threads():
            await turning.send(client, add)
            reply = await turning.receive(client, b"\r\n")
        assert reply == b"SERVER_ERROR queue work: can't start new thread\r\n"
        await turning.send(client, add)
        assert await turning.receive(client, b"\r\n") == b"STORED\r\n"
        assert len(turning.collection.obtain("work")) == 1
        await turning.hang_up(client)

    with turning:
        turning.run(scenario())
