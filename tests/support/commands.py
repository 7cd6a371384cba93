"""Commands of `kestrelmq`, run as a shell runs them, but in a forked process: it starts at once."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.support.forking import ForkedProcess
from tests.support.patience import PATIENCE

_PROGRAM: Final = """
import io, os, sys
folder = sys.argv.pop(1)
for number, (name, flags) in enumerate(
    (("in", os.O_RDONLY), ("out", os.O_WRONLY | os.O_CREAT), ("err", os.O_WRONLY | os.O_CREAT))
):
    os.dup2(os.open(os.path.join(folder, name), flags, 0o600), number)
given = sys.__stdout__
sys.stdin = io.TextIOWrapper(open(0, "rb", closefd=False), given.encoding, given.errors)
sys.stdout = io.TextIOWrapper(open(1, "wb", closefd=False), given.encoding, given.errors)
sys.stderr = io.TextIOWrapper(
    open(2, "wb", closefd=False), given.encoding, "backslashreplace", line_buffering=True
)
sys.argv[0] = "kestrelmq"
from kestrelmq.cli.main import main
main()
"""


def run_command(
    *arguments: str, data: bytes = b"", environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run `kestrelmq`; return its exit status and what it printed.

    Args:
        arguments: the command and its arguments.
        data: its standard input, which is a file, like its output.
        environment: variables to set.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").write_bytes(data)
        for output in ("out", "err"):
            (folder / output).touch()
        process = ForkedProcess(_PROGRAM, [name, *arguments], os.environ | (environment or {}))
        with process.stdout:
            status = process.wait(PATIENCE)
            # What the interpreter itself prints when even `kestrelmq` cannot be imported.
            complaint = process.stdout.read().encode()
        out, err = (folder / "out").read_bytes(), (folder / "err").read_bytes()
    return subprocess.CompletedProcess([sys.executable, *arguments], status, out, complaint + err)


def run_without_room(
    *arguments: str | Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run `kestrelmq` with a standard output that is full; return its exit status and errors."""
    with Path("/dev/full").open("wb") as full:
        return subprocess.run(
            [sys.executable, "-m", "kestrelmq", *arguments],
            env=os.environ | (environment or {}),
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            timeout=PATIENCE,
        )
