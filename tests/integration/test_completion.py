"""Completion in a shell, as `kestrelmq --install-completion` sets it up."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kestrelmq.client import Client
from tests.support.patience import PATIENCE
from tests.support.server import running_server

bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


class Shell:
    """Bash, after `kestrelmq --install-completion` in an empty home directory."""

    def __init__(self, home: Path, servers: str) -> None:
        command = home / "kestrelmq"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m kestrelmq "$@"\n')
        command.chmod(0o755)
        variables = {"HOME": str(home), "KESTRELMQ_SERVERS": servers}
        self._environment = os.environ | variables | {"PATH": f"{home}:{os.environ['PATH']}"}
        # The list keeps bash there, as the parent whose name decides what is installed.
        self._run("kestrelmq --install-completion && true")

    def completions(self, line: str) -> list[str]:
        """Return what bash proposes for the last word of `line`."""
        words = " ".join(f"'{word}'" for word in line.split(" "))
        last = line.count(" ")
        return self._run(
            f". ~/.bashrc; COMP_WORDS=({words}) COMP_CWORD={last}; _kestrelmq_completion kestrelmq;"
            ' printf "%s\\n" "${COMPREPLY[@]}"; complete -p kestrelmq >&2'
        ).splitlines()

    def _run(self, script: str) -> str:
        done = subprocess.run(
            ["bash", "--norc", "-c", script],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@bash
def test_commands_options_and_queues_are_proposed(tmp_path: Path) -> None:
    """The names of queues are those of the server."""
    home = tmp_path / "home"
    home.mkdir()
    with running_server(tmp_path) as server, Client(server.address) as client:
        client.put("orders", b"x")
        client.put("other", b"x")
        client.put("work", b"x")
        shell = Shell(home, server.address)
        assert shell.completions("kestrelmq re") == [
            "reserve",
            "release",
            "retire",
            "redrive",
            "resume",
            "reload",
            "restore",
        ]
        assert shell.completions("kestrelmq journal ver") == ["verify"]
        assert shell.completions("kestrelmq queues --by") == ["--by-server"]
        assert shell.completions("kestrelmq get or") == ["orders"]
    assert shell.completions("kestrelmq get or") == [""]
