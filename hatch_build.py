"""Wheels hold the hot path compiled; with KESTRELMQ_PURE=1 they hold plain Python."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class HotPathHook(BuildHookInterface[Any]):
    """Adds what `scripts/compile-hot-path` makes, or has made in the folder KESTRELMQ_COMPILED."""

    def dependencies(self) -> list[str]:
        """Return what compiling needs: the compiler, and the types of what the modules import."""
        if _is_pure():
            return []
        core = self.metadata.core
        return [*core.optional_dependencies["build"], *core.dependencies]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless the source is installed in place or nothing compiled is wanted."""
        if version == "editable" or _is_pure():
            return
        target = Path(self.root, os.environ.get("KESTRELMQ_COMPILED") or self._compile())
        modules = [*target.rglob("*.so")]
        if not modules:
            self.app.abort(f"nothing is compiled in {target}; KESTRELMQ_PURE=1 builds plain Python")
        for module in modules:
            build_data["force_include"][str(module)] = str(module.relative_to(target))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def _compile(self) -> Path:
        target = Path(self.root, "build", "wheel")
        script = Path(self.root, "scripts", "compile-hot-path")
        done = subprocess.run([sys.executable, str(script), str(target)], check=False)  # noqa: S603
        if done.returncode:
            self.app.abort("the hot path was not compiled; KESTRELMQ_PURE=1 builds plain Python")
        return target


def _is_pure() -> bool:
    return bool(os.environ.get("KESTRELMQ_PURE"))
