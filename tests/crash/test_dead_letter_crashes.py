"""Items on their way to a dead-letter queue: after any crash in either queue, or in both."""

from collections import Counter
from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.engine.collection import QueueCollection
from kestrelmq.engine.departures import Departures
from kestrelmq.journal.records import item_data
from tests.support.crash_checks import Checker, Queues, is_unread
from tests.support.crash_recordings import QUICK
from tests.support.fake_clock import FakeClock
from tests.support.recording_directory import Contents, CrashCause, RecordingDirectory, crash_states

ITEMS = (b"first", b"second", b"third")
DELIVERIES = 2


class Scenario:
    """Two items that are given back until they are dead, and one that is not."""

    def __init__(self, path: Path, dialect: str) -> None:
        self.directory = RecordingDirectory(path)
        settings = QueueConfig.model_validate(
            {
                "max_deliveries": DELIVERIES,
                "dead_letter_queue": "dead",
                "sync_journal": "0ms",
                "journal_dialect": dialect,
            }
        )
        config = ServerConfig(
            queue_path=path,
            queues={"jobs": settings, "dead": QueueConfig.model_validate({"max_items": 2})},
        )
        self.collection = QueueCollection(config, FakeClock(), self.directory)
        self.collection.open()
        self.queue = self.collection.obtain("jobs")

    def commit(self) -> None:
        """Write and sync what was done, as a server does before it answers."""
        assert not self.collection.commits.commit()
        self.queue.sync()

    def run(self) -> None:
        """Add the items, and fail on all of them: the dead-letter queue takes two."""
        for number, data in enumerate(ITEMS, 1):
            self.queue.add(data)
            self.commit()
            self.directory.mark(ITEMS[:number])
        for _ in range(DELIVERIES):
            opened = [self.queue.open_read() for _ in ITEMS]
            self.commit()
            self.queue.give_back([read[0] for read in opened if read is not None])
            self.commit()
        self.collection._lock.release()
        self.directory.abandon()


def allowed(crash: CrashCause, _contents: Contents, queues: Queues) -> bool:
    """Every item that was acknowledged is in one of the queues, or in both, once in each."""
    found = dict(queues)
    jobs, dead = Counter(found.get("jobs", ())), Counter(found.get("dead", ()))
    acknowledged = crash.mark if isinstance(crash.mark, tuple) else ()
    return (
        set(acknowledged) <= {*jobs, *dead} <= set(ITEMS)
        and max([*jobs.values(), *dead.values()], default=1) == 1
    )


@pytest.mark.parametrize("dialect", ["documented", "kestrel-2"])
@pytest.mark.parametrize("ahead", [False, True])
def test_an_item_is_in_neither_queue_in_no_state(
    root: Path, monkeypatch: pytest.MonkeyPatch, dialect: str, *, ahead: bool
) -> None:
    """Of all those that a kill or a loss of power may leave; `ahead`: as if it were large."""
    if ahead:
        monkeypatch.setattr(Departures, "_is_large", lambda _departures, _record: True)
    path = root / "spool"
    path.mkdir()
    scenario = Scenario(path, dialect)
    scenario.run()
    found = {
        name: [item_data(record) for record in queue.browse(9)]
        for name, queue in scenario.collection.queues.items()
    }
    assert found == {"dead": [b"first", b"second"], "jobs": [b"third"]}
    states = crash_states(scenario.directory.operations, {}, QUICK, unread=is_unread)
    checker = Checker(root / "left", QUICK, nested_every=25)
    checker.check(states, allowed)
    assert checker.states > 30
