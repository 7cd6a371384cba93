"""`kestrel.trace` takes its input as data: nothing in it is ever run."""

import base64
import json
import pickle
import zlib
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from kestrelmq.errors import ConfigError
from kestrelmq.spark.plan.item_history import TraceTask
from kestrelmq.spark.plan.segments import ReplayState
from kestrelmq.spark.plan.spool import SpoolFile
from kestrelmq.spark.sources.trace_source import TraceSource, decoded, encoded


class Trap:
    """An object whose unpickling creates a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._path,)


def option_of(content: bytes) -> str:
    """Return `content` in the wrapping of the option."""
    return base64.b64encode(zlib.compress(content)).decode()


def test_a_pickle_is_refused_and_not_loaded(tmp_path: Path) -> None:
    """Whoever can set an option cannot run anything with it."""
    trap = option_of(pickle.dumps([Trap(tmp_path / "sprung")]))
    with pytest.raises(ConfigError, match="option 'tracings': not made by kestrelmq"):
        TraceSource({"kind": "items", "tracings": trap}).reader(StructType())
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "option",
    [
        "",
        "not base64!",
        base64.b64encode(b"not compressed").decode(),
        option_of(b"no JSON"),
        option_of(b"[" * 100_000),
        option_of(b"7"),
        option_of(b"[7]"),
        option_of(json.dumps([{"file": {}, "state": {}}]).encode()),
        option_of(json.dumps([{"file": {"command": "ls"}, "state": {}}]).encode()),
    ],
)
def test_what_was_not_encoded_is_refused(option: str) -> None:
    """Any other text is an error of the options, and says so."""
    with pytest.raises(ConfigError, match="option 'tracings'"):
        decoded(option, {})


def test_tracings_come_back_as_they_were() -> None:
    """Files with any name and states with everything in them survive the option."""
    file = SpoolFile("jobs", "/spool/\udcff/jobs.17", "jobs.17", 1 << 40, False, "/spool/\udcff", 9)
    trace_tasks = [
        TraceTask(file, ReplayState()),
        TraceTask(file, ReplayState(7, (3, 1), 5, {-4: 2, 9: 0}, -7, {6: 11}, (-5, {-5: -4}))),
    ]
    assert decoded(encoded(trace_tasks), {}) == trace_tasks
