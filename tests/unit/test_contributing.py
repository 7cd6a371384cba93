"""CONTRIBUTING.md names places that exist."""

import re
from pathlib import Path

import pytest

from kestrelmq.client import plans
from kestrelmq.config import model
from kestrelmq.protocol import memcache, stats

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
PATHS = sorted(set(re.findall(r"`((?:\w+/)+[\w.-]+\.(?:py|md))`", TEXT)))


@pytest.mark.parametrize("path", PATHS)
def test_a_file_that_it_names_is_there(path: str) -> None:
    """Modules are named as in the package, all others as in the repository; NAME is any name."""
    pattern = path.replace("NAME", "*")
    assert any(any(base.glob(pattern)) for base in (ROOT, ROOT / "src" / "kestrelmq"))


def test_what_it_tells_to_change_is_there() -> None:
    """The lists and classes that a statistic, a setting and a command go to."""
    assert len(PATHS) > 12
    for module, names in (
        (stats, ("QUEUE_STATS", "SERVER_STATS", "Statistic", "Metric")),
        (model, ("PositiveLimit", "QueueConfig")),
        (memcache, ("Parser", "_VERBS", "Request")),
        (plans, ("Planner", "ClientOperations", "PlanMethod")),
    ):
        for name in names:
            assert hasattr(module, name)
            assert name in TEXT or name == "QueueConfig"
