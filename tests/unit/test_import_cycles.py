"""No module needs itself, by whatever way: each can be read, and imported, after those it needs."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[2] / "src"


def _modules() -> dict[str, Path]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        words = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(words[:-1] if words[-1] == "__init__" else words)] = path
    return found


def _needs(path: Path, modules: dict[str, Path]) -> set[str]:
    """Return the modules that a file imports, wherever in it: those for types, too."""
    needed = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            needed |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            # The name of a module, or of something in one.
            needed |= names & modules.keys()
            needed |= {node.module} if names - modules.keys() else set()
    return needed & modules.keys()


def test_imports_have_no_cycles() -> None:
    """Raises CycleError otherwise, which names the modules."""
    modules = _modules()
    needs = {name: _needs(path, modules) - {name} for name, path in modules.items()}
    order = list(TopologicalSorter(needs).static_order())
    assert order.index("kestrelmq.errors") < order.index("kestrelmq.queue.queue")
