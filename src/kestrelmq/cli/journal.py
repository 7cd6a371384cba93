"""`kestrelmq journal`: inspect, check, repair, pack, export and import journals."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Self

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from kestrelmq.cli.terminal import (
    item_for_output,
    os_error_reason,
    printable,
    progress_bar,
    standard_input,
    standard_output,
)
from kestrelmq.clock import SystemClock
from kestrelmq.disk.directories import DiskDirectory
from kestrelmq.disk.locks import QueuePathLock, in_use, is_locked
from kestrelmq.disk.renaming import make_queue_path, replacing
from kestrelmq.errors import DamagedJournal, JournalError
from kestrelmq.journal.packing import pack as pack_queue
from kestrelmq.tools import dump as dumping
from kestrelmq.tools import export_rows, import_export
from kestrelmq.tools.import_export import import_rows
from kestrelmq.tools.journal_files import SelectedQueue, select, steady, unknown_files, whole_queues
from kestrelmq.tools.repair import repair as repair_queue
from kestrelmq.tools.verify import VerifyReport
from kestrelmq.tools.verify import verify as verify_queue
from kestrelmq.units import format_size

app = typer.Typer(
    no_args_is_help=True,
    help="Inspect, check, repair, pack, export and import journals.",
)

PathsArgument = Annotated[
    list[Path], typer.Argument(metavar="PATH...", help="Queue paths or journal files.")
]
JsonLinesFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object per queue.")]
QueueFlag = Annotated[
    list[str] | None,
    typer.Option("--queue", metavar="NAME", help="Only this queue; may be repeated."),
]
PathArgument = Annotated[Path, typer.Argument(metavar="PATH", help="The queue path.")]
_UPDATE_BYTES: Final = 1 << 20


class DialectName(StrEnum):
    """The dialects that a journal can be written in."""

    DOCUMENTED = "documented"
    KESTREL_2 = "kestrel-2"


@app.command()
def dump(
    paths: PathsArgument,
    *,
    queue: QueueFlag = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print only the summary.")] = False,
    data: Annotated[bool, typer.Option("-d", "--data", help="Show the items' data.")] = False,
    raw: Annotated[
        bool, typer.Option("-A", "--raw", help="Print only the data of added items, unchanged.")
    ] = False,
    count: Annotated[
        bool, typer.Option("-c", "--count", help="Print only the number of items in each queue.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per record, or per summary.")
    ] = False,
) -> None:
    """Print the records of journals, one per line, and a summary of each queue.

    Exit status 1: a journal is damaged, or cannot be read.

    \b
    kestrelmq journal dump /var/spool/kestrel/work
    kestrelmq journal dump --queue work --quiet /var/spool/kestrel
    """  # noqa: D301 # \b is for the help
    chosen = _chosen(paths, queue)
    with_records = not (quiet or count)
    with _Failures() as failures:
        for selected in chosen:
            if with_records:
                with failures.of(selected), steady(selected):
                    _dump_records(selected, data=data, raw=raw, as_json=as_json)
                if raw or as_json:
                    continue
            with failures.of(selected):
                with steady(selected):
                    report = verify_queue(selected)
                if count and not as_json:
                    print(f"{report.queue}\t{report.items}")
                else:
                    _print_summary(report, as_json=as_json)
                if not report.is_sound:
                    failures.add(selected)


def _dump_records(selected: SelectedQueue, *, data: bool, raw: bool, as_json: bool) -> None:
    for entry in dumping.entries(selected, with_data=data or raw or as_json):
        added = dumping.added_data(entry.record)
        if raw:
            if added is not None and entry.is_replayed:
                standard_output().buffer.write(added)
        elif as_json:
            print(dumping.as_json(selected.queue, entry))
        else:
            print(f"{entry.file} {entry.position:08x}  {dumping.describe(entry)}")
            if data and added is not None:
                print("    " + item_for_output(added).decode(errors="backslashreplace"))
    standard_output().flush()


def _print_summary(report: VerifyReport, *, as_json: bool, **more: object) -> None:
    """Print what was found; `more` is only in the JSON."""
    if as_json:
        print(json.dumps(asdict(report) | {"is_sound": report.is_sound} | more))
        return
    records = sum(report.operations.values())
    print(
        f"{report.queue}: {records} records in {format_size(report.size)}; {report.items} items of "
        f"{report.item_bytes} bytes wait, {report.open_reads} reads are open"
        + (f", {report.delayed} items are delayed" if report.delayed else "")
    )
    for lost in report.left_out:
        print(f"  not replayed: {lost}")
    if report.torn is not None:
        print(f"  cut short, as after a crash: {report.torn}")
    for lost in report.damaged:
        print(f"  damaged: {lost}")


@app.command()
def verify(
    paths: PathsArgument, *, queue: QueueFlag = None, as_json: JsonLinesFlag = False
) -> None:
    """Check every record of journals, and print which bytes are not valid. Changes nothing.

    A record cut short at the end of the last file is normal after a crash; a server sets it aside.
    With any other damage a server refuses to load the queue. Exit status 1: there is such damage,
    or a file cannot be read. A file that is not a journal, because no queue may have its name, is
    named in a warning.
    """
    chosen = _chosen(paths, queue)
    for path in paths:
        for name in unknown_files(path):
            print(f"kestrelmq: warning: {path / printable(name)} is not a journal", file=sys.stderr)
    with _Failures() as failures, _progress("checking", sum(one.size for one in chosen)) as bar:
        for one in chosen:
            with failures.of(one):
                with steady(one):
                    report = verify_queue(one, bar)
                _print_summary(report, as_json=as_json)
                if not report.is_sound:
                    failures.add(one)


@app.command()
def repair(path: PathArgument, *, queue: QueueFlag = None, as_json: JsonLinesFlag = False) -> None:
    """Repair damaged journals as far as possible; no server may be using the queue path.

    The complete records of a damaged file are written to a new file of the same name. The old
    content is kept as NAME~~damaged-TIMESTAMP. Every range of bytes that is lost is printed.
    """
    with _lock_of(path), _Failures() as failures:
        chosen = whole_queues(_chosen([path], queue, warn=False))
        with _progress("repairing", sum(one.size for one in chosen)) as bar:
            for one in chosen:
                with failures.of(one):
                    done = repair_queue(DiskDirectory(path), one, SystemClock(), bar)
                    _print_summary(done.report, as_json=as_json, kept=done.kept)
                    for name, aside in done.kept.items() if not as_json else ():
                        print(f"  {name} was repaired; its old content is {aside}")


@app.command()
def pack(
    path: PathArgument,
    *,
    queue: QueueFlag = None,
    dialect: Annotated[
        DialectName, typer.Option(help="The dialect to write.")
    ] = DialectName.DOCUMENTED,
    as_json: JsonLinesFlag = False,
) -> None:
    """Rewrite journals to contain only live items; no server may be using the queue path.

    \b
    kestrelmq journal pack /var/spool/kestrel
    kestrelmq journal pack --dialect kestrel-2 --queue work /var/spool/kestrel
    """  # noqa: D301 # \b is for the help
    with _lock_of(path), _Failures() as failures:
        chosen = whole_queues(_chosen([path], queue, warn=False))
        with _progress("packing", sum(one.size for one in chosen)) as bar:
            for one in chosen:
                size = one.size
                with failures.of(one):
                    done = pack_queue(
                        DiskDirectory(path), one.all_files, dialect.value, SystemClock()
                    )
                    print(
                        json.dumps(asdict(done))
                        if as_json
                        else f"{done.queue}: {done.items} items, {done.open_reads} open reads"
                        + (f", {done.delayed} delayed" if done.delayed else "")
                        + f"; {format_size(done.before)} before, {format_size(done.after)} after"
                    )
                bar(size)


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
    """Write the items of queues as JSON Lines or Parquet. Changes nothing.

    Items of open reads come first, where they would be if they were given back.

    \b
    kestrelmq journal export /var/spool/kestrel > items.jsonl
    kestrelmq journal export --queue work -o work.parquet /var/spool/kestrel
    """  # noqa: D301 # \b is for the help
    chosen = whole_queues(_chosen(paths, queue))

    def everything(bar: "ByteProgress") -> Iterator[export_rows.ExportRow]:
        for one in chosen:
            size = one.size
            with steady(one):
                yield from import_export.rows(one)
            bar(size)

    size = sum(one.size for one in chosen)
    # Rich would break lines that it prints above a bar.
    has_bar = output is not None or not standard_output().isatty()
    with _progress("exporting", size, also=has_bar) as bar:
        rows = everything(bar)
        lines = (export_rows.to_json(row) + "\n" for row in rows)
        if output is None:
            standard_output().writelines(lines)
            return
        with replacing(output) as target:
            if output.suffix == ".parquet":
                import_export.write_parquet(rows, target)
                return
            with target.open("w", encoding="utf-8") as file:
                file.writelines(lines)


@app.command("import")
def import_(
    path: PathArgument,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="An export: JSON Lines, or .parquet; - reads standard input."
        ),
    ],
    *,
    append: Annotated[
        bool, typer.Option("--append", help="Add to queues that already exist.")
    ] = False,
    as_json: JsonLinesFlag = False,
) -> None:
    """Write an export to journals for a server to load; no server may be using the queue path.

    Each queue gets either all of its items or none.
    """
    make_queue_path(path)
    with _lock_of(path):
        clock = SystemClock()
        counts = import_rows(DiskDirectory(path), _read(file, clock.now()), clock, append=append)
        for name, number in sorted(counts.items()):
            item = {"queue": name, "items": number}
            print(json.dumps(item) if as_json else f"{name}: {number} items")


def _read(file: Path, now: int) -> Iterator[export_rows.ExportRow]:
    if file.suffix == ".parquet":
        yield from import_export.read_parquet(file, now)
        return
    source = nullcontext(standard_input()) if file == Path("-") else file.open("rb")
    with source as lines:
        for number, line in enumerate(lines, 1):
            if not export_rows.is_empty(line):
                yield export_rows.from_json(line, number, now)


# --- what the commands share ---


def _chosen(
    paths: Sequence[Path], queues: list[str] | None, *, warn: bool = True
) -> list[SelectedQueue]:
    chosen = select(paths, queues or [])
    if not chosen:
        where = ", ".join(map(str, paths))
        print(f"kestrelmq: warning: there are no journals in {where}", file=sys.stderr)
    if warn:
        for path in sorted({one.path for one in chosen}):
            if is_locked(path):
                print(
                    f"kestrelmq: warning: {in_use(path)}; a record that is being written may look "
                    "cut short, and a file that is replaced is reported as an error",
                    file=sys.stderr,
                )
    return chosen


def _lock_of(path: Path) -> QueuePathLock:
    """Return the lock that keeps servers from a queue path. Raises JournalError: it is none."""
    if not path.is_dir():
        raise JournalError(f"{path} is not a queue path")
    return QueuePathLock(path)


class _Failures:
    """Collects the failures of single queues, so that the others are still processed.

    At the end of the `with` block they are raised as one error.
    """

    def __init__(self) -> None:
        self._damaged: set[str] = set()
        self._unusable: set[str] = set()

    def add(self, one: SelectedQueue) -> None:
        """Note that a queue is damaged."""
        self._damaged.add(str(one.path / one.queue))

    @contextmanager
    def of(self, one: SelectedQueue) -> Iterator[None]:
        """Print an error about a queue that the `with` block raises, note it, and continue."""
        try:
            yield
        except BrokenPipeError:
            raise
        except (JournalError, OSError) as error:
            reason = os_error_reason(error) if isinstance(error, OSError) else str(error)
            print(f"kestrelmq: {one.queue}: {reason}", file=sys.stderr)
            failed = self._damaged if isinstance(error, DamagedJournal) else self._unusable
            failed.add(str(one.path / one.queue))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Raise JournalError if any queue failed."""
        if kind is not None:
            return
        lines = []
        if self._damaged:
            advice = "`kestrelmq journal repair` saves what can be read"
            lines.append(f"{len(self._damaged)} damaged; {advice}")
        if self._unusable:
            lines.append(f"{len(self._unusable)} could not be read or written")
        if lines:
            raise JournalError("\n".join(lines))


class ByteProgress:
    """A progress bar in bytes, updated at most once per `_UPDATE_BYTES` bytes."""

    def __init__(self, progress: Progress, total: int, title: str) -> None:
        self._progress = progress
        self._task = progress.add_task(title, total=total)
        self._waiting = 0

    def __call__(self, done: int) -> None:
        """Advance by `done` bytes."""
        self._waiting += done
        if self._waiting >= _UPDATE_BYTES:
            self._progress.advance(self._task, self._waiting)
            self._waiting = 0


@contextmanager
def _progress(title: str, total: int, *, also: bool = True) -> Iterator[ByteProgress]:
    """Show a progress bar in bytes, if `progress_bar` shows any."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with progress_bar(*columns, TimeRemainingColumn(), also=also) as progress:
        yield ByteProgress(progress, total, title)
