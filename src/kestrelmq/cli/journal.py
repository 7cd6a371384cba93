"""`kestrelmq journal ...`: looking at journals, checking, saving and moving them."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from kestrelmq.clock import SystemClock
from kestrelmq.errors import JournalError
from kestrelmq.journal import dump as dumping
from kestrelmq.journal import exchange
from kestrelmq.journal.files import DiskDirectory, QueuePathLock, is_locked
from kestrelmq.journal.importing import import_rows
from kestrelmq.journal.pack import pack as pack_queue
from kestrelmq.journal.repair import repair as repair_queue
from kestrelmq.journal.selection import Selected, select, whole_queues
from kestrelmq.journal.verify import Report
from kestrelmq.journal.verify import verify as verify_queue
from kestrelmq.units import format_size

app = typer.Typer(no_args_is_help=True, help="Look at journals, check, save and move them.")

PathsArgument = Annotated[
    list[Path], typer.Argument(metavar="PATH...", help="Queue paths or journal files.")
]
QueueFlag = Annotated[
    list[str] | None,
    typer.Option("--queue", metavar="NAME", help="Only this queue; may be repeated."),
]
PathArgument = Annotated[Path, typer.Argument(metavar="PATH", help="The queue path.")]
_STEP: Final = 1 << 20


class DialectName(StrEnum):
    """The dialects a journal can be written in."""

    DOCUMENTED = "documented"
    KESTREL_2 = "kestrel-2"


@app.command()
def dump(
    paths: PathsArgument,
    *,
    queue: QueueFlag = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Only the summary.")] = False,
    data: Annotated[bool, typer.Option("-d", "--data", help="Show the items' data.")] = False,
    raw: Annotated[
        bool, typer.Option("-A", "--raw", help="Only the data of added items, as it is.")
    ] = False,
    count: Annotated[
        bool, typer.Option("-c", "--count", help="Only how many items wait in each queue.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a record.")] = False,
) -> None:
    """Describe the records of journals, one a line, and what they add up to.

    \b
    kestrelmq journal dump /var/spool/kestrel/work
    kestrelmq journal dump --queue work --quiet /var/spool/kestrel
    """  # noqa: D301 # \b is for the help
    for selected in _chosen(paths, queue):
        if not (quiet or count):
            _dump_records(selected, data=data, raw=raw, as_json=as_json)
        if raw or as_json:
            continue
        report = verify_queue(selected)
        if count:
            print(f"{report.queue}\t{report.items}")
        else:
            _print_summary(report)


def _dump_records(selected: Selected, *, data: bool, raw: bool, as_json: bool) -> None:
    for entry in dumping.entries(selected):
        added = dumping.added_data(entry.record)
        if raw:
            if added is not None:
                sys.stdout.buffer.write(added)
        elif as_json:
            print(dumping.as_json(selected.queue, entry))
        else:
            print(f"{entry.file} {entry.position:08x}  {dumping.describe(entry.record)}")
            if data and added is not None:
                print("    " + added.decode(errors="backslashreplace"))
    sys.stdout.flush()


def _print_summary(report: Report) -> None:
    records = sum(report.operations.values())
    print(
        f"{report.queue}: {records} records in {format_size(report.size)}; {report.items} items of "
        f"{report.item_bytes} bytes wait, {report.open_reads} reads are open"
    )
    if report.torn is not None:
        print(f"  cut short, as after a crash: {report.torn}")
    for lost in report.damaged:
        print(f"  damaged: {lost}")


@app.command()
def verify(paths: PathsArgument, *, queue: QueueFlag = None) -> None:
    """Check every record of journals, and say which bytes are none. Changes nothing.

    A record cut short at the end of the last file is what a crash leaves; a server sets it aside.
    Exit status 1: there is other damage, for which a server refuses to load the queue.
    """
    damaged = 0
    for report in _verified(_chosen(paths, queue)):
        _print_summary(report)
        damaged += not report.is_sound
    if damaged:
        raise JournalError(f"{damaged} damaged; `kestrelmq journal repair` saves what can be read")


def _verified(chosen: Sequence[Selected]) -> Iterator[Report]:
    with _progress("checking", sum(one.size for one in chosen)) as bar:
        for one in chosen:
            yield verify_queue(one, bar)


@app.command()
def repair(path: PathArgument, *, queue: QueueFlag = None) -> None:
    """Save what can be read of damaged journals; no server may use the queue path.

    The whole records of a damaged file go to a new file of the same name. The old content stays
    beside it as NAME~~damaged-TIMESTAMP. Every range of bytes that is lost is printed.
    """
    with _alone(path):
        chosen = whole_queues(_chosen([path], queue, warn=False))
        with _progress("repairing", sum(one.size for one in chosen)) as bar:
            done = [repair_queue(DiskDirectory(path), one, SystemClock(), bar) for one in chosen]
        for one in done:
            _print_summary(one.report)
            for name, aside in one.kept.items():
                print(f"  {name} was repaired; its old content is {aside}")


@app.command()
def pack(
    path: PathArgument,
    *,
    queue: QueueFlag = None,
    dialect: Annotated[
        DialectName, typer.Option(help="The dialect to write.")
    ] = DialectName.DOCUMENTED,
) -> None:
    """Rewrite journals to hold only what is live; no server may use the queue path.

    \b
    kestrelmq journal pack /var/spool/kestrel
    kestrelmq journal pack --dialect kestrel-2 --queue work /var/spool/kestrel
    """  # noqa: D301 # \b is for the help
    with _alone(path):
        chosen = whole_queues(_chosen([path], queue, warn=False))
        with _progress("packing", sum(one.size for one in chosen)) as bar:
            for one in chosen:
                size = one.size
                done = pack_queue(DiskDirectory(path), one.plan, dialect.value, SystemClock())
                bar(size)
                print(
                    f"{done.queue}: {done.items} items, {done.open_reads} open reads; "
                    f"{format_size(done.before)} before, {format_size(done.after)} after"
                )


@app.command()
def export(
    paths: PathsArgument,
    *,
    queue: QueueFlag = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="File to write; Parquet if it ends in .parquet."),
    ] = None,
) -> None:
    """Write what is in queues, as JSON Lines or Parquet. Changes nothing.

    Items of open reads come first, where they would be given back to.

    \b
    kestrelmq journal export /var/spool/kestrel > items.jsonl
    kestrelmq journal export --queue work -o work.parquet /var/spool/kestrel
    """  # noqa: D301 # \b is for the help
    chosen = whole_queues(_chosen(paths, queue))

    def everything(bar: "Bar") -> Iterator[exchange.Row]:
        for one in chosen:
            yield from exchange.rows(one)
            bar(one.size)

    with _progress("exporting", sum(one.size for one in chosen)) as bar:
        if output is not None and output.suffix == ".parquet":
            exchange.write_parquet(everything(bar), output)
        elif output is not None:
            with output.open("w", encoding="utf-8") as file:
                file.writelines(exchange.to_json(row) + "\n" for row in everything(bar))
        else:
            sys.stdout.writelines(exchange.to_json(row) + "\n" for row in everything(bar))


@app.command("import")
def import_(
    path: PathArgument,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="An export: JSON Lines, or .parquet.")
    ],
    *,
    append: Annotated[
        bool, typer.Option("--append", help="Add to queues that are there already.")
    ] = False,
) -> None:
    """Write an export to journals that a server then loads; no server may use the queue path.

    Each queue gets all of its items, or none of them.
    """
    path.mkdir(parents=True, exist_ok=True)
    with _alone(path):
        clock = SystemClock()
        counts = import_rows(DiskDirectory(path), _read(file, clock.now()), clock, append=append)
        for name, number in sorted(counts.items()):
            print(f"{name}: {number} items")


def _read(file: Path, now: int) -> Iterator[exchange.Row]:
    if file.suffix == ".parquet":
        yield from exchange.read_parquet(file, now)
        return
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield exchange.from_json(line, number, now)


# --- what the commands share ---


def _chosen(
    paths: Sequence[Path], queues: list[str] | None, *, warn: bool = True
) -> list[Selected]:
    chosen = select(paths, queues or [])
    if warn:
        for path in sorted({one.path for one in chosen}):
            if is_locked(path):
                print(
                    f"kestrelmq: warning: a server is using {path}; what it writes meanwhile may "
                    "look like a record cut short",
                    file=sys.stderr,
                )
    return chosen


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep servers off the queue path. Raises QueuePathLocked."""
    if not path.is_dir():
        raise JournalError(f"{path} is no queue path")
    lock = QueuePathLock(path)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


class Bar:
    """A progress bar, called with how many more bytes are done."""

    def __init__(self, progress: Progress, total: int, title: str) -> None:
        self._progress = progress
        self._task = progress.add_task(title, total=total)
        self._waiting = 0

    def __call__(self, done: int) -> None:
        """Go on by `done` bytes."""
        self._waiting += done
        if self._waiting >= _STEP:
            self._progress.advance(self._task, self._waiting)
            self._waiting = 0


@contextmanager
def _progress(title: str, total: int) -> Iterator[Bar]:
    """Show a progress bar on a terminal, and nothing elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as progress:
        yield Bar(progress, total, title)
