"""How the library opens queues: written with other settings, interrupted, or forgotten before."""

import asyncio
import fcntl
import gc
import os
import threading
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

from kestrelmq import (
    AsyncPersistentQueue,
    PersistentQueue,
    QueueCollection,
    QueueConfig,
    QueuePathLocked,
)
from kestrelmq.format.describing import describe_records
from kestrelmq.journal.writer import Dialect
from tests.support.patience import until

pytestmark = pytest.mark.compiled

OPENED = {"documented": "REMOVE_TENTATIVE", "kestrel-2": "REMOVE_TENTATIVE_XID"}


def written_with(path: Path, dialect: Dialect) -> QueueConfig:
    """Write a queue in which a read is still open; return settings with the other dialect."""
    with PersistentQueue("work", path, QueueConfig(journal_dialect=dialect)) as queue:
        for data in (b"first", b"second"):
            queue.add(data)
        assert queue.remove(transaction=True)
    return QueueConfig(journal_dialect="kestrel-2" if dialect == "documented" else "documented")


def opened_by(path: Path) -> list[str]:
    """Return the kinds of records by which the queue's current file opens reads."""
    words = [told.split()[0] for told in describe_records((path / "work").read_bytes())]
    return [word for word in words if word.startswith("REMOVE_TENTATIVE")]


@pytest.mark.parametrize("dialect", ["documented", "kestrel-2"])
def test_another_dialect(
    tmp_path: Path, dialect: Dialect, caplog: pytest.LogCaptureFixture
) -> None:
    """The next file has the new dialect, from the first read on; nothing is logged as an error."""
    config = written_with(tmp_path, dialect)
    with PersistentQueue("work", tmp_path, config) as queue:
        first = queue.remove(transaction=True)
        assert first is not None
        assert queue.confirm_remove(first.xid)
    assert opened_by(tmp_path) == [OPENED[config.journal_dialect]]
    assert not caplog.records
    with PersistentQueue("work", tmp_path, config) as queue:
        assert [item.data for item in iter(queue.remove, None)] == [b"second"]


async def test_another_dialect_for_asyncio(tmp_path: Path) -> None:
    """The same for a queue of asyncio."""
    config = written_with(tmp_path, "documented")
    async with AsyncPersistentQueue("work", tmp_path, config) as queue:
        assert await queue.remove(transaction=True)
    assert opened_by(tmp_path) == [OPENED["kestrel-2"]]


@pytest.mark.parametrize("user", [PersistentQueue, QueueCollection])
@pytest.mark.parametrize(
    ("where", "what"),
    [(fcntl, "flock"), (os, "pwrite"), (os, "scandir"), (threading.Thread, "start")],
)
def test_a_setup_that_was_interrupted_leaves_nothing_locked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    user: type[PersistentQueue | QueueCollection],
    where: ModuleType | type,
    what: str,
) -> None:
    """The same object, or another one, can be set up afterwards."""
    do = getattr(where, what)

    def interrupted(*arguments: object) -> object:
        monkeypatch.undo()
        with suppress(TypeError), do(*arguments):  # what it returns, closed if that can be
            pass
        raise KeyboardInterrupt

    config = QueueConfig(sync_journal=3600)
    first, second = (
        PersistentQueue("work", tmp_path, config)
        if user is PersistentQueue
        else QueueCollection(tmp_path, config)
        for _ in range(2)
    )
    monkeypatch.setattr(where, what, interrupted)
    with pytest.raises(KeyboardInterrupt):
        first.setup()
    for one in (second, first):
        assert one.is_closed
        with one:
            pass


def test_a_queue_that_was_forgotten_is_not_locked(tmp_path: Path) -> None:
    """Nor do its threads keep it: they end."""
    config = QueueConfig(sync_journal=0.01)

    async def forget() -> None:
        queue = AsyncPersistentQueue("work", tmp_path)
        await queue.setup()
        await queue.add(b"x", delay=3600)

    def forget_all() -> None:
        queues = QueueCollection(tmp_path, config, sweep_period=0.01)
        queues.setup()
        queues.add("work", b"x", delay=3600)

    def forget_one() -> None:
        queue = PersistentQueue("work", tmp_path, config)
        queue.setup()
        queue.add(b"x", delay=3600)

    def is_free() -> bool:
        gc.collect()  # a thread may have been at work just then
        with suppress(QueuePathLocked), QueueCollection(tmp_path, sweep_period=None):
            return True
        return False

    before = set(threading.enumerate())
    for use in (forget_one, forget_all, lambda: asyncio.run(forget())):
        use()
        until(is_free)
    until(lambda: set(threading.enumerate()) <= before)
    with PersistentQueue("work", tmp_path) as queue:
        assert queue.flush() == 3
