"""Repairing a journal: what is whole stays, and what was there is kept beside it."""

from pathlib import Path

from kestrelmq.disk.directories import DiskDirectory
from kestrelmq.format.records import item, item_data
from kestrelmq.tools.journal_files import select
from kestrelmq.tools.repair import repair
from tests.support.fake_clock import FakeClock
from tests.support.local_queues import LocalQueues, queue_settings

NOW = FakeClock().now()
A, B, C, D, E, F = (item(NOW, 0, bytes((letter,)) * 50) for letter in b"abcdef")
DAMAGE = b"\x77" * 20


def test_only_the_damaged_bytes_go(tmp_path: Path) -> None:
    """In the middle of a file and at a torn end; the old files stay, under the names returned."""
    old = {"jobs.1": A + DAMAGE + B * 16 + DAMAGE + C, "jobs.2": D, "jobs": E + F[:-1]}
    for name, content in old.items():
        (tmp_path / name).write_bytes(content)
    (selected,) = select([tmp_path])
    result = repair(DiskDirectory(tmp_path), selected, FakeClock())
    found = {name: (tmp_path / name).read_bytes() for name in old}
    assert found == {"jobs.1": A + B * 16 + C, "jobs.2": D, "jobs": E}
    kept = {name: (tmp_path / aside).read_bytes() for name, aside in result.kept.items()}
    assert kept == {name: old[name] for name in ("jobs.1", "jobs")}
    assert [(one.file, one.start, one.end) for one in result.report.damaged] == [
        ("jobs.1", len(A), len(A + DAMAGE)),
        ("jobs.1", len(A + DAMAGE + B * 16), len(A + DAMAGE + B * 16 + DAMAGE)),
    ]
    assert {file.name for file in tmp_path.iterdir()} == {*old, *result.kept.values()}
    queues = LocalQueues(queue_settings(tmp_path))
    assert queues.items() == [item_data(one) for one in (A, *[B] * 16, C, D, E)]
    queues.close()


def test_whole_files_are_left_alone(tmp_path: Path) -> None:
    """There is nothing to keep, then."""
    (tmp_path / "jobs").write_bytes(A + B)
    before = (tmp_path / "jobs").stat()
    (selected,) = select([tmp_path])
    assert repair(DiskDirectory(tmp_path), selected, FakeClock()).kept == {}
    assert (tmp_path / "jobs").stat() == before
