"""Looking for events before sleeping: when it is done, and when it is left out."""

import select
import socket
import time

import pytest

from kestrelmq.server.loop.busy_poll import POLL_TIME, BusyPoll, Events

pytestmark = pytest.mark.compiled

EVENT = [(7, 1)]
MOST = 512
CALL = 20e-6
"""Seconds that a look takes."""


class Script:
    """A `Poll` whose looks find something when told to and whose sleeps always do; its clock."""

    def __init__(self, sleep: float = 100e-6) -> None:
        self.now = 0.0
        self.sleep = sleep
        self.empty_looks = 0
        self.looks = 0
        self.sleeps = 0

    def poll(self, timeout: float, most: int) -> Events:
        """Find nothing for `empty_looks` looks."""
        assert most == MOST
        if timeout:
            self.sleeps += 1
            self.now += self.sleep
            return EVENT
        self.looks += 1
        self.empty_looks -= 1
        self.now += CALL
        return EVENT if self.empty_looks < 0 else []

    def clock(self) -> float:
        """The time, in seconds."""
        return self.now


def busy_poll(script: Script) -> BusyPoll:
    """Wait in the script's time."""
    return BusyPoll(script.poll, script.clock)


def vain_looks(script: Script, waits: BusyPoll, turns: int) -> list[int]:
    """In which of so many waits, with nothing to be found, it looked."""
    looked = []
    for turn in range(turns):
        before = script.looks
        script.empty_looks = 1 << 30
        assert waits.wait(-1.0, MOST) == EVENT
        if script.looks > before:
            looked.append(turn)
    return looked


def test_a_busy_server_makes_one_call_a_wait() -> None:
    """A busy server makes one call a wait, as without looking."""
    script = Script()
    assert busy_poll(script).wait(-1.0, MOST) == EVENT
    assert (script.looks, script.sleeps) == (1, 0)


def test_what_comes_soon_is_found_without_sleeping() -> None:
    """A client that asks again at once is found by looking, each time."""
    script = Script()
    waits = busy_poll(script)
    for _ in range(100):
        script.empty_looks = 2
        assert waits.wait(-1.0, MOST) == EVENT
    assert (script.looks, script.sleeps) == (300, 0)


def test_a_look_ends_in_time() -> None:
    """After `POLL_TIME` it sleeps."""
    script = Script()
    vain_looks(script, busy_poll(script), 1)
    assert script.now - script.sleep <= POLL_TIME + CALL
    assert script.sleeps == 1


def test_what_does_not_come_is_looked_for_ever_less() -> None:
    """Each vain look doubles the sleeps until the next, up to 512."""
    script = Script()
    looked = vain_looks(script, busy_poll(script), 2100)
    assert looked == [0, 2, 5, 10, 19, 36, 69, 134, 263, 520, 1033, 1546, 2059]
    assert script.sleeps == 2100


def test_looking_that_pays_again_becomes_more_frequent() -> None:
    """Each look that finds something halves them."""
    script = Script()
    waits = busy_poll(script)
    assert vain_looks(script, waits, 521)[-1] == 520
    script.sleeps = 0
    for _ in range(1200):
        script.empty_looks = 1
        waits.wait(-1.0, MOST)
    assert script.sleeps == 512
    # In vain once: two short sleeps without a look would be four, had nothing been forgotten.
    assert vain_looks(script, waits, 3) == [0, 2]


def test_an_idle_server_does_not_look() -> None:
    """Long sleeps do not bring the next look nearer."""
    script = Script(sleep=0.05)
    assert vain_looks(script, busy_poll(script), 1000) == [0]


def test_a_wait_of_no_time_is_one_call() -> None:
    """Who does not want to sleep is not kept."""
    script = Script()
    script.empty_looks = 1
    assert busy_poll(script).wait(0.0, MOST) == []
    assert (script.looks, script.sleeps) == (1, 0)


def test_real_descriptors() -> None:
    """With epoll: nothing until the time is over, then what came."""
    ours, theirs = socket.socketpair()
    with ours, theirs, select.epoll() as epoll:
        epoll.register(ours, select.EPOLLIN)
        waits = BusyPoll(epoll.poll)
        began = time.perf_counter()
        assert waits.wait(0.01, MOST) == []
        assert time.perf_counter() - began >= 0.009
        theirs.send(b"x")
        assert waits.wait(-1.0, MOST) == [(ours.fileno(), select.EPOLLIN)]
