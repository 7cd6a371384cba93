"""`max_item_size` holds before the queue is there: what is too large is read and dropped."""

import socket
from pathlib import Path
from typing import Final

import pytest

from kestrelmq.config import AliasConfig, QueueConfig, ServerConfig
from kestrelmq.protocol.managing import Version
from kestrelmq.protocol.text import Put, TextParser
from kestrelmq.server.sessions.large_item import ArrivingLargeItem, SkippedItem
from tests.support.turning import Turning, alive

pytestmark = pytest.mark.compiled

LIMIT: Final = 1000
SIZE: Final = 300_000


def configured(path: Path) -> ServerConfig:
    """Return settings in which most queues take small items only."""
    return ServerConfig(
        queue_path=path,
        default=QueueConfig(max_item_size=LIMIT, keep_journal=False),
        queues={
            "small": QueueConfig(max_item_size=LIMIT),
            "large": QueueConfig(max_item_size=None),
            "mixed": QueueConfig(max_item_size=LIMIT),
            "mixed+any": QueueConfig(max_item_size=None),
        },
        aliases={
            "all": AliasConfig(destination_queues=("small", "other")),
            "some": AliasConfig(destination_queues=("small", "large")),
        },
    )


@pytest.mark.parametrize(
    ("name", "is_kept"),
    [
        ("small", False),
        ("small+child", False),
        ("unknown", False),
        ("large", True),
        ("all", False),
        ("some", True),
        ("mixed", False),
        ("mixed+any", True),
    ],
)
def test_an_unfinished_set_for_a_queue_that_is_not_there(
    tmp_path: Path, name: str, *, is_kept: bool
) -> None:
    """Its data is kept only if it can be stored somewhere; the reply says which."""

    async def scenario(turning: Turning) -> None:
        client: socket.socket = turning.connect("memcache")
        await turning.send(client, b"set %b 0 0 %d\r\n" % (name.encode(), SIZE))
        await turning.send(client, bytes(SIZE - 1))
        assert bool(alive(ArrivingLargeItem)) == is_kept
        assert bool(alive(SkippedItem)) != is_kept
        await turning.send(client, b"x\r\nversion\r\n")
        reply = await turning.receive(client, b"\r\n")
        while b"VERSION" not in reply:
            reply += await turning.receive(client, b"\r\n")
        stored = is_kept and name != "some"  # an alias needs all its destinations
        assert reply.startswith(b"STORED" if stored else b"NOT_STORED")
        client.close()

    with Turning(tmp_path, configured(tmp_path)) as turning:
        turning.run(scenario(turning))


def test_a_master_with_a_child_that_takes_more(tmp_path: Path) -> None:
    """The item is received for the child."""

    async def scenario(turning: Turning) -> None:
        turning.collection.obtain("mixed+any")
        turning.collection.obtain("mixed")
        client = turning.connect("memcache")
        await turning.send(client, b"set mixed 0 0 %d\r\n%b\r\n" % (SIZE, bytes(SIZE)))
        assert await turning.receive(client, b"\r\n") == b"NOT_STORED\r\n"
        assert len(turning.collection.queues["mixed+any"]) == 1
        assert len(turning.collection.queues["mixed"]) == 0
        client.close()

    with Turning(tmp_path, configured(tmp_path)) as turning:
        turning.run(scenario(turning))


@pytest.mark.parametrize("cut", [1, 7, 10_000])
def test_a_put_goes_on_behind_an_item_that_is_too_large(cut: int) -> None:
    """Only that is not kept, however it arrives."""
    parser = TextParser({"work": 5}.get)
    stream = b"put work:\none\nfive5\r\n" + b"x" * 2000 + b"\nthree\n\nversion\n"
    commands = []
    for start in range(0, len(stream), cut):
        parser.receive(stream[start : start + cut])
        while (command := parser.next_command()) is not None:
            commands.append(command)
        assert len(parser._buffer) <= max(cut, len(b"put work:"))
    assert commands == [Put("work", 0, (b"one", b"five5", b"three"), too_large=1), Version()]
