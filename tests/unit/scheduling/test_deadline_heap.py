"""A heap of deadlines loses no entry that counts, and keeps few of those that are over."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrelmq.scheduling.deadline_heap import DeadlineHeap

pytestmark = pytest.mark.compiled

Entry = tuple[float, int]


@given(seed=st.integers(), share=st.floats(0, 1), time_range=st.integers(1, 1000))
def test_what_is_not_over_is_found_at_its_deadline(
    seed: int, share: float, time_range: int
) -> None:
    """Whatever ends meanwhile, and however often the heap begins anew."""
    chance = random.Random(seed)
    heap: DeadlineHeap[Entry] = DeadlineHeap()
    live: set[Entry] = set()
    for number in range(1000):
        if chance.random() < share and live:
            live.discard(chance.choice(sorted(live)))
        elif chance.random() < 0.1 and len(heap):
            assert heap.first is not None
            first = heap.first
            entry = heap.pop()
            assert entry[0] == first
            assert all(entry <= one for one in live)
            live.discard(entry)
        else:
            entry = (float(chance.randrange(time_range)), number)
            live.add(entry)
            heap.push(entry, len(live), live.__contains__)
    found = []
    while heap.first is not None:
        found.append(heap.pop())
    assert found == sorted(found)
    assert live <= set(found)
    assert len(heap) == 0


@pytest.mark.parametrize("live", [1, 500])
def test_few_are_kept_that_are_over(live: int) -> None:
    """At most two for each entry that is not, and a few more, however many there were."""
    heap: DeadlineHeap[Entry] = DeadlineHeap()
    kept = {(0.5, -number) for number in range(1, live + 1)}
    for entry in kept:
        heap.push(entry, live, kept.__contains__)
    for number in range(10_000):
        heap.push((float(number), number), live, kept.__contains__)
        assert len(heap) < 3 * live + 70
    assert heap.pop() in kept | {(0.0, 0)}


def test_all_can_be_taken() -> None:
    """The heap is empty then; what was taken is for the caller to free."""
    heap: DeadlineHeap[Entry] = DeadlineHeap()
    for number in range(200):
        heap.push((float(number), number), 0, lambda _entry: True)
    taken = heap.take_all()
    assert sorted(entry for some in taken for entry in some) == [
        (float(number), number) for number in range(200)
    ]
    assert (len(heap), heap.first) == (0, None)
