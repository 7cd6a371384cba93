"""Commands of `kestrelmq`, run as a shell runs them, but in a forked process: it starts at once."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from tests.support.forking import ForkedProcess
from tests.support.patience import PATIENCE

_PROGRAM: Final = """
import io, os, sys
encoding, errors = sys.__stdout__.encoding, sys.__stdout__.errors
unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
for number, name in enumerate(("stdin", "stdout", "stderr")):
    try:
        below = open(number, "wb" if number else "rb", closefd=False)
    except OSError:
        stream = None  # it is closed
    else:
        stream = io.TextIOWrapper(
            below,
            encoding,
            "backslashreplace" if name == "stderr" else errors,
            line_buffering=name == "stderr" or below.isatty(),
            write_through=unbuffered,
        )
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)
sys.argv[0] = "kestrelmq"
from kestrelmq.cli.main import main
main()
"""


def start_command(
    *arguments: str,
    streams: tuple[int | None, int | None, int | None],
    environment: dict[str, str],
) -> ForkedProcess:
    """Start `kestrelmq`.

    Args:
        arguments: the command and its arguments.
        streams: the descriptors of its standard input, output and error; None for a closed one.
        environment: its variables.
    """
    process = ForkedProcess(_PROGRAM, [*arguments], environment, streams)
    process.stdout.close()
    return process


def run_command(
    *arguments: str,
    data: bytes = b"",
    environment: dict[str, str] | None = None,
    closed: int | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run `kestrelmq`; return its exit status and what it printed.

    Args:
        arguments: the command and its arguments.
        data: its standard input, which is a file, like its output.
        environment: variables to set.
        closed: 0 if its standard input is closed, 1 if its standard output is.
    """
    with TemporaryFile() as given, TemporaryFile() as out:
        given.write(data)
        given.seek(0)
        streams = (None if closed == 0 else given.fileno(), None if closed == 1 else out.fileno())
        ended = _run(arguments, streams, environment)
        out.seek(0)
        ended.stdout = out.read()
        return ended


def run_without_room(
    *arguments: str | Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run `kestrelmq` with a standard output that is full; return its exit status and errors."""
    with Path("/dev/full").open("r+b", buffering=0) as full:
        return _run([*map(str, arguments)], (full.fileno(), full.fileno()), environment)


def _run(
    arguments: Sequence[str],
    streams: tuple[int | None, int | None],
    environment: dict[str, str] | None,
) -> subprocess.CompletedProcess[bytes]:
    with TemporaryFile() as err:
        variables = os.environ | (environment or {})
        process = start_command(*arguments, streams=(*streams, err.fileno()), environment=variables)
        status = process.wait(PATIENCE)
        err.seek(0)
        return subprocess.CompletedProcess([*arguments], status, stderr=err.read())
