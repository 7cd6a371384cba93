"""The load generator against the barest of servers, in processes of their own."""

import sys
from pathlib import Path

import pytest

from bench import servers
from bench.load import process
from bench.load.process import Load
from bench.load.workload import Operation


@pytest.mark.parametrize("option", ["", "--look"])
def test_every_request_is_answered(option: str, tmp_path: Path) -> None:
    """Sets are stored, gets return what the sets sent, and the server's CPU time is known."""
    peer = servers.custom_peer("bare", f"{sys.executable} -m bench.bare {{port}} {option}")
    with servers.running(peer, None, tmp_path) as server:
        work = Load((Operation.SET, Operation.GET), 400, connections=4)
        phases = process.run(work, peer, server)
    assert [(one.operation, one.operations, one.misses) for one in phases] == [
        ("set", 400, 0),
        ("get", 400, 0),
    ]
    assert all(one.server_cpu for one in phases)
