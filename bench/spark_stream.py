"""Spark streaming from a live server, compared with a consumer in one process.

    python -m bench.spark_stream --items 200000 --size 1024

One server holds the items. All of them are read in two ways. Each is timed from when it is ready
(the session warmed up, the first batch of the stream finished) until the last item is confirmed:

- a stream: `kestrel` with AvailableNow to a sink that drops the rows;
- a consumer, `Client.consume`: one open read at a time, confirmed when the next is requested.

The consumer does least; the stream costs more because of Spark.

With `--fresh` it measures instead how long after an item was added it is in a Parquet table, by a
stream of journals, to which a process adds items of `--size` bytes at `--rate` for a minute.
"""

import argparse
import json
import multiprocessing
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from kestrelmq.client import Client
from kestrelmq.format.records import item
from kestrelmq.spark.session import local_session, start_query
from tests.support.server import running_server

QUEUE = "work"
CONSUMED_AT_MOST = 20_000
"""Most items for the consumer, which is slow and has a constant rate."""


def fill(address: str, items: int, size: int) -> None:
    """Add items to the queue."""
    block = [random.Random(1).randbytes(size) for _ in range(1000)]
    with Client(address) as client:
        for begin in range(0, items, len(block)):
            client.put_many(QUEUE, block[: items - begin])


def stream(spark: SparkSession, address: str, scratch: Path, per_batch: int) -> int:
    """Read all items with a stream; return the number of its rows."""
    reader = spark.readStream.format("kestrel").options(servers=address, queue=QUEUE)
    rows = reader.option("maxItemsPerTrigger", str(per_batch)).load()
    writer = rows.writeStream.format("noop").trigger(availableNow=True)
    query = start_query(writer.option("checkpointLocation", str(scratch / "checkpoint")))
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def consume(address: str, items: int) -> int:
    """Read items one by one; return their number."""
    with Client(address) as client:
        return sum(1 for _ in client.consume(QUEUE, idle_timeout=0, max_items=items))


def add_items(spool: Path, rate: int, size: int, seconds: int) -> None:
    """Add items to a queue's journal, at a rate."""
    data, begun, written = b"x" * size, time.monotonic(), 0
    with (spool / QUEUE).open("ab") as file:
        while (passed := time.monotonic() - begun) < seconds:
            count = int(passed * rate) - written
            file.write(item(time.time_ns() // 1_000_000, 0, data) * count)
            file.flush()
            written += count
            time.sleep(0.01)


def measure_freshness(
    spark: SparkSession, scratch: Path, rate: int, size: int, seconds: int
) -> None:
    """Measure and print after which time items are in a table."""
    spool, table, checkpoint = (scratch / name for name in ("spool", "table", "checkpoint"))
    spool.mkdir()
    (spool / QUEUE).write_bytes(item(1, 0, b"the first batch takes longer"))
    rows = spark.readStream.format("kestrel.journal").load(str(spool))
    writer = rows.writeStream.option("checkpointLocation", str(checkpoint)).format("parquet")
    query = start_query(writer.option("path", str(table)))
    query.processAllAvailable()
    first = len(list((checkpoint / "commits").glob("*[0-9]")))
    process = multiprocessing.get_context("spawn").Process(
        target=add_items, args=(spool, rate, size, seconds)
    )
    process.start()
    process.join()
    query.processAllAvailable()
    query.stop()
    found, seen = [], set[str]()
    for number in range(first, len(list((checkpoint / "commits").glob("*[0-9]")))):
        commit = checkpoint / "commits" / str(number)
        log = next((table / "_spark_metadata").glob(f"{commit.name}*"))
        for line in log.read_text().splitlines()[1:]:
            path = json.loads(line)["path"].removeprefix("file://")
            if path not in seen:
                seen.add(path)
                added = pq.read_table(path, columns=["add_ms"])["add_ms"].to_numpy()
                found.append(commit.stat().st_mtime - added / 1000)
    ages = np.sort(np.concatenate(found))
    p50, p99 = (float(ages[len(ages) * part // 100]) for part in (50, 99))
    print(
        f"{len(ages)} items of {size} bytes, {rate} a second: in the table after p50 {p50:.2f} s,"
        f" p99 {p99:.2f} s",
        flush=True,
    )


def timed(name: str, size: int, work: Callable[[], int]) -> None:
    """Run `work` and print its rate."""
    begun = time.perf_counter()
    items = work()
    seconds = time.perf_counter() - begun
    rate = items / seconds
    print(
        f"  {name:24} {items:8} items {seconds:7.1f} s"
        f" {rate:9.0f} items/s {rate * size / 1e6:7.1f} MB/s",
        flush=True,
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--items", type=int, default=200_000, help="items (default: 200000)")
    parser.add_argument("--size", type=int, default=1024, help="bytes of each (default: 1024)")
    parser.add_argument("--batch", type=int, default=100_000, help="a batch (default: 100000)")
    parser.add_argument("--fresh", action="store_true", help="measure the age of new items")
    parser.add_argument("--rate", type=int, default=20_000, help="items a second (default: 20000)")
    parser.add_argument("--seconds", type=int, default=60, help="for how long (default: 60)")
    parser.add_argument("--master", default="local[2]", help="Spark master (default: local[2])")
    arguments = parser.parse_args()
    items, size = arguments.items, arguments.size
    scratch = Path(tempfile.mkdtemp(prefix="bench-spark-stream-"))
    try:
        if arguments.fresh:
            with local_session(arguments.master, quick=True) as spark:
                measure_freshness(spark, scratch, arguments.rate, size, arguments.seconds)
            return
        with (
            running_server(scratch) as server,
            local_session(arguments.master, quick=True) as spark,
        ):
            spark.sparkContext.setLogLevel("ERROR")
            address = server.address
            fill(address, 2000, size)
            stream(spark, address, scratch, arguments.batch)
            print(f"{items} items of {size} bytes, {arguments.batch} in a batch", flush=True)
            fill(address, items, size)
            timed("Spark stream", size, lambda: stream(spark, address, scratch, arguments.batch))
            alone = min(items, CONSUMED_AT_MOST)
            fill(address, alone, size)
            timed("consumer, one process", size, lambda: consume(address, alone))
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
