"""How random tests draw their examples, and how tests are spread over processes."""

from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from kestrelmq.journal.empty import NOBODY, NOTHING
from tests.support.guardian import guard

# A run of the suite says the same each time, on every machine; `make soak` draws new examples.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "soak", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


_FOLDERS: Final = ("spark", "e2e", "crash", "integration")
"""Where the longest groups of tests are: they come first, for the last one to end early."""
_STREAMS: Final = ("stream", "several_queues")
"""What is in the names of those modules of `spark` that take half of its time."""


class Groups(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """Keeps together, in one process, what shares something that is costly to start.

    That is a Spark session, or the server of a module. The marks of xdist's own "loadgroup" are
    lost with pytest 9.2, whose items have no `_nodeid`.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        folder = path.split("/")[1]
        if folder in {"unit", "property"}:
            return nodeid
        if folder != "spark":
            return path
        # Two sessions, because one of them would be what the whole run waits for.
        return "spark, streams" if any(word in path for word in _STREAMS) else "spark"


@pytest.fixture(autouse=True)
def _shared_containers_stay_empty() -> Iterator[None]:
    """What a queue put into one of them would be in all other queues, too."""
    yield
    assert not NOTHING
    assert not NOBODY


def pytest_configure() -> None:
    """End what the tests start if they cannot do so themselves."""
    guard()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Groups:
    """Spread the tests over the processes of `-n`."""
    return Groups(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest groups."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    folder = item.nodeid.split("/")[1]
    return _FOLDERS.index(folder) if folder in _FOLDERS else len(_FOLDERS)
