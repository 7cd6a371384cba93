"""Writing items to the journals of queues that no server has.

All of a queue's items go to a temporary, which is synced and then becomes the current file, after
what was current before was rotated. A crash leaves a queue with all of the items or none, and maybe
temporaries; an error leaves no temporary.
"""

from collections.abc import Iterable, Mapping

from kestrelmq.clock import Clock
from kestrelmq.errors import JournalError
from kestrelmq.journal.exchange import Row
from kestrelmq.journal.files import Directory, FileWriter
from kestrelmq.journal.loading import load_queue
from kestrelmq.journal.names import (
    NEXT,
    QueuePlan,
    later_timestamp,
    plan,
    rotated_name,
    temporary_name,
)

_MEMORY = 8 << 20


def import_rows(
    directory: Directory, source: Iterable[Row], clock: Clock, *, append: bool = False
) -> dict[str, int]:
    """Add items to queues; return how many each got. Nobody else may use the queue path.

    Args:
        directory: the queue path.
        source: the items, in the order in which they are to be read.
        clock: for the names of files.
        append: whether a queue may be there already; its items then come first.

    Raises:
        JournalError: a queue is there or damaged, or a row is unusable; no queue got anything.
        OSError: a file could not be written; each queue got all of its items, or none.
    """
    existing = plan(directory.names()).queues
    writers: dict[str, FileWriter] = {}
    counts: dict[str, int] = {}
    now = clock.now()
    try:
        for row in source:
            writer = writers.get(row.queue)
            if writer is None:
                if not append:
                    _check_new(row.queue, existing)
                name = temporary_name(row.queue, NEXT, now)
                writer = writers[row.queue] = FileWriter(directory, name)
                counts[row.queue] = 0
            writer.add(row.record)
            counts[row.queue] += 1
        for writer in writers.values():
            writer.sync()
        for queue in writers:
            if queue in existing:
                _make_loadable(directory, existing[queue], clock)
        directory.reached("import: written")
        for queue, writer in writers.items():
            writer.close()
            _put_in_place(directory, existing.get(queue, QueuePlan(queue)), writer.name, clock)
    except BaseException:
        for writer in writers.values():
            writer.close()
            directory.remove(writer.name)
        raise
    directory.sync()
    return counts


def _check_new(queue: str, existing: Mapping[str, QueuePlan]) -> None:
    if queue in existing:
        raise JournalError(f"queue {queue} is there already")


def _make_loadable(directory: Directory, files: QueuePlan, clock: Clock) -> None:
    """Set a torn tail aside: no other file may follow it. Raises JournalError: it is damaged."""
    if files.files:
        loaded = load_queue(directory, files, _MEMORY, clock)
        if loaded.state.behind is not None:
            loaded.state.behind.close()


def _put_in_place(directory: Directory, files: QueuePlan, temporary: str, clock: Clock) -> None:
    if (directory.path / files.queue).exists():  # loading may have rotated it
        stamp = later_timestamp(files.rotated, clock.now())
        directory.sync_file(files.queue)
        directory.rename(files.queue, rotated_name(files.queue, stamp))
        directory.reached("import: current file rotated")
    directory.rename(temporary, files.queue)
    directory.reached("import: file named")
