"""How random tests draw their examples, and how tests are spread over processes."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from kestrelmq.journal.shared_empty import NOBODY, NOTHING
from tests.support.cpu_budget import CpuMeter, CpuTable
from tests.support.guardian import guard

# A run of the suite says the same each time, on every machine; `make soak` draws new examples.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "soak", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


_LONGEST: Final = (
    "tests/spark/test_cluster.py",
    "tests/spark/",
    "tests/pages/test_pages.py::test_the_programs_of_the_pages_about_spark",
    "tests/pages/",
    "tests/unit/spark/",
    "tests/e2e/",
    "tests/crash/",
    "tests/integration/",
)
"""How the names of the longest groups of tests begin, which come first."""
_TOOLS: Final = ("commands", "pipelines", "stored")
"""What is in the names of those modules of `spark` that take half of its time."""

_CLASSES: Final = Path(sys.prefix) / ".stamps/spark.jsa"
"""Classes of Spark, as `make everything` stores them."""


class Groups(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """Keeps together, in one process, what shares something that is costly to start.

    That is a Spark session, or the server of a module. The marks of xdist's own "loadgroup" are
    lost with pytest 9.2, whose items have no `_nodeid`.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        folder = path.split("/")[1]
        if folder == "spark" and "cluster" not in path:
            # Two sessions, because one of them would be what the whole run waits for.
            return "spark, tools" if any(word in path for word in _TOOLS) else "spark"
        if folder == "unit" and "/test_stor" in path:
            return "object store"
        return nodeid if folder in {"unit", "property", "crash", "pages"} else path


@pytest.fixture(autouse=True)
def _shared_containers_stay_empty() -> Iterator[None]:
    """What a queue put into one of them would be in all other queues, too."""
    yield
    assert not NOTHING
    assert not NOBODY


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of CI."""
    text = "fail a run in which a folder of tests used more than twice its CPU seconds"
    parser.addoption("--cpu-budgets", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """End what the tests start if they cannot do so themselves, and measure what they cost."""
    guard()
    # Every Java that a test starts, by whatever command, is soon there and soon gone.
    # What the session of the tests compiles does not fit the usual place, which is then swept.
    quick = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m"
    stored = f" -Xlog:disable -XX:SharedArchiveFile={_CLASSES}" if _CLASSES.exists() else ""
    os.environ["JAVA_TOOL_OPTIONS"] = quick + stored
    is_worker = hasattr(config, "workerinput")
    if is_worker or not config.getoption("numprocesses"):
        config.pluginmanager.register(CpuMeter())
        # Until the tests are known many objects are made, and hardly one is dropped.
        gc.disable()
    if not is_worker:
        config.pluginmanager.register(CpuTable(strict=config.getoption("--cpu-budgets")))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Groups:
    """Spread the tests over the processes of `-n`, in the order of `_rank`.

    Otherwise those groups come first that have the most tests, which take the least time each.
    """
    config.option.loadscopereorder = False
    return Groups(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest groups."""
    items.sort(key=_rank)


def pytest_collection_finish() -> None:
    """Let no collection look at what has been imported: a quarter of a second each time."""
    gc.freeze()
    gc.enable()


def _rank(item: pytest.Item) -> int:
    found = (place for place, part in enumerate(_LONGEST) if item.nodeid.startswith(part))
    return next(found, len(_LONGEST))
