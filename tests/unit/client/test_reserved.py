"""Holding an item, as plans: what is tried again, and where. The servers are played."""

from collections.abc import Callable
from typing import Any

import pytest

from kestrelmq.client.address import parse_address
from kestrelmq.client.cluster import membership_of
from kestrelmq.client.commands import Command, HeldItem
from kestrelmq.client.options import ClientOptions, checked_lease
from kestrelmq.client.plans import HeldReads, HoldStep, PauseStep, Plan, Planner, ReleaseStep, Step
from kestrelmq.client.reserved import ItemPlans, beat_period
from kestrelmq.errors import (
    ConnectionLost,
    InvalidRequest,
    LeaseEnded,
    ServerRefused,
    ServerUnavailable,
)

SERVER = parse_address("127.0.0.1:1")
RESERVED = HeldItem(b"x", "7-ab", 1, 2, 0)
Answer = Callable[[bytes], Any]


class Played:
    """One server, and the time: it answers a plan, request by request."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.now = 0.0
        self.planner = Planner.of(
            membership_of(str(SERVER)), ClientOptions(), lambda: self.now, None
        )

    def run(self, plan: Plan[Any]) -> Any:
        """Carry out a plan; an answer that is an error is thrown into it."""
        answer: object = None
        try:
            while True:
                step: Step
                if isinstance(answer, BaseException):
                    step = plan.throw(answer)
                else:
                    step = plan.send(answer)
                answer = self._answer(step)
        except StopIteration as done:
            return done.value

    def _answer(self, step: Step) -> object:
        if isinstance(step, PauseStep):
            self.now += step.seconds
            return None
        command = step.command if isinstance(step.command, Command) else step.command("me")
        self.requests.append(command.request)
        answer = self.answers.pop(0)
        if isinstance(step, HoldStep) and isinstance(answer, HeldItem):
            return HeldReads(SERVER, None, answer)
        return answer

    def held(self, item: HeldItem = RESERVED) -> ItemPlans:
        """Return the plans of an item that the server has handed out."""
        return ItemPlans(self.planner, "q", HeldReads(SERVER, None, item), 60)


def test_a_server_without_reserved_reads_opens_one() -> None:
    """It is asked to reserve only once; the item ends with the read."""
    refusal = ServerRefused("unknown command", "CLIENT_ERROR")
    played = Played(refusal, HeldItem(b"a"), HeldItem(b"b"), b"", b"")
    for data in (b"a", b"b"):
        held = played.run(played.planner.reserve("q", None, 60, 0))
        assert held.result.data == data
    first, second = played.held(HeldItem(b"a")), played.held(HeldItem(b"b"))
    assert played.run(first.extend()) is True
    with pytest.raises(InvalidRequest):
        played.run(first.release(5))
    played.run(first.end())
    played.run(second.abort())
    assert played.requests == [
        b"reserve q 1 lease=60000 owner=me grace=0\r\n",
        b"get q/open\r\n",
        b"get q/open\r\n",
        b"get q/close\r\n",
        b"get q/abort\r\n",
    ]


def test_a_refusal_that_concerns_the_queue_is_raised() -> None:
    """The server may well have reserved reads: it is asked again the next time."""
    refusal = ServerRefused("not allowed", "CLIENT_ERROR")
    played = Played(refusal, refusal, refusal, refusal)
    for _ in range(2):
        with pytest.raises(ServerRefused):
            played.run(played.planner.reserve("q", None, 60, 0))
    assert [request[:4] for request in played.requests] == [b"rese", b"get ", b"rese", b"get "]


def test_an_item_is_ended_over_another_connection() -> None:
    """Its own one broke, perhaps with the server, which keeps what is reserved."""
    down = ServerUnavailable("down")
    played = Played(down, down, down, 1)
    played.run(played.held().end())
    assert set(played.requests) == {b"finish q 7-ab\r\n"}
    assert played.now > 0
    played = Played(ConnectionLost("lost"), 1)
    played.run(played.held().end())


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ((0,), LeaseEnded),
        ((ServerUnavailable("not sent"), 0), LeaseEnded),
        ((ConnectionLost("sent"), 0), ConnectionLost),
        ((ConnectionLost("sent"), *[ServerUnavailable("down")] * 100), ConnectionLost),
    ],
)
def test_what_is_not_known_to_be_confirmed_is_an_error(
    answers: tuple[object, ...], error: type[Exception]
) -> None:
    """The lease ended, or the first attempt may have arrived."""
    played = Played(*answers)
    with pytest.raises(error):
        played.run(played.held().end())


def test_an_item_is_over_only_once() -> None:
    """What was released is not confirmed at the end of the block."""
    played = Played(1)
    item = played.held()
    for wrong in (-1, float("nan")):
        with pytest.raises(InvalidRequest):
            played.run(item.release(wrong))
    played.run(item.release(0.5))
    played.run(item.end())
    played.run(item.abort())
    assert played.run(item.extend()) is False
    with pytest.raises(InvalidRequest):
        played.run(item.finish())
    assert played.requests == [b"release q delay=500 7-ab\r\n"]


def test_a_release_after_the_lease_is_an_error() -> None:
    """But not when the block raises: its own error counts."""
    played = Played(0, 0)
    with pytest.raises(LeaseEnded):
        played.run(played.held().release(dead=True))
    played.run(played.held().abort())


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_lease_is_bounded(seconds: float) -> None:
    """A bad one is refused before anything is sent."""
    with pytest.raises(InvalidRequest):
        checked_lease(seconds)
    with pytest.raises(InvalidRequest):
        Played().run(Played().held().extend(seconds))
    if seconds != 0:
        with pytest.raises(InvalidRequest):
            Played().run(Played().held().release(seconds))


def test_a_heartbeat_comes_before_the_end() -> None:
    """By default, there is time for two that fail."""
    assert beat_period(60, heartbeat=True) == 20
    assert beat_period(60, heartbeat=59) == 59
    assert beat_period(60, heartbeat=None) is beat_period(60, heartbeat=False) is None
    for wrong in (60, 0, -1):
        with pytest.raises(InvalidRequest):
            beat_period(60, heartbeat=wrong)


def test_ending_a_read_uses_its_connection_first() -> None:
    """It is free then."""
    plan = Played().held().end()
    assert isinstance(next(plan), ReleaseStep)
