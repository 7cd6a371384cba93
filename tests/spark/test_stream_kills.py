"""A running stream is killed, with its servers and producers, and loses nothing.

`tests/integration/test_live_streams.py` has kills at the other steps, without Spark.
"""

import logging
import random
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kestrelmq.client import Client
from tests.spark.processes import SparkProcess
from tests.spark.producing import Producer
from tests.spark.streams import QUEUE, drain, register_killed, stream
from tests.support.patience import PATIENCE
from tests.support.server import ServerProcess, running_server

_log = logging.getLogger(__name__)
STEPS = ("naming", "settling", "settled", "reserving", "reserved", "yielding")


def session_of(servers: str, root: Path, step: str, nth: int = 1) -> SparkProcess:
    """Start a stream that stands still where it comes to a step for the n-th time."""
    words = ("spark", servers, QUEUE, step, str(nth))
    return SparkProcess("tests.spark.stream_session", root, *words)


def rows_in(spark: SparkSession, root: Path) -> list[tuple[bytes, int]]:
    """Return the table's items with their positions, in the order in which they were read."""
    rows = spark.read.parquet(str(root / "table")).select("data", "position")
    return sorted(((bytes(row[0]), row[1]) for row in rows.collect()), key=lambda item: item[1])


def test_a_session_that_is_killed_within_the_protocol_loses_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The whole session dies while its tasks read; each item comes once."""
    with running_server(tmp_path) as server, Client(server.address) as client:
        sent = [b"%d" % number for number in range(1500)]
        client.put_many(QUEUE, sent)
        session = session_of(server.address, tmp_path, "yielding", 2)
        session.wait_until_reached()
        session.kill9()
        drain(stream(spark, server.address), tmp_path)
        assert client.get(QUEUE) is None

    items = rows_in(spark, tmp_path)
    assert [item for item, _ in items] == sent


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
def test_a_hundred_kills(spark: SparkSession, tmp_path: Path) -> None:
    """Sessions at every step, servers and producers at any time: none lost, none read twice."""
    rng = random.Random(5)
    kills: Counter[str] = Counter()
    with ExitStack() as stack:
        servers = [stack.enter_context(running_server(tmp_path / name)) for name in ("a", "b")]
        addresses = ",".join(server.address for server in servers)
        producer = Producer(addresses, QUEUE, tmp_path / "stored").start()
        stack.callback(producer.kill9)
        begun = time.monotonic()
        while kills.total() < 100:
            step = STEPS[kills["session"] % len(STEPS)]
            session = session_of(addresses, tmp_path, step, rng.randint(1, 6))
            stack.callback(session.kill9)
            deadline = time.monotonic() + PATIENCE
            while not session.has_reached():
                assert time.monotonic() < deadline, f"the stream never came to {step}"
                time.sleep(rng.uniform(3.0, 7.0))
                _kill_one(rng, servers, producer, kills)
            session.kill9()
            kills["session"] += 1
            _log.info("%.0f s: %s at %s", time.monotonic() - begun, dict(kills), step)
        producer.kill9()
        drain(stream(spark, addresses), tmp_path)
        with Client(addresses) as client:
            assert client.get(QUEUE) is None

    items = rows_in(spark, tmp_path)
    stored = producer.stored()
    _log.info("%s: %d stored, %d rows", dict(kills), len(stored), len(items))
    assert stored - {item for item, _ in items} == set()
    assert [item for item, count in Counter(i for i, _ in items).items() if count > 1] == []


def _kill_one(
    rng: random.Random, servers: list[ServerProcess], producer: Producer, kills: Counter[str]
) -> None:
    if rng.random() < 0.4:
        producer.kill9()
        producer.start()
        kills["producer"] += 1
    else:
        server = rng.choice(servers)
        server.kill9()
        server.start()
        kills["server"] += 1
