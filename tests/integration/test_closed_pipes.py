"""Commands whose reader has enough, as `head` does: they end without a word."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from kestrelmq.client import Client
from tests.support.forking import ForkedProcess
from tests.support.patience import PATIENCE
from tests.support.server import ServerProcess, running_server

_PROGRAM: Final = """
import os, sys
reading, writing = os.pipe()
os.close(reading)
os.dup2(writing, 1)
from kestrelmq.cli.main import main
main()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with items."""
    with running_server(tmp_path_factory.mktemp("server")) as process:
        with Client(process.address) as client:
            client.put_many("work", [b"x" * 1000] * 100)
        yield process


@pytest.mark.parametrize(
    "words",
    [
        "--version",
        "--help",
        "put --help",
        "journal --help",
        "queues",
        "queues --json",
        "stats",
        "clients",
        "owners",
        "status",
        "top --once --interval 1ms",
        "browse work",
        "peek work",
        "get work --count 0",
        "monitor work 1ms",
        "reserve work --lease 1m --count 10",
        "export work",
        "copy work copies --count 1",
        "health --server 127.0.0.1:{admin}",
        "bench put-many -n 10 --queue bench --server {memcache}",
        "config show",
        "config schema",
        "journal dump {path}",
        "journal verify {path}",
        "journal export {path}",
    ],
)
def test_a_closed_pipe_is_no_error_to_speak_of(
    server: ServerProcess, words: str, tmp_path: Path
) -> None:
    """No traceback, no `Broken pipe`."""
    places = {"admin": server.ports["admin"], "memcache": server.address}
    given = words.format(path=server.queue_path, **places).split()
    environment = {"KESTRELMQ_SERVERS": server.address, "HOME": str(tmp_path), "SHELL": "/bin/bash"}
    process = ForkedProcess(_PROGRAM, given, environment)
    with process.stdout:
        status = process.wait(PATIENCE)
        said = process.stdout.read()
    warnings = [line for line in said.splitlines() if "kestrelmq: warning: " not in line]
    assert (status, warnings) == (1, [])
