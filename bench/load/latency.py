"""Latencies as a histogram of whole microseconds: small, and easily summed over processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Latency:
    """Microseconds from before a batch was sent until its last reply was read."""

    p50: int
    p99: int
    max: int


def histogram(seconds: Iterable[float]) -> Counter[int]:
    """How many samples fell into each microsecond."""
    return Counter(int(sample * 1e6) for sample in seconds)


def summary(counts: Counter[int]) -> Latency:
    """The percentiles: the least value that so many percent of the samples do not exceed."""
    total = sum(counts.values())
    if not total:
        raise ValueError("no samples")
    values = sorted(counts)
    return Latency(
        _percentile(counts, values, total, 50), _percentile(counts, values, total, 99), values[-1]
    )


def _percentile(counts: Counter[int], values: list[int], total: int, percent: int) -> int:
    rank = -(-total * percent // 100)
    seen = 0
    for value in values:
        seen += counts[value]
        if seen >= rank:
            return value
    return values[-1]
