"""What a process may do, made less for a while."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest


@contextmanager
def largest_file(size: int, pid: int = 0) -> Iterator[None]:
    """Let no file of a process, by default this one, grow beyond `size` bytes: a disk is full."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def no_new_threads(reason: str = "can't start new thread") -> Iterator[None]:
    """Let no thread of this process start: the system has no room for one."""

    def no_room(_thread: Thread) -> None:
        raise RuntimeError(reason)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Thread, "start", no_room)
        yield
