"""Large items that a thread copies before they are added."""

import socket
from pathlib import Path
from typing import Final

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from tests.support.held_worker import HeldWorker
from tests.support.turning import Turning

pytestmark = pytest.mark.compiled

LARGE: Final = b"x" * 2_000_000
REQUESTS: Final = {
    "delayed set": (
        "memcache",
        b"set work/delay=60000 0 0 2000000\r\n%b\r\n" % LARGE,
        b"STORED\r\n",
    ),
    "text put without a journal": ("text", b"put memory:\n%b\n\n" % LARGE, b"+1\n"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_thread_does_what_takes_long(tmp_path: Path, name: str) -> None:
    """Until it has done that, nothing is added; and then nothing is copied."""
    protocol, request, answer = REQUESTS[name]
    config = ServerConfig(queue_path=tmp_path, queues={"memory": QueueConfig(keep_journal=False)})
    worker = HeldWorker()

    async def scenario(client: socket.socket) -> None:
        await turning.send(client, request)
        await turning.until(lambda: len(worker) > 0)
        queues = turning.collection.queues.values()
        assert not any(len(queue) + queue.delayed_items for queue in queues)
        assert worker.step()
        received = b""
        while not received.endswith(answer):
            worker.step()  # writes it
            received += await turning.receive_some(client)
        assert sum(len(queue) + queue.delayed_items for queue in queues) == 1

    with (
        Turning(tmp_path, config, writer=worker) as turning,
        turning.connect(protocol) as client,
    ):
        turning.run(scenario(client))
