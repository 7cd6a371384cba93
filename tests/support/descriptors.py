"""Which files this process has open."""

from collections.abc import Iterator
from pathlib import Path


def open_below(path: Path) -> list[str]:
    """Return the names of the files at or below `path` that this process has open."""
    return sorted(
        target.name for target in _targets() if target.is_relative_to(path) and not target.is_dir()
    )


def times_open(path: Path) -> int:
    """Return under how many descriptors this process has `path` open, a file or a directory."""
    return sum(target == path for target in _targets())


def _targets() -> Iterator[Path]:
    """Yield what each descriptor of this process refers to."""
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            yield descriptor.readlink()
        except FileNotFoundError:
            continue  # it was the one that lists them
