"""How many tokens a peer may try."""

import pytest

from kestrelmq.admin.errors import ApiError
from kestrelmq.admin.signins import FAILURE_BURST, SignIns


class Watch:
    """A clock that is set."""

    now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def refused(signins: SignIns, peer: str) -> int:
    """Return the seconds that `peer` is told to wait; 0 if it may try."""
    try:
        signins.check(peer)
    except ApiError as error:
        return int(error.headers["Retry-After"]) if error.status == 429 else -1
    return 0


def test_after_some_failures_there_is_one_try_a_second() -> None:
    """Then time alone helps; after a while all is forgotten."""
    watch = Watch()
    signins = SignIns(watch)
    for _ in range(FAILURE_BURST):
        assert refused(signins, "10.0.0.7") == 0
        signins.failed("10.0.0.7", "10.0.0.7:1")
    assert refused(signins, "10.0.0.7") == 1
    assert refused(signins, "10.0.0.8") == 0
    for _ in range(3):
        watch.now += 0.999
        assert refused(signins, "10.0.0.7") >= 1
        watch.now += 0.001
        assert refused(signins, "10.0.0.7") == 0
        signins.failed("10.0.0.7", "10.0.0.7:1")
    watch.now += FAILURE_BURST
    for _ in range(FAILURE_BURST):
        assert refused(signins, "10.0.0.7") == 0
        signins.failed("10.0.0.7", "10.0.0.7:1")
    assert refused(signins, "10.0.0.7") > 0


def test_failures_are_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    """One line for many, with how many there were."""
    watch = Watch()
    signins = SignIns(watch)
    for _ in range(500):
        signins.failed("10.0.0.7", "10.0.0.7:1")
    watch.now += 10
    signins.failed("10.0.0.7", "10.0.0.7:2")
    assert [record.getMessage() for record in caplog.records] == [
        "10.0.0.7:1 showed a wrong admin token (failures lately: 1)",
        "10.0.0.7:2 showed a wrong admin token (failures lately: 500)",
    ]


def test_very_many_peers_take_bounded_memory() -> None:
    """The oldest are forgotten."""
    signins = SignIns(Watch())
    for number in range(20_000):
        signins.failed(f"peer-{number}", "")
    assert len(signins._failures) <= 4096
