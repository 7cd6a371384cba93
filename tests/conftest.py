"""How random tests draw their examples, and how tests are spread over processes."""

from typing import Final

import pytest
from hypothesis import HealthCheck, settings

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


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep together, in one process, what shares something that is costly to start."""
    items.sort(key=_rank)
    for item in items:
        folder = item.path.parent.name
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif folder not in {"unit", "property"}:
            item.add_marker(pytest.mark.xdist_group(str(item.path)))


def _rank(item: pytest.Item) -> int:
    folder = item.path.parent.name
    return _FOLDERS.index(folder) if folder in _FOLDERS else len(_FOLDERS)
