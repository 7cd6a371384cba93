"""A Spark session for a command: with a check for Spark, quiet logs, progress, readable errors."""

import contextlib
import importlib.util
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Event, Thread
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kestrelmq.cli.terminal import progress_bar
from kestrelmq.errors import KestrelError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STOPS: Final = (signal.SIGINT, signal.SIGTERM)
"""The signals that end a command."""
_TERMINATED: Final = 143
"""The exit status after SIGTERM, as a shell has it."""
_UPDATE_SECONDS: Final = 0.5
_OWN_ERROR: Final = re.compile(r"kestrelmq\.[\w.]+: (.+)")
_OUTPUT_EXISTS: Final = re.compile(r"\[PATH_ALREADY_EXISTS\] Path (\S+) already exists")
_PYTHON_ERROR: Final = re.compile(r"^(\w*(?:Error|Exception): .+)", re.MULTILINE)
_QUIET_LOG: Final = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n
logger.streaming.name = org.apache.spark
logger.streaming.level = off
"""


def check_spark() -> None:
    """Check that Spark can be started.

    Raises:
        KestrelError: PySpark or Java is missing; the message says how to get it.
    """
    missing = [name for name in ("pyspark", "pyarrow", "numpy") if not _is_installed(name)]
    if missing:
        raise KestrelError(
            f"pipelines need {missing[0]}, which is not installed: pip install 'kestrelmq[spark]'"
        )
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    if java is None:
        where = f"JAVA_HOME is {home}, and has no bin/java" if home else "there is no java on PATH"
        raise KestrelError(
            f"pipelines need a Java runtime, 17 or newer: {where}. "
            "On Debian and Ubuntu: apt install openjdk-17-jre-headless"
        )


@contextlib.contextmanager
def spark_session(
    master: str, what: str, conf: Mapping[str, str] | None = None
) -> Iterator["SparkSession"]:
    """Run a Spark session during a `with` block, with a progress bar on a terminal.

    Args:
        master: Spark's master URL.
        what: the title of the progress bar.
        conf: Spark settings of the user; they override ours.

    SIGINT and SIGTERM end the block: Spark is stopped, and its temporary files are removed.

    Raises:
        KestrelError: an error of Spark, reduced to one line.
        KeyboardInterrupt: SIGINT came.
        SystemExit: SIGTERM came.
    """
    check_spark()
    from py4j.protocol import (  # type: ignore[import-untyped] # noqa: PLC0415 # may be missing
        Py4JError,
        Py4JJavaError,
    )
    from pyspark.errors import PySparkException  # noqa: PLC0415 # as above

    from kestrelmq.spark.session import local_session  # noqa: PLC0415 # as above

    with tempfile.NamedTemporaryFile("w", suffix=".properties") as log:
        log.write(_QUIET_LOG)
        log.flush()
        quiet = {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{log.name}"}
        settings = quiet | dict(conf or {})
        try:
            with contextlib.ExitStack() as session:
                session.enter_context(_without_logs_of_py4j())
                session.enter_context(sigterm_exits())
                with signals_held_back():
                    spark = session.enter_context(local_session(master, settings=settings))
                session.enter_context(_progress(spark, what))
                yield spark
        except KestrelError:
            raise
        except PySparkException as error:
            raise KestrelError(error_line(error)) from error
        except Py4JJavaError as error:
            # An error inside Spark itself, such as a full disk or a name that is too long.
            raise KestrelError(root_cause(error.java_exception)) from error
        except (Py4JError, ConnectionError) as error:
            raise KestrelError(
                "Spark's Java process does not answer any more: was it killed, or out of memory?"
            ) from error
        except (OSError, ValueError) as error:
            raise KestrelError(str(error)) from error


@contextlib.contextmanager
def handled_by(
    handler: Callable[[int, FrameType | None], object], *numbers: signal.Signals
) -> Iterator[None]:
    """Let `handler` be called for these signals during a `with` block."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


class _Terminated(KeyboardInterrupt):
    """SIGTERM came. Of all exceptions, py4j expects only this kind while it waits for Java."""


@contextlib.contextmanager
def sigterm_exits() -> Iterator[None]:
    """Let SIGTERM end a `with` block as SIGINT does, so that what is in it cleans up.

    Raises:
        SystemExit: SIGTERM came.
    """

    def leave(*_: object) -> NoReturn:
        raise _Terminated

    try:
        with handled_by(leave, signal.SIGTERM):
            yield
    except _Terminated:
        sys.exit(_TERMINATED)


@contextlib.contextmanager
def signals_held_back() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back during a `with` block in which Spark starts.

    The one that came last is raised again at the end of the block. An interrupted start leaves a
    JVM that never ends. Spark sets a handler of SIGINT of its own, which does not go on: it would
    use a connection to the JVM that may be in use already.
    """
    came: list[int] = []
    with handled_by(lambda number, _frame: came.append(number), *STOPS):
        yield
    if came:
        signal.raise_signal(came[-1])


@contextlib.contextmanager
def _without_logs_of_py4j() -> Iterator[None]:
    """Drop what py4j logs, with a stack trace, of each call that is interrupted."""

    def is_ours(record: logging.LogRecord) -> bool:
        return "py4j" not in record.pathname

    # A filter of the root logger concerns only what is logged without a logger of its own.
    logging.getLogger().addFilter(is_ours)
    try:
        yield
    finally:
        logging.getLogger().removeFilter(is_ours)


def error_line(error: Exception) -> str:
    """Return the line of a Spark error that says what is wrong."""
    text = str(error)
    exists = _OUTPUT_EXISTS.search(text)
    if exists is not None:
        # Spark's own advice is about a mode, which no command has.
        return f"{exists[1].removeprefix('file:')} already exists: give --overwrite to replace it"
    for pattern in (_OWN_ERROR, _PYTHON_ERROR):
        found: list[str] = pattern.findall(text)
        if found:
            return found[-1]
    return _first_line(text) or type(error).__name__


def root_cause(error: Any) -> str:
    """Return the line of a Java exception's root cause that says what is wrong."""
    cause = error.getCause()
    # Of a format that is missing, the cause says only which Java class is.
    while cause is not None and "[DATA_SOURCE_NOT_FOUND]" not in str(error.getMessage()):
        error, cause = cause, cause.getCause()
    return _first_line(str(error.getMessage() or "")) or str(error.toString())


def _first_line(text: str) -> str:
    """Return the first line that is not blank; Spark's messages may have stack traces behind it."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


@contextlib.contextmanager
def _progress(spark: "SparkSession", what: str) -> Iterator[None]:
    done = Event()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with progress_bar(*columns, TimeElapsedColumn()) as progress:
        if progress.disable:
            yield
            return
        display = Thread(target=_show_stages, args=(spark, progress, what, done), daemon=True)
        display.start()
        try:
            yield
        finally:
            done.set()
            display.join()


def _show_stages(spark: "SparkSession", progress: Progress, what: str, done: Event) -> None:
    bar = progress.add_task(what, total=None)
    tracker: Any = spark.sparkContext.statusTracker()
    while not done.wait(_UPDATE_SECONDS):
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        running = [stage for stage in stages if stage is not None]
        total = sum(stage.numTasks for stage in running)
        completed = sum(stage.numCompletedTasks for stage in running)
        progress.update(bar, total=total or None, completed=completed)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False
