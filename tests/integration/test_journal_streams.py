"""`kestrel.journal`, read as a stream: journals of real servers, followed without Spark.

`tests/spark/test_journal_stream.py` has what needs Spark.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kestrelmq.client import Client
from kestrelmq.clock import SystemClock
from kestrelmq.disk.directories import DiskDirectory
from kestrelmq.errors import ConfigError, DamagedJournal
from kestrelmq.format.names import group_files
from kestrelmq.format.records import AddX
from kestrelmq.journal.packing import pack
from kestrelmq.spark.sources.spool_follower import JournalDataLost
from tests.spark.spools import NOW, adds, write
from tests.support import queries
from tests.support.journal_bytes import encode
from tests.support.patience import until
from tests.support.queries import Relation, drain, journals
from tests.support.server import ServerProcess, running_server

CONFIG = """\
[default]
max_memory_size = "20 KiB"
default_journal_size = "1 GiB"
disable_aggressive_rewrites = true
"""
COLUMNS = ("queue", "operation", "size", "data", "sequence", "file")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Run a server."""
    with running_server(tmp_path, config=CONFIG) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    """Return a client of it."""
    with Client(server.address) as client:
        yield client


def follow(path: Path, **options: str) -> Relation:
    """Return a stream of journals."""
    return journals(path, *COLUMNS, **{"wait": "0s", **options})


def rows_in(root: Path) -> list[dict[str, Any]]:
    """Return the rows of the table, in the order of the journals."""
    return sorted(queries.rows_in(root), key=lambda row: (row["queue"], row["sequence"]))


def items_in(root: Path, queue: str = "work") -> list[bytes]:
    """Return the items in the table that were added to a queue."""
    rows = [row for row in rows_in(root) if row["queue"] == queue]
    return [row["data"] for row in rows if row["operation"] in {"ADDX", "ADD"}]


def numbered(count: int, first: int = 0) -> list[bytes]:
    """Return items that differ."""
    return [b"%d" % number for number in range(first, first + count)]


def test_what_servers_write_comes_once(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """Over rotations, a kill of the server, and queries that go on where the last one ended."""
    rows = follow(server.queue_path, maxBytesPerTrigger="60 KiB")
    sent = []
    batches: list[int] = []
    for number in range(4):
        items = [one + b" " + bytes(900) for one in numbered(100, 100 * number)]
        sent += items
        client.put_many("work", items)
        for _ in range(10):
            client.get("work")
        if number == 2:
            server.kill9()
            with (server.queue_path / "work").open("ab") as file:
                file.write(encode(AddX(NOW, 0, b"cut short"))[:-3])
            drain(rows, tmp_path)
            server.restart()
        batches = drain(rows, tmp_path)
    assert len(list(server.queue_path.glob("work.*"))) > 5
    assert len(batches) > 1

    assert items_in(tmp_path) == sent
    table = queries.read(journals(server.queue_path, "operation"))
    stream = rows_in(tmp_path)
    assert Counter(row["operation"] for row in table) == Counter(row["operation"] for row in stream)
    sequence = [row["sequence"] for row in stream]
    assert sequence == sorted(set(sequence))


def test_a_pack_of_files_that_were_read_repeats_nothing(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """The server packs what its readers are done with, while the stream is behind it."""
    rows = follow(server.queue_path)
    sent = [b"%d " % number + bytes(3000) for number in range(60)]
    client.put_many("work", sent)
    drain(rows, tmp_path)
    files = set(server.queue_path.glob("work.*"))
    for _ in range(50):  # fewer than were read: no other file is packed
        assert client.get("work") is not None
        sent.append(b"%d " % len(sent) + bytes(3000))
        client.put("work", sent[-1])
    until(lambda: not files <= set(server.queue_path.glob("work.*")))
    until(lambda: not list(server.queue_path.glob("work.*.pack")))
    client.put("work", b"after the pack")
    drain(rows, tmp_path)

    assert items_in(tmp_path) == [*sent, b"after the pack"]


def pack_all(spool: Path) -> None:
    """Pack the journals of a queue path, as `kestrelmq journal pack` does."""
    directory = DiskDirectory(spool)
    for files in group_files(directory.names()).queues.values():
        pack(directory, files, "documented", SystemClock())


def test_files_that_were_packed_unread_are_lost(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """The query fails, and says what is gone; or it goes on with what the pack has."""
    client.put_many("work", [b"read", b"kept"])
    drain(follow(server.queue_path), tmp_path)
    assert client.get("work") == b"read"
    client.put_many("work", [b"removed unread", b"kept unread"])
    assert client.get("work") == b"kept"
    assert client.get("work") == b"removed unread"
    server.stop()
    pack_all(server.queue_path)
    client_again = server.restart()
    with Client(client_again.address) as again:
        again.put("work", b"later")

    with pytest.raises(JournalDataLost, match=r"data of queue work was lost.*failOnDataLoss"):
        drain(follow(server.queue_path), tmp_path)
    drain(follow(server.queue_path, failOnDataLoss="false"), tmp_path)
    assert items_in(tmp_path) == [b"read", b"kept", b"kept unread", b"later"]
    assert drain(follow(server.queue_path), tmp_path) in ([], [0])


def test_a_deleted_queue_leaves_the_offset(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """A new one of its name begins at its beginning, with the very bytes of the old one."""
    rows = follow(server.queue_path)
    client.put_many("work", [b"same", b"old"])
    client.put("other", b"item")
    drain(rows, tmp_path)
    assert "work" in newest_offset(tmp_path)
    client.delete("work")
    until(lambda: not list(server.queue_path.glob("work*")))
    drain(rows, tmp_path)
    assert "other" in newest_offset(tmp_path)
    assert "work" not in newest_offset(tmp_path)
    client.put_many("work", [b"same", b"new"])
    drain(rows, tmp_path)
    # The sequence begins anew, too.
    assert sorted(items_in(tmp_path)) == [b"new", b"old", b"same", b"same"]


def newest_offset(root: Path) -> set[str]:
    """Return the queues in the last offset that was logged."""
    offsets = (root / "checkpoint" / "offsets").glob("*[0-9]")
    end = json.loads(max(offsets).read_text().splitlines()[2])
    return {queue for queues in end["spools"].values() for queue in queues}


def test_a_queue_that_is_created_again_at_once_may_have_lost_data(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """It looks like one that was packed, so it is an error; without that it is read anew."""
    client.put_many("work", [b"same", b"old"])
    drain(follow(server.queue_path), tmp_path)
    client.delete("work")
    until(lambda: not list(server.queue_path.glob("work*")))
    client.put_many("work", [b"same", b"new"])
    with pytest.raises(JournalDataLost, match="deleted and created again"):
        drain(follow(server.queue_path), tmp_path)
    drain(follow(server.queue_path, failOnDataLoss="false"), tmp_path)
    assert items_in(tmp_path) == [b"same", b"old", b"same", b"new"]


def test_where_a_stream_begins(server: ServerProcess, client: Client, tmp_path: Path) -> None:
    """At the beginning, at the end, or at the first item of a time or later."""
    client.put_many("work", numbered(3))
    until(lambda: SystemClock().now() > add_times(server)[-1])
    moment = SystemClock().now()
    client.put_many("work", [b"3", b"4"])
    for name, starting in (("all", "earliest"), ("none", "latest"), ("some", str(moment))):
        drain(follow(server.queue_path, startingOffsets=starting), tmp_path / name)
    client.put("work", b"5")
    client.put("new", b"6")
    found = {}
    for name in ("all", "none", "some"):
        # Where to begin does not matter any more.
        drain(follow(server.queue_path, startingOffsets="latest"), tmp_path / name)
        found[name] = b"".join(items_in(tmp_path / name))
        assert items_in(tmp_path / name, "new") == [b"6"]
    assert found == {"all": b"012345", "none": b"5", "some": b"345"}


def add_times(server: ServerProcess) -> list[int]:
    """Return the add times in the journals."""
    rows = queries.read(journals(server.queue_path, "add_ms"))
    return sorted(row["add_ms"] for row in rows if row["add_ms"] is not None)


def test_damage_is_what_the_mode_says(tmp_path: Path) -> None:
    """An error at its byte, a row, or nothing; the next file follows."""
    spool = tmp_path / "spool"
    write(spool / "work.1000", adds([b"before"]), tail=b"\x63 is no opcode")
    write(spool / "work", adds([b"behind"]))
    with pytest.raises(DamagedJournal, match=r"work\.1000"):
        drain(follow(spool), tmp_path / "fails")
    damaged = {}
    for mode in ("permissive", "dropmalformed"):
        drain(follow(spool, mode=mode), tmp_path / mode)
        assert items_in(tmp_path / mode) == [b"before", b"behind"]
        damaged[mode] = [
            (row["size"], row["file"])
            for row in rows_in(tmp_path / mode)
            if row["operation"] == "DAMAGED"
        ]
    assert damaged == {"permissive": [(14, "work.1000")], "dropmalformed": []}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "yesterday"}, "earliest, latest, or a time"),
        ({"pushdown": "true"}, "'pushdown'"),
        ({"maxBytesPerTrigger": "0"}, "a size above 0"),
    ],
)
def test_options_that_are_not_allowed(
    tmp_path: Path, options: dict[str, str], message: str
) -> None:
    """The error names the option and what is allowed."""
    write(tmp_path / "spool" / "q", adds([b"1"]))
    with pytest.raises(ConfigError, match=message):
        drain(follow(tmp_path / "spool", **options), tmp_path)
