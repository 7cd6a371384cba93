"""The script that compiles the hot path, when it runs several times at once."""

import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from tests.support.patience import PATIENCE, until

SCRIPT: Final = Path(__file__).parent.parent.parent / "scripts" / "compile-hot-path"


def test_runs_for_one_target_follow_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They would delete what the other one writes; those for other targets do not wait."""
    alone = runpy.run_path(str(SCRIPT))["alone"]
    done: list[str] = []

    def run(target: str) -> None:
        with alone(tmp_path / target):
            done.append(target)

    with ThreadPoolExecutor(1) as pool:
        with alone(tmp_path / "build"):
            run("other")
            later = pool.submit(run, "build")
            said = ""

            def is_waiting() -> bool:
                nonlocal said
                said += capsys.readouterr().err
                return bool(said)

            until(is_waiting)
            assert said == f"another run compiles into {tmp_path}/build: waiting for its end\n"
            assert done == ["other"]
        later.result(PATIENCE)
    assert done == ["other", "build"]


def test_without_a_compiler_it_says_so(tmp_path: Path) -> None:
    """`make serve` goes on with plain Python after exit status 3; nothing was written."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path / "build")],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, list(tmp_path.iterdir())) == (3, [])
    assert "the hot path stays uncompiled" in done.stderr
