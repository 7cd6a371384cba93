"""The benchmark of Spark runs: nobody would notice that it had stopped working."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench.spark import MIXED, measure, measure_many_queues, measure_planning


def once(work: Callable[[], object]) -> float:
    """Do some work once, where the benchmark looks for the fastest of several times."""
    work()
    return 1.0


def test_what_the_benchmark_measures(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each way to read and write is measured, with Spark and without."""
    monkeypatch.setattr("bench.spark.fastest", once)
    measure(spark, tmp_path, 1 << 16, MIXED)
    title, *rows = capsys.readouterr().out.strip().splitlines()
    assert title.startswith("items of mixed sizes, ")
    assert len(rows) == 8
    assert sum("MB/s   one process" in row for row in rows) == 6
    assert sum("ratio " in row for row in rows) == 2
    assert not [*tmp_path.iterdir()]


def test_planning_is_measured(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So is planning, over many files, and reading of many queues."""
    monkeypatch.setattr("bench.spark.PLANNED_FILES", 20)
    measure_planning(spark, tmp_path)
    assert capsys.readouterr().out.count(" s     required ") == 2
    monkeypatch.setattr("bench.spark.MANY_QUEUES", 5)
    monkeypatch.setattr("bench.spark.fastest", once)
    measure_many_queues(spark, tmp_path)
    assert capsys.readouterr().out.count("ratio ") == 3
