"""Every source, sink and pipeline on a cluster: `tests.spark.cluster_session` on its hub."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.spark_cluster import problem, running_cluster

pytestmark = pytest.mark.skipif(problem() is not None, reason=problem() or "")


@pytest.mark.parametrize(
    "way",
    ["connect", *(pytest.param(one, marks=pytest.mark.soak) for one in ("session", "commands"))],
)
def test_everything_on_a_cluster(tmp_path: Path, way: str) -> None:
    """Machines that have nothing in common but a directory, a store and a server."""
    with running_cluster(tmp_path) as cluster:
        command = [sys.executable, "-m", "tests.spark.cluster_session", str(tmp_path), way]
        done = subprocess.run(cluster.command(command), capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["done"], done.stderr[-5000:]
