"""A Spark session for a command, without Spark."""

import os
import signal
from typing import TYPE_CHECKING, cast

import pytest

from kestrelmq.cli.pipeline import SparkFlags, wait_for
from kestrelmq.cli.spark_runs import root_cause, signals_held_back, sigterm_exits

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_spark_has_started(number: signal.Signals) -> None:
    """Otherwise the start would leave a process that never ends."""
    before, has_started = signal.getsignal(number), False
    with pytest.raises((KeyboardInterrupt, SystemExit)), sigterm_exits():  # noqa: PT012
        with signals_held_back():
            os.kill(os.getpid(), number)
            has_started = True
        raise AssertionError("the signal did not come")
    assert has_started
    with sigterm_exits(), signals_held_back():
        pass
    assert signal.getsignal(number) is before


class Query:
    """A streaming query that goes on until it is stopped, while a signal comes."""

    def __init__(self, number: signal.Signals) -> None:
        self._number = number
        self.is_stopped = False

    def awaitTermination(self, _timeout: float) -> bool:  # noqa: N802 # Spark's name
        """Return whether it has ended."""
        if not self.is_stopped:
            os.kill(os.getpid(), self._number)
        return self.is_stopped

    def stop(self) -> None:
        """End it."""
        self.is_stopped = True

    def exception(self) -> None:
        """Return the error that ended it."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_query_that_follows_is_stopped_by_a_signal(number: signal.Signals) -> None:
    """That is how it ends, so it is no failure; the handlers are as before."""
    query, before = Query(number), signal.getsignal(number)
    wait_for(cast("StreamingQuery", query), follow=True)
    assert query.is_stopped
    assert signal.getsignal(number) is before


def test_a_query_that_is_not_done_does_not_end_like_one_that_is() -> None:
    """A script that goes on after success must not take a queue for drained."""
    with pytest.raises(KeyboardInterrupt):
        wait_for(cast("StreamingQuery", Query(signal.SIGINT)), follow=False)
    with pytest.raises(SystemExit) as ended, sigterm_exits():
        wait_for(cast("StreamingQuery", Query(signal.SIGTERM)), follow=False)
    assert ended.value.code == 143


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


def test_packages_are_a_setting_that_conf_overrides() -> None:
    """As of `spark-submit`."""
    assert SparkFlags(conf=["a=b=c"]).settings == {"a": "b=c"}
    assert SparkFlags(packages="g:a:1").settings == {"spark.jars.packages": "g:a:1"}
    assert SparkFlags(conf=["spark.jars.packages=x"], packages="y").settings == {
        "spark.jars.packages": "x"
    }
