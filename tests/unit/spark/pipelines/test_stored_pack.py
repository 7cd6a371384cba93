"""Packing a queue path in a store: a crash behind any step leaves the same queues."""

import random
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from kestrelmq.errors import DamagedJournal, JournalError
from kestrelmq.format.notes import joining
from kestrelmq.format.records import (
    REMOVE_TENTATIVE_RECORD,
    AddX,
    Remove,
    RemoveTentative,
    encode,
    item,
)
from kestrelmq.journal.reserved_reads import ReserveTerms, reserved_note
from kestrelmq.journal.writer import Dialect
from kestrelmq.spark.pipelines.pack import _commit_stored, _stored_tasks, _write_stored, pack
from kestrelmq.spark.plan.delayed_items import delayed_items, list_with_delayed
from kestrelmq.spark.plan.noted_replay import replay_noted
from kestrelmq.spark.plan.spool import by_queue, list_files
from kestrelmq.spark.sources.stored_commit import StoredJournalCommit
from kestrelmq.spark.sources.stored_writes import begin
from tests.spark.spools import NOW, Loaded, adds, load, random_spool, write
from tests.support.object_store import ObjectStore
from tests.unit.spark.sources.test_stored_commit import ELSEWHERE, Crash, at

Contents = tuple[dict[str, list[Loaded]], list[object]]


def packed(store: ObjectStore, path: str, dialect: Dialect, crash_behind: int) -> list[str]:
    """Pack, and crash behind a step; return the steps. Spark only runs the tasks elsewhere."""
    work = begin(at(store, path), ELSEWHERE)
    steps, said = count(), list[str]()

    def reached(step: str) -> None:
        said.append(step)
        if next(steps) == crash_behind:
            raise Crash

    done = [_write_stored(task, dialect) for task in _stored_tasks(work)]
    try:
        _commit_stored(StoredJournalCommit(work, NOW, overwrite=True, reached=reached), work, done)
    finally:
        work.delete_tree()
    return said


def contents(store: ObjectStore, path: str, scratch: Path) -> Contents:
    """Return what a server loads of the files, and what there is besides items in line."""
    for name in store.names(path):
        write(scratch / name, [], tail=store.get(f"{path}/{name}"))
    own, companions = list_with_delayed(str(scratch))
    besides: list[object] = [(one.queue, delayed_items(one)) for one in companions]
    for files in by_queue(own):
        state = replay_noted(files, None)
        reserved = state.reserved
        besides.append((files[0].queue, sorted(reserved.by_xid), sorted(map(str, reserved.done))))
    return {queue: items for queue, items in load(scratch).items() if items}, besides


def noted_spool(spool: Path) -> None:
    """Reads that are reserved, a delayed item that has joined its queue and one that waits."""
    terms = ReserveTerms(600_000, tag="sink:1:0")
    opened = [*adds([b"a", b"b", b"c"]), RemoveTentative(), RemoveTentative()]
    joined, waits = item(NOW, 0, b"joined"), item(NOW + 5, 0, b"waits")
    write(spool / "jobs.1", opened, tail=reserved_note(7, terms, (1, 2), 2))
    write(spool / "jobs", adds([b"d"]), tail=joining(1, joined, 2) + encode(Remove()))
    delayed = joined + REMOVE_TENTATIVE_RECORD + waits + REMOVE_TENTATIVE_RECORD
    write(spool / "jobs~~delayed.3", [], tail=delayed)
    write(spool / "jobs~~delayed", [])


@pytest.mark.parametrize(("seed", "dialect"), [(None, "documented"), (3, "kestrel-2")])
def test_a_crash_behind_any_step_leaves_the_same_queues(
    store: ObjectStore, tmp_path: Path, seed: int | None, dialect: Dialect
) -> None:
    """Items, open reads with their xids, reservations and delayed items."""
    spool = tmp_path / "spool"
    if seed is None:
        noted_spool(spool)
    else:
        random_spool(random.Random(seed), spool, 2)
    store.copy(spool, f"{tmp_path.name}/before")
    expected = contents(store, f"{tmp_path.name}/before", tmp_path / "before")

    steps, path = list[str](), ""
    for crash_behind in count():
        path = f"{tmp_path.name}/{crash_behind}"
        store.copy(spool, path)
        try:
            steps = packed(store, path, dialect, crash_behind)
        except Crash:
            assert contents(store, path, tmp_path / str(crash_behind)) == expected
            continue
        break
    assert len(steps) >= 5
    for again in (f"{tmp_path.name}/{len(steps) // 2}", path):
        packed(store, again, dialect, -1)
        assert contents(store, again, tmp_path / f"{again}-again") == expected
        files = list_files(at(store, again), delayed=True)
        assert max(len(one) for one in by_queue(files)) == 1
        assert not [name for name in store.names(again) if "~~write" in name or "~~pack" in name]


def test_bytes_that_are_no_record_are_set_aside(store: ObjectStore, tmp_path: Path) -> None:
    """Each time under a name of its own."""
    torn = encode(AddX(NOW, 0, b"torn"))[:-1]
    write(tmp_path / "q", adds([b"x"]), tail=torn)
    store.copy(tmp_path, tmp_path.name)
    store.put(f"{tmp_path.name}/q~~torn-{NOW}", b"other")

    packed(store, tmp_path.name, "documented", -1)

    assert store.names(tmp_path.name) == ["q", f"q~~torn-{NOW}", f"q~~torn-{NOW + 1}"]
    assert store.get(f"{tmp_path.name}/q~~torn-{NOW + 1}") == torn
    assert store.get(f"{tmp_path.name}/q").endswith(encode(AddX(NOW, 0, b"x")))


def test_damage_and_changes_are_errors(store: ObjectStore, tmp_path: Path) -> None:
    """Nothing is changed."""
    write(tmp_path / "bad", adds([b"x"]), tail=b"\xff")
    path = store.copy(tmp_path, tmp_path.name).removeprefix("s3://bucket/")
    with pytest.raises(DamagedJournal):
        packed(store, path, "documented", -1)
    (task,) = _stored_tasks(begin(at(store, path), ELSEWHERE))
    store.put(f"{path}/bad", b"changed since")
    with pytest.raises(JournalError, match="bad was changed while it was packed"):
        _write_stored(task, "documented")
    assert store.get(f"{path}/bad") == b"changed since"


class _Cluster:
    """Stands for a Spark session: it runs a job's tasks here."""

    defaultParallelism = 1  # noqa: N815 # Spark's name
    _made: list[Any]

    @property
    def sparkContext(self) -> "_Cluster":  # noqa: N802 # as above
        return self

    def parallelize(self, things: list[Any], _slices: int) -> "_Cluster":
        self._made = things
        return self

    def map(self, work: Callable[[Any], Any]) -> "_Cluster":
        self._made = list(map(work, self._made))
        return self

    def collect(self) -> list[Any]:
        return self._made


@pytest.mark.parametrize("place", ["disk", "store"])
def test_a_queue_path_with_delayed_items_alone_is_packed(
    store: ObjectStore, tmp_path: Path, place: str
) -> None:
    """Where no item waits in line; as `journal pack` does it."""
    waits = item(NOW, 0, b"waits") + REMOVE_TENTATIVE_RECORD
    gone = item(NOW, 0, b"gone") + encode(Remove())
    write(tmp_path / "jobs~~delayed", [], tail=gone + waits)
    path = store.copy(tmp_path, tmp_path.name) if place == "store" else str(tmp_path)

    done = pack(cast(SparkSession, _Cluster()), path, storage=store.options)

    assert [(one.queue, one.items) for one in done] == [("jobs~~delayed", 1)]
    [journal] = list_files(at(store, tmp_path.name) if place == "store" else path, delayed=True)
    assert journal.size == done[0].after < len(gone + waits)
