"""What a packed journal must keep besides items: reservations, tags, counts, marks and delays.

A real server fills the queues and is killed. Then its journals are packed, by Spark or by the
command line, and a server that loads them must answer as if nothing had happened.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kestrelmq.clock import SystemClock
from kestrelmq.format.notes import delayed_notes, joined_note
from kestrelmq.format.records import AddX, item
from kestrelmq.spark.pipelines import pack
from tests.integration.test_memcache_reserve import ask, found, items, reserve
from tests.support.commands import run_command
from tests.support.journal_bytes import encode
from tests.support.server import running_server
from tests.support.wire import Wire, put, stats, wait_for

Packer = Callable[[Path], object]
LEASE = "lease=600000"
HOUR = 3_600_000


def by_command(*arguments: str) -> Packer:
    """Return what packs with the command line."""

    def packs(path: Path) -> None:
        done = run_command("journal", "pack", *arguments, str(path))
        assert done.returncode == 0, done.stderr

    return packs


@pytest.fixture(params=["spark", "spark kestrel-2", "command", "command kestrel-2"])
def packs(request: pytest.FixtureRequest, spark: SparkSession) -> Packer:
    """Return one of the packers."""
    if "command" in request.param:
        return by_command(*(["--dialect", "kestrel-2"] if "kestrel-2" in request.param else []))
    if "kestrel-2" in request.param:
        return lambda path: pack(spark, str(path), dialect="kestrel-2")
    return lambda path: pack(spark, str(path))


def test_reserved_reads_and_tags_survive_packing(packs: Packer, tmp_path: Path) -> None:
    """Reads keep their names and terms, an open tag its items, a finished tag its answer."""
    with running_server(tmp_path) as server:
        with Wire(server) as wire:
            put(wire, "jobs", *"abcdef")
            (plain,) = reserve(wire, f"jobs 1 {LEASE}")
            tagged = reserve(wire, f"jobs 2 {LEASE} tag=step:3:1 owner=worker")
            (done,) = reserve(wire, f"jobs 1 {LEASE} tag=step:3:0")
            assert ask(wire, "finish jobs tag=step:3:0") == "FINISHED 1"
            assert ask(wire, "retire jobs old 7") == "RETIRED 0"
            wire.ask(b"get jobs/open\r\n", b"VALUE jobs 0 1\r\ne\r\nEND\r\n")
            server.kill9()
        packs(server.queue_path)
        server.start()
        with Wire(server) as wire:
            assert stats(wire, "jobs")["open_transactions"] == "3"
            again = reserve(wire, f"jobs 2 {LEASE} tag=step:3:1 owner=worker")
            assert [one.read for one in again] == [one.read for one in tagged]
            assert [one.data for one in again] == [one.data for one in tagged] == ["b", "c"]
            assert ask(wire, "finish jobs tag=step:3:0") == "FINISHED 1"
            assert ask(wire, f"finish jobs {done.read}") == "FINISHED 0"
            assert "retired" in ask(wire, f"reserve jobs 1 {LEASE} tag=old:7:1")
            assert ask(wire, f"finish jobs {plain.read}") == "FINISHED 1"
            assert ask(wire, "release jobs owner=worker") == "RELEASED 2"
            assert found(wire, "jobs") == ["b", "c", "e", "f"]


def test_counts_of_deliveries_survive_packing(packs: Packer, tmp_path: Path) -> None:
    """Of items that were given back, of one that was not counted, and of one that is open."""
    with running_server(tmp_path) as server:
        with Wire(server) as wire:
            put(wire, "jobs", "a", "b", "c")
            for _ in range(2):
                (first,) = reserve(wire, f"jobs 1 {LEASE}")
                assert ask(wire, f"release jobs {first.read}") == "RELEASED 1"
            first, second = reserve(wire, f"jobs 2 {LEASE}")
            assert ask(wire, f"release jobs {second.read} uncounted") == "RELEASED 1"
            server.kill9()
        packs(server.queue_path)
        packs(server.queue_path)
        server.start()
        with Wire(server) as wire:
            assert ask(wire, f"release jobs {first.read}") == "RELEASED 1"
            counts = [(one.data, one.deliveries) for one in reserve(wire, f"jobs 9 {LEASE}")]
            assert counts == [("a", 4), ("b", 1), ("c", 1)]


def test_marks_of_producers_survive_packing(packs: Packer, tmp_path: Path) -> None:
    """A repeated put is not stored again: of an item that waits, was read, or is delayed."""
    repeated = [("jobs/producer=p/seq=1", "a"), ("jobs/producer=p/seq=2", "b")]
    repeated += [("jobs/producer=late/seq=5/delay=3600000", "later")]
    with running_server(tmp_path) as server:
        with Wire(server) as wire:
            for key, data in repeated:
                put(wire, key, data)
            wire.ask(b"get jobs\r\n", b"VALUE jobs 0 1\r\na\r\nEND\r\n")
            server.kill9()
        packs(server.queue_path)
        server.start()
        with Wire(server) as wire:
            for key, data in repeated:
                put(wire, key, data)
            put(wire, "jobs/producer=late/seq=4", "older")
            kept = stats(wire, "jobs")
            assert (kept["items"], kept["delayed"]) == ("1", "1")
            assert found(wire, "jobs") == ["b"]


def test_delays_survive_packing(packs: Packer, tmp_path: Path) -> None:
    """A delayed item is still there, due at its time; one that has joined does not come twice."""
    with running_server(tmp_path) as server:
        with Wire(server) as wire:
            put(wire, "jobs/delay=600", "soon")
            put(wire, "jobs/delay=3600000", "later")
            put(wire, "only/delay=3600000", "x")
            server.kill9()
        packs(server.queue_path)
        server.start()
        with Wire(server) as wire:
            wait_for(wire, "jobs", "items", 1)
            kept = stats(wire, "jobs")
            assert (kept["items"], kept["delayed"]) == ("1", "1")
            assert stats(wire, "only")["delayed"] == "1"


def test_an_item_that_has_joined_its_queue_does_not_come_twice(
    packs: Packer, tmp_path: Path
) -> None:
    """The pack leaves the note out in which it was delayed."""
    now = SystemClock().now()
    joined, waiting = item(now - 1000, 0, b"joined"), item(now + HOUR, 0, b"waiting")
    path = tmp_path / "queues"
    path.mkdir()
    delayed = delayed_notes(1, joined, 0) + delayed_notes(2, waiting, 0)
    first = encode(AddX(now, 0, b"first"))
    (path / "jobs").write_bytes(delayed + first + joined_note(1, 0) + joined)

    packs(path)

    with running_server(tmp_path) as server, Wire(server) as wire:
        kept = stats(wire, "jobs")
        assert (kept["items"], kept["delayed"]) == ("2", "1")
        assert found(wire, "jobs") == ["first", "joined"]


def test_a_note_that_a_crash_cut_is_not_completed_by_packing(packs: Packer, tmp_path: Path) -> None:
    """It says nothing then, and the counter is what it was before."""
    with running_server(tmp_path) as server:
        with Wire(server) as wire:
            put(wire, "jobs", "a", "b")
            (first,) = reserve(wire, f"jobs 1 {LEASE}")
            server.kill9()
        file = server.queue_path / "jobs"
        file.write_bytes(file.read_bytes() + joined_note(1, 1)[:9])
        packs(server.queue_path)
        server.start()
        with Wire(server) as wire:
            assert ask(wire, f"finish jobs {first.read}") == "FINISHED 1"
            assert items(wire.ask_until(f"reserve jobs 9 {LEASE}\r\n".encode(), b"END\r\n"))
