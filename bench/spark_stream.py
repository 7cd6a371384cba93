"""Spark streaming from a live server, compared with a consumer in one process.

    python -m bench.spark_stream --items 200000 --size 1024

One server holds the items. All of them are read in two ways. Each is timed from when it is ready
(the session warmed up, the first batch of the stream finished) until the last item is confirmed:

- a stream: `kestrel` with AvailableNow to a sink that drops the rows;
- a consumer, `Client.consume`: one open read at a time, confirmed when the next is requested.

The consumer does least; the stream costs more because of Spark.
"""

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from kestrelmq.client import Client
from kestrelmq.spark.session import local_session, start_query
from tests.support.server import running_server

QUEUE = "work"
CONSUMED_AT_MOST = 20_000
"""Most items for the consumer, which is slow and has a constant rate."""


def fill(address: str, items: int, size: int) -> None:
    """Add items to the queue."""
    block = [random.Random(1).randbytes(size) for _ in range(1000)]
    with Client(address) as client:
        for _ in range(items // len(block)):
            client.put_many(QUEUE, block)


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
    parser.add_argument("--master", default="local[2]", help="Spark master (default: local[2])")
    arguments = parser.parse_args()
    items, size = arguments.items, arguments.size
    scratch = Path(tempfile.mkdtemp(prefix="bench-spark-stream-"))
    try:
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
