"""Rows that can never become items, in a store: with a real S3 server, but without Spark."""

from datetime import UTC, datetime, timedelta

from pyarrow.dataset import dataset

from kestrelmq.spark.sinks.dead_letters import DeadLetter, DeadLetters
from kestrelmq.spark.storage.locations import Location, located
from tests.support.fake_clock import FakeClock
from tests.support.object_store import BUCKET, running_store


def a_time(time_ms: int) -> datetime:
    """Return a time as Arrow has it."""
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms)


def test_dead_letters_go_to_a_store() -> None:
    """Each file is a whole table; without any there is no file."""
    with running_store() as store:
        location = located(f"s3://{BUCKET}/dead", store.options)
        assert isinstance(location, Location)
        letters, now = DeadLetters(location, clock=FakeClock()), a_time(FakeClock().now())
        letters.flush()
        assert not location.exists()
        for number in range(3):
            letters.add(DeadLetter("q", b"%d" % number, 0, "too large"))
        letters.flush()
        letters.add(DeadLetter(None, None, 7, "no data"))
        letters.flush()

        found = dataset(f"{BUCKET}/{location.path}", filesystem=store.file_system).to_table()
        assert sorted(found.to_pylist(), key=lambda row: row["data"] or b"") == [
            {
                "queue": None,
                "data": None,
                "expiry": a_time(7),
                "reason": "no data",
                "time": now,
            },
            *(
                {
                    "queue": "q",
                    "data": b"%d" % number,
                    "expiry": None,
                    "reason": "too large",
                    "time": now,
                }
                for number in range(3)
            ),
        ]
