"""What a fork of the process that runs the tests does with its copies of objects."""

import os
from collections.abc import Callable


def in_a_fork(work: Callable[[], object]) -> str:
    """Do some work in a fork of this process; return its result, or the name of its error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            outcome = repr(work())
        except BaseException as error:  # noqa: BLE001 # nothing may leave this process
            outcome = type(error).__name__
        os.write(writing, outcome.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as result:
        os.waitpid(child, 0)
        return result.read().decode()
