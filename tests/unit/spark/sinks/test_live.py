"""The sink's sender: full queues, errors, and how rows are grouped."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kestrelmq.client.address import Address
from kestrelmq.client.cluster import FixedMembership
from kestrelmq.client.options import ClientOptions, Expiry, item_times, protocol_expiry
from kestrelmq.errors import ConfigError, ConnectionLost, InvalidRequest, ServerUnavailable
from kestrelmq.spark.sinks.dead_letters import CannotBeStored, DeadLetter, DeadLetters
from kestrelmq.spark.sinks.live import (
    ItemSender,
    QueueStaysFull,
    Reject,
    grouped,
    largest_item,
)
from kestrelmq.spark.sinks.written_columns import cast
from tests.support.fake_clock import FakeClock


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
        producer: str | None = None,  # noqa: ARG002 # no item has a number here
        sequence: int | None = None,  # noqa: ARG002 # as above
        retry_unknown: bool | None = None,  # noqa: ARG002 # nothing is unknown
    ) -> list[bool]:
        """Store as many as there is room for."""
        self.delays.append(delay)
        room = self._room.pop(0) if self._room else 0
        if isinstance(room, Exception):
            raise room
        self.items += items[:room]
        return [place < room for place in range(len(items))]


class NoKestrel(StreamRequestHandler):
    """A session of a server that knows no command, as memcached knows none of ours."""

    def handle(self) -> None:
        """Answer each line."""
        for _ in self.rfile:
            self.wfile.write(b"ERROR\r\n")


def test_a_server_that_knows_no_numbers_gets_none() -> None:
    """It would take them for a part of a queue's name; without them it is a server like others."""
    with ThreadingTCPServer(("127.0.0.1", 0), NoKestrel) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            servers = FixedMembership((Address("127.0.0.1", server.socket.getsockname()[1]),))
            with pytest.raises(ConfigError, match="is not a kestrelmq server: write with exactlyO"):
                largest_item(servers, ClientOptions(), "q", marked=True)
            assert largest_item(servers, ClientOptions(), "q", marked=False) is None
        finally:
            server.shutdown()


def test_rows_are_sent_by_the_times_at_which_they_are_due() -> None:
    """What is due waits no more; 0 and null mean no time of its own."""
    columns = {"data": ["a", "b", "c", "d"], "due": [5000, None, 0, 2000]}
    batch = cast(pa.RecordBatch.from_pydict(columns))
    found = [(due, data) for _, due, _, data in grouped(batch, "q", DeadLetters(None).add)]
    assert found == [(None, [b"b", b"c"]), (2000, [b"d"]), (5000, [b"a"])]
    clock, store = FakeClock(now=3000), Store([2, 1, 1])
    sender = ItemSender(store, 10.0, clock, clock.advance, delay=7.0)
    for due, data in found:
        sender.send("q", data, due=due)
    assert store.delays == [7.0, None, 2.0]


def test_times_that_no_calendar_has_are_sent_as_the_nearest_that_is_possible() -> None:
    """Journals may have any time that fits into 64 bits; such an item holds up no others."""
    times = [2**63 - 1, 253_402_300_800_000, -(2**63), -(10**15)]
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    expected = [
        ("q", last, [b"1"]),
        ("q", last, [b"2"]),
        ("q", first, [b"3"]),
        ("q", first, [b"4"]),
    ]
    assert groups({"data": ["1", "2", "3", "4"], "expiry": times}, "q") == expected
    assert protocol_expiry(last) > 253_402_300_000
    assert protocol_expiry(first) == -1
    clock, store = FakeClock(now=3000), Store([1])
    ItemSender(store, 10.0, clock, clock.advance).send("q", [b"0"], due=2**63 - 1)
    assert item_times(None, store.delays[0]).delay == 10**17


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


def test_an_item_that_no_server_takes_does_not_hold_up_the_others() -> None:
    """It is rejected once it was refused; without a place for it, that fails at once."""
    clock = FakeClock()
    rejected: list[DeadLetter] = []
    store = Store([1, 5])
    expiry = datetime.fromtimestamp(2, UTC)
    sender = ItemSender(
        store, 3.0, clock, clock.advance, largest=lambda _queue: 2, reject=rejected.append
    )

    sender.send("q", [b"0", b"123", b"2"], expiry)

    assert store.items == [b"0", b"2"]
    reason = "an item of queue 'q' has 3 bytes, and the servers take at most 2"
    assert rejected == [DeadLetter("q", b"123", 2000, reason)]
    with pytest.raises(CannotBeStored, match=r"has 3 bytes.* 'deadLetterPath' keeps such rows"):
        ItemSender(Store([0]), 3.0, clock, clock.advance, largest=lambda _queue: 2).send(
            "q", [b"123"]
        )


def test_dead_letters_are_a_table(tmp_path: Path) -> None:
    """Several files if they are many; no file if there are none; a task that fails adds nothing."""
    for _ in range(2):
        letters = DeadLetters(str(tmp_path / "dead"), "query.0-1")
        letters.flush()
        letters.add(DeadLetter("q", b"x" * (17 << 20), 0, "too large"))
        letters.add(DeadLetter(None, None, 7000, "nothing"))
        letters.flush()
    DeadLetters(str(tmp_path / "none"), "query.0-1").flush()

    assert not (tmp_path / "none").exists()
    assert len(list((tmp_path / "dead").iterdir())) == 2
    rows = pq.read_table(tmp_path / "dead").to_pylist()
    found = {(row["queue"], len(row["data"] or b""), row["expiry"], row["reason"]) for row in rows}
    expiry = datetime.fromtimestamp(7, UTC)
    assert found == {("q", 17 << 20, None, "too large"), (None, 0, expiry, "nothing")}


def groups(
    columns: dict[str, Any], queue: str | None = None, reject: Reject | None = None
) -> list[tuple[str, datetime | None, list[bytes]]]:
    """Return the groups of a batch with these columns; what cannot be stored is an error."""
    batch = cast(pa.RecordBatch.from_pydict(columns))
    found = grouped(batch, queue, reject or DeadLetters(None).add)
    return [(name, expiry, data) for name, _, expiry, data in found]


def test_rows_are_grouped_by_queue_and_expiry_in_order() -> None:
    """Text is UTF-8; an expiry of 0 or null is never."""
    assert groups(
        {
            "queue": ["a", "b", "a", "a"],
            "data": ["1", "2", "3", "4"],
            "expiry": [0, 1000, None, 2000],
        }
    ) == [
        ("a", None, [b"1", b"3"]),
        ("a", datetime.fromtimestamp(2, UTC), [b"4"]),
        ("b", datetime.fromtimestamp(1, UTC), [b"2"]),
    ]
    assert groups({"DATA": ["1"], "Queue": pa.array([7])}) == [("7", None, [b"1"])]
    with pytest.raises(CannotBeStored, match="'a/b' is not allowed"):
        groups({"queue": ["a/b"], "data": [b""]})
    with pytest.raises(CannotBeStored, match="'data' must not be null"):
        groups({"data": pa.array([None], pa.binary())}, "q")
    rejected: list[DeadLetter] = []
    mixed = {"queue": ["a/b", None, "c"], "data": [b"1", b"2", b"3"]}
    assert groups(mixed, reject=rejected.append) == [("c", None, [b"3"])]
    assert [(letter.queue, letter.data) for letter in rejected] == [(None, b"2"), ("a/b", b"1")]
