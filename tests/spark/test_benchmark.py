"""The benchmark of Spark runs: nobody would notice that it had stopped working."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench.spark import MIXED, measure, measure_planning


def test_what_the_benchmark_measures(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each way to read and write is measured, with Spark and without."""
    measure(spark, tmp_path, 1 << 16, MIXED)
    title, *rows = capsys.readouterr().out.strip().splitlines()
    assert title.startswith("items of mixed sizes, ")
    assert len(rows) == 6
    assert all("MB/s   one process" in row for row in rows)
    assert not [*tmp_path.iterdir()]


def test_planning_is_measured(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So is planning, over many files."""
    monkeypatch.setattr("bench.spark.PLANNED_FILES", 20)
    measure_planning(spark, tmp_path)
    assert capsys.readouterr().out.count(" s     required ") == 2
