"""Extending the leases that a blocking client holds. The servers are played."""

from collections.abc import Iterable
from threading import Event, Semaphore, Thread
from typing import Any

import pytest

from kestrelmq.client import Client
from kestrelmq.client.address import Address, parse_addresses
from kestrelmq.client.commands import HeldItem
from kestrelmq.client.heartbeats import Heartbeats
from kestrelmq.client.plans import HeldReads, HoldStep, Plan, RunStep
from kestrelmq.errors import ClientError
from tests.support.patience import PATIENCE

SILENT, OTHER = parse_addresses("silent:1,other:1")


class PlayedClient(Client):
    """Reserves an item of each server in turn; one of them does not answer when it is to extend."""

    def __init__(self) -> None:
        super().__init__([str(SILENT), str(OTHER)])
        self.asked = {SILENT: Event(), OTHER: Event()}
        self.answers = Event()
        self._reserved_at = iter((SILENT, OTHER))

    async def _do(self, plan: Plan[Any], _: Iterable[HeldReads[Any]] = ()) -> Any:
        answer: Any = None
        try:
            while True:
                step = plan.send(answer)
                if isinstance(step, HoldStep):
                    answer = HeldReads(
                        next(self._reserved_at), None, HeldItem(b"x", "1-a", 1, 0, 0)
                    )
                else:
                    answer = 1
                    if isinstance(step, RunStep):
                        self._extend(step.server)
        except StopIteration as done:
            return done.value

    def _extend(self, server: Address) -> None:
        self.asked[server].set()
        if server == SILENT:
            self.answers.wait(PATIENCE)


def test_a_server_that_does_not_answer_costs_the_items_of_others_nothing() -> None:
    """Their leases are extended meanwhile."""
    client = PlayedClient()
    with (
        client.reserve("work", heartbeat=0.001),
        client.reserve("work", heartbeat=0.001),
    ):
        assert client.asked[SILENT].wait(PATIENCE)
        client.asked[OTHER].clear()
        assert client.asked[OTHER].wait(PATIENCE / 2)
        client.answers.set()


def test_a_lease_is_extended_again_after_a_time_without_room_for_threads() -> None:
    """The block that finds no room says so; what is reserved later has heartbeats as ever."""
    client = PlayedClient()

    def no_room(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Thread, "start", no_room)
        with (
            pytest.raises(ClientError, match="no thread to extend the lease"),
            client.reserve("work", heartbeat=0.001),
        ):
            raise AssertionError("nothing would extend the lease of this item")
    assert not client.asked[SILENT].is_set()
    with client.reserve("work", heartbeat=0.001):
        assert client.asked[OTHER].wait(PATIENCE)


def test_an_error_that_nobody_foresaw_does_not_end_the_heartbeats() -> None:
    """Those of other items, and the next ones of the same item."""
    beats, tries = Heartbeats(), Semaphore(0)

    class Broken:
        is_over = False

        def extend(self) -> bool:
            tries.release()
            raise AssertionError("a bug")

    with beats.kept_up(Broken(), 0.001):
        for _ in range(2):
            assert tries.acquire(timeout=PATIENCE)
