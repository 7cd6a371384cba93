"""The history of queues in steps: its points are averages, and its memory is bounded."""

import random

import pytest

from kestrelmq.admin.history import MAX_STEPPED, Histories, Point, SteppedHistory, Totals

STEP, SPAN = 15_000, 3_600_000
BEGUN = 1_750_000_005_000


@pytest.mark.parametrize("seed", range(20))
def test_points_are_averages_over_their_steps(seed: int) -> None:
    """Whenever the queue was looked at, every step has the items that were added in it."""
    rng = random.Random(seed)
    history = SteppedHistory(STEP, SPAN)
    now, added, taken = BEGUN, 1000, 700
    history.add("q", Totals(now, added - taken, added, taken, 1), added, taken)
    counted: dict[int, list[int]] = {}
    for _ in range(300):
        now += rng.choice((1000, 1000, 5000, 70_000))
        puts, gets = rng.randrange(9), rng.randrange(4)
        added, taken = added + puts, taken + gets
        history.add("q", Totals(now, added - taken, added, taken, now), 0, 0)
        step = counted.setdefault(now - now % STEP, [0, 0])
        step[0] += puts
        step[1] += gets
    later = now - now % STEP + STEP
    points = {point.time: point for point in history.points("q", later) if point.time in counted}
    assert len(points) > 10
    for time, point in points.items():
        assert point.put_rate == pytest.approx(counted[time][0] / 15, abs=0.001)
        assert point.get_rate == pytest.approx(counted[time][1] / 15, abs=0.001)
    (last,) = [point for point in points.values() if point.time == now - now % STEP]
    assert (last.items, last.oldest) == (added - taken, now)
    times = [point.time for point in history.points("q", later)]
    assert times == sorted(times)
    assert sum(time < later - SPAN for time in times) <= 1


def test_an_idle_queue_has_no_rate() -> None:
    """Neither between two busy times nor after the last."""
    history = SteppedHistory(STEP, SPAN)
    start = BEGUN - BEGUN % STEP
    for time, added in ((start, 0), (start + 5000, 30), (start + 10 * STEP, 45)):
        history.add("q", Totals(time, added, added, 0, 7), 0, 0)
    busy = Point(start, 30, 2.0, 0.0, 7)
    idle = Point(start + STEP, 30, 0.0, 0.0, 7)
    again = Point(start + 10 * STEP, 45, 1.0, 0.0, 7)
    ended = Point(start + 11 * STEP, 45, 0.0, 0.0, 7)
    assert history.points("q", start + 11 * STEP) == [busy, idle, again]
    assert history.points("q", start + 12 * STEP) == [busy, idle, again, ended]
    assert history.points("q", start + 10 * STEP + 5000)[-1].put_rate == 3.0


def test_memory_is_bounded() -> None:
    """Queues that change stay; one that does not makes room; no newcomer pushes out another's."""
    history = SteppedHistory(STEP, SPAN)
    start = BEGUN - BEGUN % STEP
    for step in range(3):
        for number in range(MAX_STEPPED + 50):
            history.add(str(number), Totals(start + step * STEP, 1, step, 0, 0), 0, 0)
    known = [n for n in range(MAX_STEPPED + 50) if history.points(str(n), start + 3 * STEP)]
    assert known == list(range(MAX_STEPPED))
    for number in range(1, MAX_STEPPED):
        history.add(str(number), Totals(start + 3 * STEP, 1, 9, 0, 0), 0, 0)
    history.add("new", Totals(start + 3 * STEP, 1, 9, 0, 0), 0, 0)
    assert history.points("0", start + 3 * STEP) == []
    assert history.points("new", start + 3 * STEP) != []
    history.forget("new")
    assert history.points("new", start + 3 * STEP) == []


def test_a_queue_without_steps_has_its_details() -> None:
    """One that never changed is shown as it is."""
    histories = Histories()
    point = Point(BEGUN, 3, 0.0, 0.0, 5)
    histories.add("q", point)
    assert histories.points("q", "day", BEGUN) == [point]
    for time in (BEGUN, BEGUN + 1000):
        histories.count("q", Totals(time, 3, 3, 0, 5), 2, 0)
    (day,) = histories.points("q", "day", BEGUN + 1000)
    assert day.time == BEGUN - BEGUN % 300_000
    assert day.put_rate > 0  # what was added before the first look counts, too
    histories.forget("q")
    assert histories.points("q", "day", BEGUN) == histories.points("q", "minutes", BEGUN) == []
