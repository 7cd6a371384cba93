"""Backups of queues whose files change at every step."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kestrelmq.format.records import Remove
from kestrelmq.tools.backup import MANIFEST_NAME, back_up
from tests.support.backups import (
    CALLS,
    FILES,
    Action,
    append,
    disturbed_at,
    files_in,
    items,
    pack,
    spool,
)
from tests.support.fake_clock import FakeClock
from tests.support.journal_bytes import encode, numbered


def backups(root: Path, actions: Callable[[Path], Sequence[Action]]) -> Iterator[Path]:
    """Make backups, while actions begin at each step of one; yield the backups.

    Each action is told the queue path.
    """
    done = step = 1
    while done:
        path, target = root / f"queues-{step}", root / f"backup-{step}"
        spool(path)
        with disturbed_at(step, actions(path)) as disturbance:
            back_up(path, target, FakeClock())
        done = disturbance.done
        yield target
        step += 1
    assert step > len(CALLS)


def test_a_queue_that_is_rotated_and_packed_meanwhile(root: Path) -> None:
    """It is as it was at some moment."""

    def use(path: Path) -> Sequence[Action]:
        return [
            lambda: (path / "jobs").rename(path / "jobs.3"),
            (path / "jobs").touch,
            lambda: append(path, "jobs", numbered(6)),
            lambda: append(path, "jobs", encode(Remove())),
            lambda: (path / "jobs.3.pack").write_bytes(numbered(2, 3, 4)),
            *((path / f"jobs.{number}").unlink for number in (1, 2, 3)),
            lambda: (path / "jobs.3.pack").rename(path / "jobs.3"),
            lambda: (path / "jobs").rename(path / "jobs.4"),
            lambda: append(path, "jobs", numbered(7)),
        ]

    moments = [
        [b"2", b"3", b"4"],
        [b"2", b"3", b"4", b"6"],
        [b"3", b"4", b"6"],
        [b"3", b"4", b"6", b"7"],
    ]
    seen = set()
    for target in backups(root, use):
        found = items(target)
        assert found.pop("work+copy") == [b"5"]
        seen.add(moments.index(found["jobs"]))
    assert seen >= {0, 3}


def test_files_that_are_packed_in_one_step(root: Path) -> None:
    """Neither of what was and of what is now does it take a part."""

    def use(path: Path) -> Sequence[Action]:
        def pack_all() -> None:
            pack(path, "jobs.1", "jobs.2", content=numbered(2, 3))
            (path / "jobs.2.pack").rename(path / "jobs.2")

        return [pack_all]

    for target in backups(root, use):
        assert items(target)["jobs"] == [b"2", b"3", b"4"]


def test_a_queue_that_is_deleted_and_made_anew_meanwhile(root: Path) -> None:
    """Nothing of the old one is in the new one."""

    def use(path: Path) -> Sequence[Action]:
        return [
            lambda: (path / "jobs").rename(path / "jobs.3"),
            (path / "jobs.3.pack").touch,
            *((path / f"jobs.{number}").unlink for number in (1, 2, 3)),
            (path / "jobs.3.pack").unlink,
            (path / "jobs").touch,
            lambda: append(path, "jobs", numbered(9)),
        ]

    seen = []
    for target in backups(root, use):
        seen.append(items(target).get("jobs"))
        assert seen[-1] in ([b"2", b"3", b"4"], [], None, [b"9"])
        assert {one.name for one in target.iterdir()} <= {*FILES, "jobs.3", MANIFEST_NAME}
    assert [b"9"] in seen


def test_a_failed_write_that_is_cut_off_meanwhile(root: Path) -> None:
    """The records go on in a new file; a part of what was cut off does no harm."""

    def use(path: Path) -> Sequence[Action]:
        return [
            lambda: append(path, "jobs", numbered(6)[:-1]),
            *[lambda: None] * 4,
            lambda: os.truncate(path / "jobs", len(FILES["jobs"])),
            *[lambda: None] * 12,
            lambda: (path / "jobs").rename(path / "jobs.3"),
            lambda: append(path, "jobs", numbered(7)),
        ]

    for target in backups(root, use):
        assert items(target)["jobs"] in ([b"2", b"3", b"4"], [b"2", b"3", b"4", b"7"])


def test_settings_that_are_replaced_meanwhile(root: Path) -> None:
    """They are the old ones or the new ones, as a whole."""
    old, new = FILES["~~queues"], FILES["~~queues"] * 2

    def use(path: Path) -> Sequence[Action]:
        return [
            lambda: (path / "~~queues~~new").write_bytes(new),
            lambda: (path / "~~queues~~new").rename(path / "~~queues"),
        ]

    assert {(target / "~~queues").read_bytes() for target in backups(root, use)} == {old, new}


def test_more_queues_than_files_that_are_held_open(root: Path) -> None:
    """The first ones are copied before the others are opened."""
    files = {f"queue{number}": numbered(number) for number in range(520)}
    back_up(spool(root / "queues", files), root / "one", FakeClock())
    assert files_in(root / "one") == files


def test_items_that_move_meanwhile(root: Path) -> None:
    """Each is in one queue, or in both, as a kill leaves them; in whatever order they are read."""

    def use(path: Path) -> Sequence[Action]:
        return [
            lambda: append(path, "work+copy", numbered(2)),
            lambda: append(path, "jobs", encode(Remove())),
            lambda: append(path, "jobs", numbered(5)),
            lambda: append(path, "work+copy", encode(Remove())),
        ]

    for target in backups(root, use):
        found = items(target)
        assert {one for queue in found.values() for one in queue} == {b"2", b"3", b"4", b"5"}
