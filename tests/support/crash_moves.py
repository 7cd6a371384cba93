"""Every way for an item to change queues, and what a crash may leave of it."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kestrelmq.clock import no_pause
from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.format.records import item_data
from kestrelmq.queues.collection import QueueCollection
from kestrelmq.queues.moving import Move, Redrive
from kestrelmq.tools.export_rows import ExportRow, live_rows, to_json
from tests.support.crash_checks import Items, Queues
from tests.support.fake_clock import FakeClock
from tests.support.open_reads import open_read
from tests.support.recording_directory import Contents, CrashCause, RecordingDirectory

ITEMS: Final = (b"first", b"second", b"third")
DELIVERIES: Final = 2


class MovingItems:
    """Three items of `jobs`, on their way to another queue.

    Attributes:
        directory: where the queues are; its marks are the items that were acknowledged.
        collection: the queues. Unless they are told to sync each change, none syncs.
    """

    def __init__(self, path: Path, dialect: str, way: "Way", *, synced: bool) -> None:
        self.directory = RecordingDirectory(path)
        self.clock = FakeClock()
        common = {"journal_dialect": dialect, "sync_journal": 0 if synced else None}
        queues = {
            name: QueueConfig.model_validate({**(common if name in way.synced else {}), **settings})
            for name, settings in way.queues.items()
        }
        config = ServerConfig(queue_path=path, queues=queues)
        self.collection = QueueCollection(config, self.clock, self.directory)
        self.collection.open()

    def commit(self) -> None:
        """Write what was done, and sync it where it is asked for, as before an answer."""
        assert not self.collection.commits.commit()
        for queue in self.collection.queues.values():
            if queue.config.sync_journal == 0:
                queue.sync()

    def add(self, expiry: int = 0, name: str = "jobs") -> None:
        """Add the items, one by one; each is acknowledged."""
        for number, data in enumerate(ITEMS, 1):
            assert self.collection.add(name, data, expiry)
            self.commit()
            self.directory.mark(ITEMS[:number])

    def do(self, work: Move) -> None:
        """Move items."""
        for step in work.slices():
            if callable(step):
                step(no_pause)
            self.commit()
        self.commit()

    def found(self) -> dict[str, Items]:
        """Return what waits in the queues."""
        return {
            name: tuple(item_data(record) for record in queue.backlog.browse(9))
            for name, queue in self.collection.queues.items()
        }

    def end(self) -> None:
        """End the process."""
        self.collection._lock.release()
        self.directory.abandon()


def expire(queues: MovingItems) -> None:
    """Let the items expire."""
    queues.add(queues.clock.now() + 1000)
    queues.clock.advance(2)
    queues.collection.sweep()
    queues.commit()


def fail(queues: MovingItems) -> None:
    """Give the items back until they are dead: the dead-letter queue takes two."""
    jobs = queues.collection.obtain("jobs")
    queues.add()
    for _ in range(DELIVERIES):
        opened = [open_read(jobs) for _ in ITEMS]
        queues.commit()
        jobs.returns.give_back([read[0] for read in opened if read is not None])
        queues.commit()


def move(queues: MovingItems) -> None:
    """Move the items."""
    queues.add()
    queues.do(Move(queues.collection, queues.collection.obtain("jobs"), "other"))


def redrive(queues: MovingItems) -> None:
    """Fail on the items, and move the dead letters back; a new child does not get them."""
    fail(queues)
    queues.collection.obtain("jobs+child")
    queues.do(Redrive(queues.collection, queues.collection.obtain("dead"), None, bool))


def fan_out(queues: MovingItems) -> None:
    """Add the items to a queue that has a child."""
    queues.collection.obtain("jobs+child")
    queues.add()


def import_items(queues: MovingItems) -> None:
    """Add the items to another queue, as lines of an export, and take them from their own."""
    queues.add()
    jobs = queues.collection.obtain("jobs")
    lines = [to_json(ExportRow("jobs", at, data, 0, 0)) for at, data in enumerate(ITEMS)]
    for row in live_rows(lines, "other", queues.clock.now):
        assert queues.collection.add(row.queue, row.data, row.expiry)
    queues.commit()
    for _ in ITEMS:
        jobs.line.remove()
        queues.commit()


@dataclass(frozen=True, slots=True)
class Way:
    """A way to change queues.

    Attributes:
        run: does it with all items.
        found: what is found in the queues afterwards.
        queues: their settings.
        synced: the queues that may sync each change.
        copies: the queues that each acknowledged item is in; none: it is in one of all queues.
    """

    run: Callable[[MovingItems], None]
    found: dict[str, Items]
    queues: dict[str, dict[str, object]] = field(default_factory=lambda: {"jobs": {}})
    synced: tuple[str, ...] = ("jobs",)
    copies: tuple[str, ...] = ()


WAYS: Final = {
    "expired": Way(
        expire, {"jobs": (), "late": ITEMS}, {"jobs": {"expire_to_queue": "late"}, "late": {}}
    ),
    "dead": Way(
        fail,
        {"dead": ITEMS[:2], "jobs": ITEMS[2:]},
        {
            "jobs": {"max_deliveries": DELIVERIES, "dead_letter_queue": "dead"},
            "dead": {"max_items": 2},
        },
    ),
    "moved": Way(move, {"jobs": (), "other": ITEMS}),
    "redriven": Way(
        redrive,
        {"dead": (), "jobs": ITEMS, "jobs+child": ()},
        {
            "jobs": {"max_deliveries": DELIVERIES, "dead_letter_queue": "dead"},
            "dead": {},
        },
        synced=("jobs", "dead"),
    ),
    "fanned out": Way(
        fan_out,
        {"jobs": ITEMS, "jobs+child": ITEMS},
        synced=("jobs",),
        copies=("jobs", "jobs+child"),
    ),
    "imported": Way(
        import_items,
        {"jobs": (), "other": ITEMS},
        {"jobs": {}, "other": {}},
        synced=("jobs", "other"),
    ),
}


def allows(
    way: Way, crash: CrashCause, _contents: Contents, queues: Queues, *, synced: bool
) -> bool:
    """Every item that was acknowledged is in some queue, and in each once at most.

    If no change is synced, that holds for a process that ends, not for a machine.
    """
    found = {name: Counter(items) for name, items in queues}
    is_there_once = max((n for one in found.values() for n in one.values()), default=1) == 1
    if not is_there_once or not {data for one in found.values() for data in one} <= set(ITEMS):
        return False
    if not (synced or crash.killed):
        return True
    acknowledged = set(crash.mark) if isinstance(crash.mark, tuple) else set()
    held = [set(found.get(name, ())) for name in way.copies] or [set().union(*found.values())]
    return all(acknowledged <= one for one in held)
