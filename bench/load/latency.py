"""Latencies as a histogram of whole microseconds, which is small and easy to sum over processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Latency:
    """Microseconds from just before a batch is sent until its last reply is read."""

    p50: int
    p99: int
    max: int


def histogram(seconds: Iterable[float]) -> Counter[int]:
    """Count the samples in each microsecond."""
    return Counter(int(sample * 1e6) for sample in seconds)


def summary(counts: Counter[int]) -> Latency:
    """Return percentiles: the least value that this percentage of the samples does not exceed."""
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
