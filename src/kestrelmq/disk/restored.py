"""The last step of restoring a queue path: all files take their places, or none does.

A restore collects its files in a directory of the queue path, syncs them, and renames the directory
to `~~restored`. From then on they count. A crash may leave some of them in there; whoever locks the
queue path next moves them to their places.
"""

from pathlib import Path
from typing import Final

from kestrelmq.disk.renaming import rename_durably, sync_path

RESTORED_NAME: Final = "~~restored"


def commit_restore(path: Path, work: Path) -> None:
    """Let the files of `work`, a directory in the queue path `path`, be in that. Raises OSError."""
    sync_path(work)
    rename_durably(work, path / RESTORED_NAME)
    finish_restore(path)


def is_unfinished(path: Path) -> bool:
    """Whether a restore of the queue path `path` was interrupted once its files counted."""
    left = path / RESTORED_NAME
    return left.is_dir() and not left.is_symlink()


def finish_restore(path: Path) -> None:
    """Move what an interrupted restore left to its place, if there is any. Raises OSError."""
    if not is_unfinished(path):
        return
    left = path / RESTORED_NAME
    for one in left.iterdir():
        one.rename(path / one.name)
    sync_path(path)
    left.rmdir()
    sync_path(path)
