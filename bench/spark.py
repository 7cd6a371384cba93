"""Spark on journals: planning, scan, replay and bulk write, compared with a single process.

    python -m bench.spark --size "1 GiB"

The spools are generated: ADDX records of random data, a tenth of them removed, in files of 64 MiB.
Mixed items have 16 to 2,032 bytes, 1 KiB on average; every size is as likely as any other.
Each figure is the best of three runs, with the files in the page cache and Spark warmed up; an MB
is 1,000,000 bytes of journal. The single process does the same work without Spark: it uses the same
scanner and makes the same Arrow columns, or encodes and writes the same records. Planning is timed
over 10,000 small files, and each source with 10,000 queues beside `verify`. Ratios are of times: to
read a journal beside `binaryFile` with the same files, through a `mapInArrow` that changes nothing;
and one of its columns beside all columns of the same rows in Parquet.
"""

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from kestrelmq.format.records import REMOVE_RECORD, item
from kestrelmq.spark.pipelines import verify
from kestrelmq.spark.pipelines.verify import check
from kestrelmq.spark.reading import read_journals, read_queues
from kestrelmq.spark.replay.read_plans import replay_in_order
from kestrelmq.spark.session import local_session, start_query
from kestrelmq.spark.sinks.encoding import encode
from kestrelmq.spark.sinks.journal_parts import PartWriter
from kestrelmq.spark.sources.journal import JournalSourceReader
from kestrelmq.spark.sources.journal_options import JournalReadOptions, QueueReadOptions
from kestrelmq.spark.sources.journal_rows import JOURNAL_SCHEMA
from kestrelmq.spark.sources.queue import QUEUE_SCHEMA, QueueSourceReader
from kestrelmq.spark.storage import columns
from kestrelmq.spark.storage.opening import open_view
from kestrelmq.spark.storage.spool import by_queue, list_files
from kestrelmq.units import parse_size

FILE_BYTES = 64 << 20
ALL, ONE, SUMMARY = "scan, all columns", "scan, one column", "scan, a row a file"
MIXED = 0
"""Stands for mixed sizes where bytes of an item are given."""
REQUIRED_SCAN = {1024: 500, 50: 190, MIXED: 250}
"""The required MB/s on `local[2]`, by bytes of an item; twice that if fewer columns are read."""
REQUIRED_WRITE = {1024: 400, 50: 150}
PLANNED_FILES = 10_000
REQUIRED_PLANNING = 5.0
MANY_QUEUES = 10_000
MOST_BESIDE = {"verify": 3.0, "binaryFile": 1.2, "Parquet": 0.5}
"""The required ratios, by what they are beside."""


def make_spool(spool: Path, size: int, item_bytes: int) -> int:
    """Write a queue's journal of about `size` bytes; return its exact size."""
    rng = random.Random(1)
    data = [rng.randbytes(item_bytes or rng.randint(16, 2032)) for _ in range(1000)]
    block = b"".join(item(1_700_000_000_000 + n, 0, one) for n, one in enumerate(data))
    block += REMOVE_RECORD * 100
    written = 0
    timestamp = 1
    while written < size:
        blocks = max(1, min(FILE_BYTES, size - written) // len(block))
        with (spool / f"work.{timestamp}").open("wb") as file:
            for _ in range(blocks):
                file.write(block)
        written += blocks * len(block)
        timestamp += 1
    return written


def fastest(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest of three runs."""
    best = float("inf")
    for _ in range(3):
        begun = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begun)
    return best


def required_note(required: int) -> str:
    """Return what to print behind a figure of which so many MB/s are required; 0 for none."""
    return f"  required {required}" if required else ""


def consume(rows: DataFrame) -> None:
    """Compute every row and every column, and drop them."""
    rows.write.format("noop").mode("overwrite").save()


def scan_alone(spool: Path, wanted_columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the Arrow columns of all records, made in this process."""
    for file in list_files(str(spool)):
        view = open_view(file)
        for chunk in view.chunks():
            for batch in columns.batches(chunk, 10_000):
                arrays = [columns.RECORD_COLUMNS[name](view, batch) for name in wanted_columns]
                yield pa.RecordBatch.from_arrays(arrays, names=wanted_columns)


def replay_alone(spool: Path) -> int:
    """Find and copy all live data in this process."""
    total = 0
    for files in by_queue(list_files(str(spool))):
        for plan in replay_in_order(files).plans():
            view = open_view(plan.file)
            for chunk in view.chunks():
                for batch in columns.batches(chunk.part(chunk.adds), 10_000):
                    total += columns.data(view, batch).nbytes
    return total


def write_alone(batches: list[pa.RecordBatch], target: Path) -> None:
    """Encode rows and write them to one journal in this process."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    writer = PartWriter(target, "alone")
    for batch in batches:
        for encoded in encode(batch, 1):
            writer.write(encoded)
    writer.finish()


def measure(spark: SparkSession, scratch: Path, size: int, item_bytes: int) -> None:
    """Measure and print the figures for one item size."""
    spool = scratch / f"spool-{item_bytes}"
    spool.mkdir()
    journal = make_spool(spool, size, item_bytes)
    items = f"items of {item_bytes} bytes" if item_bytes else "items of mixed sizes"
    print(f"\n{items}, {journal / 1e6:.0f} MB of journal", flush=True)
    all_columns = list(columns.RECORD_COLUMNS)
    path = str(spool)

    times = {}

    def report(name: str, sparks: float, alone: float) -> None:
        times[name] = sparks
        factor = {ALL: 1, ONE: 2, SUMMARY: 2}.get(name, 0)
        required = factor * REQUIRED_SCAN.get(item_bytes, 0)
        print(
            f"  {name:24} Spark {journal / sparks / 1e6:6.0f} MB/s"
            f"   one process {journal / alone / 1e6:6.0f} MB/s{required_note(required)}",
            flush=True,
        )

    report(
        ALL,
        fastest(lambda: consume(read_journals(spark, path))),
        fastest(lambda: sum(batch.nbytes for batch in scan_alone(spool, all_columns))),
    )
    report(
        ONE,
        fastest(lambda: consume(read_journals(spark, path, ["opcode"]))),
        fastest(lambda: sum(batch.nbytes for batch in scan_alone(spool, ["opcode"]))),
    )
    report(
        "scan, sum of sizes",
        fastest(lambda: read_journals(spark, path, ["size"]).agg(f.sum("size")).collect()),
        fastest(lambda: sum(batch.nbytes for batch in scan_alone(spool, ["size"]))),
    )
    report(
        SUMMARY,
        fastest(lambda: verify(spark, path)),
        fastest(lambda: [check(file) for file in list_files(path)]),
    )
    report(
        "replay, all live data",
        fastest(lambda: consume(read_queues(spark, path, ["queue", "position", "data"]))),
        fastest(lambda: replay_alone(spool)),
    )
    binary = spark.read.format("binaryFile").load(path).select("content")
    beside = fastest(lambda: consume(binary.mapInArrow(unchanged, binary.schema)))
    report_ratio(ALL, times[ALL], "binaryFile", beside)
    parquet = str(scratch / "operations")
    read_journals(spark, path).write.option("compression", "none").parquet(parquet)
    beside = fastest(lambda: consume(spark.read.parquet(parquet)))
    report_ratio(ONE, times[ONE], "Parquet", beside)
    shutil.rmtree(parquet)
    measure_write(spark, scratch, spool, item_bytes)
    shutil.rmtree(spool)


def unchanged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield what is given."""
    yield from batches


def report_ratio(name: str, seconds: float, other: str, beside: float) -> None:
    """Print how long something takes beside something else."""
    print(
        f"  {name:24} {seconds:6.2f} s   {other} {beside:6.2f} s"
        f"   ratio {seconds / beside:.2f}  required {MOST_BESIDE[other]}",
        flush=True,
    )


def measure_many_queues(spark: SparkSession, scratch: Path) -> None:
    """Measure and print how long each source takes to read many small queues."""
    spool = scratch / "queues"
    spool.mkdir()
    journal = b"".join(item(1_700_000_000_000 + n, 0, b"x" * 100) for n in range(20))
    for number in range(MANY_QUEUES):
        (spool / f"queue{number}").write_bytes(journal)
    path, runs = str(spool), iter(range(1_000_000))

    def stream() -> None:
        rows = spark.readStream.format("kestrel.journal").load(path)
        writer = rows.writeStream.format("noop").trigger(availableNow=True)
        checkpoint = str(scratch / "checkpoints" / str(next(runs)))
        start_query(writer.option("checkpointLocation", checkpoint)).awaitTermination()

    print(f"\n{MANY_QUEUES} queues of {len(journal)} bytes", flush=True)
    beside = fastest(lambda: verify(spark, path))
    for name, work in {
        "kestrel.journal": lambda: consume(read_journals(spark, path)),
        "kestrel.queue": lambda: consume(read_queues(spark, path)),
        "kestrel.journal, stream": stream,
    }.items():
        report_ratio(name, fastest(work), "verify", beside)
    shutil.rmtree(spool)
    shutil.rmtree(scratch / "checkpoints")


def measure_write(spark: SparkSession, scratch: Path, spool: Path, item_bytes: int) -> None:
    """Measure and print how fast rows in Parquet are written to journals."""
    parquet = str(scratch / f"parquet-{item_bytes}")
    read_queues(spark, str(spool), ["queue", "add_time", "expiry", "data"]).write.option(
        "compression", "none"
    ).parquet(parquet)
    rows = spark.read.parquet(parquet)
    target = scratch / "written"

    def write() -> None:
        shutil.rmtree(target, ignore_errors=True)
        rows.write.format("kestrel.journal").mode("append").save(str(target))

    sparks = fastest(write)
    sizes = [file.size for file in list_files(str(target))]
    batches = pa.dataset.dataset(parquet).to_table().to_batches(max_chunksize=10_000)
    alone = fastest(lambda: write_alone(batches, scratch / "alone"))
    note = required_note(REQUIRED_WRITE.get(item_bytes, 0))
    print(
        f"  {'write, from Parquet':24} Spark {sum(sizes) / sparks / 1e6:6.0f} MB/s"
        f"   one process {sum(sizes) / alone / 1e6:6.0f} MB/s (rows in memory){note}",
        flush=True,
    )
    for used in (Path(parquet), target, scratch / "alone"):
        shutil.rmtree(used)


def plan(spark: SparkSession, source: str, path: str) -> int:
    """Plan a query; return the number of tasks it would have."""
    return spark.read.format(source).load(path).rdd.getNumPartitions()


def measure_planning(spark: SparkSession, scratch: Path) -> None:
    """Measure and print how long it takes to list many files and to divide them among tasks."""
    spool = scratch / "many"
    spool.mkdir()
    for number in range(PLANNED_FILES):
        (spool / f"queue{number % 100}.{number}").write_bytes(REMOVE_RECORD)
    path = str(spool)
    sources = {
        "kestrel.journal": JournalSourceReader(JournalReadOptions(path), JOURNAL_SCHEMA),
        "kestrel.queue": QueueSourceReader(QueueReadOptions(path), QUEUE_SCHEMA),
    }
    print(f"\nplanning over {PLANNED_FILES} files", flush=True)
    for name, reader in sources.items():
        sparks = fastest(partial(plan, spark, name, path))
        alone = fastest(reader.partitions)
        print(
            f"  {name:24} Spark {sparks:6.2f} s"
            f"      one process {alone:6.2f} s     required {REQUIRED_PLANNING:.0f}",
            flush=True,
        )
    shutil.rmtree(spool)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--size", default="1 GiB", help="bytes of journal (default: 1 GiB)")
    parser.add_argument(
        "--items", default=f"1024,50,{MIXED}", help="item sizes, 0 for mixed (default: 1024,50,0)"
    )
    parser.add_argument("--master", default="local[2]", help="Spark master (default: local[2])")
    parser.add_argument(
        "--scratch", type=Path, help="where the spools go (default: a new directory)"
    )
    arguments = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="bench-spark-", dir=arguments.scratch))
    try:
        with local_session(arguments.master, settings={"spark.driver.memory": "2g"}) as spark:
            spark.sparkContext.setLogLevel("ERROR")
            for item_bytes in (1024, 50):
                warm = scratch / f"warm-{item_bytes}"
                warm.mkdir()
                make_spool(warm, 64 << 20, item_bytes)
                for _ in range(3):
                    consume(read_journals(spark, str(warm)))
            measure_planning(spark, scratch)
            measure_many_queues(spark, scratch)
            for item_bytes in map(int, arguments.items.split(",")):
                measure(spark, scratch, parse_size(arguments.size), item_bytes)
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
