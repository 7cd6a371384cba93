"""Packing a queue path in a store: another place has the same queues, and it stays as it is."""

import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from kestrelmq.errors import ConfigError, DamagedJournal
from kestrelmq.format.notes import delayed_notes, joined_note
from kestrelmq.format.records import AddX, Remove, RemoveTentative, item
from kestrelmq.journal.open_read import ReserveTerms
from kestrelmq.journal.reserved_reads import reserved_note
from kestrelmq.journal.writer import Dialect
from kestrelmq.spark.pipelines.pack import PackedQueue, pack
from kestrelmq.spark.replay.noted_replay import delayed_items, replay_noted
from kestrelmq.spark.storage.locations import located
from kestrelmq.spark.storage.spool import by_queue, list_files
from tests.spark.spools import NOW, Loaded, adds, load, random_spool, write
from tests.support.journal_bytes import encode
from tests.support.object_store import ObjectStore
from tests.support.open_reads import reservations
from tests.unit.spark.sinks.test_stored_commit import at

Contents = tuple[dict[str, list[Loaded]], list[object]]


def contents(store: ObjectStore, path: str, scratch: Path) -> Contents:
    """Return what a server loads of the files, and what there is besides items in line."""
    for name in store.names(path):
        write(scratch / name, [], tail=store.get(f"{path}/{name}"))
    besides: list[object] = []
    for files in by_queue(list_files(str(scratch))):
        state = replay_noted(files)
        if state.delayed is not None:
            besides.append((files[0].queue, state.delayed.in_order()))
        reserved = state.reserved
        besides.append(
            (files[0].queue, sorted(reservations(state.open)), sorted(map(str, reserved.done)))
        )
    return {queue: items for queue, items in load(scratch).items() if items}, besides


def noted_spool(spool: Path) -> None:
    """Reads that are reserved, a delayed item that has joined its queue and one that waits."""
    terms = ReserveTerms(600_000, tag="sink:1:0")
    opened = [*adds([b"a", b"b", b"c"]), RemoveTentative(), RemoveTentative()]
    joined, waits = item(NOW, 0, b"joined"), item(NOW + 5, 0, b"waits")
    write(spool / "jobs.1", opened, tail=reserved_note(7, terms, (1, 2), 2))
    delayed = delayed_notes(1, joined, 2) + delayed_notes(2, waits, 2)
    write(spool / "jobs.2", [], tail=delayed)
    write(spool / "jobs", adds([b"d"]), tail=joined_note(1, 2) + joined + encode(Remove()))


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run what Spark runs elsewhere in this process."""
    module = sys.modules[pack.__module__]
    monkeypatch.setattr(module, "map_on", lambda _, work, things: list(map(work, things)))


@pytest.mark.parametrize(("seed", "dialect"), [(None, "documented"), (3, "kestrel-2")])
def test_the_packed_queues_are_the_same(
    store: ObjectStore, tmp_path: Path, seed: int | None, dialect: Dialect
) -> None:
    """Items, open reads with their xids, reservations and delayed items; what was packed stays."""
    spool = tmp_path / "spool"
    if seed is None:
        noted_spool(spool)
    else:
        random_spool(random.Random(seed), spool, 2)
    torn = encode(AddX(NOW, 0, b"torn"))[:-1]
    write(spool / "torn", adds([b"x"]), tail=torn)
    place, to = store.copy(spool, f"{tmp_path.name}/before"), f"{tmp_path.name}/after"
    expected = contents(store, f"{tmp_path.name}/before", tmp_path / "before")

    run_pack(store, place, f"s3://bucket/{to}", dialect=dialect)

    assert contents(store, to, tmp_path / "after") == expected
    files = list_files(at(store, to))
    assert max(len(one) for one in by_queue(files)) == 1
    assert {
        name: store.get(f"{tmp_path.name}/before/{name}")
        for name in store.names(f"{tmp_path.name}/before")
    } == {one.name: one.read_bytes() for one in spool.iterdir() if one.is_file()}


def run_pack(
    store: ObjectStore, path: str, output: str | None, dialect: Dialect = "documented"
) -> list[PackedQueue]:
    """Pack without Spark."""
    session = cast(SparkSession, SimpleNamespace(conf={}))
    return pack(session, path, output, dialect=dialect, storage=store.options)


def test_damage_and_what_is_not_allowed_are_errors(store: ObjectStore, tmp_path: Path) -> None:
    """A place is needed that has no journals yet; of a queue path of the file system, none is."""
    write(tmp_path / "bad", adds([b"x"]), tail=b"\xff")
    path = store.copy(tmp_path, f"{tmp_path.name}/spool")
    with pytest.raises(DamagedJournal):
        run_pack(store, path, f"{path}-packed")
    for output in (None, str(tmp_path / "out"), path):
        with pytest.raises(ConfigError, match="packed to another one in a store, which has no"):
            run_pack(store, path, output)
    with pytest.raises(ConfigError, match="must be apart from the journals"):
        run_pack(store, path, f"{path}/packed")
    with pytest.raises(ConfigError, match="it is for a queue path in a store"):
        run_pack(store, str(tmp_path), f"{path}-packed")


@pytest.mark.parametrize("place", ["disk", "store"])
def test_a_queue_path_with_delayed_items_alone_is_packed(
    store: ObjectStore, tmp_path: Path, place: str
) -> None:
    """Where no item waits in line; as `journal pack` does it."""
    waits, gone = delayed_notes(1, item(NOW, 0, b"waits"), 0), item(NOW, 0, b"gone")
    write(tmp_path / "jobs", [], tail=gone + encode(Remove()) + waits)
    path, packed = str(tmp_path), str(tmp_path)
    if place == "store":
        path = store.copy(tmp_path, tmp_path.name)
        packed = f"{path}-packed"

    done = run_pack(store, path, packed if place == "store" else None)

    assert [(one.queue, one.items) for one in done] == [("jobs", 0)]
    [journal] = list_files(located(packed, store.options))
    assert journal.size == done[0].after < len(gone + waits)
    assert delayed_items([journal]).records == [item(NOW, 0, b"waits")]
