"""The thread that works on journals beside the queues."""

import os
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Event, get_ident
from threading import enumerate as enumerate_threads
from weakref import finalize

import pytest

from kestrelmq.clock import Pause
from kestrelmq.scheduling.worker import InlineWorker, ThreadWorker, Worker
from tests.support.limits import no_new_threads
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.compiled

LONG = PATIENCE
"""Seconds that nothing here takes unless it is broken."""


def test_jobs_run_one_after_the_other_and_are_reported() -> None:
    """In their order, with the exception that ended them."""
    reports: SimpleQueue[Callable[[], None]] = SimpleQueue()
    seen: list[str] = []
    worker = ThreadWorker(reports.put)

    def good(pause: Pause) -> None:
        pause()
        seen.append("good")

    def bad(_pause: Pause) -> None:
        raise OSError("full")

    worker.run(good, lambda error: seen.append(f"done {error}"))
    worker.run(bad, lambda error: seen.append(f"done {error}"))
    for _ in range(2):
        reports.get(timeout=LONG)()
    worker.close()
    assert seen == ["good", "done None", "done full"]


def test_what_a_job_tells_comes_before_its_report() -> None:
    """The owner's thread hears both, in that order; without a thread, at once."""
    reports: SimpleQueue[Callable[[], None]] = SimpleQueue()
    seen: list[tuple[str, int]] = []

    def note(what: str) -> None:
        seen.append((what, get_ident()))

    threaded = ThreadWorker(reports.put)
    for worker in (threaded, InlineWorker()):
        job = partial(_telling, worker, note)
        worker.run(job, lambda _error: note("over"))
        if worker is threaded:
            first = reports.get(timeout=LONG)
            assert [what for what, _ in seen] == ["begun"]
            first()
            reports.get(timeout=LONG)()
        assert [what for what, _ in seen] == ["begun", "told", "over"]
        owner = get_ident()
        assert [thread == owner for _, thread in seen] == [worker is not threaded, True, True]
        seen.clear()
    threaded.close()


def _telling(worker: Worker, note: Callable[[str], None], _pause: Pause) -> None:
    note("begun")
    worker.tell(partial(note, "told"))


def test_millions_of_items_are_freed_bit_by_bit() -> None:
    """Also while another job runs; closing finishes it."""
    worker = ThreadWorker(lambda report: report())
    first, second = deque([b"x"] * 50_000), deque([b"y"] * 50_000)
    lengths: list[int] = []

    def watch(pause: Pause) -> None:
        worker.free(second)
        while second:
            lengths.append(len(second))
            pause()

    worker.free(first)
    done = Event()
    worker.run(watch, lambda _error: done.set())
    assert done.wait(LONG)
    worker.close()
    assert (len(first), len(second)) == (0, 0)
    assert len(lengths) > 40


def test_jobs_that_wait_when_it_is_closed_are_given_up() -> None:
    """Nobody hears of them; the one that runs is finished."""
    reports: SimpleQueue[Callable[[], None]] = SimpleQueue()
    seen: list[object] = []
    begun, given_up = Event(), Event()
    worker = ThreadWorker(reports.put)

    def run(_pause: Pause) -> None:
        begun.set()
        seen.append(given_up.wait(LONG))

    def waits(_pause: Pause) -> None:
        seen.append("waits")

    worker.run(run, seen.append)
    assert begun.wait(LONG)
    finalize(waits, given_up.set)  # the executor drops it when it comes to the one after it
    worker.run(waits, seen.append)
    worker.run(lambda _pause: seen.append("waits, too"), seen.append)
    del waits
    worker.close()
    reports.get(timeout=LONG)()
    assert seen == [True, None]
    assert reports.empty()


def test_nothing_runs_once_it_is_closed() -> None:
    """The report of the last job may ask for the next one: that would outlive its owner."""
    reports: SimpleQueue[Callable[[], None]] = SimpleQueue()
    worker = ThreadWorker(reports.put)
    worker.run(lambda _pause: None, lambda _error: worker.run(lambda _pause: None, lambda _: None))
    worker.close()
    before = set(enumerate_threads())
    reports.get(timeout=LONG)()
    worker.free(deque([b"x"] * 5000))
    assert set(enumerate_threads()) == before
    assert reports.empty()


def test_a_job_for_which_there_is_no_thread_never_runs() -> None:
    """Who asked for it is told that, and may ask again when the system has room."""
    reports: SimpleQueue[Callable[[], None]] = SimpleQueue()
    seen: list[str] = []
    worker = ThreadWorker(reports.put)
    with no_new_threads():
        worker.run(lambda _pause: seen.append("first"), lambda error: seen.append(str(error)))
        worker.free(deque([b"x"] * 5000))
    reports.get(timeout=LONG)()
    worker.run(lambda _pause: seen.append("second"), lambda error: seen.append(str(error)))
    reports.get(timeout=LONG)()
    worker.close()
    assert seen == ["can't start new thread", "second", "None"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a policy for each thread")
def test_an_idle_priority_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that runs at idle priority, as that of its server, is left at that.

    It is only taken for one: on a busy machine, a thread at idle priority may not run for minutes.
    """
    policy, policies = os.sched_getscheduler, []
    done = Event()
    monkeypatch.setattr(os, "sched_getscheduler", lambda _thread: os.SCHED_IDLE)
    worker = ThreadWorker(lambda report: report())
    worker.run(lambda _pause: policies.append(policy(0)), lambda _error: done.set())
    assert done.wait(LONG)
    worker.close()
    assert policies == [policy(0)]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a policy for each thread")
def test_a_worker_runs_where_policies_are_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a sandbox may: then the thread has that of its owner."""

    def forbidden(_thread: int) -> int:
        raise PermissionError("forbidden")

    monkeypatch.setattr(os, "sched_getscheduler", forbidden)
    reports: SimpleQueue[Callable[[], None]] = SimpleQueue()
    seen: list[str] = []
    worker = ThreadWorker(reports.put)
    worker.run(lambda _pause: seen.append("done"), lambda error: seen.append(str(error)))
    reports.get(timeout=LONG)()
    worker.close()
    assert seen == ["done", "None"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a policy for each thread")
def test_a_waking_worker_does_not_interrupt_its_owner() -> None:
    """Jobs run as batch work; the owner's thread and those that it starts later do not."""
    policies: list[int] = []
    owner = os.sched_getscheduler(0)
    done = Event()
    worker = ThreadWorker(lambda report: report())
    worker.run(lambda _pause: policies.append(os.sched_getscheduler(0)), lambda _error: done.set())
    assert done.wait(LONG)
    worker.close()
    assert policies == [os.SCHED_BATCH]
    assert os.sched_getscheduler(0) == owner
