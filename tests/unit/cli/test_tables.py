"""Rows that commands print: as a table, or as JSON."""

import inspect
import json

import pytest

from kestrelmq.cli import pipeline
from kestrelmq.cli.tables import print_rows


def test_rows_are_a_table_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    """In JSON, numbers are numbers, and a queue's name is a text."""
    rows = [["work", 7], ["other", 12]]
    print_rows(["queue", "items"], rows, as_json=False)
    assert capsys.readouterr().out == "queue  items\nwork       7\nother     12\n"
    print_rows(["queue", "items"], rows, as_json=True)
    assert json.loads(capsys.readouterr().out) == [
        {"queue": "work", "items": 7},
        {"queue": "other", "items": 12},
    ]
    print_rows(["queue"], [["007"], ["5"]], as_json=True)
    assert json.loads(capsys.readouterr().out) == [{"queue": "007"}, {"queue": "5"}]


def test_every_pipeline_prints_json() -> None:
    """Each of them ends with a table."""
    callbacks = [one.callback for one in pipeline.app.registered_commands]
    assert all(one and "as_json" in inspect.signature(one).parameters for one in callbacks)
    assert len(callbacks) >= 8
