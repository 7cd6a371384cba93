"""`kestrelmq pipeline`: the Spark pipelines as commands; each prints a table of its results."""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from kestrelmq.cli.journal import DialectName
from kestrelmq.cli.servers import PASSWORD_VARIABLE, Access, Servers
from kestrelmq.cli.spark_runs import STOPS, error_line, handled_by, spark_session
from kestrelmq.cli.tables import JsonFlag, print_rows
from kestrelmq.cli.values import duration, time, wrong
from kestrelmq.errors import KestrelError
from kestrelmq.names import queue_name_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from kestrelmq.spark.cluster_options import ClusterOptions

app: Final = typer.Typer(
    help="Journals and live queues through Spark: reports, archives, restores.",
    no_args_is_help=True,
)

JournalsArgument = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A queue path, or a glob of queue paths: a path, or a URI such as s3://BUCKET/SPOOL.",
    ),
]


def _pairs(example: str) -> Callable[[list[str] | None], list[str] | None]:
    """Return a check that each is NAME=VALUE; an error shows no value, which may be secret."""

    def checked(given: list[str] | None) -> list[str] | None:
        for one in given or ():
            if not one.partition("=")[0] or "=" not in one:
                raise typer.BadParameter(f"it must be {example}")
        return given

    return checked


def _by_name(given: list[str] | None) -> dict[str, str]:
    """Return the values of a flag that takes NAME=VALUE, by name."""
    return {name: value for name, _, value in (one.partition("=") for one in given or ())}


StorageFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="NAME=VALUE",
        callback=_pairs("NAME=VALUE, such as region=eu-west-1"),
        help="An option of the store of a URI, such as endpoint_override=HOST:PORT; may be "
        "repeated. Better keep secrets in the environment, as AWS_SECRET_ACCESS_KEY.",
    ),
]
OutputFlag = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH",
        help="Where the result goes: any path that Spark can write, such as s3://BUCKET/DIRECTORY.",
    ),
]
FormatFlag = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="NAME",
        help="The format of the table, of all that Spark has, such as delta or iceberg.",
    ),
]


SinceFlag = Annotated[
    int | None,
    typer.Option(parser=time, metavar="TIME", help="Only items added at this time or later."),
]
UntilFlag = Annotated[
    int | None,
    typer.Option(parser=time, metavar="TIME", help="Only items added before this time."),
]


def _checked_master(url: str) -> str:
    """Check Spark's master URL, because Spark's own error is a page of Java stack trace."""
    if not url.startswith(("local", "spark://", "yarn", "k8s://")):
        raise typer.BadParameter(
            f"{url!r} is not a master of Spark: give local[*], spark://HOST:PORT, yarn or k8s://URL"
        )
    return url


def _checked_queues(words: list[str] | None) -> list[str] | None:
    """Check names and patterns of queues before Spark starts."""
    from kestrelmq.spark.sources.queue_choice import QueueChoice  # noqa: PLC0415 # only for pipelines

    try:
        QueueChoice.of(words or ())
    except ValueError as error:
        raise typer.BadParameter(
            f"{', '.join(words or ())!r} is not allowed: it must be {error}"
        ) from error
    return words


def _checked_name(name: str | None) -> str | None:
    """Check a queue's name, or a part of one."""
    problem = None if name is None else queue_name_error(name)
    if problem is not None:
        raise typer.BadParameter(f"{name!r}: {problem}")
    return name


def _checked_start(text: str) -> str:
    """Check where an archive is to begin: `earliest`, `latest` or a time."""
    if text.lower() not in {_EARLIEST, "latest"}:
        time(text)
    return text


OverwriteFlag = Annotated[
    bool, typer.Option("--overwrite", help="Replace existing output, which is otherwise an error.")
]
_PARQUET: Final = "parquet"
_EARLIEST: Final = "earliest"
_BATCH_ITEMS: Final = 100_000
_EVERY: Final = 10.0
_POLL: Final = 1
# The same limit as in `spark.sources.live_offsets`, which is too slow to import for a help text.
_MOST_ITEMS: Final = 1 << 22


@dataclass(frozen=True)
class SparkFlags:
    """The flags that say where Spark runs, and how it reads and writes."""

    storage_option: StorageFlag = None
    master: Annotated[
        str,
        typer.Option(
            "--master",
            metavar="URL",
            callback=_checked_master,
            help="Spark's master; local[*] is this machine.",
        ),
    ] = "local[*]"
    conf: Annotated[
        list[str] | None,
        typer.Option(
            "--conf",
            metavar="KEY=VALUE",
            callback=_pairs("KEY=VALUE, such as spark.executor.memory=4g"),
            help="A setting of Spark, such as spark.executor.memory=4g; may be repeated, and "
            "overrides what this command sets.",
        ),
    ] = None
    packages: Annotated[
        str | None,
        typer.Option(
            "--packages",
            metavar="MAVEN,...",
            help="Jars that Spark fetches, such as org.apache.hadoop:hadoop-aws:3.5.0.",
        ),
    ] = None

    @property
    def storage(self) -> dict[str, str]:
        """The options of the store, by name."""
        return _by_name(self.storage_option)

    @property
    def settings(self) -> dict[str, str]:
        """The settings of Spark, by name."""
        jars = {"spark.jars.packages": self.packages} if self.packages else {}
        return jars | _by_name(self.conf)

    def session(self, what: str) -> AbstractContextManager["SparkSession"]:
        """Run a session with a progress bar of this title, as `spark_session` does."""
        return spark_session(self.master, what, self.settings)


@app.command()
def report(  # one for each flag
    path: JournalsArgument,
    *,
    output: OutputFlag,
    since: SinceFlag = None,
    until: UntilFlag = None,
    table_format: FormatFlag = _PARQUET,
    overwrite: OverwriteFlag = False,
    flags: SparkFlags,
    as_json: JsonFlag = False,
) -> None:
    """Write a page with charts about the items of the queues, and the same data as tables.

    A time without a zone is UTC; a number is milliseconds since 1970. The charts have each hour of
    which a part is in that time.
    """
    _check_range(since, until)
    with flags.session("report") as spark:
        from kestrelmq.spark import pipelines  # noqa: PLC0415 # Spark may be missing

        written = pipelines.report(
            spark,
            path,
            output,
            since=since,
            until=until,
            mode=_mode(overwrite=overwrite),
            table_format=table_format,
            storage=flags.storage,
        )
    fates = ("removed", "confirmed", "expired", "open", "live")
    delayed = ("delayed",) if any(one.delayed for one in written.queues) else ()
    spool = ("spool",) if len({one.spool for one in written.queues}) > 1 else ()
    _table(written.queues, (*spool, "queue", "items", "bytes", *fates, *delayed), as_json=as_json)
    print(f"\n{written.page}", file=sys.stderr if as_json else None)


@app.command()
def replay(  # one for each flag
    path: JournalsArgument,
    *,
    output: OutputFlag,
    table_format: FormatFlag = _PARQUET,
    overwrite: OverwriteFlag = False,
    flags: SparkFlags,
    as_json: JsonFlag = False,
) -> None:
    """Write the items that are in the queues now to a table."""
    with flags.session("replay") as spark:
        from kestrelmq.spark import pipelines  # noqa: PLC0415 # as above

        written = pipelines.replay(
            spark,
            path,
            output,
            mode=_mode(overwrite=overwrite),
            table_format=table_format,
            storage=flags.storage,
        )
    delayed = ("delayed",) if any(one.delayed for one in written) else ()
    _table(written, ("queue", "items", "open_reads", "bytes", *delayed), as_json=as_json)


@app.command()
def history(  # one for each flag
    path: JournalsArgument,
    *,
    output: OutputFlag,
    table_format: FormatFlag = _PARQUET,
    with_data: Annotated[bool, typer.Option("--with-data", help="Keep the items' data.")] = False,
    overwrite: OverwriteFlag = False,
    flags: SparkFlags,
    as_json: JsonFlag = False,
) -> None:
    """Write every item that the journals still contain, with its fate, to a table."""
    with flags.session("history") as spark:
        from kestrelmq.spark import pipelines  # noqa: PLC0415 # as above
        from kestrelmq.spark.reading import (  # noqa: PLC0415 # as above
            place_of,
            read_table,
            write_table,
        )
        from kestrelmq.spark.storage.spool import check_apart  # noqa: PLC0415 # as above

        journals = place_of(spark, path, flags.storage)
        check_apart(journals, output)
        items = pipelines.history(spark, journals, with_data=with_data)
        write_table(items, output, _mode(overwrite=overwrite), table_format=table_format)
        counted = read_table(spark, output, table_format).groupBy("queue", "fate").count()
        rows = counted.orderBy("queue", "fate").collect()
    print_rows(["queue", "fate", "items"], rows, as_json=as_json)


@app.command()
def verify(path: JournalsArgument, *, flags: SparkFlags, as_json: JsonFlag = False) -> None:
    """Check every journal file; exit status 1 if one is damaged or cannot be read."""
    with flags.session("verify") as spark:
        from kestrelmq.spark import pipelines  # noqa: PLC0415 # as above

        checks = pipelines.verify(spark, path, storage=flags.storage)
    rows = [
        [check.file, check.size, check.records, _state(check)]
        for check in sorted(checks, key=lambda check: check.is_good)
    ]
    print_rows(["file", "bytes", "records", "state"], rows, as_json=as_json)
    damaged = sum(check.damaged_at is not None for check in checks)
    unreadable = sum(not check.is_good for check in checks) - damaged
    wrong = [f"{damaged} of {len(checks)} files are damaged"] if damaged else []
    wrong += [f"{unreadable} cannot be read"] if unreadable else []
    if wrong:
        raise KestrelError(", ".join(wrong))


@app.command()
def pack(
    path: JournalsArgument,
    *,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="URI",
            help="With a queue path in a store: another one, for the packed journals.",
        ),
    ] = None,
    dialect: Annotated[
        DialectName, typer.Option(help="The dialect to write.")
    ] = DialectName.DOCUMENTED,
    flags: SparkFlags,
    as_json: JsonFlag = False,
) -> None:
    """Pack the journals of all queues; nobody else may be using the queue path."""
    with flags.session("pack") as spark:
        from kestrelmq.spark import pipelines  # noqa: PLC0415 # as above

        packed = pipelines.pack(spark, path, output, dialect=dialect.value, storage=flags.storage)
    _table(packed, ("queue", "items", "before", "after"), as_json=as_json)


@app.command()
def archive(  # noqa: PLR0913 # one for each flag
    queues: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUE...",
            callback=_checked_queues,
            help="The queues to read: names, or patterns such as 'orders_*'.",
        ),
    ] = None,
    *,
    output: OutputFlag,
    journals: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Archive what is added, from the journals in this queue path, or at this URI; "
            "without QUEUE, of all queues.",
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            callback=_checked_start,
            help="With --journals: earliest, latest, or a time; for a new archive.",
        ),
    ] = _EARLIEST,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="With --journals: continue if files were packed before they were read.",
        ),
    ] = False,
    copy: Annotated[
        str | None,
        typer.Option(
            metavar="CHILD",
            callback=_checked_name,
            help="Copy through this fanout child instead of draining.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue until interrupted (SIGINT, SIGTERM).")
    ] = False,
    every: Annotated[
        float,
        typer.Option(
            parser=duration,
            metavar="TIME",
            show_default="10 seconds",
            help="With --follow: the interval between batches.",
        ),
    ] = _EVERY,
    batch_items: Annotated[
        int, typer.Option(min=1, max=_MOST_ITEMS, help="Items in a batch, at most.")
    ] = _BATCH_ITEMS,
    servers: Servers,
    table_format: FormatFlag = _PARQUET,
    flags: SparkFlags,
    as_json: JsonFlag = False,
) -> None:
    """Move or copy items of queues to a table, now or continuously.

    \b
    kestrelmq pipeline archive work --output archive
    kestrelmq pipeline archive 'orders_*' work --output archive
    kestrelmq pipeline archive work --copy archived --follow --output archive
    kestrelmq pipeline archive --journals /var/spool/kestrel --follow --output archive

    With --journals, items are copied as they are added, and nothing is taken from a server.

    If it is started again with the same output, it continues where it stopped, also after a crash.
    """  # noqa: D301 # \b is for the help
    if journals is None and not queues:
        raise typer.BadParameter("give QUEUE..., or --journals PATH")
    if journals is not None and (copy or servers.are_named):
        raise typer.BadParameter("--copy and the servers do not go with --journals")
    if journals is not None and batch_items != _BATCH_ITEMS:
        raise typer.BadParameter("--batch-items does not go with --journals")
    if every != _EVERY and not follow:
        raise typer.BadParameter("--every goes with --follow")
    if journals is None and (accept_loss or start != _EARLIEST):
        raise typer.BadParameter("--start and --accept-loss go with --journals")
    interval = f"{round(every * 1000)} milliseconds" if follow else None
    storage = flags.storage
    if journals is None:
        servers.membership()  # wrong flags are found before Spark starts
        servers.options()
    with flags.session("archive") as spark:
        from kestrelmq.spark import pipelines  # noqa: PLC0415 # as above

        if journals is None:
            cluster = _cluster(servers)
            live = pipelines.ArchiveOptions(
                cluster,
                queues or [],
                output,
                copy,
                batch_items,
                table_format=table_format,
                storage=storage,
            )
            query = pipelines.archive(spark, live, every=interval)
        else:
            files = pipelines.JournalArchiveOptions(
                journals,
                output,
                queues or [],
                start,
                not accept_loss,
                table_format=table_format,
                storage=storage,
            )
            query = pipelines.archive_journals(spark, files, every=interval)
        wait_for(query, follow=follow)
        written = pipelines.archived(spark, output, table_format)
    _table(written, ("queue", "items", "bytes"), as_json=as_json)


@app.command()
def settle(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="Its checkpoint: a directory, or a URI.")
    ],
    *,
    storage_option: StorageFlag = None,
    access: Access,
    as_json: JsonFlag = False,
) -> None:
    """Settle what a streaming query of live queues holds that will not go on.

    What Spark has committed is finished; the rest of what the query holds goes back to its queues.
    The query must not run. If it is started again all the same, it may find a batch gone.
    """
    from kestrelmq.spark.sources.live_settling import settle as settled  # noqa: PLC0415 # only for this
    from kestrelmq.spark.storage.locations import located  # noqa: PLC0415 # as above

    place = located(checkpoint, _by_name(storage_option), "checkpoint")
    found = list(settled(place, access.options()))
    _table(found, ("server", "finished", "released"), as_json=as_json)


@app.command()
def restore(  # noqa: PLR0913 # one for each flag
    source: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="The output of replay, history or archive: any path that Spark can read, or a "
            "glob.",
        ),
    ],
    *,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="A queue path that no server is using, or a URI such as s3://BUCKET/SPOOL.",
        ),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Add to queues of live servers.")] = False,
    queue: Annotated[
        str | None,
        typer.Option(
            metavar="QUEUE",
            callback=_checked_name,
            help="With --live: add all items to this queue.",
        ),
    ] = None,
    since: SinceFlag = None,
    until: UntilFlag = None,
    servers: Servers,
    table_format: FormatFlag = _PARQUET,
    flags: SparkFlags,
    as_json: JsonFlag = False,
) -> None:
    """Restore items to journals (--output) or to live servers (--live).

    \b
    kestrelmq pipeline restore contents --output spool
    kestrelmq pipeline restore archive --live --since 2026-01-31T10:00 --until 2026-01-31T11:00

    A time without a zone is UTC; a number is milliseconds since 1970. Of an archive of other
    servers than kestrelmq's, which do not tell when items were added, items are selected by the
    time they were read.
    """  # noqa: D301 # \b is for the help
    if live == (output is not None):
        raise typer.BadParameter("give either --output DIR or --live")
    if not live and (queue or servers.are_named):
        raise typer.BadParameter("--queue and the servers go with --live")
    _check_range(since, until)
    storage = flags.storage
    if live:
        servers.membership()  # as above
        servers.options()
    with flags.session("restore") as spark:
        from kestrelmq.spark import pipelines  # noqa: PLC0415 # as above

        if output is not None:
            items = pipelines.restore(
                spark,
                source,
                output,
                since=since,
                until=until,
                table_format=table_format,
                storage=storage,
            )
        else:
            cluster = _cluster(servers)
            items = pipelines.restore_live(
                spark,
                source,
                cluster,
                queue=queue,
                since=since,
                until=until,
                table_format=table_format,
            )
    print_rows(["restored to", "items"], [[output or "live servers", items]], as_json=as_json)


def _check_range(since: int | None, until: int | None) -> None:
    if since is not None and until is not None and since >= until:
        raise wrong("--since", "it is not before --until")


def _mode(*, overwrite: bool) -> Literal["error", "overwrite"]:
    """Return Spark's name of the write mode."""
    return "overwrite" if overwrite else "error"


def wait_for(query: "StreamingQuery", *, follow: bool) -> None:
    """Wait until a query ends; one that follows its queues is stopped by SIGINT or SIGTERM.

    These end any other before it is done, which must not look like success.
    """
    asked_to_end = Event()
    with handled_by(lambda *_: asked_to_end.set(), *(STOPS if follow else ())):
        while not query.awaitTermination(_POLL):
            if asked_to_end.is_set():
                query.stop()
    error = query.exception()
    if error is not None:
        raise KestrelError(error_line(error))


def _cluster(servers: Servers) -> "ClusterOptions":
    from kestrelmq.spark.cluster_options import ClusterOptions  # noqa: PLC0415 # Spark may be missing

    known = asdict(servers) | {"servers": servers.named}
    if servers.credentials is not None:
        file = servers.password_file or os.environ[PASSWORD_VARIABLE]
        known |= {"user": servers.credentials[0], "password_file": file}
    return ClusterOptions(**known)


def _table(rows: Sequence[Any], columns: Sequence[str], *, as_json: bool) -> None:
    """Print attributes of objects; as a table, with their sums if there are several rows."""
    cells = [[getattr(row, column) for column in columns] for row in rows]
    if len(rows) > 1 and not as_json:
        values = zip(*cells, strict=True)
        cells.append(["" if isinstance(some[0], str) else sum(some) for some in values])
    print_rows(columns, cells, as_json=as_json)


def _state(check: Any) -> str:
    if not check.is_good and check.damaged_at is None:
        return f"cannot be read: {check.reason}"
    if not check.is_good:
        return f"damaged at byte {check.damaged_at}: {check.reason}"
    return "good" if check.torn_at is None else f"good; cut short at byte {check.torn_at}"
