"""Source, sink and archive at a server with users and TLS; the password is nowhere else."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kestrelmq.cli.main import main
from kestrelmq.client import Client
from kestrelmq.errors import ConfigError
from kestrelmq.spark.cluster_options import ClusterOptions, cluster_options
from kestrelmq.spark.given_options import GivenOptions
from kestrelmq.spark.pipelines import ArchiveOptions, archive, archived
from kestrelmq.spark.pipelines.archive import ArchivedQueue
from kestrelmq.spark.session import start_query
from tests.integration.test_tls import Site
from tests.spark.streams import stream
from tests.support.patience import PATIENCE
from tests.support.server import ServerProcess, running_server
from tests.support.users import PASSWORD, users_config

RIGHTS = 'read = ["work", "out"]\nwrite = ["work", "out"]'


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """What the server needs, with a file that has the password."""
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    return Site(tmp_path)


@pytest.fixture
def server(tmp_path: Path, site: Site) -> Iterator[ServerProcess]:
    """Run the server."""
    config = site.config() + users_config(spark=RIGHTS)
    with running_server(tmp_path, config=config) as process:
        yield process


def cluster_of(server: ServerProcess, site: Site, tmp_path: Path) -> ClusterOptions:
    """Return how Spark signs in there."""
    ca, password = str(site.authority.certificate), str(tmp_path / "password")
    return ClusterOptions(server.address, user="spark", password_file=password, tls_ca=ca)


def test_what_reads_and_writes_signs_in_over_tls(
    spark: SparkSession,
    server: ServerProcess,
    site: Site,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A queue to another by options, which is archived by a URL; a snapshot, and what is held."""
    cluster = cluster_of(server, site, tmp_path)
    options, checkpoint = cluster.as_options(), tmp_path / "checkpoint"
    items = [b"%d" % number for number in range(50)]
    with Client(server.address, options=cluster.client_options()) as client:
        client.put_many("work", items)
        rows = stream(spark, server.address, **options)
        writer = rows.select("data").writeStream.format("kestrel").option("queue", "out")
        writer = writer.options(**options, checkpointLocation=str(checkpoint))
        assert start_query(writer.trigger(availableNow=True)).awaitTermination(PATIENCE)
        table = spark.read.format("kestrel").options(**options, queue="out").load()
        assert [bytes(row.data) for row in table.select("data").collect()] == items

        url = f"kestrel://spark@{server.address}?tls=1&ca={site.authority.certificate}"
        named = ClusterOptions(url, password_file=cluster.password_file)
        archiving = ArchiveOptions(named, ["out"], str(tmp_path / "archive"))
        assert archive(spark, archiving).awaitTermination(PATIENCE)
        assert archived(spark, archiving.output) == [ArchivedQueue("out", 50, 90)]
        assert client.get("work") is client.get("out") is None

    flags = ["--user", "spark", "--password-file", cluster.password_file or ""]
    with pytest.raises(SystemExit) as ended:
        main(["pipeline", "settle", str(checkpoint), *flags, "--tls-ca", cluster.tls_ca or ""])
    words = ["server", "finished", "released", server.address, "0", "0"]
    assert (ended.value.code, capsys.readouterr().out.split()) == (0, words)
    table.explain(extended=True)
    assert PASSWORD not in capsys.readouterr().out
    kept = [checkpoint, tmp_path / "archive"]
    files = [file for one in kept for file in one.rglob("*") if file.is_file()]
    assert not [file for file in files if PASSWORD.encode() in file.read_bytes()]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"servers": f"kestrel://spark:{PASSWORD}@a:1"}, "no password"),
        ({"servers": f"spark:{PASSWORD}@a:1"}, "no password"),
        ({"servers": "a", "password": PASSWORD}, "option 'password' of testing is unknown"),
        ({"servers": "a", "user": "spark"}, "'user' and 'passwordFile' go together"),
        ({"servers": "kestrel://spark@a"}, "'user' and 'passwordFile' go together"),
        ({"servers": "a", "passwordFile": "/f"}, "'user' and 'passwordFile' go together"),
        ({"servers": "a", "user": "x", "passwordFile": "/f"}, "/f: No such file or directory"),
        ({"servers": "a", "user": "x", "passwordFile": __file__}, "first line is not a password"),
        ({"servers": "a", "tlsCa": "/f"}, "authorities in /f: No such file"),
        ({"servers": "a", "tlsKey": "/f"}, "a key goes with a certificate"),
    ],
)
def test_what_cannot_sign_in_is_said_without_a_secret(given: dict[str, str], message: str) -> None:
    """The option, or the file, and why not."""
    options = GivenOptions("testing", given)
    with pytest.raises(ConfigError) as raised:
        options.checked(cluster_options(options)).client_options()
    assert message in str(raised.value)
    assert PASSWORD not in str(raised.value)
