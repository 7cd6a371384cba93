"""What queues do by their settings, seen by a client of a real server."""

import time
from collections.abc import Iterator

import pytest

from tests.support.patience import until
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, put, stats, wait_for

pytestmark = pytest.mark.compiled

CONFIG = """
expiration_timer_frequency = "20ms"
[queues.limited]
max_items = 3
[queues.sized]
max_size = 10
[queues.tiny]
max_item_size = 4
[queues.ring]
max_items = 2
discard_old_when_full = true
[queues.ringbytes]
max_size = 5
discard_old_when_full = true
[queues.aged]
max_age = "100ms"
[queues.slow]
expire_to_queue = "late"
[queues.aliased]
expire_to_queue = "both"
[queues.blackhole]
fanout_only = true
[queues."limits+small"]
max_items = 1
[queues.vip]
allowed_client_ids_for_enqueue = ["boss"]
allowed_client_ids_for_dequeue = ["boss"]
[queues.mortal]
max_queue_age = "100ms"
[queues.memory]
keep_journal = false
[queues.masked]
max_items = 1
[aliases.both]
destination_queues = ["left", "right"]
[aliases.outer]
destination_queues = ["both", "third"]
[aliases.masked]
destination_queues = ["behind"]
[aliases.partly]
destination_queues = ["tiny", "roomy"]
"""

STATISTICS = """items bytes total_items logsize expired_items mem_items mem_bytes age discarded
waiters open_transactions transactions canceled_transactions total_flushes age_msec create_time
 children expired_set_aside delayed dead_lettered redelivered journal_rewrites journal_rotations
 journal_syncs
 get_items_hit get_items_miss"""

GLOBAL_STATISTICS = """uptime time version curr_items total_items bytes curr_connections
total_connections cmd_get cmd_set cmd_peek get_hits get_misses bytes_read bytes_written
queue_creates queue_deletes queue_expires queues_loading cmd_monitor cmd_monitor_get
reserved_memory_ratio"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Return a server that all tests here share; each uses queues of its own."""
    with running_server(tmp_path_factory.mktemp("queues"), config=CONFIG) as running:
        yield running


def drain(wire: Wire, queue: str) -> str:
    """Take everything out of a queue; return the items, parted by spaces."""
    items = []
    while (reply := wire.ask_until(f"get {queue}\r\n".encode(), b"END\r\n")) != b"END\r\n":
        items.append(reply.split(b"\r\n")[1].decode())
    return " ".join(items)


def test_max_items(wire: Wire) -> None:
    """A full queue refuses; a removal makes room."""
    put(wire, "limited", "a", "b", "c")
    put(wire, "limited", "d", reply=b"NOT_STORED\r\n")
    wire.ask(b"get limited\r\n", b"VALUE limited 0 1\r\na\r\nEND\r\n")
    put(wire, "limited", "e")
    assert drain(wire, "limited") == "b c e"


def test_max_size(wire: Wire) -> None:
    """The limit is of bytes of data; once it is reached, empty items are too many."""
    put(wire, "sized", "12345", "", "67890")
    put(wire, "sized", "x", "", reply=b"NOT_STORED\r\n")
    assert drain(wire, "sized") == "12345  67890"


def test_the_last_item_may_exceed_max_size(wire: Wire) -> None:
    """An item is taken while the queue is below its limit, whatever its own size."""
    put(wire, "sized", "123456789", "1234567890")
    put(wire, "sized", "", reply=b"NOT_STORED\r\n")
    assert drain(wire, "sized") == "123456789 1234567890"


def test_max_item_size(wire: Wire) -> None:
    """One item too large is refused, whatever room there is."""
    put(wire, "tiny", "1234")
    put(wire, "tiny", "12345", reply=b"NOT_STORED\r\n")
    assert drain(wire, "tiny") == "1234"


def test_discard_old_when_full(wire: Wire) -> None:
    """Every add succeeds, and the oldest items go, counted."""
    put(wire, "ring", *"abcde")
    assert stats(wire, "ring")["discarded"] == "3"
    assert drain(wire, "ring") == "d e"
    put(wire, "ringbytes", "aa", "bb", "cc")
    assert drain(wire, "ringbytes") == "bb cc"


@pytest.mark.parametrize(
    ("items", "left"),
    [
        (["", "11", "22", "", "6", ""], " 11 22  6 "),
        (["11", "22", "333"], "22 333"),
        (["11", "22", "1234567"], "1234567"),
        (["1234567", ""], ""),
    ],
)
def test_the_oldest_items_make_room(wire: Wire, items: list[str], left: str) -> None:
    """With the new item the queue is within its limits; one larger than them is kept, alone."""
    put(wire, "ringbytes", *items)
    assert drain(wire, "ringbytes") == left
    assert stats(wire, "ringbytes")["items"] == "0"


@pytest.mark.parametrize("expiry", [-1, -1000, 1_000_000, 1_500_000_000])
def test_expired_from_the_start(wire: Wire, expiry: int) -> None:
    """Below zero, and an epoch in the past, is expired already."""
    queue = f"past{abs(expiry)}"
    put(wire, queue, "x", expiry=expiry)
    assert drain(wire, queue) == ""
    wait_for(wire, queue, "expired_items", 1)


@pytest.mark.parametrize(
    "expiry",
    [0, 999_999, int(time.time()) + 1000, 2**40],
    ids=["never", "in seconds", "an epoch", "far away"],
)
def test_not_expired_yet(wire: Wire, expiry: int) -> None:
    """Below a million is seconds from now; else it is an epoch."""
    queue = f"future{expiry}"
    put(wire, queue, "x", expiry=expiry)
    assert drain(wire, queue) == "x"


def test_expiry_in_a_second(wire: Wire) -> None:
    """A relative expiry comes true, in the background."""
    put(wire, "second", "x", expiry=1)
    assert stats(wire, "second")["items"] == "1"
    wait_for(wire, "second", "expired_items", 1)
    assert drain(wire, "second") == ""


def test_max_age_caps_the_expiry(wire: Wire) -> None:
    """An item never waits longer than `max_age`, whatever its own expiry says."""
    put(wire, "aged", "a", expiry=0)
    put(wire, "aged", "b", expiry=999_999)
    wait_for(wire, "aged", "expired_items", 2)


def test_expire_to_queue(wire: Wire) -> None:
    """Expired items move, also to every destination of an alias; they do not expire again."""
    put(wire, "slow", "x", expiry=-1)
    wire.ask(b"get late/t=20000\r\n", b"VALUE late 0 1\r\nx\r\nEND\r\n")
    put(wire, "aliased", "y", expiry=-1)
    for queue in ("left", "right"):
        wire.ask(f"get {queue}/t=20000\r\n".encode(), f"VALUE {queue} 0 1\r\ny\r\nEND\r\n".encode())


def test_max_queue_age(server: ServerProcess, wire: Wire) -> None:
    """An empty queue that is old is deleted, with its file; one with items or readers stays."""
    put(wire, "mortal", "x")
    time.sleep(0.2)  # twice its age
    assert stats(wire, "mortal")["items"] == "1"
    expires = int(stats(wire)["queue_expires"])
    # Once only: a read after it is gone would make it anew.
    wire.ask(b"get mortal\r\n", b"VALUE mortal 0 1\r\nx\r\nEND\r\n")
    until(lambda: not stats(wire, "mortal"))
    assert int(stats(wire)["queue_expires"]) == expires + 1
    assert not (server.queue_path / "mortal").exists()


def test_fanout(server: ServerProcess, wire: Wire) -> None:
    """A child gets what is added from its first mention on, and nothing once it is deleted."""
    put(wire, "orders", "early")
    wire.ask(b"get orders+audit\r\nget orders+mail\r\n", b"END\r\n" * 2)
    put(wire, "orders", "1")
    put(wire, "orders+audit", "own")
    assert sorted(stats(wire, "orders")["children"].split(",")) == ["orders+audit", "orders+mail"]
    assert (server.queue_path / "orders+audit").exists()
    wire.ask(b"delete orders+mail\r\n", b"DELETED\r\n")
    put(wire, "orders", "2")
    assert drain(wire, "orders+audit") == "1 own 2"
    assert drain(wire, "orders+mail") == ""
    assert drain(wire, "orders") == "early 1 2"


def test_fanout_before_its_master(wire: Wire) -> None:
    """A child may be there first."""
    wire.ask(b"get boss+child\r\n", b"END\r\n")
    put(wire, "boss", "x")
    assert (drain(wire, "boss"), drain(wire, "boss+child")) == ("x", "x")


def test_full_child_does_not_stop_the_others(wire: Wire) -> None:
    """A child that refuses loses the item for itself alone."""
    wire.ask(b"get limits+small limits+large\r\n", b"END\r\n")
    put(wire, "limits", "1", "2")
    assert drain(wire, "limits+small") == "1"
    assert drain(wire, "limits+large") == "1 2"
    assert drain(wire, "limits") == "1 2"


def test_fanout_serves_waiting_readers(server: ServerProcess, wire: Wire) -> None:
    """Readers of the children are served by an add to the master."""
    with Wire(server) as reader:
        reader.send(b"get wide+a/t=20000\r\n")
        wait_for(wire, "wide+a", "waiters", 1)
        put(wire, "wide", "x")
        reader.expect(b"VALUE wide+a 0 1\r\nx\r\nEND\r\n")


def test_fanout_only(server: ServerProcess, wire: Wire) -> None:
    """Nothing is kept in the master, not even a file; without children it is a black hole."""
    put(wire, "blackhole", "lost")
    wire.ask(b"get blackhole+child\r\n", b"END\r\n")
    put(wire, "blackhole", "x")
    assert (drain(wire, "blackhole"), drain(wire, "blackhole+child")) == ("", "x")
    assert not (server.queue_path / "blackhole").exists()


def test_alias(wire: Wire) -> None:
    """Adds go to every destination and its fanouts; an alias of an alias works."""
    wire.ask(b"get left+copy\r\n", b"END\r\n")
    put(wire, "outer", "x")
    for queue in ("left", "left+copy", "right", "third"):
        assert drain(wire, queue) == "x"
    wire.ask(b"get both\r\nget outer/open\r\nget both/peek\r\n", b"END\r\n" * 3)
    wire.ask(b"monitor both 0\r\nmonitor both 5 0\r\n", b"END\r\n" * 2)
    wire.ask(b"flush both\r\ndelete both\r\n", b"END\r\nDELETED\r\n")
    put(wire, "both", "y")
    assert (drain(wire, "left"), drain(wire, "right")) == ("y", "y")


@pytest.mark.parametrize(
    ("request_", "seconds"),
    [
        (b"get both/t=200", 0.2),
        (b"get outer/t=200/open", 0.2),
        (b"gets both/peek/t=200", 0.2),
        (b"get both/t=100 nothing both/t=100", 0.2),
        (b"monitor both 1", 1.0),
        (b"monitor outer 1 5", 1.0),
    ],
)
def test_reads_of_an_alias_wait(wire: Wire, request_: bytes, seconds: float) -> None:
    """They are those of a queue that stays empty, so a client that polls with a wait does wait."""
    begun = time.monotonic()
    wire.ask(request_ + b"\r\nversion\r\n", b"END\r\nVERSION ")
    assert time.monotonic() - begun > seconds * 0.99


def test_a_client_that_leaves_while_it_waits_at_an_alias(server: ServerProcess, wire: Wire) -> None:
    """What it had taken for the same reply goes back, and nothing of it remains."""
    put(wire, "held", "x")
    with Wire(server) as gone:
        gone.send(b"get held both/t=60000\r\n")
        wait_for(wire, "held", "open_transactions", 1)
    wait_for(wire, "held", "items", 1)
    assert drain(wire, "held") == "x"


def test_alias_with_a_destination_that_refuses(wire: Wire) -> None:
    """The others get the item all the same, and the client hears that one did not."""
    put(wire, "partly", "12345", reply=b"NOT_STORED\r\n")
    assert (drain(wire, "tiny"), drain(wire, "roomy")) == ("", "12345")


def test_alias_masks_a_queue(server: ServerProcess, wire: Wire) -> None:
    """An alias wins over a queue of its name, and the log says so."""
    put(wire, "masked", "a", "b")
    assert drain(wire, "behind") == "a b"
    wire.ask(b"get masked\r\n", b"END\r\n")
    assert server.logged("masked masks the queue of that name")


def test_client_ids(wire: Wire) -> None:
    """A client without an allowed id is refused, and nothing changes."""
    reply = wire.ask_until(b"set vip 0 0 1\r\nx\r\n", b"\r\n")
    assert reply == b"CLIENT_ERROR this client may not add to vip\r\n"
    for request in (b"get vip", b"get vip/open/t=100", b"get vip/peek", b"monitor vip 5"):
        reply = wire.ask_until(request + b"\r\n", b"\r\n")
        assert reply == b"CLIENT_ERROR this client may not read vip\r\n"
    wire.expect_silence()
    assert stats(wire, "vip").get("total_items", "0") == "0"


def test_queue_without_a_journal(server: ServerProcess, wire: Wire) -> None:
    """`keep_journal = false` works in memory and leaves no file."""
    put(wire, "memory", "a", "b")
    wire.ask(b"get memory/open\r\nget memory/abort\r\n", b"VALUE memory 0 1\r\na\r\nEND\r\nEND\r\n")
    assert drain(wire, "memory") == "a b"
    assert not (server.queue_path / "memory").exists()


# --- statistics ---


def test_queue_statistics(server: ServerProcess, wire: Wire) -> None:
    """Every statistic of the guide is there and counts what it says."""
    wire.ask(b"get counted+child\r\nget counted\r\n", b"END\r\n" * 2)
    put(wire, "counted", "abc", "de")
    put(wire, "counted", "gone", expiry=-1)
    wire.ask(b"get counted\r\n", b"VALUE counted 0 3\r\nabc\r\nEND\r\n")
    wire.ask(
        b"get counted/open\r\nget counted/abort\r\n", b"VALUE counted 0 2\r\nde\r\nEND\r\nEND\r\n"
    )
    found = stats(wire, "counted")
    assert set(found) == set(STATISTICS.split())
    expected = {
        "items": "2",
        "bytes": "6",
        "total_items": "3",
        "mem_items": "2",
        "mem_bytes": "6",
        "expired_items": "0",
        "discarded": "0",
        "waiters": "0",
        "open_transactions": "0",
        "transactions": "1",
        "canceled_transactions": "1",
        "redelivered": "1",
        "total_flushes": "0",
        "children": "counted+child",
        "get_items_hit": "2",
        "get_items_miss": "1",
        "journal_rewrites": "0",
        "journal_rotations": "0",
        "journal_syncs": "0",
    }
    assert {name: found[name] for name in expected} == expected
    assert found["logsize"] == str((server.queue_path / "counted").stat().st_size)
    assert abs(int(found["create_time"]) - time.time() * 1000) < 60_000
    assert 0 <= int(found["age"]) == int(found["age_msec"]) < 60_000
    wire.ask(b"flush counted\r\n", b"END\r\n")
    flushed = stats(wire, "counted")
    assert (flushed["total_flushes"], flushed["age"], flushed["items"]) == ("1", "0", "0")


def test_server_statistics(wire: Wire) -> None:
    """Every global statistic is there; those of queues are called `queue_NAME_stat`."""
    put(wire, "listed", "x")
    before = stats(wire)
    names = {name for name in before if not name.startswith("queue_")}
    names |= {name for name in before if name in GLOBAL_STATISTICS.split()}
    assert names == set(GLOBAL_STATISTICS.split())
    listed = {name for name in before if name.startswith("queue_listed_")}
    own = set(STATISTICS.split()) - {"children"}
    assert listed == {f"queue_listed_{name}" for name in own}
    wire.ask(b"get listed/peek\r\n", b"VALUE listed 0 1\r\nx\r\nEND\r\n")
    wire.ask(b"get listed\r\nget listed\r\n", b"VALUE listed 0 1\r\nx\r\nEND\r\nEND\r\n")
    put(wire, "listed", "y")
    wire.ask(b"monitor listed 5 1\r\n", b"VALUE listed 0 1\r\ny\r\nEND\r\nEND\r\n")
    after = stats(wire)

    def grown(name: str) -> int:
        return int(after[name]) - int(before[name])

    counted = ("cmd_get", "cmd_set", "cmd_peek", "cmd_monitor", "cmd_monitor_get")
    # What a monitor hands out counts as a get, too.
    assert [grown(name) for name in counted] == [3, 1, 1, 1, 1]
    assert [grown(name) for name in ("get_misses", "total_items", "curr_items")] == [1, 1, -1]
    assert grown("bytes_read") > 0
    assert grown("bytes_written") > 0
    assert after["curr_connections"] == "1"
    wire.ask(b"get listed/abort\r\n", b"END\r\n")


# The guide's, and so what clients know; the guide has no others that end so.
KNOWN = """items bytes total_items logsize expired_items mem_items mem_bytes age discarded waiters
open_transactions transactions canceled_transactions total_flushes journal_rewrites
journal_rotations age_msec create_time"""


def test_no_statistic_reads_as_that_of_another_queue(wire: Wire) -> None:
    """A client that finds names by the ends that it knows sees the queues that there are."""
    wire.ask(b"get plain+child\r\n", b"END\r\n")
    put(wire, "plain", "x")
    found = set()
    for name in stats(wire):
        if name.startswith("queue_plain") and (
            ends := [end for end in KNOWN.split() if name.endswith(f"_{end}")]
        ):
            found.add(name.removesuffix(f"_{max(ends, key=len)}"))
    assert found == {"queue_plain", "queue_plain+child"}


def test_a_waiting_read_counts_once(server: ServerProcess, wire: Wire) -> None:
    """A read that waited is a hit when it got an item, a miss when its time was up."""
    with Wire(server) as reader:
        reader.send(b"get patience/t=20000\r\n")
        wait_for(wire, "patience", "waiters", 1)
        put(wire, "patience", "x")
        reader.expect(b"VALUE patience 0 1\r\nx\r\nEND\r\n")
    found = stats(wire, "patience")
    assert (found["get_items_hit"], found["get_items_miss"]) == ("1", "0")
    wire.ask(b"get patience/t=1\r\n", b"END\r\n")
    found = stats(wire, "patience")
    assert (found["get_items_hit"], found["get_items_miss"]) == ("1", "1")


def test_dump_stats_and_dump_config(wire: Wire) -> None:
    """Both are grouped by queue, and name what they tell."""
    put(wire, "ring", "x")
    dumped = wire.ask_until(b"dump_stats ring\r\n", b"END\r\n").decode()
    assert dumped.startswith("queue 'ring' {\r\n  items=1\r\n")
    assert dumped.endswith("}\r\nEND\r\n")
    shown = wire.ask_until(b"dump_config ring listed\r\n", b"END\r\n").decode()
    assert shown.startswith("queue 'ring' {\r\n  max_items=2\r\n")
    assert "  discard_old_when_full=true\r\n" in shown.split("queue 'listed'")[0]
    everything = wire.ask_until(b"dump_stats\r\n", b"END\r\n").decode()
    assert "queue 'ring' {" in everything
    assert drain(wire, "ring") == "x"
