"""`kestrelmq backup` and `restore`: a copy of queues while they are served, and the way back."""

import json
from pathlib import Path
from typing import Annotated

import typer

from kestrelmq.cli.tables import JsonFlag
from kestrelmq.clock import SystemClock
from kestrelmq.config import ServerConfig, load_config
from kestrelmq.tools import backup as backups


def backup(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The new directory for the backup.")
    ],
    *,
    queue_path: Annotated[
        Path | None,
        typer.Option(help="What to back up; by default, the server's.", show_default=False),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="The server's configuration file, for its queue path."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Copy all queues of a queue path to a new directory, while a server uses them.

    \b
    kestrelmq backup /backups/monday
    kestrelmq backup /backups/monday --queue-path /var/lib/kestrelmq

    Each queue is as it was at one moment during the backup. On the same file system, files that do
    not change any more are linked, not copied. It needs the permission to read the files, and
    nothing of the server.
    """  # noqa: D301 # \b is for the help
    if queue_path is None:
        queue_path = (load_config(config) if config is not None else ServerConfig()).queue_path
    done = backups.back_up(queue_path, directory, SystemClock())
    _report("backed up", queue_path, done, as_json=as_json)
    if not done.is_one_moment and not as_json:
        print("the queues changed all the time: each is as of a moment of its own")


def restore(
    *,
    source: Annotated[Path, typer.Option("--from", metavar="DIR", help="The backup.")],
    queue_path: Annotated[Path, typer.Option(help="The new or empty queue path.")],
    as_json: JsonFlag = False,
) -> None:
    """Copy a backup to a queue path, for a server to start on.

    \b
    kestrelmq restore --from /backups/monday --queue-path /var/lib/kestrelmq

    All queues are restored, or none. A queue path that is in use, or not empty, is refused.
    """  # noqa: D301 # \b is for the help
    _report("restored", queue_path, backups.restore(source, queue_path), as_json=as_json)


def _report(verb: str, path: Path, done: backups.Manifest, *, as_json: bool) -> None:
    linked = sum(one.crc32 is None for one in done.files)
    if as_json:
        counts = {"queues": done.queues, "files": len(done.files), "linked": linked}
        times = {"began": done.began, "is_one_moment": done.is_one_moment}
        print(json.dumps({"queue_path": str(path), **counts, "bytes": done.size, **times}))
        return
    print(f"{path}: {verb} {done.queues} queues, {len(done.files)} files of {done.size} bytes")
