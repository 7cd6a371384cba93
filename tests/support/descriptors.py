"""Which files this process has open."""

from pathlib import Path


def open_below(path: Path) -> list[str]:
    """Return the names of the files at or below `path` that this process has open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = descriptor.readlink()
        except FileNotFoundError:
            continue  # it was the one that lists them
        if target.is_relative_to(path) and not target.is_dir():
            found.append(target.name)
    return sorted(found)
