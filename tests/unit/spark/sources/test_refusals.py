"""Queues that a server refuses to let be read."""

import pytest

from kestrelmq.errors import ServerRefused
from kestrelmq.spark.sources.refusals import QueueCannotBeRead, ask_when_loaded
from tests.support.fake_clock import FakeClock


def test_only_a_queue_that_is_loading_is_waited_for() -> None:
    """Until it is there, or patience ends; anything else fails at once and names both."""
    clock = FakeClock()
    answers: list[str | ServerRefused] = [ServerRefused("queue q is still loading")] * 3

    def ask() -> str:
        answer = answers.pop(0)
        if isinstance(answer, ServerRefused):
            raise answer
        return answer

    def outcome(patience: float) -> str:
        return ask_when_loaded("q", "a:1", ask, patience, clock=clock, pause=clock.advance)

    answers.append("item")
    assert outcome(10.0) == "item"
    answers += [ServerRefused("queue q is still loading")] * 1000
    with pytest.raises(QueueCannotBeRead, match=r"queue 'q' on a:1 cannot be read: .*loading"):
        outcome(10.0)
    answers[:] = [ServerRefused("q is damaged")]
    with pytest.raises(QueueCannotBeRead, match="damaged"):
        outcome(10.0)
    answers[:] = [ServerRefused("unknown", "ERROR")]
    with pytest.raises(ServerRefused, match="unknown"):
        outcome(10.0)
