"""A Spark session for a command, without Spark."""

import os
import signal

import pytest

from kestrelmq.cli.spark_runs import interrupts_held_back


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
