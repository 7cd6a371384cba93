"""How often something may happen, by a clock."""

from kestrelmq.clock import Throttle
from tests.support.fake_clock import FakeClock


def passed(clock: FakeClock, throttle: Throttle) -> list[float]:
    """Try eight times, half a second apart; return when it passed (seconds)."""
    found = []
    for _ in range(8):
        if throttle.passes():
            found.append(clock.monotonic())
        clock.advance(0.5)
    return found


def test_a_throttle_passes_at_once_and_then_at_intervals() -> None:
    """They are counted from when it passed last; what was refused meanwhile changes nothing."""
    clock = FakeClock()
    throttle = Throttle(clock, 1.2)
    assert passed(clock, throttle) == [0, 1.5, 3]
    clock.advance(60)
    assert passed(clock, throttle) == [64, 65.5, 67]


def test_a_throttle_may_wait_at_first() -> None:
    """What takes less than an interval then passes never."""
    clock = FakeClock()
    assert passed(clock, Throttle(clock, 1.5, waits=True)) == [1.5, 3]
