"""The terminal, or what stands in its place: what may be printed, and the standard streams.

Text from servers and files is escaped, so that it cannot control the user's terminal.
"""

import codecs
import errno
import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader, BufferedWriter, FileIO, TextIOBase, TextIOWrapper
from typing import TYPE_CHECKING, Final, NoReturn, TextIO, cast

from kestrelmq.errors import KestrelError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from rich.progress import Progress, ProgressColumn

_STDOUT: Final = 1
_CLOSED: Final = "standard output is closed"
_AS_JSON: Final = "kestrelmq.as_json"
"""The name of the handler of characters that the encoding of standard output lacks."""


class OutputError(KestrelError):
    """Standard output that could not be written.

    Attributes:
        is_closed: whether its reader has gone, as `head` does when it has enough.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output: {os_error_reason(error)}")
        self.is_closed = error.errno == errno.EPIPE


class _StandardOutput(FileIO):
    """Standard output whose errors are not mistaken for those of another file."""

    def __init__(self) -> None:
        super().__init__(_STDOUT, "wb", closefd=False)

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write as `FileIO` does. Raises OutputError."""
        try:
            return super().write(data)
        except OSError as error:
            raise OutputError(error) from error


class _ClosedOutput(TextIOBase):
    """What stands for a standard output that is closed, where `print` would drop its text."""

    def write(self, _: str, /) -> NoReturn:
        """Raise KestrelError."""
        raise KestrelError(_CLOSED)


def tell_output_errors_apart() -> None:
    """Let whatever is printed from now on raise OutputError where it cannot be written.

    If standard output is closed, it raises KestrelError. Characters that its encoding lacks are
    escaped as in JSON, so that lines of JSON stay valid.
    """
    codecs.register_error(_AS_JSON, _escaped_as_json)
    if sys.stdout is None:
        sys.stdout = cast(TextIO, _ClosedOutput())
    elif isinstance(sys.stdout, TextIOWrapper) and sys.stdout is sys.__stdout__:
        sys.stdout = TextIOWrapper(
            BufferedWriter(_StandardOutput()),
            sys.stdout.encoding,
            _AS_JSON,
            line_buffering=sys.stdout.line_buffering or sys.stdout.write_through,
        )


def write_out(data: bytes) -> None:
    """Write bytes to standard output at once: what was reported as unwritten is not written later.

    Raises:
        OutputError: not everything could be written.
    """
    rest = memoryview(data)
    output = standard_output().fileno()
    try:
        while rest:
            rest = rest[os.write(output, rest) :]
    except OSError as error:
        raise OutputError(error) from error


def drop_output() -> None:
    """Drop what could not be written, or the interpreter tries it again when it ends."""
    try:
        sys.stdout.flush()
    except OutputError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _STDOUT)
        os.close(nowhere)


def _escaped_as_json(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def printable(text: str) -> str:
    """Return a line of text with every character escaped that is not printable, such as ESC.

    Those that the encoding of standard output lacks are escaped, too.
    """
    if not text.isprintable():
        text = "".join(map(_escaped, text))
    if text.isascii():
        return text
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def shortened(text: str, width: int) -> str:
    """Return printable text, cut to `width` cells of a terminal if it is longer."""
    from rich.cells import cell_len, set_cell_size  # noqa: PLC0415 # most commands need none

    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + ellipsis()


def ellipsis() -> str:
    """Return the character that stands for what is left out, which standard output can show."""
    wanted = "\N{HORIZONTAL ELLIPSIS}"
    return wanted if printable(wanted) == wanted else "~"


@contextmanager
def keys_at_once(*, also: bool = True) -> Iterator[Callable[[float], bytes | None]]:
    """Read keys of the terminal as they are pressed, without showing them, during a `with` block.

    It yields a function that waits so many seconds for a key, and returns it: None if none was
    pressed, nothing if the terminal has gone. It only waits if standard input is no terminal, or if
    `also` is false.
    """
    if not also or sys.stdin is None or not sys.stdin.isatty():
        yield time.sleep
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def pressed(seconds: float) -> bytes | None:
        return os.read(keyboard, 1) if select.select([keyboard], [], [], seconds)[0] else None

    try:
        tty.setcbreak(keyboard)
        yield pressed
    finally:
        termios.tcsetattr(keyboard, termios.TCSANOW, before)


def item_for_output(item: bytes) -> bytes:
    """Return an item as it is to be written to standard output: unchanged, unless on a terminal.

    For a terminal, everything but printable text, line ends and tabs is escaped.
    """
    if not standard_output().isatty():
        return item
    text = item.decode(errors="backslashreplace")
    return "".join(one if one in "\n\t" else _escaped(one) for one in text).encode()


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()


def progress_bar(*columns: "ProgressColumn", also: bool = True) -> "Progress":
    """Return a progress bar with these columns, for a `with` block.

    It shows nothing if standard error is no terminal, or if `also` is false. What is printed
    meanwhile appears above it, unless standard output goes elsewhere.
    """
    from rich.console import Console  # noqa: PLC0415 # it is large, and most commands need none
    from rich.progress import Progress  # noqa: PLC0415 # likewise

    console = Console(stderr=True)
    return Progress(
        *columns,
        console=console,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
        disable=not (also and console.is_terminal),
    )


@contextmanager
def counting(what: str, *, also: bool = True) -> Iterator[Callable[[int], None]]:
    """Show on the terminal how many of something are done: call what this yields with the number.

    It shows nothing if `progress_bar` does not.
    """
    from rich import progress as bars  # noqa: PLC0415 # it is large, and most commands need none

    columns = (
        bars.SpinnerColumn(),
        bars.TextColumn(what),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
    )
    with progress_bar(*columns, also=also) as progress:
        bar = progress.add_task(what, total=None)
        yield lambda done: progress.update(bar, completed=done)


def standard_input() -> BufferedReader:
    """Return standard input, for bytes. Raises KestrelError: it is closed."""
    if sys.stdin is None:
        raise KestrelError("standard input is closed")
    return cast(BufferedReader, sys.stdin.buffer)


def standard_output() -> TextIO:
    """Return standard output. Raises KestrelError: it is closed."""
    if isinstance(sys.stdout, _ClosedOutput):
        raise KestrelError(_CLOSED)
    return sys.stdout


def os_error_reason(error: OSError) -> str:
    """Return what the operating system refused, in a line."""
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return error.strerror or str(error)
