"""The sink of `kestrel` with real servers, but without Spark: what is sent again is stored once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelmq.client import Client
from kestrelmq.errors import ConnectionLost
from kestrelmq.spark.sinks.dead_letters import DeadLetter
from kestrelmq.spark.sinks.live import ItemSender, Numbering, QueueStaysFull
from tests.support.fake_clock import FakeClock
from tests.support.server import ServerProcess, running_server

CONFIG = "[queues.small]\nmax_items = 3\nmax_item_size = 5\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Run a server."""
    with running_server(tmp_path, config=CONFIG) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    """Return a client of it."""
    with Client(server.address) as client:
        yield client


def sender_of(client: Client, rejected: list[bytes] | None = None, begin: int = 1) -> ItemSender:
    """Return the sender of a task, as it is when it begins."""
    clock = FakeClock()

    def reject(letter: DeadLetter) -> None:
        assert rejected is not None
        rejected.append(letter.data or b"")

    numbered = Numbering("query.0", begin)
    return ItemSender(
        client, 3.0, clock, clock.advance, largest=lambda _: 5, reject=reject, numbered=numbered
    )


def left(client: Client, queue: str) -> list[bytes]:
    """Return what waits, and remove it."""
    return list(client.consume(queue, idle_timeout=0))


def test_a_task_that_is_run_again_stores_nothing_twice(
    server: ServerProcess, client: Client
) -> None:
    """Wherever it ended, over a kill of the server; the next batch has higher numbers."""
    items = [b"%d" % number for number in range(1000)]
    sender_of(client).send("a", items[:300])
    server.kill9()
    server.start()
    again = sender_of(client)
    again.send("a", items[:250])
    again.send("b", items[:2])
    again.send("a", items[250:])
    sender_of(client, begin=(1 << 32) + 1).send("a", items[:2])
    assert left(client, "a") == [*items, *items[:2]]
    assert left(client, "b") == items[:2]


def test_a_full_queue_and_an_item_that_is_too_large(client: Client) -> None:
    """What is stored stays so; the item that can never be is left out, each time."""
    items = [b"1", b"2", b"too large", b"3", b"4"]
    rejected: list[bytes] = []
    with pytest.raises(QueueStaysFull):
        sender_of(client, rejected).send("small", items)
    assert left(client, "small") == [b"1", b"2", b"3"]
    sender_of(client, rejected).send("small", items)
    assert left(client, "small") == [b"4"]
    assert rejected == [b"too large"] * 2


def test_an_answer_that_was_lost(server: ServerProcess, client: Client) -> None:
    """What may have been stored is sent again under its number."""

    class LosingClient(Client):
        """A client that loses the first answer."""

        has_lost = False

        def put_many(self, *words: object, **options: object) -> list[bool]:
            """Put, and tell of nothing the first time."""
            stored: list[bool] = super().put_many(*words, **options)  # type: ignore[arg-type]
            if not self.has_lost:
                self.has_lost = True
                error = ConnectionLost("on purpose")
                error.stored = (None,) * len(stored)
                raise error
            return stored

    with LosingClient(server.address) as losing:
        sender_of(losing).send("a", [b"1", b"2"])
    assert left(client, "a") == [b"1", b"2"]
