"""Removing large files at once, and freeing their room where nobody waits for that.

The disk frees a file when it has no name and nobody has it open, which takes tens of milliseconds
for a long one. A crash frees it, too.
"""

import contextlib
import os
from collections.abc import Callable


class Nameless:
    """Files that are held open while they lose their names."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []

    def __len__(self) -> int:
        return len(self._descriptors)

    def hold(self, name: str, open_file: Callable[[str], int]) -> None:
        """Hold a file, which `open_file` opens, if that can be done."""
        with contextlib.suppress(OSError):
            self._descriptors.append(open_file(name))

    def free(self, pause: Callable[[], None]) -> None:
        """Let the files go, which may take long; `pause` is called after each."""
        while self._descriptors:
            os.close(self._descriptors.pop())
            pause()

    def __del__(self) -> None:
        self.free(lambda: None)
