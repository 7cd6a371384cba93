"""One package syncs, locks, renames and links: `kestrelmq.disk`."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import kestrelmq

PACKAGE: Final = Path(kestrelmq.__file__).parent
THE_PLACE: Final = "disk"
OF_MODULES: Final = {
    "os": {"fsync", "fdatasync", "sync", "rename", "renames", "replace", "link", "symlink"},
    "fcntl": {"flock", "lockf", "LOCK_EX", "LOCK_SH"},
    "shutil": {"move"},
}
OF_PATHS: Final = {"rename": 1, "replace": 1, "hardlink_to": 1, "symlink_to": 1, "link_to": 1}
"""Methods of `pathlib.Path`, and how many arguments tell them from others of that name."""
NO_PATHS: Final = {"removal.replace(no_pause)"}
"""Calls that look like those, and are none."""


def forbidden(source: str) -> Iterator[str]:
    """Yield what only that package may do."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in OF_MODULES:
            names = {alias.name for alias in node.names}
            yield from sorted(names & {*OF_MODULES[node.module], "*"})
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            wanted = OF_MODULES.get(node.value.id, ())
            yield from [f"{node.value.id}.{node.attr}"] if node.attr in wanted else []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            given = len(node.args) + len(node.keywords)
            if OF_PATHS.get(node.func.attr) == given and not is_no_path(node):
                yield ast.unparse(node)


def is_no_path(call: ast.Call) -> bool:
    """Whether `call` is none of a path's, as `time.replace(tzinfo=UTC)`."""
    is_listed = ast.unparse(call) in NO_PATHS
    return is_listed or any(keyword.arg != "target" for keyword in call.keywords)


def test_no_other_package_does_any_of_it() -> None:
    """So whoever reads that one has seen all of it."""
    found = {
        str(path.relative_to(PACKAGE)): list(forbidden(path.read_text()))
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.parent != PACKAGE / THE_PLACE
    }
    assert {file: steps for file, steps in found.items() if steps} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.fsync(1)",
        "import os\nforce = os.fdatasync",
        "from os import replace as put",
        "import fcntl\nfcntl.flock(1, 2)",
        "from fcntl import *",
        "path.rename(other)",
        "path.replace(target=other)",
        "path.with_name('a').hardlink_to(path)",
        "import shutil\nshutil.move(a, b)",
    ],
)
def test_a_step_elsewhere_would_be_found(source: str) -> None:
    """In whatever form."""
    assert list(forbidden(source))


@pytest.mark.parametrize(
    "source",
    ["directory.rename(old, new)", "text.replace('a', 'b')", "time.replace(tzinfo=UTC)", "sync(1)"],
)
def test_a_name_like_that_of_a_step_is_not_found(source: str) -> None:
    """What has the name of such a step, and is none."""
    assert not list(forbidden(source))
