"""Histograms of latencies: bounded, exact in count, near in value; and what is sampled."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.queues.collection import QueueCollection
from kestrelmq.queues.metrics import Histogram, Latencies, Latency, cell_end, cell_of, cell_start
from tests.support.fake_clock import FakeClock

pytestmark = pytest.mark.compiled


@pytest.fixture
def clock() -> FakeClock:
    """A clock that only the test moves."""
    return FakeClock()


@pytest.fixture
def collection(tmp_path: Path, clock: FakeClock) -> QueueCollection:
    """Queues without journals."""
    config = ServerConfig(queue_path=tmp_path, default=QueueConfig(keep_journal=False))
    return QueueCollection(config, clock)


@given(st.integers(0, 2**40 - 1))
def test_a_cell_holds_its_value_and_is_narrow(value: int) -> None:
    """Every value is in its cell, and a cell is at most an eighth of its value wide."""
    cell = cell_of(value)
    assert cell_start(cell) <= value < cell_end(cell)
    assert cell_end(cell) - cell_start(cell) <= max(1, value // 8)


def test_cells_follow_each_other_without_gaps() -> None:
    """There are 304 cells, and where one ends the next begins."""
    assert cell_of(2**40 - 1) == 303
    assert [cell_of(cell_start(cell)) for cell in range(304)] == list(range(304))


@given(st.lists(st.integers(-5, 2**45), max_size=50))
def test_a_histogram_is_bounded_and_counts_everything(values: list[int]) -> None:
    """Whatever is recorded is counted, in no more than 304 cells."""
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    assert histogram.count == len(values)
    assert all(0 <= cell < 304 for cell in histogram.cells)
    limited = [min(max(value, 0), 2**40 - 1) for value in values]
    assert histogram.cells == Counter(map(cell_of, limited))


def test_a_summary_is_near_the_values() -> None:
    """Percentiles are those of the values, to within a cell."""
    histogram = Histogram()
    for value in range(1, 1001):
        histogram.record(value)
    summary = histogram.summary()
    assert (summary.count, summary.minimum, summary.average) == (1000, 1, 500)
    assert summary.percentiles[50.0] == pytest.approx(500, rel=0.125)
    assert summary.percentiles[99.9] == pytest.approx(999, rel=0.125)
    assert summary.maximum == pytest.approx(1000, rel=0.125)


def test_an_empty_summary_is_all_zero() -> None:
    """Nothing measured is no error."""
    summary = Histogram().summary()
    assert (summary.count, summary.minimum, summary.maximum) == (0, 0, 0)
    assert set(summary.percentiles.values()) == {0}


def test_a_difference_counts_what_came_between() -> None:
    """`since` leaves out what was counted before."""
    histogram = Histogram()
    histogram.record(10)
    before = histogram.copy()
    histogram.record(10)
    histogram.record(5000)
    difference = histogram.since(before)
    assert (difference.count, difference.total) == (2, 5010)
    assert before.count == 1


def test_a_difference_has_no_empty_cells() -> None:
    """Only what was counted in between; without an earlier copy, that is everything."""
    histogram = Histogram()
    histogram.record(10)
    assert histogram.since(None).cells == {cell_of(10): 1}
    before = histogram.copy()
    histogram.record(5000)
    assert histogram.since(before).cells == {cell_of(5000): 1}


def test_every_latency_says_what_it_is() -> None:
    """Each something else."""
    assert len({kind.meaning for kind in Latency}) == len(Latency)


def test_counts_up_to_bounds_rise() -> None:
    """Cumulative counts never count a value that may lie above the bound."""
    histogram = Histogram()
    for value in (1, 9, 90, 900):
        histogram.record(value)
    assert histogram.up_to([0, 1, 10, 100, 1000]) == [0, 1, 2, 3, 4]


def test_an_add_is_sampled_as_a_set(collection: QueueCollection) -> None:
    """A turn that adds is measured as an add, for the queue and the server."""
    latencies = Latencies()
    queue = collection.obtain("a")
    queue.add(b"x")
    sample = latencies.choose_sample(1, collection.commits.dirty)
    assert sample is not None
    collection.commits.commit()
    latencies.record_sample(sample, 120)
    assert latencies.histograms_of(queue)[Latency.SET].count == 1
    assert latencies.server[Latency.SET].total == 120


def test_a_read_is_sampled_with_its_delivery(collection: QueueCollection, clock: FakeClock) -> None:
    """A turn that reads tells how long it took, and how long the item had waited."""
    latencies = Latencies()
    queue = collection.obtain("a")
    queue.add(b"x")
    collection.commits.commit()
    clock.advance(2.5)
    queue.line.remove()
    sample = latencies.choose_sample(1, collection.commits.dirty)
    assert sample is not None
    collection.commits.commit()
    latencies.record_sample(sample, 80)
    assert latencies.histograms_of(queue)[Latency.GET_HIT].total == 80
    assert latencies.histograms_of(queue)[Latency.DELIVERY].total == 2_500_000


def test_a_miss_is_sampled_when_nothing_changed(collection: QueueCollection) -> None:
    """A read of an empty queue changes nothing, and is measured all the same."""
    latencies = Latencies()
    queue = collection.obtain("a")
    latencies.missed = queue
    sample = latencies.choose_sample(1, [])
    assert sample is not None
    latencies.record_sample(sample, 7)
    assert latencies.histograms_of(queue)[Latency.GET_MISS].total == 7
    assert latencies.choose_sample(2, []) is None


def test_a_read_that_waited_in_vain_is_counted(collection: QueueCollection) -> None:
    """The wait is recorded in microseconds."""
    latencies = Latencies()
    queue = collection.obtain("a")
    latencies.timed_out(queue, 0.25)
    assert latencies.histograms_of(queue)[Latency.GET_TIMEOUT].total == 250_000


def test_histograms_end_with_their_queue(collection: QueueCollection) -> None:
    """A queue that is deleted takes its histograms along."""
    latencies = Latencies()
    latencies.timed_out(collection.obtain("a"), 1)
    assert len(latencies.histograms_of(collection.obtain("a"))) == 1
    collection.delete("a")
    assert latencies.histograms_of(collection.obtain("a")) == {}
