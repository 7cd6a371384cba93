"""A Spark session for a command, without Spark."""

import os
import signal

import pytest

from kestrelmq.cli.spark_runs import interrupts_held_back, root_cause


def test_an_interrupt_waits_until_spark_has_started() -> None:
    """Otherwise the start would leave a process that never ends."""
    before, has_started = signal.getsignal(signal.SIGINT), False
    with pytest.raises(KeyboardInterrupt), interrupts_held_back():  # noqa: PT012
        os.kill(os.getpid(), signal.SIGINT)
        has_started = True
    assert has_started
    with interrupts_held_back():
        pass
    assert signal.getsignal(signal.SIGINT) is before


class JavaError:
    """An exception of Java, as py4j shows it."""

    def __init__(self, message: str | None, cause: "JavaError | None" = None) -> None:
        self.getMessage = lambda: message
        self.getCause = lambda: cause
        self.toString = lambda: "java.lang.Exception"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (JavaError("job aborted", JavaError("no room\nmore")), "no room"),
        (
            JavaError("\nthe context was stopped.\n\na.b.C.d(C.java:1)\n"),
            "the context was stopped.",
        ),
        (JavaError(None), "java.lang.Exception"),
        (JavaError(" \n"), "java.lang.Exception"),
    ],
)
def test_an_error_of_java_is_one_line(error: JavaError, line: str) -> None:
    """Without the stack traces that Spark puts into some messages."""
    assert root_cause(error) == line
