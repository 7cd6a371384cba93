"""Log files, and how often an event is logged."""

import ast
import json
import logging
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import kestrelmq
from kestrelmq.config import ServerConfig
from kestrelmq.server.logs import (
    MOST_LINES,
    JsonFormatter,
    LogHandler,
    LogThrottle,
    TextFormatter,
    set_up_logging,
)


@pytest.fixture
def ordinary_umask() -> Iterator[None]:
    """Files would be readable by all."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_new_log_file_is_not_for_everybody(tmp_path: Path, ordinary_umask: None) -> None:
    """The owner and the group read it; nobody else does."""
    path = tmp_path / "log"
    handler = LogHandler(path)
    handler.emit(logging.makeLogRecord({"msg": "Zoë"}))
    handler.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert path.read_text(encoding="utf-8") == "Zoë\n"


def test_a_pipe_is_a_log_file_only_if_somebody_reads_it(tmp_path: Path) -> None:
    """The server would wait for a reader for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="No such device"):
        LogHandler(pipe)
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8") as reader:
        handler = LogHandler(pipe)
        handler.emit(logging.makeLogRecord({"msg": "hello"}))
        assert os.get_blocking(handler.descriptor)
        handler.close()
        assert reader.read() == "hello\n"


def test_a_log_file_that_is_there_goes_on_as_it_is(tmp_path: Path) -> None:
    """Its mode is the operator's choice, and what is in it stays."""
    path = tmp_path / "log"
    path.write_text("before\n")
    path.chmod(0o604)
    handler = LogHandler(path)
    handler.emit(logging.makeLogRecord({"msg": "after"}))
    handler.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o604
    assert path.read_text() == "before\nafter\n"


@pytest.fixture
def full_log(tmp_path: Path) -> Iterator[ServerConfig]:
    """The log goes to a file on a full disk; afterwards, to where it went before."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    path = tmp_path / "log"
    path.symlink_to("/dev/full")
    config = ServerConfig(log_file=path)
    for handler in before:
        root.removeHandler(handler)
    set_up_logging(config)
    yield config
    path.unlink()
    path.touch()
    set_up_logging(config)
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        handler.close()
    for handler in before:
        root.addHandler(handler)
    root.setLevel(level)


def test_a_log_file_on_a_full_disk(
    full_log: ServerConfig, capfd: pytest.CaptureFixture[str]
) -> None:
    """Standard error says so once in a while, in one line."""
    for number in range(20):
        logging.getLogger("kestrelmq").info("event %d", number)
    logging.getLogger().handlers[0].close()
    said = f"{full_log.log_file}: No space left on device; events are not logged: 1\n"
    assert capfd.readouterr().err == said


def test_a_log_file_that_could_not_be_written_is_replaced(full_log: ServerConfig) -> None:
    """From then on events are in the new one."""
    log, path = logging.getLogger("kestrelmq"), full_log.log_file
    assert path is not None
    log.info("lost")
    path.unlink()
    set_up_logging(full_log)
    log.info("written")
    logging.getLogger().handlers[0].close()
    assert path.read_text().endswith(" INFO kestrelmq: written\n")


def test_a_log_that_nobody_reads_holds_nobody_up(tmp_path: Path) -> None:
    """Lines beyond a bound are dropped; once the others are read, a line says how many."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with os.fdopen(os.open(pipe, os.O_RDWR), "rb") as reader:
        handler = LogHandler(pipe)
        for _ in range(2 * MOST_LINES):  # more than the pipe and the queue hold
            handler.emit(logging.makeLogRecord({"msg": "x" * 99}))
        found = [reader.readline() for _ in range(MOST_LINES)]
        while b"x" in (line := reader.readline()):
            found.append(line)
        handler.close()
    lost = 2 * MOST_LINES - len(found)
    assert lost > 0
    assert line == b"%d events were not logged: the log was not written fast enough\n" % lost


def test_the_end_does_not_wait_long_for_a_log_that_nobody_reads(tmp_path: Path) -> None:
    """Nor does what replaces it; what was logged is written if somebody reads after all."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with os.fdopen(os.open(pipe, os.O_RDWR), "rb") as reader:
        handler = LogHandler(pipe)
        handler.emit(logging.makeLogRecord({"msg": "x" * (1 << 20)}))
        handler.close()
        assert reader.readline() == b"x" * (1 << 20) + b"\n"


def test_an_event_that_cannot_be_formatted_is_told_in_one_line(tmp_path: Path) -> None:
    """It is a bug where the event was logged; the loop does not write that itself either."""
    handler = LogHandler(tmp_path / "log")
    handler.emit(logging.makeLogRecord({"msg": "%d", "args": ("x",)}))
    handler.close()
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert line.startswith("an event was not logged: ")
    assert "TypeError" in line


def test_events_are_counted_between_the_lines_about_them() -> None:
    """One line for the first, and then one in ten seconds with how many there were."""
    now = 100.0
    throttle = LogThrottle(lambda: now)
    assert [throttle.count("a") for _ in range(4)] == [1, 0, 0, 0]
    assert throttle.count("b") == 1
    now = 110.0
    assert [throttle.count("a"), throttle.count("a")] == [4, 0]
    now = 120.0
    assert throttle.count("b") == 1


def test_what_is_remembered_of_events_is_bounded() -> None:
    """Very many keys push each other out."""
    throttle = LogThrottle(lambda: 0.0)
    for key in range(10_000):
        throttle.count(key)
    assert throttle.count(9_999) == 0
    assert throttle.count(0) == 1


def formatted(record: logging.LogRecord) -> dict[str, object]:
    """Return the line of JSON for an event, decoded."""
    line = JsonFormatter().format(record)
    assert "\n" not in line
    found: dict[str, object] = json.loads(line)
    return found


def test_a_line_of_json_has_an_rfc_3339_time_and_the_fields_of_the_event() -> None:
    """In UTC, with milliseconds; and nothing else that Python keeps in a record."""
    record = logging.makeLogRecord(
        {
            "name": "kestrelmq.queue.queue",
            "levelname": "WARNING",
            "msg": "queue %s:\n%d items",
            "args": ("jobs", 3),
            "created": 1_700_000_000.0625,
            "queue": "jobs",
            "refused": {"too_large": 2},
            "path": Path("/queues"),
        }
    )
    assert formatted(record) == {
        "time": "2023-11-14T22:13:20.062Z",
        "level": "warning",
        "logger": "kestrelmq.queue.queue",
        "message": "queue jobs:\n3 items",
        "queue": "jobs",
        "refused": {"too_large": 2},
        "path": "/queues",
    }


def test_a_field_of_an_event_replaces_none_of_every_line() -> None:
    """A program that reads the log finds its level where it always is."""
    record = logging.makeLogRecord({"levelname": "INFO", "level": 7, "logger": "x", "time": 1})
    line = formatted(record)
    assert (line["level"], line["logger"]) == ("info", None)
    assert str(line["time"]).endswith("Z")


def test_an_exception_is_part_of_its_line() -> None:
    """However many lines its traceback has."""
    with pytest.raises(ValueError, match="a bug") as caught:
        int("a bug")
    record = logging.makeLogRecord({"exc_info": (caught.type, caught.value, caught.tb)})
    assert str(formatted(record)["exception"]).endswith("with base 10: 'a bug'")


def test_a_line_of_text_is_one_line_and_controls_no_terminal() -> None:
    """Whatever is in a name or an error, all of it is still to be seen."""
    text = TextFormatter("%(message)s")
    record = logging.makeLogRecord({"msg": "a\r\nb\x1b[31m\x9b\u2028c\td\u00e9"})
    assert text.format(record) == "a\\r\\nb\\x1b[31m\\x9b\\u2028c\td\u00e9"


def without_queue(source: str) -> list[str]:
    """Return the messages about one queue that are logged without the field `queue`."""
    return [
        ast.unparse(call.args[0])
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call)
        and re.fullmatch("_?log[.](debug|info|warning|error|exception)", ast.unparse(call.func))
        and "queue %s" in ast.unparse(call.args[0])
        and not any(keyword.arg == "extra" for keyword in call.keywords)
    ]


def test_every_event_about_a_queue_names_it_in_a_field() -> None:
    """A program finds all that happened to a queue by `queue`, not in the text."""
    assert without_queue('log.info("queue %s: %s", name, line)') == ["'queue %s: %s'"]
    package = Path(kestrelmq.__file__).parent
    for part in ("admin", "disk", "journal", "queue", "queues", "scheduling", "server", "upkeep"):
        for path in (package / part).rglob("*.py"):
            assert (path.name, without_queue(path.read_text())) == (path.name, [])
