"""The sink's sender: full queues, errors, and how rows are grouped."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from kestrelmq.client.options import Expiry
from kestrelmq.errors import ConnectionLost, InvalidQueueName, InvalidRequest, ServerUnavailable
from kestrelmq.spark.kestrel_writer import ItemSender, QueueStaysFull, grouped
from kestrelmq.testing.clock import FakeClock


class Store:
    """A client of a server whose queue is full now and then."""

    def __init__(self, room: Sequence[int | Exception]) -> None:
        self.items: list[bytes] = []
        self.delays: list[float | None] = []
        self._room = list(room)

    def put_many(
        self,
        queue: str,  # noqa: ARG002 # there is one
        items: Sequence[bytes],
        expiry: Expiry = None,  # noqa: ARG002 # nothing expires
        *,
        delay: float | None = None,
        retry_unknown: bool | None = None,  # noqa: ARG002 # nothing is unknown
    ) -> list[bool]:
        """Store as many as there is room for."""
        self.delays.append(delay)
        room = self._room.pop(0) if self._room else 0
        if isinstance(room, Exception):
            raise room
        self.items += items[:room]
        return [place < room for place in range(len(items))]


def test_a_full_queue_holds_the_sender_back() -> None:
    """It waits for room and loses nothing, in order; servers that are away are waited for too."""
    clock = FakeClock()
    store = Store([2, 0, 0, ServerUnavailable("away"), 1, 7])
    items = [b"%d" % number for number in range(6)]

    ItemSender(store, 10.0, clock, clock.advance).send("q", items)

    assert store.items == items
    assert 0.0 < clock.monotonic() < 10.0


def test_what_was_stored_before_an_error_is_not_sent_again() -> None:
    """A reply that was lost says which items had theirs."""
    clock = FakeClock()
    lost = ConnectionLost("gone")
    lost.stored = (True, None, False)
    store = Store([lost, 5])

    ItemSender(store, 10.0, clock, clock.advance).send("q", [b"0", b"1", b"2"])

    assert store.items == [b"1", b"2"]


def test_each_item_has_the_delay() -> None:
    """However often it is sent."""
    clock = FakeClock()
    store = Store([1, 1])
    ItemSender(store, 10.0, clock, clock.advance, delay=2.5).send("q", [b"0", b"1"])
    assert (store.items, store.delays) == ([b"0", b"1"], [2.5, 2.5])


def test_the_sender_gives_up_after_its_patience() -> None:
    """Progress renews it; the error says what is the matter."""
    clock = FakeClock()
    store = Store([0] * 5 + [1])

    with pytest.raises(QueueStaysFull, match=r"1 items of queue 'q' .* 3 seconds: .*full"):
        ItemSender(store, 3.0, clock, clock.advance).send("q", [b"0", b"1"])

    assert store.items == [b"0"]
    assert clock.monotonic() > 3.0


def test_what_no_server_would_take_fails_at_once() -> None:
    """Waiting would not help."""
    clock = FakeClock()

    with pytest.raises(InvalidRequest):
        ItemSender(Store([InvalidRequest("bad")]), 3.0, clock, clock.advance).send("q", [b"0"])

    assert clock.monotonic() == 0.0


def test_rows_are_grouped_by_queue_and_expiry_in_order() -> None:
    """Text is UTF-8; an expiry of 0 or null is never."""
    batch = pa.RecordBatch.from_pydict(
        {
            "queue": ["a", "b", "a", "a"],
            "data": ["1", "2", "3", "4"],
            "expiry": [0, 1000, None, 2000],
        }
    )

    assert list(grouped(batch, None)) == [
        ("a", None, [b"1", b"3"]),
        ("a", datetime.fromtimestamp(2, UTC), [b"4"]),
        ("b", datetime.fromtimestamp(1, UTC), [b"2"]),
    ]
    upper = pa.RecordBatch.from_pydict({"DATA": ["1"], "Queue": pa.array([7])})
    assert list(grouped(upper, None)) == [("7", None, [b"1"])]
    with pytest.raises(InvalidQueueName):
        list(grouped(pa.RecordBatch.from_pydict({"queue": ["a/b"], "data": [b""]}), None))
    with pytest.raises(ValueError, match="'data' must not be null"):
        list(grouped(pa.RecordBatch.from_pydict({"data": pa.array([None], pa.binary())}), "q"))
