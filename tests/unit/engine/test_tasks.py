"""Changes of queues in several steps, of which a worker does some."""

from functools import partial
from pathlib import Path

import pytest

from kestrelmq.clock import Pause
from kestrelmq.engine.queue import Queue
from kestrelmq.engine.worker import InlineWorker, Task, Tasks
from kestrelmq.errors import JournalError
from tests.support.held_worker import HeldWorker
from tests.support.local_queues import LocalQueues, queue_settings


class Steps:
    """Tasks, and what they did in which order."""

    def __init__(self) -> None:
        self.tasks = Tasks()
        self.done: list[str] = []

    def begin(self, subject: str, name: str, worker: HeldWorker | None, jobs: int = 1) -> None:
        """Begin a task with so many jobs."""
        self.tasks.begin(subject, self._task(name, jobs), self.done.append, self._failed, worker)

    def _task(self, name: str, jobs: int) -> Task[str]:
        for job in range(jobs):
            error = yield partial(self._do, f"{name} job {job}")
            assert error is None
        if name == "bad":
            raise ValueError("a bug")
        return f"{name} over"

    def _do(self, what: str, _pause: Pause) -> None:
        self.done.append(what)

    @staticmethod
    def _failed(error: Exception) -> str:
        return f"failed: {error}"


def test_tasks_of_one_object_wait_for_each_other() -> None:
    """Those of others do not; each is told of once it is over."""
    steps, worker = Steps(), HeldWorker()
    steps.begin("a", "first", worker, 2)
    steps.begin("a", "second", worker)
    steps.begin("b", "other", worker)
    assert "a" in steps.tasks
    while worker.step():
        pass
    assert steps.done == [
        "first job 0",
        "other job 0",
        "other over",
        "first job 1",
        "first over",
        "second job 0",
        "second over",
    ]
    assert "a" not in steps.tasks


def test_without_a_thread_a_task_is_over_at_once() -> None:
    """Many jobs do not nest."""
    steps = Steps()
    steps.begin("a", "long", None, 5000)
    assert steps.done[-1] == "long over"
    assert "a" not in steps.tasks


def test_a_task_that_raises() -> None:
    """Whoever waits for it is told, and the next one runs."""
    steps, worker = Steps(), HeldWorker()
    steps.begin("a", "bad", worker)
    steps.begin("a", "next", worker)
    while worker.step():
        pass
    assert steps.done == ["bad job 0", "failed: a bug", "next job 0", "next over"]
    assert "a" not in steps.tasks


def test_a_bug_while_a_queue_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets an error, and may try again."""
    queues = LocalQueues(queue_settings(tmp_path))
    queues.add(b"x")

    def broken(_queue: Queue) -> None:
        raise ValueError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(Queue, "begin_removal", broken)
        with pytest.raises(JournalError, match=r"jobs was not deleted: .*a bug"):
            queues.collection.delete("jobs")
    assert "queue jobs was not deleted" in caplog.messages
    assert queues.items() == [b"x"]
    failures: list[JournalError | None] = []
    queues.collection.deletions.begin(queues.queue(), failures.append, InlineWorker())
    assert failures == [None]
    queues.close()
