"""The offset of a batch, and how it is divided."""

import json

import pytest

from kestrelmq.spark.sources.live_offsets import Held, HeldOffset, chunks_of, grouped, parse_offset

NEW = Held("q-1", 7, {"b": [("n3", 5)], "a": [("n1", 1000), ("n2", 2)]})
OFFSET = HeldOffset(
    "q-1", 7, "a,b", 99, {"s:2": NEW, "s:1": Held("q-1", 6, {"a": [("old", 3)]})}, ("s:1", "s:2")
)


def test_an_offset_survives_sparks_log() -> None:
    """It is JSON there."""
    logged = json.loads(json.dumps(OFFSET.to_json()))
    assert parse_offset(logged).to_json() == OFFSET.to_json()
    with pytest.raises(KeyError):
        parse_offset({"epoch": 1, "staging": "x", "shares": {}})


def test_what_is_only_carried_has_no_rows() -> None:
    """Positions follow each other, however the batch is divided."""
    chunks = chunks_of(OFFSET)
    assert [(one.queue, one.tag, one.nonce, one.count) for one in chunks] == [
        ("a", "q-1:7:0", "n1", 1000),
        ("a", "q-1:7:1", "n2", 2),
        ("b", "q-1:7:0", "n3", 5),
    ]
    assert [one.position - (7 << 32) for one in chunks] == [0, 1000, 1002]


@pytest.mark.parametrize(("partitions", "sizes"), [(1, [5, 2]), (4, [3, 2, 1, 1]), (99, [1] * 7)])
def test_a_partition_has_neighbours_of_one_server(partitions: int, sizes: list[int]) -> None:
    """There is at least one for each server, and no more than there are chunks."""
    held = {
        server: Held("q-1", 7, {"a": [(str(part), 1) for part in range(parts)]})
        for server, parts in (("s:1", 5), ("s:2", 2))
    }
    chunks = chunks_of(HeldOffset("q-1", 7, "a", 0, held))
    groups = grouped(chunks, partitions)
    assert [len(group) for group in groups] == sizes
    assert [chunk for group in groups for chunk in group] == chunks
    assert all(len({chunk.server for chunk in group}) == 1 for group in groups)
