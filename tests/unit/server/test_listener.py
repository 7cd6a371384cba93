"""What a listener logs."""

import errno

import pytest

from kestrelmq.server.listener import Exhaustion


def test_a_lack_of_descriptors_that_lasts_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Not each time that accepting is tried again, which is several times a second."""
    exhaustion = Exhaustion("text")
    for _ in range(3):
        exhaustion.log(OSError(errno.EMFILE, "Too many open files"))
    assert caplog.messages == ["text: cannot accept connections: Too many open files"]
