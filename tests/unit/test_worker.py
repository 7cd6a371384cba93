"""The thread that works on journals beside the queues."""

from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event

from kestrelmq.engine.worker import Pause, ThreadWorker

LONG = 20.0
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


def test_millions_of_items_are_freed_bit_by_bit() -> None:
    """Also while another job runs; closing finishes it."""
    worker = ThreadWorker(lambda report: report())
    first, second = deque([b"x"] * 50_000), deque([b"y"] * 50_000)
    lengths: list[int] = []

    def watch(pause: Pause) -> None:
        worker.let_go(second)
        while second:
            lengths.append(len(second))
            pause()

    worker.let_go(first)
    done = Event()
    worker.run(watch, lambda _error: done.set())
    assert done.wait(LONG)
    worker.close()
    assert (len(first), len(second)) == (0, 0)
    assert len(lengths) > 40
