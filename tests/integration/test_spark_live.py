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
from typing import Literal

import pytest

from kestrelmq.client import Client
from kestrelmq.client.cluster import membership_of
from kestrelmq.clock import SystemClock
from kestrelmq.errors import ServerUnavailable
from kestrelmq.spark.batch_plan import from_offset
from kestrelmq.spark.refusals import QueueCannotBeRead
from kestrelmq.spark.server_probe import ServerProbe
from kestrelmq.spark.server_reads import MAX_CONNECTIONS, MonitoredReads, TaggedReads
from kestrelmq.spark.staging import (
    OpenedItems,
    PartId,
    PartitionShare,
    QueueReads,
    StagedPart,
    Staging,
)
from kestrelmq.spark.stream_driver import BatchLimits, StreamDriver
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


def counts(client: Client) -> tuple[int, int]:
    """Return the queue's items, and its open reads."""
    queue = next(queue for queue in client.queues() if queue.name == QUEUE)
    return queue.items, queue.number("open_transactions")


def test_reads_are_in_order_over_many_connections(server: ServerProcess, client: Client) -> None:
    """A connection holds 100 reads; more need more of them, and a confirm ends them all."""
    client.put_many(QUEUE, numbered(350))
    reads = MonitoredReads(server.address, QUEUE)

    assert reads.open(PART, 330, 1 << 20) == OpenedItems(numbered(350)[:330], exhausted=False)
    assert counts(client) == (20, 330)
    reads.confirm(NO_PART)
    assert reads.open(PART, 330, 1 << 20) == OpenedItems(numbered(350)[330:], exhausted=True)
    assert counts(client) == (0, 20)
    reads.give_back()


def test_a_part_is_as_large_as_its_connections_hold(server: ServerProcess, client: Client) -> None:
    """That is no end of the queue: the next part goes on."""
    client.put_many(QUEUE, numbered(100 * MAX_CONNECTIONS + 5))
    reads = MonitoredReads(server.address, QUEUE)

    first = reads.open(PART, SHARE_ITEMS, 1 << 20)
    reads.confirm(NO_PART)
    second = reads.open(PART, SHARE_ITEMS, 1 << 20)
    reads.confirm(NO_PART)
    reads.give_back()

    assert (len(first.items), first.exhausted) == (100 * MAX_CONNECTIONS, False)
    assert (len(second.items), second.exhausted) == (5, True)


def test_what_is_given_back_comes_again_in_order(server: ServerProcess, client: Client) -> None:
    """Closing the connections is all it takes."""
    client.put_many(QUEUE, numbered(250))
    reads = MonitoredReads(server.address, QUEUE)
    reads.open(PART, SHARE_ITEMS, 1 << 20)
    reads.give_back()
    _until(lambda: counts(client) == (250, 0))

    again = MonitoredReads(server.address, QUEUE)
    assert sorted(again.open(PART, SHARE_ITEMS, 1 << 20).items) == sorted(numbered(250))
    again.give_back()


def test_bytes_are_limited_to_about_what_was_asked_for(
    server: ServerProcess, client: Client
) -> None:
    """No request asks for more items than would fit if they were as large as the largest."""
    client.put_many(QUEUE, [b"x" * 1000] * 50)
    reads = MonitoredReads(server.address, QUEUE)

    assert len(reads.open(PART, SHARE_ITEMS, 10_500).items) == 11
    reads.give_back()


def test_a_server_that_is_away_is_an_error(server: ServerProcess) -> None:
    """Staging makes an empty part of it."""
    server.stop()

    with pytest.raises(ServerUnavailable):
        MonitoredReads(server.address, QUEUE).open(PART, 1, 1)


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
    driver = StreamDriver(
        Staging(location), ServerProbe(membership_of(server.address), QUEUE), QUEUE
    )
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
    probe = ServerProbe(membership_of(server.address), QUEUE)
    driver = StreamDriver(Staging(tmp_path / "staging"), probe, QUEUE)
    start = driver.initial_offset()
    end = driver.latest_offset(start, BatchLimits(100, 1000))
    ended = TaggedReads(server.address, QUEUE, start["staging"], 600.0)
    ended.open(PART, 5, 1000)
    ended.close()
    assert counts(client) == (0, 5)

    assert from_offset(driver.latest_offset(end, BatchLimits(100, 1000))).epoch == 2
    driver.close()
    assert counts(client) == (5, 0)


@pytest.mark.parametrize("operations", ["reads", "all"])
def test_a_paused_queue_is_not_empty(
    server: ServerProcess, client: Client, operations: Literal["reads", "all"]
) -> None:
    """A server answers its readers as if it were; but it has items."""
    client.put(QUEUE, b"an item")
    probe = ServerProbe(membership_of(server.address), QUEUE)
    client.pause(QUEUE, operations)
    assert probe.with_items(0.0) == []

    with pytest.raises(QueueCannotBeRead, match=r"'work' on .* cannot be read: it is paused"):
        probe.counts()
    client.resume(QUEUE)
    assert probe.counts() == {server.address: 1}
    client.get(QUEUE)
    client.pause(QUEUE, operations)
    assert probe.counts() == {server.address: 0}
    probe.close()


def test_items_come_again_only_after_their_lease(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """A task that failed before it had staged them keeps them so long, and no longer."""
    client.put_many(QUEUE, numbered(3))
    reads = TaggedReads(server.address, QUEUE, "name", 1.0)
    assert list(reads.open(PART, 3, 1 << 20).items) == numbered(3)
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
    part = StagedPart(PART, server.address, 0, is_last=True, batches=(), unsure="name:1:0.0.0")
    client.reserve_many(QUEUE, 5, 600.0, tag="name:1:0.0.0")
    assert counts(client) == (0, 5)

    probe = ServerProbe(membership_of(server.address), QUEUE)
    assert probe.settle(part)
    probe.close()
    assert counts(client) == (5, 0)


def test_a_server_without_reserved_reads_is_found_out(server: ServerProcess) -> None:
    """Servers that do not answer, or refuse to at present, are left out."""
    with foreign_server() as foreign, foreign_server(b"SERVER_ERROR busy\r\n") as busy:
        probe = ServerProbe(membership_of(f"{server.address},{foreign},{busy}"), QUEUE)
        asked = [server.address, foreign, busy, "127.0.0.1:1"]
        assert probe.reserving(asked) == {server.address: True, foreign: False}
        probe.close()


@contextmanager
def foreign_server(answer: bytes = b"CLIENT_ERROR\r\n") -> Iterator[str]:
    """Answer one command, as Kestrel does if it does not know it, and close."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
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
        probe = ServerProbe(membership_of(servers), QUEUE)
        assert probe.with_items(0.0) == []
        begun = time.monotonic()
        assert probe.with_items(0.3) == []
        assert time.monotonic() - begun >= 0.3

        putting = multiprocessing.get_context("fork").Process(target=lambda: _put_later(other))
        putting.start()
        assert probe.with_items(10 * PATIENCE) == [other.address]
        putting.join()

        client.put_many(QUEUE, numbered(3))
        assert probe.with_items(20.0) == sorted([server.address, other.address])
        assert probe.counts() == {server.address: 3, other.address: 1}
        assert probe.backlog()[server.address] == {
            "items": 3,
            "bytes": sum(map(len, numbered(3))),
            "open_reads": 0,
            "age_ms": 0,
        }
        dead.start()
        with Client(dead.address) as late:
            late.put(QUEUE, b"late")
        _until(lambda: len(probe.with_items(0.0)) == 3)
        probe.close()


def _put_later(server: ServerProcess) -> None:
    time.sleep(0.3)
    with Client(server.address) as client:
        client.put(QUEUE, b"an item")


def _read(
    staging: Staging,
    epoch: int,
    server: ServerProcess,
    *,
    reserves: bool = False,
    patience: float | None = None,
) -> list[bytes]:
    share = PartitionShare(server.address, SHARE_ITEMS, 1 << 30, reserves)

    def connect() -> QueueReads:
        if reserves:
            return TaggedReads(server.address, QUEUE, "name", 600.0, patience=patience)
        return MonitoredReads(server.address, QUEUE)

    parts = staging.read(epoch, 0, share, connect, SystemClock())
    return [
        item for part in parts for batch in part.batches for item in batch.column(0).to_pylist()
    ]


def _until(holds: Callable[[], bool]) -> None:
    """Wait until something is so, which it is as soon as the server noticed."""
    until(holds)
