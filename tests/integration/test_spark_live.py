"""What live streams do to real servers, without Spark: open reads, confirms, the long poll."""

import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Literal

import pytest

from kestrelmq.client import Client
from kestrelmq.client.cluster import membership_of
from kestrelmq.clock import SystemClock
from kestrelmq.errors import ServerUnavailable
from kestrelmq.spark.live import staging as staging_module
from kestrelmq.spark.live.batch_plan import BatchPlan, from_offset
from kestrelmq.spark.live.file_batches import FileBatches
from kestrelmq.spark.live.queue_choice import QueueChoice
from kestrelmq.spark.live.refusals import QueueCannotBeRead
from kestrelmq.spark.live.server_probe import ServerProbe
from kestrelmq.spark.live.server_reads import (
    MAX_CONNECTIONS,
    MonitoredReads,
    ServerAccess,
    TaggedReads,
)
from kestrelmq.spark.live.shares import PartitionShare, QueueRun
from kestrelmq.spark.live.staging import (
    OpenedItems,
    PartId,
    QueueReads,
    StagedPart,
    Staging,
)
from kestrelmq.spark.live.stream_driver import BatchLimits, StreamDriver
from tests.spark.spools import adds, write
from tests.support.fake_clock import FakeClock
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server

QUEUE = "work"
SHARE_ITEMS = 100_000
PART = PartId(1, 0, 0)
NO_PART = StagedPart(PART, "", 0, is_last=True, batches=())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Run a server."""
    with running_server(tmp_path) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    """Return a client of it."""
    with Client(server.address) as client:
        yield client


def numbered(count: int) -> list[bytes]:
    """Return items that differ."""
    return [b"item %d" % number for number in range(count)]


def having(probe: ServerProbe, wait: float = 0.0) -> list[str]:
    """Return the servers on which the probe finds items."""
    return sorted(one.server for one in probe.with_items(wait))


def counts(client: Client) -> tuple[int, int]:
    """Return the queue's items, and its open reads."""
    queue = next(queue for queue in client.queues() if queue.name == QUEUE)
    return queue.items, queue.number("open_transactions")


def test_reads_are_in_order_over_many_connections(server: ServerProcess, client: Client) -> None:
    """A connection holds 100 reads; more need more of them, and a confirm ends them all."""
    client.put_many(QUEUE, numbered(350))
    reads = MonitoredReads(_access(server))

    assert reads.open(PART, QUEUE, 330, 1 << 20) == OpenedItems(
        numbered(350)[:330], exhausted=False
    )
    assert counts(client) == (20, 330)
    reads.confirm(NO_PART)
    assert reads.open(PART, QUEUE, 330, 1 << 20) == OpenedItems(numbered(350)[330:], exhausted=True)
    assert counts(client) == (0, 20)
    reads.give_back()


def test_a_part_is_as_large_as_its_connections_hold(server: ServerProcess, client: Client) -> None:
    """That is no end of the queue: the next part goes on."""
    client.put_many(QUEUE, numbered(100 * MAX_CONNECTIONS + 5))
    reads = MonitoredReads(_access(server))

    first = reads.open(PART, QUEUE, SHARE_ITEMS, 1 << 20)
    reads.confirm(NO_PART)
    second = reads.open(PART, QUEUE, SHARE_ITEMS, 1 << 20)
    reads.confirm(NO_PART)
    reads.give_back()

    assert (len(first.items), first.exhausted) == (100 * MAX_CONNECTIONS, False)
    assert (len(second.items), second.exhausted) == (5, True)


def test_what_is_given_back_comes_again_in_order(server: ServerProcess, client: Client) -> None:
    """Closing the connections is all it takes."""
    client.put_many(QUEUE, numbered(250))
    reads = MonitoredReads(_access(server))
    reads.open(PART, QUEUE, SHARE_ITEMS, 1 << 20)
    reads.give_back()
    _until(lambda: counts(client) == (250, 0))

    again = MonitoredReads(_access(server))
    assert sorted(again.open(PART, QUEUE, SHARE_ITEMS, 1 << 20).items) == sorted(numbered(250))
    again.give_back()


def test_bytes_are_limited_to_about_what_was_asked_for(
    server: ServerProcess, client: Client
) -> None:
    """No request asks for more items than would fit if they were as large as the largest."""
    client.put_many(QUEUE, [b"x" * 1000] * 50)
    reads = MonitoredReads(_access(server))

    assert len(reads.open(PART, QUEUE, SHARE_ITEMS, 10_500).items) == 11
    reads.give_back()


def test_a_server_that_is_away_is_an_error(server: ServerProcess) -> None:
    """Staging makes an empty part of it."""
    server.stop()

    with pytest.raises(ServerUnavailable):
        MonitoredReads(_access(server)).open(PART, QUEUE, 1, 1)


@pytest.mark.parametrize("reserves", [False, True])
@pytest.mark.parametrize("step", ["opened", "written", "synced", "linked", "durable", "confirmed"])
def test_a_task_killed_at_a_step_loses_nothing(
    server: ServerProcess, client: Client, tmp_path: Path, step: str, *, reserves: bool
) -> None:
    """The next tasks find every item, staged, reserved or back on the server.

    With reserved reads each item comes once.
    """
    items = numbered(300)
    client.put_many(QUEUE, items)
    location = tmp_path / "staging"
    Staging(location).identity()

    def kill(point: str) -> None:
        if point == step:
            os.kill(os.getpid(), signal.SIGKILL)

    task = multiprocessing.get_context("fork").Process(
        target=lambda: _read(Staging(location, kill), 1, server, reserves=reserves)
    )
    task.start()
    task.join()
    assert task.exitcode == -signal.SIGKILL
    if not reserves:
        _until(lambda: counts(client)[1] == 0)

    got = _read(Staging(location), 1, server, reserves=reserves)
    got += _read(Staging(location), 2, server, reserves=reserves)

    assert sorted(set(got)) == sorted(items)
    is_doubled = not reserves and step in {"linked", "durable"}
    assert len(got) == (600 if is_doubled else 300)
    assert counts(client) == (0, 0)


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("step", ["opened", "written", "synced", "linked", "durable", "confirmed"])
def test_a_task_over_several_queues_may_be_killed(
    server: ServerProcess,
    client: Client,
    tmp_path: Path,
    step: str,
    nth: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Parts end within queues and hold several; each item comes once, in its queue's order."""
    monkeypatch.setattr(staging_module, "PART_BYTES", 300)
    queues = {"a": numbered(70), "b": numbered(3), "c": [], "d": numbered(40)}
    for name, items in queues.items():
        client.put_many(name, items)
    location = tmp_path / "staging"
    Staging(location).identity()
    share = PartitionShare(
        server.address, 400, 1 << 20, reserves=True, queues=tuple((name, None) for name in queues)
    )

    def read(staging: Staging, epoch: int) -> list[tuple[str, bytes]]:
        reads = TaggedReads(_access(server), "name", 600.0)
        return [
            item
            for part in staging.read(epoch, 0, share, lambda: reads, SystemClock())
            for batch in part.batches
            for item in zip(part.queues().to_pylist(), batch.column(0).to_pylist(), strict=True)
        ]

    left = nth

    def kill(point: str) -> None:
        nonlocal left
        left -= point == step
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    task = multiprocessing.get_context("fork").Process(
        target=lambda: read(Staging(location, kill), 1)
    )
    task.start()
    task.join()
    assert task.exitcode == -signal.SIGKILL
    client.put_many("c", numbered(2))
    client.put("b", b"late")

    got = read(Staging(location), 1)
    got += read(Staging(location), 2)

    queues = {**queues, "b": [*numbered(3), b"late"], "c": numbered(2)}
    for name, items in queues.items():
        assert [item for queue, item in got if queue == name] == items
    assert {one.name: (one.items, one.number("open_transactions")) for one in client.queues()} == (
        dict.fromkeys(queues, (0, 0))
    )


def killing(server: ServerProcess) -> Callable[[str], None]:
    """Return what kills the server when a part is on disk, and before its reads are confirmed."""

    def reached(point: str) -> None:
        if point == "durable":
            server.kill9()

    return reached


def test_a_server_killed_before_the_confirm_repeats_its_part_only(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """The part holds the items, the server still has them: they come twice, as documented."""
    client.put_many(QUEUE, numbered(50))
    location = tmp_path / "staging"
    Staging(location).identity()
    first = _read(Staging(location, killing(server)), 1, server)
    assert _read(Staging(location), 2, server) == []
    server.start()

    assert first == numbered(50)
    assert _read(Staging(location), 3, server) == numbered(50)


def test_a_server_killed_before_its_reads_are_finished_is_told_later(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """Its reads stay reserved over the restart, and the driver finishes them: none comes twice."""
    client.put_many(QUEUE, numbered(50))
    location = tmp_path / "staging"
    Staging(location).identity()
    first = _read(Staging(location, killing(server)), 1, server, reserves=True)
    assert first == numbered(50)
    probe = ServerProbe(membership_of(server.address), QueueChoice.parse(QUEUE))
    driver = StreamDriver(FileBatches(Staging(location), probe), probe, QueueChoice.parse(QUEUE))
    share = {"server": server.address, "items": 50, "bytes": 1, "reserves": True}
    start = {**driver.initial_offset(), "epoch": 1, "shares": {"0": share}}
    server.start()
    assert counts(client) == (0, 50)

    assert driver.latest_offset(start, BatchLimits(100, 1000)) == start
    driver.close()
    assert counts(client) == (0, 0)


def test_what_a_task_had_reserved_that_was_ended_is_there_for_the_next_batch(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """Another task had read its partition; what is only reserved does not wait for its lease."""
    client.put_many(QUEUE, numbered(5))
    probe = ServerProbe(membership_of(server.address), QueueChoice.parse(QUEUE))
    driver = StreamDriver(
        FileBatches(Staging(tmp_path / "staging"), probe), probe, QueueChoice.parse(QUEUE)
    )
    start = driver.initial_offset()
    end = driver.latest_offset(start, BatchLimits(100, 1000))
    ended = TaggedReads(_access(server), start["staging"], 600.0)
    ended.open(PART, QUEUE, 5, 1000)
    ended.close()
    assert counts(client) == (0, 5)

    assert from_offset(driver.latest_offset(end, BatchLimits(100, 1000)), None).epoch == 2
    driver.close()
    assert counts(client) == (5, 0)


@pytest.mark.parametrize("operations", ["reads", "all"])
def test_a_paused_queue_is_not_empty(
    server: ServerProcess, client: Client, operations: Literal["reads", "all"]
) -> None:
    """A server answers its readers as if it were; but it has items."""
    client.put(QUEUE, b"an item")
    probe = ServerProbe(membership_of(server.address), QueueChoice.parse(QUEUE))
    client.pause(QUEUE, operations)
    assert probe.with_items(0.0) == []

    with pytest.raises(QueueCannotBeRead, match=r"'work' on .* cannot be read: it is paused"):
        probe.counts()
    client.resume(QUEUE)
    assert probe.counts() == {server.address: {QUEUE: 1}}
    client.get(QUEUE)
    client.pause(QUEUE, operations)
    assert probe.counts() == {server.address: {QUEUE: 0}}
    probe.close()


def test_items_come_again_only_after_their_lease(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """A task that failed before it had staged them keeps them so long, and no longer."""
    client.put_many(QUEUE, numbered(3))
    reads = TaggedReads(_access(server), "name", 1.0)
    assert list(reads.open(PART, QUEUE, 3, 1 << 20).items) == numbered(3)
    reads.close()

    _until(lambda: counts(client) == (3, 0))
    assert sorted(_read(Staging(tmp_path), 2, server, reserves=True)) == numbered(3)


def test_parts_are_smaller_where_the_server_holds_little(tmp_path: Path) -> None:
    """It reserves no more until some are finished; nobody waits for that in vain."""
    items = [b"%d" % number * (1 << 20) for number in range(9)]
    config = f'[queues.{QUEUE}]\nmax_memory_size = "1 MiB"\n'
    with running_server(tmp_path, config=config) as server, Client(server.address) as client:
        client.put_many(QUEUE, items)
        staging = Staging(tmp_path / "staging")
        staging.identity()
        assert _read(staging, 1, server, reserves=True, patience=1e6) == items

        assert len(staging.parts()) > 1
        other = client.reserve_many(QUEUE, 1, 600.0)
        assert other == []


def test_an_answer_that_is_lost_reserves_nothing_for_long(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """The part names the tag, and what the server reserved under it is released."""
    client.put_many(QUEUE, numbered(5))
    run = QueueRun(QUEUE, 0, 0, is_done=True)
    part = StagedPart(PART, server.address, 0, True, (), "name:1:0.0.0", (run,))
    client.reserve_many(QUEUE, 5, 600.0, tag="name:1:0.0.0")
    assert counts(client) == (0, 5)

    probe = ServerProbe(membership_of(server.address), QueueChoice.parse(QUEUE))
    assert probe.settle(part)
    probe.close()
    assert counts(client) == (5, 0)


def test_a_server_without_reserved_reads_is_found_out(server: ServerProcess) -> None:
    """Servers that do not answer, or refuse to at present, are left out."""
    with foreign_server() as foreign, foreign_server(b"SERVER_ERROR busy\r\n") as busy:
        probe = ServerProbe(
            membership_of(f"{server.address},{foreign},{busy}"), QueueChoice.parse(QUEUE)
        )
        asked = [server.address, foreign, busy, "127.0.0.1:1"]
        assert probe.reserving(asked) == {server.address: True, foreign: False}
        probe.close()


@contextmanager
def foreign_server(*answers: bytes) -> Iterator[str]:
    """Give each connection one answer and close it, as Kestrel does at an unknown command."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for answer in answers or (b"CLIENT_ERROR\r\n",):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


def test_the_probe_waits_for_an_item_on_any_server(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """It answers when one comes, not when its wait is over; a dead server doesn't matter."""
    with running_server(tmp_path / "other") as other, running_server(tmp_path / "dead") as dead:
        servers = f"{server.address},{other.address},{dead.address}"
        dead.kill9()
        # The clock of this machine is behind the servers'.
        probe = ServerProbe(membership_of(servers), QueueChoice.parse(QUEUE), clock=FakeClock())
        assert probe.with_items(0.0) == []
        begun = time.monotonic()
        assert probe.with_items(0.3) == []
        assert time.monotonic() - begun >= 0.3

        putting = multiprocessing.get_context("fork").Process(target=lambda: _put_later(other))
        putting.start()
        assert having(probe, 10 * PATIENCE) == [other.address]
        putting.join()

        client.put_many(QUEUE, numbered(3))
        assert having(probe, 20.0) == sorted([server.address, other.address])
        assert probe.counts() == {server.address: {QUEUE: 3}, other.address: {QUEUE: 1}}
        assert probe.backlog()[server.address] == {
            "items": 3,
            "bytes": sum(map(len, numbered(3))),
            "open_reads": 0,
            "age_ms": 0,
            "oldest_ms": 0,
        }
        dead.start()
        with Client(dead.address) as late:
            late.put(QUEUE, b"late")
        _until(lambda: len(probe.with_items(0.0)) == 3)
        probe.close()


def test_queues_of_a_pattern_are_found_where_they_are(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """New ones too; deleted ones do not come back, and children need a pattern of their own."""
    with running_server(tmp_path / "other") as other, Client(other.address) as elsewhere:
        probe = ServerProbe(
            membership_of(f"{server.address},{other.address}"), QueueChoice.parse("orders_*,work")
        )
        assert probe.with_items(0.3) == []
        client.put("orders_a+copy", b"a child's")
        client.put("others", b"another's")
        client.put_many("orders_a", numbered(2))
        elsewhere.put_many("orders_b", numbered(3))
        client.put(QUEUE, b"named")

        assert _found(probe) == {
            (server.address, "orders_a"),
            (server.address, QUEUE),
            (other.address, "orders_b"),
        }
        assert probe.counts()[other.address] == {"orders_b": 3}
        assert probe.backlog()[server.address]["items"] == 3
        assert set(probe.backlog()[server.address]["queues"]) == {"orders_a", QUEUE}
        client.delete("orders_a")
        probe.retire({server.address: ["orders_a", QUEUE]}, "name", 1)
        assert _found(probe) == {(server.address, QUEUE), (other.address, "orders_b")}
        probe.check_readable(0.0)
        assert not client.exists("orders_a")
        putting = multiprocessing.get_context("fork").Process(
            target=lambda: _put_later(other, "orders_new")
        )
        elsewhere.flush("orders_b")
        client.flush(QUEUE)
        putting.start()
        assert _found(probe, 10 * PATIENCE) == {(other.address, "orders_new")}
        putting.join()
        probe.close()


def test_children_are_made_for_queues_that_come_later(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """A copy of queues by a pattern needs them, on every server."""
    with running_server(tmp_path / "other") as other, Client(other.address) as elsewhere:
        servers = membership_of(f"{server.address},{other.address}")
        client.put("orders_a", b"before")
        probe = ServerProbe(servers, QueueChoice.parse("orders_*+copy"), create_children=True)
        probe.check_readable(0.0)
        client.put("orders_b", b"before")
        assert probe.with_items(0.0) == []
        elsewhere.put("orders_a", b"1")
        client.put("orders_b", b"2")

        assert _found(probe) == {
            (other.address, "orders_a+copy"),
            (server.address, "orders_b+copy"),
        }
        probe.close()


@pytest.mark.parametrize("queues", ["good,bad", "*"])
def test_a_damaged_queue_of_several_is_not_empty(tmp_path: Path, queues: str) -> None:
    """A query that ends fails; any other goes on with the others, and keeps asking."""
    (tmp_path / "queues").mkdir()
    (tmp_path / "queues" / "bad").write_bytes(b"\x63" * 30)
    with running_server(tmp_path) as server, Client(server.address) as client:
        client.put("good", b"an item")
        probe = ServerProbe(membership_of(server.address), QueueChoice.parse(queues))
        with pytest.raises(QueueCannotBeRead, match=r"'bad' on .* cannot be read: .*damaged"):
            probe.check_readable(0.0)
        assert _found(probe) == {(server.address, "good")}
        assert probe.counts() == {server.address: {"bad": 0, "good": 1}}
        client.pause("good", "reads")
        with pytest.raises(QueueCannotBeRead, match=r"'good' on .* it is paused"):
            probe.counts()
        assert probe.with_items(0.0) == []
        client.resume("good")
        client.set_status("quiescent")
        with pytest.raises(QueueCannotBeRead, match="quiescent"):
            probe.check_readable(0.0)
        assert probe.with_items(0.0) == []
        probe.close()


def test_a_server_that_cannot_list_its_queues_says_so() -> None:
    """A pattern needs its statistics; names do not."""
    with foreign_server(b"ERROR\r\n") as foreign:
        probe = ServerProbe(membership_of(foreign), QueueChoice.parse("orders_*"))
        message = rf"{foreign} cannot tell which queues match 'orders_\*'.*: name them in option"
        with pytest.raises(QueueCannotBeRead, match=message):
            probe.with_items(0.0)
        probe.close()


def test_queues_of_a_pattern_may_still_be_loading() -> None:
    """What the server has not loaded may match; so nothing counts as empty until it has."""
    loading = b"STAT queues_loading 3\r\nEND\r\n"
    with foreign_server(loading) as foreign:
        probe = ServerProbe(membership_of(foreign), QueueChoice.parse("orders_*"))
        with pytest.raises(QueueCannotBeRead, match=r"'orders_\*' on .* one of 3 queues is still"):
            probe.check_readable(0.0)
        probe.close()


def test_a_server_without_statistics_of_single_queues_lists_all() -> None:
    """It is asked for all, and what is of the queue is picked."""
    listing = b"STAT queue_work_items 3\r\nSTAT queue_work_open_transactions 1\r\nEND\r\n"
    with foreign_server(b"ERROR\r\n", listing, b"ERROR\r\n") as foreign:
        probe = ServerProbe(membership_of(foreign), QueueChoice.parse(QUEUE))
        assert probe.backlog() == {foreign: {"items": 3, "bytes": 0, "open_reads": 1, "age_ms": 0}}
        probe.close()


def test_the_oldest_item_is_the_one_that_waits(tmp_path: Path) -> None:
    """Its age is that of the head, whatever was read last."""
    queues = tmp_path / "queues"
    clock = FakeClock()
    for name, age in (("a", 5000), ("b", 90_000), ("c", 10)):
        write(queues / name, adds([b"x", b"y"], at=clock.now() - age))
    with running_server(tmp_path) as server, Client(server.address) as client:
        both = ServerProbe(
            membership_of(server.address), QueueChoice.parse("a,b,none"), clock=clock
        )
        backlog = both.backlog()[server.address]
        assert (backlog["items"], backlog["bytes"], backlog["oldest_ms"]) == (4, 4, 90_000)
        assert {name: one["oldest_ms"] for name, one in backlog["queues"].items()} == {
            "a": 5000,
            "b": 90_000,
        }
        both.close()
        single = ServerProbe(membership_of(server.address), QueueChoice.parse("a"), clock=clock)
        assert single.backlog()[server.address]["oldest_ms"] == 5000
        client.flush("a")
        assert single.backlog()[server.address]["oldest_ms"] == 0
        single.close()


def test_no_queue_is_left_out(server: ServerProcess, client: Client, tmp_path: Path) -> None:
    """With room for two items in a batch, long queues leave some for the others."""
    queues = [f"q{number}" for number in range(5)]
    for name in queues:
        client.put_many(name, numbered(50))
    probe = ServerProbe(membership_of(server.address), QueueChoice.parse("q*"), random=Random(7))
    driver = StreamDriver(
        FileBatches(Staging(tmp_path / "staging"), probe),
        probe,
        QueueChoice.parse("q*"),
        random=Random(7),
    )
    offset, got = driver.initial_offset(), dict.fromkeys(queues, 0)
    for _ in range(25):
        offset = driver.latest_offset(offset, BatchLimits(2, 1 << 20))
        plan = from_offset(offset, None)
        for place, share in enumerate(plan.shares):
            assert share.items <= 2
            for part in _parts(Staging(tmp_path / "staging"), plan.epoch, place, share, plan):
                for run in part.runs:
                    got[run.queue] += run.items
    driver.close()

    assert sum(got.values()) == 50
    assert min(got.values()) >= 5


def test_a_foreign_server_gives_items_of_several_queues(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """Each connection holds reads of one queue; all are confirmed."""
    client.put_many("a", numbered(150))
    client.put_many("b", numbered(3))
    client.put_many("c", numbered(120))
    share = PartitionShare(
        server.address, 1000, 1 << 20, queues=(("a", None), ("b", 2), ("c", None))
    )
    staging = Staging(tmp_path / "staging")
    staging.identity()
    parts = list(staging.read(1, 0, share, lambda: MonitoredReads(_access(server)), SystemClock()))

    runs = [(run.queue, run.items) for part in parts for run in part.runs]
    assert runs == [("a", 150), ("b", 2), ("c", 120)]
    assert {one.name: one.items for one in client.queues()} == {"a": 0, "b": 1, "c": 0}


def _found(probe: ServerProbe, wait: float = 0.0) -> set[tuple[str, str]]:
    return {(one.server, one.queue) for one in probe.with_items(wait)}


def _put_later(server: ServerProcess, queue: str = QUEUE) -> None:
    time.sleep(0.3)
    with Client(server.address) as client:
        client.put(queue, b"an item")


def _access(server: ServerProcess, patience: float | None = None) -> ServerAccess:
    return ServerAccess(server.address, patience)


def _parts(
    staging: Staging, epoch: int, place: int, share: PartitionShare, plan: BatchPlan
) -> Iterator[StagedPart]:
    access = ServerAccess(share.server)
    reads = TaggedReads(access, plan.staging, 600.0)
    return staging.read(epoch, place, share, lambda: reads, SystemClock())


def _read(
    staging: Staging,
    epoch: int,
    server: ServerProcess,
    *,
    reserves: bool = False,
    patience: float | None = None,
) -> list[bytes]:
    share = PartitionShare(server.address, SHARE_ITEMS, 1 << 30, reserves, ((QUEUE, None),))

    def connect() -> QueueReads:
        if reserves:
            return TaggedReads(_access(server, patience), "name", 600.0)
        return MonitoredReads(_access(server))

    parts = staging.read(epoch, 0, share, connect, SystemClock())
    return [
        item for part in parts for batch in part.batches for item in batch.column(0).to_pylist()
    ]


def _until(holds: Callable[[], bool]) -> None:
    """Wait until something is so, which it is as soon as the server noticed."""
    until(holds)
