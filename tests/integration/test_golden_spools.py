"""Queue paths on which everything beyond the original was used, in both dialects of the journal.

`use_everything` does that to a server, which is then killed. What it left when this was written is
kept as golden files (`tests/data/spools`). They and what a server leaves today are loaded to the
same state; and a plain reader of the documented records, which ignores all files with `~~` in their
names and shares no code with the product, finds the same items in the same order.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pytest

from kestrelmq.journal.writer import Dialect
from tests.admin.conftest import Admin
from tests.integration.test_memcache_reserve import Item, ask, found, reserve
from tests.support.patience import until
from tests.support.readings import opcodes, replayed
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, put, stats, wait_for

pytestmark = pytest.mark.compiled_only

DATA: Final = Path(__file__).parents[1] / "data" / "spools"
DIALECTS: Final[tuple[Dialect, ...]] = ("documented", "kestrel-2")
CONFIG: Final = """
[default]
journal_dialect = "{dialect}"
producer_ttl = "36500d"
max_deliveries = 3
dead_letter_queue = "failed"

[queues.rewritten]
max_journal_size = "2 KiB"
min_journal_compact_delay = 0
"""
QUEUES: Final = ("jobs", "rewritten")
"""Queues that are used in the same way; the journal of the second is rewritten meanwhile."""
SIXTY_YEARS: Final = 1_892_160_000_000
LEASE: Final = 86_400_000
GOLDEN_READS: Final = {
    "documented": {"jobs": "7-f5b3c0877f64a82e", "rewritten": "7-c4f6bde43afb2878"},
    "kestrel-2": {"jobs": "7-bca7b0fc3d0529d1", "rewritten": "7-0a6c2789c6f23935"},
}
"""The READ of the item `free` in the golden files."""

OPEN: Final = ("opened", "tagged-1", "tagged-2", "owned", "free", "held back")
"""Items of reads that are open at the end, by xid."""
WAITING: Final = ("retired", "uncounted", "twice", "marked", "joined", "joined, too")
"""Items that wait behind them."""
NOTES: Final = {1, 2, 3, 4, 5, 6, 16, 17, 18, 19, 32, 33}
"""The kinds of notes in the golden files of a dialect: all that there are."""
DEAD: Final = ("bad", "buried") * 2
LOADED: Final = {
    "opened": 2,
    "held back": 2,
    "retired": 2,
    "uncounted": 1,
    "twice": 3,
    "marked": 1,
    "joined": 1,
    "joined, too": 1,
}
"""Items that a server delivers next, in order, with the deliveries that it counts then."""


def use_everything(server: ServerProcess, holder: Wire) -> dict[str, str]:
    """Use all there is on a new server; return the READ of `free` by queue.

    The connection `holder` has open reads until the server is killed.
    """
    with Wire(server) as wire:
        reads = {queue: use_queue(wire, holder, queue) for queue in QUEUES}
        for _ in range(50):
            (one,) = reserve(wire, f"rewritten 1 lease={LEASE}")
            release(wire, one, "uncounted")
        until(lambda: int(stats(wire, "rewritten")["journal_rewrites"]) > 0)
        until(lambda: not list(server.queue_path.glob("rewritten~~pack-*")))
        assert ask(wire, "declare replies journal=no max_items=5") == "END"
        assert ask(wire, "declare news fanout_only") == "END"
        wire.ask(b"get news+a\r\n", b"END\r\n")
        put(wire, "news", "told")
        put(wire, f"held/delay={SIXTY_YEARS}", "flushed")
        assert ask(wire, "flush held") == "END"
        put(wire, "held", "x")
        assert ask(wire, "pause held reads") == "END"
    return reads


def use_queue(wire: Wire, holder: Wire, queue: str) -> str:
    """Use one queue: deliveries, dead letters, delays, reserved reads, tags, marks."""
    put(wire, queue, "opened", "done-1", "done-2", "tagged-1", "tagged-2", "owned", "free")
    put(wire, queue, "retired", "uncounted", "held back", "twice", "bad", "buried")
    put(wire, f"{queue}/producer=p/seq=7", "marked")
    put(wire, f"{queue}/producer=q/seq=5/delay={SIXTY_YEARS}", "in sixty years")
    for items, data in ((15, "joined"), (16, "joined, too")):
        put(wire, f"{queue}/delay=1", data)
        wait_for(wire, queue, "items", items)
    holder.ask_until(f"get {queue}/open\r\n".encode(), b"END\r\n")
    reserve(wire, f"{queue} 2 lease={LEASE} tag=sink:1:0")
    assert ask(wire, f"finish {queue} tag=sink:1:0") == "FINISHED 2"
    reserve(wire, f"{queue} 2 lease={LEASE} tag=sink:2:0 owner=w grace={LEASE}")
    reserve(wire, f"{queue} 1 lease={LEASE} owner=w grace={LEASE}")
    (free,) = reserve(wire, f"{queue} 1 lease={LEASE}")
    reserve(wire, f"{queue} 1 lease={LEASE} tag=old:1:0")
    uncounted, late, twice, bad, buried = reserve(wire, f"{queue} 5 lease={LEASE}")
    for _ in range(2):
        release(wire, bad)
        (bad,) = reserve(wire, f"{queue} 1 lease={LEASE}")
    release(wire, bad)
    release(wire, buried, "dead")
    release(wire, twice)
    (twice,) = reserve(wire, f"{queue} 1 lease={LEASE}")
    release(wire, twice)
    release(wire, late, f"delay={LEASE}")
    release(wire, uncounted, "uncounted")
    assert ask(wire, f"retire {queue} old 1") == "RETIRED 1"
    return free.read


def release(wire: Wire, one: Item, how: str = "") -> None:
    """Give an item back."""
    assert ask(wire, f"release {one.queue} {one.read} {how}") == "RELEASED 1"


def written(path: Path) -> dict[str, bytes]:
    """Return the files of a queue path by name, without those that are not journals."""
    return {
        file.name: file.read_bytes()
        for file in path.iterdir()
        if file.name not in {"~~lock", "~~status"}
    }


def read_golden(dialect: str) -> dict[str, bytes]:
    """Return the golden files of a dialect by name."""
    return {
        file.name.removesuffix(".hex"): bytes.fromhex(file.read_text())
        if file.suffix == ".hex"
        else file.read_bytes()
        for file in (DATA / dialect).iterdir()
    }


# --- what a plain reader finds ---


def check_plain_reading(files: Mapping[str, bytes], dialect: Dialect) -> None:
    """Check what the documented records say, whatever xid a reader gives an item of ADD_XID."""
    plain = {name: raw for name, raw in files.items() if "~~" not in name}
    expected: dict[str, Iterable[str]] = dict.fromkeys(QUEUES, (*OPEN, *WAITING))
    expected |= {"failed": DEAD, "news+a": ["told"], "held": ["x"]}
    assert {name.partition(".")[0] for name in plain} == set(expected)
    for keeps_xid in (True, False):
        for queue, data in expected.items():
            reading = replayed(plain, queue, keeps_xid=keeps_xid)
            assert [one[0].decode() for one in reading.loaded] == list(data)
    used = {opcode for raw in plain.values() for opcode in opcodes(raw)}
    assert not used & ({9} if dialect == "documented" else {3, 7})
    assert any(name.startswith("rewritten.") for name in plain)


# --- what a server finds ---


def check_server(
    server: ServerProcess, reads: Mapping[str, str], loaded: Mapping[str, int]
) -> None:
    """Check what a server has loaded; `reads` has the READ of `free` by queue."""
    with Wire(server) as wire:
        for queue in QUEUES:
            check_queue(wire, queue, reads[queue], loaded)
        shown = Admin(server).get("/api/v1/queues/failed/items").json["items"]
        letters = [(one["dead_letter"]["origin"], one["dead_letter"]["why"]) for one in shown]
        assert letters == [(queue, "it was released") for queue in QUEUES for _ in range(2)]
        dead = reserve(wire, f"failed 9 lease={LEASE}")
        assert [(one.data, one.deliveries) for one in dead] == [("bad", 4), ("buried", 2)] * 2
        assert stats(wire, "held")["paused"] == "reads"
        assert found(wire, "held") == []
        assert ask(wire, "resume held") == "END"
        assert found(wire, "held") == ["x"]
        put(wire, "news", "more")
        assert (found(wire, "news+a"), found(wire, "news")) == (["told", "more"], [])
        put(wire, "replies", *"abcde")
        put(wire, "replies", "f", reply=b"NOT_STORED\r\n")
        config = wire.ask_until(b"dump_config replies\r\n", b"END\r\n").decode()
        assert "keep_journal=false" in config


def check_queue(wire: Wire, queue: str, read: str, loaded: Mapping[str, int]) -> None:
    """Check one queue that was used."""
    numbers = stats(wire, queue)
    assert {name: numbers[name] for name in ("items", "open_transactions", "delayed")} == {
        "items": f"{len(LOADED)}",
        "open_transactions": "4",
        "delayed": "1",
    }
    for producer in ("p/seq=7", "q/seq=5"):
        put(wire, f"{queue}/producer={producer}", "repeated")
    put(wire, f"{queue}/producer=p/seq=8", "next")
    assert ask(wire, f"reserve {queue} 9 lease={LEASE} tag=sink:1:0") == "DONE"
    assert ask(wire, f"finish {queue} tag=sink:1:0") == "FINISHED 2"
    assert ask(wire, f"reserve {queue} 9 lease={LEASE} tag=old:1:9").startswith("CLIENT_ERROR ")
    tagged = reserve(wire, f"{queue} 9 lease={LEASE} tag=sink:2:0")
    assert [(one.data, one.deliveries) for one in tagged] == [("tagged-1", 1), ("tagged-2", 1)]
    assert ask(wire, f"finish {queue} tag=sink:2:0") == "FINISHED 2"
    assert ask(wire, f"release {queue} owner=w uncounted") == "RELEASED 1"
    assert ask(wire, f"finish {queue} {read}") == "FINISHED 1"
    rest = reserve(wire, f"{queue} 99 lease={LEASE}")
    expected = {"owned": 1, **loaded, "next": 1}
    assert [(one.data, one.deliveries) for one in rest] == list(expected.items())


@pytest.mark.parametrize("dialect", DIALECTS)
def test_golden_files(tmp_path: Path, dialect: Dialect) -> None:
    """What an earlier server left is loaded, and read by others, as it always was."""
    files = read_golden(dialect)
    check_plain_reading(files, dialect)
    kinds = {kind[0] for raw in files.values() for kind in re.findall(rb"\x04NOTE\x04(.)", raw)}
    assert kinds == NOTES
    queues = tmp_path / "queues"
    queues.mkdir()
    for name, raw in files.items():
        (queues / name).write_bytes(raw)
    with running_server(tmp_path, config=CONFIG.format(dialect=dialect)) as server:
        check_server(server, GOLDEN_READS[dialect], LOADED)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_a_server_leaves(tmp_path: Path, dialect: Dialect) -> None:
    """A server that is killed today leaves the same; so does the next one, which stops."""
    with running_server(tmp_path, config=CONFIG.format(dialect=dialect)) as server:
        with Wire(server) as holder:
            reads = use_everything(server, holder)
            server.kill9()
        check_plain_reading(written(server.queue_path), dialect)
        server.restart()
        server.restart()
        check_plain_reading(written(server.queue_path), dialect)
        check_server(server, reads, LOADED | {"retired": 1})
