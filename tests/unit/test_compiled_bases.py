"""A class that is not compiled cannot inherit from one that is; interpreted, nothing tells."""

import ast
import runpy
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "src" / "kestrelmq"
COMPILED: Final = frozenset(runpy.run_path(str(ROOT / "scripts" / "compile-hot-path"))["MODULES"])


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    tree = ast.parse((SOURCE / f"{module}.py").read_text())
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _is_native(node: ast.ClassDef) -> bool:
    """Whether mypyc makes a class of C of it, which no other class may inherit from."""
    bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
    return not bases & {"Protocol", "Enum", "NamedTuple"} and "mypyc_attr" not in "".join(
        map(ast.unparse, node.decorator_list)
    )


def _native_bases(module: str) -> set[str]:
    """Return the compiled classes that the classes of a module inherit from."""
    tree = ast.parse((SOURCE / f"{module}.py").read_text())
    native = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        origin = node.module.removeprefix("kestrelmq.").replace(".", "/")
        if origin in COMPILED:
            found = _classes(origin)
            native |= {
                alias.asname or alias.name
                for alias in node.names
                if alias.name in found and _is_native(found[alias.name])
            }
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {ast.unparse(base) for node in classes for base in node.bases} & native


def test_what_is_compiled_is_inherited_by_what_is_compiled() -> None:
    """A server that is compiled would fail where it makes such an object, or at its import."""
    modules = {
        str(path.relative_to(SOURCE).with_suffix("")) for path in SOURCE.rglob("*.py")
    } - COMPILED
    assert {module: bases for module in modules if (bases := _native_bases(module))} == {}
