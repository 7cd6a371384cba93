"""Journal file names: order of replay, packs and their clean-up."""

import pytest

from kestrelmq.format.names import (
    JournalName,
    QueueFiles,
    group_files,
    later_timestamp,
    pack_name,
    parse_name,
    rotated_name,
    temporary_name,
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cars", JournalName("cars")),
        ("cars.904", JournalName("cars", 904)),
        ("cars.904.pack", JournalName("cars", 904, packed=True)),
        ("orders+audit", JournalName("orders+audit")),
        ("orders+audit.5", JournalName("orders+audit", 5)),
        ("caf\u00e9.1", JournalName("caf\u00e9", 1)),
        ("9.9", JournalName("9", 9)),
        ("cars.12345678901234567890", JournalName("cars", 12345678901234567890)),
    ],
)
def test_names_that_mean_something(name: str, expected: JournalName) -> None:
    """A name tells the queue, the time of rotation and whether it is a pack."""
    assert parse_name(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "cars~~904",
        "~~lock",
        "~~status",
        "cars~~torn-904",
        "cars.904~~",
        "cars.",
        ".904",
        "cars.x",
        "cars.904.tmp",
        "cars.904.pack.pack",
        "cars.pack",
        "cars.1.2",
        "cars.-1",
        "a b",
        "+a",
        "a+b+c",
        "",
        "cars.\u0664",
        "x" * 201,
    ],
)
def test_names_that_mean_nothing(name: str) -> None:
    """Temporaries and foreign files are no journals."""
    assert parse_name(name) is None


def test_names_that_are_made_are_understood() -> None:
    """What the writer calls its files is read back; temporaries are not."""
    assert parse_name(rotated_name("cars", 904)) == JournalName("cars", 904)
    assert parse_name(pack_name("cars", 904)) == JournalName("cars", 904, packed=True)
    assert parse_name(temporary_name("cars", "torn", 904)) is None


@pytest.mark.parametrize("timestamp", ["904", "9" * 19, "9" * 20, "0904"])
def test_a_later_file_comes_later(timestamp: str) -> None:
    """Whatever the newest file is called, the name of the next one is known and sorts behind it."""
    before = f"cars.{timestamp}"
    after = rotated_name("cars", later_timestamp([before], 5))
    assert group_files([after, before]).queues["cars"].rotated == (before, after)


def test_order_is_by_number() -> None:
    """Rotated files go by timestamp, not by text; the current one is last."""
    found = group_files(["cars.1000", "cars", "cars.999", "cars.20"]).queues["cars"]
    assert found.files == ("cars.20", "cars.999", "cars.1000", "cars")
    assert (found.dead, found.pack) == ((), None)


def test_without_a_current_file() -> None:
    """Only what is there is replayed."""
    assert group_files(["cars.5"]).queues["cars"].files == ("cars.5",)


def test_pack_replaces_what_is_not_newer() -> None:
    """The example of the format: 904 and 950 are dead, 951 is still valid."""
    found = group_files(["cars", "cars.904", "cars.950", "cars.950.pack", "cars.951"]).queues[
        "cars"
    ]
    assert found == QueueFiles(
        queue="cars",
        rotated=("cars.950", "cars.951"),
        has_current=True,
        dead=("cars.904", "cars.950"),
        pack="cars.950.pack",
    )


def test_of_two_packs_the_newer_counts() -> None:
    """An older pack is dead like any other file that the newer one stands for."""
    found = group_files(["cars.5.pack", "cars.9.pack", "cars.7", "cars.12"]).queues["cars"]
    assert found.files == ("cars.9", "cars.12")
    assert found.dead == ("cars.5.pack", "cars.7")


def test_queues_are_kept_apart() -> None:
    """One queue's pack says nothing about another's files; unknown files are named."""
    found = group_files(["b.3", "a.9.pack", "a", "b", "~~lock", "b~~x", "README.md", "a+b.1"])
    assert list(found.queues) == ["a", "a+b", "b"]
    assert found.queues["b"].files == ("b.3", "b")
    assert found.queues["b"].dead == ()
    assert found.unknown == ("README.md",)


def test_empty_path() -> None:
    """No files, no queues."""
    assert group_files([]).queues == {}
