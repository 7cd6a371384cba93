"""Rows as records, a batch at once."""

import pyarrow as pa
import pytest

from kestrelmq.errors import InvalidQueueName
from kestrelmq.format.notes import delayed_notes
from kestrelmq.format.records import item
from kestrelmq.spark.sinks.encoding import encode


def journals(columns: dict[str, list[object]]) -> dict[str, bytes]:
    """Return the bytes for each journal."""
    (encoded,) = encode(pa.RecordBatch.from_pydict(columns), 9)
    bounds = [int(encoded.offsets[bound]) for bound in encoded.bounds]
    ranges = zip(encoded.queues, bounds, bounds[1:], strict=False)
    return {queue: bytes(encoded.records[low:high]) for queue, low, high in ranges}


def test_rows_with_a_due_time_are_delayed_items() -> None:
    """They are in notes, added at that time; 0 is no time."""
    found = journals(
        {
            "queue": ["b", "a", "b", "b", "a"],
            "data": ["1", "2", "3", "4", "5"],
            "expiry": [0, 0, 7, 0, 0],
            "due": [5, None, 6, 0, 4],
        }
    )

    assert found == {
        "a": item(9, 0, b"2") + delayed_notes(3, item(4, 0, b"5"), 0),
        "b": b"".join(
            (
                delayed_notes(1, item(5, 0, b"1"), 0),
                delayed_notes(2, item(6, 7, b"3"), 0),
                item(9, 0, b"4"),
            )
        ),
    }
    assert journals({"queue": ["a"], "data": ["x"]}) == {"a": item(9, 0, b"x")}


@pytest.mark.parametrize("name", ["a~~delayed", "", "a/b"])
def test_names_that_no_queue_has_are_refused(name: str) -> None:
    """Whether the row is delayed or not."""
    with pytest.raises(InvalidQueueName, match="is not allowed"):
        journals({"queue": [name], "data": ["x"], "due": [5]})
