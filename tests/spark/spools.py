"""Real spools for the tests, made from records, and what a server would load from them."""

import random
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from kestrelmq.clock import SystemClock
from kestrelmq.disk.directories import DiskDirectory
from kestrelmq.format.names import group_files
from kestrelmq.format.records import (
    Add,
    AddX,
    AddXid,
    ConfirmRemove,
    Continue,
    Record,
    Remove,
    RemoveTentative,
    RemoveTentativeXid,
    SaveXid,
    StateDump,
    Unremove,
    item_add_time,
    item_data,
    item_expiry,
)
from kestrelmq.journal.loading import load_queue
from kestrelmq.journal.replay import Replay
from tests.support.journal_bytes import encode

NOW = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Loaded:
    """An item as a server has it: open reads come first, with their xids."""

    xid: int | None
    add_time: int
    expiry: int
    data: bytes


def load(spool: Path) -> dict[str, list[Loaded]]:
    """Return what a server loads from a queue path; it is left as it is."""
    with TemporaryDirectory() as scratch:
        copy = Path(shutil.copytree(spool, Path(scratch) / "spool"))
        directory = DiskDirectory(copy)
        return {
            queue: _items(load_queue(directory, found, None, SystemClock()).state)
            for queue, found in group_files(directory.names()).queues.items()
        }


def _items(state: Replay) -> list[Loaded]:
    given_back = [(xid, state.open[xid].item) for xid in sorted(state.open)]
    return [
        Loaded(xid, item_add_time(item), item_expiry(item), item_data(item))
        for xid, item in [*given_back, *((None, item) for item in state.memory)]
    ]


def write(path: Path, records: Iterable[Record], *, tail: bytes = b"") -> None:
    """Write a journal file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(encode, records)) + tail)


def adds(data: Sequence[bytes], *, at: int = NOW) -> list[Record]:
    """Return records that add items, one a millisecond."""
    return [AddX(at + place, 0, item) for place, item in enumerate(data)]


def random_records(rng: random.Random, count: int, *, dialect: str) -> list[Record]:
    """Return records in any order a reader must accept; removes are a little rarer than adds."""
    records: list[Record] = []
    for number in range(count):
        xid = rng.randrange(1, 9)
        data = rng.randbytes(rng.choice([0, 1, 30, 300]))
        at = NOW + number
        choice = rng.random()
        if choice < 0.45:
            records.append(AddX(at, rng.choice([0, at + 50]), data))
        elif choice < 0.5:
            records.append(Add(rng.choice([0, 1_800_000_000]), data))
        elif choice < 0.65:
            records.append(Remove())
        elif choice < 0.8:
            documented = dialect == "documented"
            record: Record = RemoveTentative() if documented else RemoveTentativeXid(xid)
            records.append(record)
        elif choice < 0.9:
            records.append(Unremove(xid) if rng.random() < 0.5 else ConfirmRemove(xid))
        elif choice < 0.94:
            records.append(SaveXid(xid) if rng.random() < 0.5 else AddXid(xid, at, 0, data))
        elif dialect == "documented":
            records.append(StateDump(xid, 0))
        else:
            records.append(Continue(xid, at, 0, data))
    return records


def random_spool(rng: random.Random, spool: Path, queues: int) -> None:
    """Fill a queue path: rotation, packs, dead files, temporaries, torn tails, both dialects."""
    spool.mkdir(parents=True, exist_ok=True)
    for number in range(queues):
        name = f"queue{number}" if number % 3 else f"q-{number}+child_é"
        dialect = rng.choice(["documented", "kestrel-2"])
        for timestamp in sorted(rng.sample(range(1000, 2000), rng.randrange(4))):
            records = random_records(rng, rng.randrange(200), dialect=dialect)
            pack = ".pack" if rng.random() < 0.2 else ""
            write(spool / f"{name}.{timestamp}{pack}", records)
        if rng.random() < 0.8:
            records = random_records(rng, rng.randrange(200), dialect=dialect)
            torn = encode(AddX(NOW, 0, b"torn"))
            tail = rng.choice([b"", torn[:1], torn[:3], torn[:20], torn[:24], bytes(4096)])
            write(spool / name, records, tail=tail)
        write(spool / f"{name}~~pack-5", random_records(rng, 5, dialect=dialect))
    (spool / "~~lock").write_bytes(b"")
    (spool / "folder").mkdir(exist_ok=True)
