"""When rounds of fsyncs begin, and the thread that runs them."""

import os
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

import pytest

from kestrelmq.clock import Pause
from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.server.loop.turns import SyncThread
from tests.support.held_worker import HeldWorker
from tests.support.limits import no_new_threads
from tests.support.turning import Turning

ADD: Final = b"set work 0 0 1\r\nx\r\n"
STORED: Final = b"STORED\r\n"


def synced(path: Path) -> Turning:
    """Return a server whose queues are synced before a reply."""
    settings = QueueConfig.model_validate({"sync_journal": "0ms"})
    return Turning(path, ServerConfig(queue_path=path, default=settings))


def run(turning: Turning, scenario: Coroutine[Any, Any, None]) -> None:
    """Run `scenario` with the server's loop."""
    with turning:
        turning.run(scenario)


@pytest.mark.compiled
def test_a_round_covers_all_that_was_written_during_the_last(tmp_path: Path) -> None:
    """One at a time; the next begins when no client has anything more to say."""
    turning, rounds = synced(tmp_path), HeldWorker()

    async def scenario() -> None:
        turning.turns._sync_thread = rounds
        clients = [turning.connect("memcache") for _ in range(3)]
        for client in clients:
            await turning.send(client, ADD)
            await turning.turn()
            assert len(rounds) == 1
        assert rounds.step()
        assert await turning.receive(clients[0], STORED) == STORED
        await turning.until(lambda: len(rounds) == 1)
        for client in clients[1:]:
            with pytest.raises(BlockingIOError):
                client.recv(1)
        assert rounds.step()
        for client in clients[1:]:
            assert await turning.receive(client, STORED) == STORED
        for _ in range(5):
            await turning.turn()
        assert not len(rounds)
        for client in clients:
            client.close()
        await turning.until(lambda: not turning.connections)

    run(turning, scenario())


@pytest.mark.compiled
def test_an_add_is_synced_in_the_thread(tmp_path: Path) -> None:
    """One after the other, over one connection and over several."""
    turning = synced(tmp_path)

    async def scenario() -> None:
        clients = [turning.connect("memcache") for _ in range(3)]
        for client in clients * 5:
            await turning.send(client, ADD)
            assert await turning.receive(client, STORED) == STORED
        assert turning.collection.obtain("work").journal.syncs > 1
        for client in clients:
            client.close()
        await turning.until(lambda: not turning.connections)

    run(turning, scenario())
    assert not [thread for thread in threading.enumerate() if thread.name == "fsync"]


@pytest.mark.compiled
def test_no_round_begins_while_the_server_stops(tmp_path: Path) -> None:
    """Its thread would wait for more rounds for ever, and keep the process from ending."""
    turning = synced(tmp_path)

    async def scenario() -> None:
        turning.collection.obtain("work").add(b"x")
        turning.turns.close()
        for _ in range(3):
            await turning.turn()
        assert "fsync" not in [thread.name for thread in threading.enumerate()]

    run(turning, scenario())


def test_there_is_no_room_for_a_thread(tmp_path: Path) -> None:
    """The client gets an error; a later round tries again."""
    turning = synced(tmp_path)

    async def scenario() -> None:
        client = turning.connect("memcache")
        with no_new_threads("no room for a thread"):
            await turning.send(client, ADD)
            reply = await turning.receive(client, b"\r\n")
        assert reply.startswith(b"SERVER_ERROR ")
        assert b"no room" in reply
        await turning.hang_up(client)

    run(turning, scenario())


def test_a_job_that_fails_is_reported(tmp_path: Path) -> None:
    """As is the next one, which runs."""
    turning = Turning(tmp_path)
    ended: list[BaseException | None] = []

    def broken(_pause: Pause) -> None:
        raise ValueError("broken")

    async def scenario() -> None:
        thread = SyncThread(turning.turns)
        thread.run(broken, ended.append)
        thread.run(lambda _pause: None, ended.append)
        await turning.until(lambda: len(ended) == 2)
        thread.on_input()  # there is nothing to report
        thread.close()
        thread.close()

    run(turning, scenario())
    assert [str(error) for error in ended] == ["broken", "None"]


@pytest.mark.compiled
def test_the_thread_survives_a_pipe_that_fails(tmp_path: Path) -> None:
    """Clients still get their replies."""
    turning = synced(tmp_path)

    async def scenario() -> None:
        thread = SyncThread(turning.turns)
        turning.turns._sync_thread = thread
        client = turning.connect("memcache")
        await turning.send(client, ADD)
        assert await turning.receive(client, STORED) == STORED
        os.dup2(thread._reader, thread._writer)  # nothing can be written there
        for _ in range(3):
            await turning.send(client, ADD)
            assert await turning.receive(client, STORED) == STORED
        await turning.hang_up(client)

    run(turning, scenario())
