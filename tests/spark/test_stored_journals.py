"""Journals in a store, read by real Spark: the same rows and results as from a disk."""

import json
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pymemcache.client.base import Client as Memcache
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from kestrelmq.client import Client
from kestrelmq.errors import ConfigError, StorageError
from kestrelmq.format.records import Remove
from kestrelmq.spark.pipelines import (
    JournalArchiveOptions,
    archive_journals,
    archived,
    pack,
    replay,
    report,
    verify,
)
from kestrelmq.spark.reading import read_journals, read_queues, read_table
from tests.spark.spools import adds, random_spool, write
from tests.spark.streams import drain, items_in
from tests.spark.test_commands import Terminal
from tests.support.journal_bytes import encode
from tests.support.object_store import ACCESS_KEY, SECRET_KEY, ObjectStore
from tests.support.patience import PATIENCE
from tests.support.server import ServerProcess

CONFIG = """\
memcache_dialect = "memcached"
[default]
max_memory_size = "20 KiB"
default_journal_size = "1 GiB"
keep_replaced_journals = "1 hour"
"""


@pytest.fixture
def terminal(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Terminal:  # its session
    """Return a terminal whose commands run in the session of the tests."""
    return Terminal(capsys)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    """Return a client of it."""
    with Client(server.address) as client:
        yield client


def work(server: ServerProcess, client: Client) -> None:
    """Leave rotated files, items in line, an open read and a delayed item; kill the server."""
    for number in range(3):
        client.put_many("jobs", [b"%d-%d " % (number, one) + bytes(900) for one in range(60)])
        for _ in range(40):
            client.get("jobs")
    client.put_many("other", [b"one", b"two"])
    client.put("other", b"later", delay=3600)
    with closing(Memcache(("127.0.0.1", server.ports["memcache"]))) as holder:
        assert holder.get("other/open") == b"one"
        server.kill9()


def rows(table: DataFrame, *order: str) -> list[tuple[object, ...]]:
    """Return the rows, without what says where the spool is."""
    names = [name for name in table.columns if name != "spool"]
    return [tuple(row) for row in table.select(*names).orderBy(*order).collect()]


def test_a_spool_of_a_server_is_the_same_in_a_store(
    spark: SparkSession, server: ServerProcess, client: Client, store: ObjectStore, tmp_path: Path
) -> None:
    """Operation for operation and item for item; so are the results of the pipelines."""
    work(server, client)
    local, options = str(server.queue_path), store.options
    stored = store.copy(server.queue_path, tmp_path.name)

    operations = read_journals(spark, stored, storage=options)
    assert rows(operations, "file", "position") == rows(
        read_journals(spark, local), "file", "position"
    )
    there = read_queues(spark, stored, direct_bytes=1, storage=options)
    here = read_queues(spark, local)
    assert rows(there, "queue", "position") == rows(here, "queue", "position")
    assert there.where("due is not null").count() == 1
    checks = [
        (one.file.removeprefix(stored), one.size, one.records, one.is_good, one.torn_at)
        for one in verify(spark, stored, storage=options)
    ]
    assert checks == [
        (one.file.removeprefix(local), one.size, one.records, one.is_good, one.torn_at)
        for one in verify(spark, local)
    ]
    written = replay(spark, stored, str(tmp_path / "contents"), storage=options)
    assert [(one.queue, one.items, one.open_reads, one.delayed) for one in written] == [
        ("jobs", 60, 0, 0),
        ("other", 3, 1, 1),
    ]
    contents = read_table(spark, str(tmp_path / "contents"))
    assert rows(contents.select(here.columns), "queue", "position") == rows(
        here, "queue", "position"
    )
    reported = report(spark, stored, str(tmp_path / "report"), storage=options)
    assert [(one.queue, one.live, one.open) for one in reported.queues] == [
        ("jobs", 60, 0),
        ("other", 1, 1),
    ]


def test_several_spools_and_damage_in_a_store(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    """A glob has the URIs of its spools in the rows; damage is named by URI and position."""
    random_spool(random.Random(3), tmp_path / "a", 3)
    write(tmp_path / "b/bad.1", adds([b"1", b"2"]), tail=b"\xff")
    write(tmp_path / "b/bad", adds([b"3"]))
    for name in "ab":
        store.copy(tmp_path / name, f"{tmp_path.name}/{name}")
    root = f"s3://bucket/{tmp_path.name}"
    options = {**store.source_options, "mode": "permissive"}

    several = spark.read.format("kestrel.journal").options(**options).load(f"{root}/*")
    assert {row.spool for row in several.select("spool").distinct().collect()} == {
        f"{root}/a",
        f"{root}/b",
    }
    assert rows(several, "file", "position") == rows(
        read_journals(spark, f"{tmp_path}/*", mode="permissive"), "file", "position"
    )
    damaged = len(b"".join(map(encode, adds([b"1", b"2"]))))
    with pytest.raises(PySparkException, match=rf"{root}/b/bad\.1: damaged at byte {damaged}"):
        read_journals(spark, f"{root}/b", storage=store.options).collect()
    (bad,) = [one for one in verify(spark, f"{root}/b", storage=store.options) if not one.is_good]
    assert (bad.file, bad.damaged_at) == (f"{root}/b/bad.1", damaged)


def test_a_stream_of_a_spool_that_is_shipped(
    spark: SparkSession, server: ServerProcess, client: Client, store: ObjectStore, tmp_path: Path
) -> None:
    """Each operation once, while files are appended to, rotated and packed, over restarts."""
    place = f"s3://bucket/{tmp_path.name}"
    schema = "queue string, operation string, data binary, sequence long"
    stream = spark.readStream.format("kestrel.journal").schema(schema)
    stream = stream.options(wait="0s", maxBytesPerTrigger="30 KiB", **store.source_options)
    operations = (
        stream.load(place).where("operation = 'ADDX'").withColumnRenamed("sequence", "position")
    )
    sent: list[bytes] = []
    for number in range(4):
        items = [b"%d-%d " % (number, one) + bytes(900) for one in range(40)]
        sent += items
        client.put_many("jobs", items)
        for _ in range(35 if number % 2 else 0):
            client.get("jobs")
        store.ship(server.queue_path, tmp_path.name)
        drain(operations, tmp_path)
    assert len(store.names(tmp_path.name)) > 3

    assert items_in(spark, tmp_path) == sent
    offset = json.loads(
        max((tmp_path / "checkpoint/offsets").glob("[0-9]"), key=lambda one: int(one.name))
        .read_text()
        .splitlines()[-1]
    )
    assert offset["spools"]["."]["jobs"]
    written = [one for one in (tmp_path / "checkpoint").rglob("*") if one.is_file()]
    assert not any(SECRET_KEY.encode() in one.read_bytes() for one in written)


def test_an_archive_of_journals_in_a_store(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    """It goes on with other credentials, but not with other journals; and keeps no secret."""
    write(tmp_path / "spool/jobs", adds([b"1", b"2"]))
    place = store.copy(tmp_path / "spool", tmp_path.name)
    options = JournalArchiveOptions(place, str(tmp_path / "out"), storage=store.options)
    assert SECRET_KEY not in repr(options)

    assert archive_journals(spark, options).awaitTermination(PATIENCE)
    store.put(f"{tmp_path.name}/jobs", b"".join(map(encode, adds([b"1", b"2", b"3"]))))
    assert archive_journals(spark, options).awaitTermination(PATIENCE)

    assert [one.items for one in archived(spark, options.output)] == [3]
    kept = (tmp_path / "out/_source").read_text()
    assert kept == f"all queues of the journals in {place}"
    with pytest.raises(ConfigError, match="archive others to another directory"):
        archive_journals(
            spark, JournalArchiveOptions(f"{place}/jobs", options.output, storage=store.options)
        )


def test_the_settings_of_the_session_reach_a_store(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    """As Hadoop has them; storage options count before these."""
    write(tmp_path / "jobs", adds([b"1"]))
    place = store.copy(tmp_path, tmp_path.name).replace("s3://", "s3a://")
    settings = {
        "access.key": ACCESS_KEY,
        "secret.key": SECRET_KEY,
        "endpoint": f"http://{store.endpoint}",
        "endpoint.region": "nowhere",
    }
    try:
        for name, value in settings.items():
            spark.conf.set(f"spark.hadoop.fs.s3a.{name}", value)
        (checked,) = verify(spark, place, storage={"region": "us-east-1"})
        assert read_journals(spark, place, storage={"region": "us-east-1"}).count() == 1
    finally:
        for name in settings:
            spark.conf.unset(f"spark.hadoop.fs.s3a.{name}")
    assert (checked.is_good, checked.records) == (True, 1)


def test_secrets_are_not_shown(spark: SparkSession, store: ObjectStore, tmp_path: Path) -> None:
    """Neither in a plan, nor in an error; from a URI they go where options are."""
    write(tmp_path / "jobs", adds([b"1"]))
    place = store.copy(tmp_path, tmp_path.name)
    endpoint = f"endpoint_override={store.endpoint}&scheme=http&region=us-east-1"
    secret = SECRET_KEY.replace("/", "%2F").replace("+", "%2B")
    uri = f"s3://{ACCESS_KEY}:{secret}@{place.removeprefix('s3://')}?{endpoint}"

    found = read_journals(spark, uri)

    assert found.count() == 1
    jvm_plan = found._jdf.queryExecution().toString()
    assert not any(one in jvm_plan for one in (SECRET_KEY, secret))
    with store.checking_rights(), pytest.raises(PySparkException) as caught:
        spark.read.format("kestrel.journal").options(**store.source_options).load(place)
    assert "AWS Error" in str(caught.value)
    assert f"{place}" in str(caught.value)
    assert SECRET_KEY not in str(caught.value)
    misspelt = {**store.options, "secret_kye": SECRET_KEY}
    with pytest.raises(ConfigError, match="storage option 'secret_kye' is unknown") as refused:
        read_journals(spark, place, storage=misspelt)
    assert SECRET_KEY not in str(refused.value)


def test_a_spool_in_a_store_is_packed(
    spark: SparkSession,
    terminal: Terminal,
    server: ServerProcess,
    client: Client,
    store: ObjectStore,
    tmp_path: Path,
) -> None:
    """By function and by command; the queues are the same, and a server serves them."""
    work(server, client)
    stored = store.copy(server.queue_path, tmp_path.name)
    options = store.options

    def held() -> list[tuple[object, ...]]:
        table = read_queues(spark, stored, storage=options)
        return rows(table, "queue", "position")

    before, place, stored = held(), stored, f"{stored}-packed"
    packed = pack(spark, place, stored, storage=options)
    assert held() == before
    assert {(one.queue, one.items) for one in packed} == {
        ("jobs", 60),
        ("other", 2),
    }
    assert sum(one.after for one in packed) < sum(one.before for one in packed)
    name = f"{tmp_path.name}-packed"
    assert len([one for one in store.names(name) if one.startswith("jobs")]) == 1
    flags = [w for one in options.items() for w in ("--storage-option", "=".join(one))]
    again = ("-o", f"{stored}-again", "--dialect", "kestrel-2")
    ended = terminal.run("pack", stored, *again, *flags)
    assert (ended.status, ended.errors) == (0, "")
    assert [line[:2] for line in ended.table[1:-1]] == [
        ["jobs", "60"],
        ["other", "2"],
    ]
    stored = f"{stored}-again"
    assert held() == before
    with pytest.raises(ValueError, match="only some files"):
        pack(spark, f"{stored}/jo*", f"{stored}-none", storage=options)
    for file in server.queue_path.iterdir():
        file.unlink()
    for one in store.names(f"{name}-again"):
        (server.queue_path / one).write_bytes(store.get(f"{name}-again/{one}"))
    server.start()
    with Client(server.address) as reader:
        assert len(list(reader.consume("jobs", idle_timeout=0))) == 60
        assert list(reader.consume("other", idle_timeout=0)) == [b"one", b"two"]


def test_a_store_that_does_not_answer_is_a_clear_error(spark: SparkSession) -> None:
    """After pyarrow's attempts."""
    options = {"endpoint_override": "127.0.0.1:1", "region": "x", "scheme": "http"}

    with pytest.raises(StorageError, match=r"s3://bucket/spool: .*Failed to connect"):
        verify(spark, "s3://bucket/spool", storage=options)


@pytest.mark.parametrize("place", ["store", "file URL"])
def test_the_commands_take_uris(
    terminal: Terminal, store: ObjectStore, tmp_path: Path, place: str
) -> None:
    """Of journals, and of what is written; storage options are for URIs of stores."""
    write(tmp_path / "spool" / "jobs.5", adds([b"1", b"2"]))
    write(tmp_path / "spool" / "jobs", [Remove(), *adds([b"3"])])
    if place == "store":
        root = store.copy(tmp_path / "spool", f"{tmp_path.name}/spool").removesuffix("/spool")
    else:
        root = f"file://{tmp_path}"
    flags = [w for one in store.options.items() for w in ("--storage-option", "=".join(one))]
    shown = root.removeprefix("file://")

    def table(*words: str) -> list[list[str]]:
        ended = terminal.run(*words, *flags)
        assert (ended.status, ended.errors) == (0, "")
        return ended.table

    spool, out = f"{root}/spool", f"file://{tmp_path}/out"
    assert table("verify", spool)[1:] == [
        [f"{shown}/spool/jobs.5", "44", "2", "good"],
        [f"{shown}/spool/jobs", "23", "2", "good"],
    ]
    told = [["jobs", "live", "2"], ["jobs", "removed", "1"]]
    assert table("history", spool, "-o", f"{out}/history")[1:] == told
    assert table("replay", spool, "-o", f"{out}/contents")[1][:2] == ["jobs", "2"]
    assert table("report", spool, "-o", f"{out}/report")[-1] == [
        f"{tmp_path}/out/report/report.html"
    ]
    to = ["-o", f"{root}/packed"] if place == "store" else []
    assert table("pack", spool, *to)[1][:2] == ["jobs", "2"]
    assert table("restore", f"{out}/c*", "-o", f"{root}/back")[-1] == [f"{root}/back", "2"]
    assert table("replay", f"{root}/b*", "-o", f"{out}/again")[1][:2] == ["jobs", "2"]


def test_the_commands_take_storage_options(
    terminal: Terminal, store: ObjectStore, tmp_path: Path
) -> None:
    """Each as NAME=VALUE; what is wrong is named without its value."""
    write(tmp_path / "jobs", adds([b"1", b"2"]))
    place = store.copy(tmp_path, tmp_path.name)

    wrong = terminal.run("verify", place, "--storage-option", SECRET_KEY)
    assert wrong.status == 2
    assert "NAME=VALUE" in wrong.errors
    assert SECRET_KEY not in wrong.errors
    unknown = terminal.run("verify", place, "--storage-option", f"secret={SECRET_KEY}")
    assert unknown.status == 1
    assert "storage option 'secret' is unknown: allowed are access_key" in unknown.errors
    assert SECRET_KEY not in unknown.errors
