"""Where the package asks for a sync, or changes a name, as its source tells."""

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import kestrelmq

PACKAGE: Final = Path(kestrelmq.__file__).parent
ON_DIRECTORIES: Final = frozenset({"link", "remove", "rename", "sync", "sync_file", "truncate"})
"""Methods of a `Directory` or an `AppendFile`."""
RECEIVERS: Final = frozenset({"directory", "_directory", "file", "_file", "current", "saved"})
"""What these are called where they are used."""
ON_PATHS: Final = frozenset(
    {
        "fsync",
        "fdatasync",
        "sync_path",
        "rename_durably",
        "replace_file",
        "hardlink_to",
        "rename",
    }
)
"""What may not stand elsewhere without being listed, whatever it is called on."""
NO_SITES: Final = ("testing/", "loadtests/", "cli/bench")


@cache
def calls(file: str) -> dict[str, tuple[int, int]]:
    """Return the calls of a source file by what they are called here, with their lines."""
    found: dict[str, tuple[int, int]] = {}
    counts: Counter[str] = Counter()
    for function, call in _calls(ast.parse((PACKAGE / file).read_text())):
        if not _is_site(call):
            continue
        name = f"{file} {function}: {ast.unparse(call)}"
        counts[name] += 1
        if counts[name] > 1:
            name += f" #{counts[name]}"
        found[name] = (call.lineno, call.end_lineno or call.lineno)
    return found


def _calls(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.Call]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _calls(node, f"{inside}.{node.name}".lstrip("."))
        else:
            if isinstance(node, ast.Call):
                yield inside, node
            yield from _calls(node, inside)


def _is_site(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in ON_PATHS
    if not isinstance(function, ast.Attribute):
        return False
    receiver = function.value
    name = receiver.attr if isinstance(receiver, ast.Attribute) else ""
    name = receiver.id if isinstance(receiver, ast.Name) else name
    if name in RECEIVERS and function.attr in ON_DIRECTORIES:
        return True
    return function.attr in ON_PATHS


def function(place: str) -> str:
    """Return the name of the function at `place`; "" outside of the package."""
    file, _, line = place.rpartition(":")
    if not file:
        return ""
    found = ""
    for name, first, last in _functions(file):
        if first <= int(line) <= last:
            found = name  # an inner one comes after those that it is in
    return found


@cache
def _functions(file: str) -> list[tuple[str, int, int]]:
    return [
        (node.name, node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(ast.parse((PACKAGE / file).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def all_sites() -> list[str]:
    """Return every place in the package that syncs or renames."""
    files = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))
    return [site for file in files if not file.startswith(NO_SITES) for site in calls(file)]


def site(place: str) -> str:
    """Return what the call at `place`, a file and a line, is called here."""
    file, line = place.rsplit(":", 1)
    for name, (first, last) in calls(file).items():
        if first <= int(line) <= last:
            return name
    raise LookupError(f"{place}: no site is known there")
