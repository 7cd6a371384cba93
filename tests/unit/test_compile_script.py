"""The script that compiles the hot path, when it runs several times at once."""

import runpy
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
