"""Running streams and writes are killed, with servers and producers, and lose nothing.

`tests/integration/test_live_streams.py` has kills at the other steps, without Spark.
"""

import logging
import os
import random
import shutil
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kestrelmq.client import Client
from tests.spark.processes import SparkProcess
from tests.spark.producing import Producer
from tests.spark.streams import QUEUE, drain, numbered, register_killed, stream
from tests.spark.test_journal_stream import CONFIG, follow, items_in
from tests.spark.test_journal_writer import data, leftovers, save
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server

_log = logging.getLogger(__name__)
STEPS = ("naming", "settling", "settled", "reserving", "reserved", "yielding")


def session_of(
    servers: str, root: Path, step: str, nth: int = 1, sink: str = "file"
) -> SparkProcess:
    """Start a stream that stands still where it comes to a step for the n-th time."""
    words = (sink, servers, QUEUE, step, str(nth))
    return SparkProcess("tests.spark.stream_session", root, *words)


def rows_in(spark: SparkSession, root: Path) -> list[tuple[bytes, int]]:
    """Return the table's items with their positions, in the order in which they were read."""
    rows = spark.read.parquet(str(root / "table")).select("data", "position")
    return sorted(((bytes(row[0]), row[1]) for row in rows.collect()), key=lambda item: item[1])


def test_a_session_that_is_killed_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """It dies while it takes items, follows journals and writes some; each item comes once.

    The journals have other names before they are read again. While the driver runs, another write
    leaves alone what the first one has written; the one after its end removes it.
    """
    sent = [b"%d " % number + bytes(500) for number in range(200)]
    spool, copy = tmp_path / "spool", tmp_path / "copy"
    row = spark.createDataFrame([("a", "2")], "queue string, data string")
    with ExitStack() as stack:
        server = stack.enter_context(running_server(tmp_path / "a"))
        other = stack.enter_context(running_server(tmp_path / "b", config=CONFIG))
        client, producer = (stack.enter_context(Client(one.address)) for one in (server, other))
        client.put_many(QUEUE, numbered(1500))
        producer.put_many("work", sent[:150])
        words = (str(other.queue_path), server.address)
        session = SparkProcess("tests.spark.killed_session", tmp_path, *words)
        try:
            session.wait_until_reached()
            producer.put_many("work", sent[150:])
            (left,) = leftovers(spool)
            until(lambda: any((spool / left).iterdir()))
            save(row, spool)
            assert leftovers(spool) == [left]
        finally:
            session.kill9()
        drain(stream(spark, server.address), tmp_path / "live")
        assert client.get(QUEUE) is None
        shutil.copytree(other.queue_path, copy)
    drain(follow(spark, copy, maxBytesPerTrigger="20 KiB"), tmp_path / "journals")

    assert [item for item, _ in rows_in(spark, tmp_path / "live")] == numbered(1500)
    assert items_in(spark, tmp_path / "journals") == sent
    assert leftovers(spool) == [left]
    save(row, spool)
    assert leftovers(spool) == []
    assert data(spool) == {"a": [b"2", b"2"]}


def test_a_worker_that_is_killed_within_the_protocol_is_replaced(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark runs the task again, which reads the same."""
    with running_server(tmp_path) as server, Client(server.address) as client:
        client.put_many(QUEUE, [b"%d" % number for number in range(100)])
        register_killed(spark, "yielding", tmp_path / "killed")
        drain(stream(spark, server.address, form="kestrel.killed"), tmp_path)
        assert (tmp_path / "killed").exists()
        assert client.get(QUEUE) is None

    items = rows_in(spark, tmp_path)
    assert sorted(int(item) for item, _ in items) == list(range(100))


@pytest.mark.soak
@pytest.mark.parametrize("sink", ["file", "each", "queue"])
def test_many_kills(spark: SparkSession, tmp_path: Path, sink: str) -> None:
    """Drivers, JVMs, workers, whole sessions, servers and producers: none lost, none read twice.

    Most kills of sessions are at a step of the protocol, the others at any time.
    """
    rng = random.Random(5)
    kills: Counter[str] = Counter()
    wanted = int(os.environ.get("KESTRELMQ_KILLS", "70"))
    with ExitStack() as stack:
        servers = [stack.enter_context(running_server(tmp_path / name)) for name in ("a", "b")]
        addresses = ",".join(server.address for server in servers)
        producer = Producer(addresses, QUEUE, tmp_path / "stored").start()
        stack.callback(producer.kill9)
        begun = time.monotonic()
        while kills.total() - kills["producer"] < wanted:
            step = rng.choice(STEPS)
            session = session_of(addresses, tmp_path, step, rng.randint(1, 6), sink)
            stack.callback(session.kill9)
            deadline = time.monotonic() + PATIENCE
            while session.is_on_its_way():
                assert time.monotonic() < deadline, f"the stream never came to {step}"
                time.sleep(rng.uniform(3.0, 7.0))
                _kill_one(rng, servers, producer, session, kills)
            part = rng.choice(("driver", "java", "session"))
            kills[part] += part == "session" or session.kill_one(part, rng)
            session.kill9()
            _log.info("%.0f s: %s at %s", time.monotonic() - begun, dict(kills), step)
        producer.kill9()
        session = session_of(addresses, tmp_path, "never", 1, sink)
        stack.callback(session.kill9)
        with Client(addresses) as client:
            until(lambda: _is_drained(client, session), 1.0)
            session.kill9()
            items = [b"%s" % item for item in client.consume("out", idle_timeout=0)]
    if sink != "queue":
        items = [item for item, _ in rows_in(spark, tmp_path)]
    stored = producer.stored()
    _log.info("%s: %s: %d stored, %d items", sink, dict(kills), len(stored), len(items))
    assert stored - set(items) == set()
    assert [item for item, count in Counter(items).items() if count > 1] == []


def _is_drained(client: Client, session: SparkProcess) -> bool:
    """Whether nothing waits, and what the last batch holds is finished."""
    assert session.is_on_its_way()
    found = [one for one in client.queues() if one.name == QUEUE]
    return sum(one.items + one.number("open_transactions") for one in found) == 0


def _kill_one(
    rng: random.Random,
    servers: list[ServerProcess],
    producer: Producer,
    session: SparkProcess,
    kills: Counter[str],
) -> None:
    kind = rng.choice(("server", "server", "worker", "worker", "producer"))
    if kind == "worker":
        kills[kind] += session.kill_one(kind, rng)
    elif kind == "producer":
        producer.kill9()
        producer.start()
        kills[kind] += 1
    else:
        server = rng.choice(servers)
        server.kill9()
        server.start()
        kills[kind] += 1
