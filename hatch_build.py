"""Wheels hold the hot path compiled, where the machine that builds them has a C compiler."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class HotPathHook(BuildHookInterface[Any]):
    """Adds what `scripts/compile-hot-path` makes; with KESTRELMQ_PURE set, nothing."""

    def dependencies(self) -> list[str]:
        """Return what compiling needs."""
        return ["mypy>=2,<3", "setuptools>=78"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless the source is installed in place or nothing compiled is wanted."""
        if version == "editable" or os.environ.get("KESTRELMQ_PURE"):
            return
        target = Path(self.root, "build", "wheel")
        script = Path(self.root, "scripts", "compile-hot-path")
        done = subprocess.run([sys.executable, str(script), str(target)], check=False)  # noqa: S603
        if done.returncode:
            self.app.display_warning("the wheel holds plain Python only")
            return
        for module in target.rglob("*.so"):
            build_data["force_include"][str(module)] = str(module.relative_to(target))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
