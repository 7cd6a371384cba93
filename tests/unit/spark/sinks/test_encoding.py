"""Rows as records, a batch at once."""

import pyarrow as pa
import pytest

from kestrelmq.errors import InvalidQueueName
from kestrelmq.format.records import REMOVE_TENTATIVE_RECORD, item
from kestrelmq.spark.sinks.encoding import encode


def journals(columns: dict[str, list[object]]) -> dict[str, bytes]:
    """Return the bytes for each journal."""
    (encoded,) = encode(pa.RecordBatch.from_pydict(columns), 9)
    bounds = [int(encoded.offsets[bound]) for bound in encoded.bounds]
    ranges = zip(encoded.queues, bounds, bounds[1:], strict=False)
    return {queue: bytes(encoded.records[low:high]) for queue, low, high in ranges}


def test_rows_with_a_due_time_are_delayed_items() -> None:
    """They go to the journal of these, as open reads added at that time; 0 is no time."""
    found = journals(
        {
            "queue": ["b", "a", "b", "b", "a"],
            "data": ["1", "2", "3", "4", "5"],
            "expiry": [0, 0, 7, 0, 0],
            "due": [5, None, 6, 0, 4],
        }
    )

    assert found == {
        "a": item(9, 0, b"2"),
        "b": item(9, 0, b"4"),
        "a~~delayed": item(4, 0, b"5") + REMOVE_TENTATIVE_RECORD,
        "b~~delayed": b"".join(
            record + REMOVE_TENTATIVE_RECORD for record in (item(5, 0, b"1"), item(6, 7, b"3"))
        ),
    }
    assert journals({"queue": ["a"], "data": ["x"]}) == {"a": item(9, 0, b"x")}


@pytest.mark.parametrize("name", ["a~~delayed", "", "a/b"])
def test_names_that_no_queue_has_are_refused(name: str) -> None:
    """Whether the row is delayed or not."""
    with pytest.raises(InvalidQueueName, match="is not allowed"):
        journals({"queue": [name], "data": ["x"], "due": [5]})
