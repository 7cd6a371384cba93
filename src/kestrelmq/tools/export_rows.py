"""An item as a row of an export, and as a line of JSON.

A row is an item: its queue, its position (0 is the head), its data, and its add time and expiry in
milliseconds (0 for never). The row of a delayed item says when it is due, and has no position. That
of a dead letter has an object `dead_letter`: its origin, when it died (ms), why, its deliveries.
"""

import base64
import json
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kestrelmq.errors import JournalError
from kestrelmq.format.notes import DeadLetter, counted, dead_letter, delayed_notes
from kestrelmq.format.records import (
    LATEST,
    Item,
    item,
    item_deliveries,
    noted,
)
from kestrelmq.names import queue_name_error

_PIECE: Final = 3 << 16
"""Bytes of data that are encoded at once; a multiple of three, as base64 needs."""


@dataclass(frozen=True, slots=True)
class ExportRow:
    """An item of a queue."""

    queue: str
    position: int
    data: bytes
    add_time: int
    expiry: int
    due: int = 0
    """When it is due (ms), if it is a delayed item; otherwise 0."""
    dead_letter: dict[str, Any] | None = None
    """What is in the object, if it is a dead letter."""

    def records(self, number: int) -> bytes:
        """Return the records that add the item; `number` is another one for each delayed item."""
        if self.due:
            return delayed_notes(number, item(self.due, self.expiry, self.data), 0)
        record, dead = item(self.add_time, self.expiry, self.data), self.dead_letter
        if dead is None:
            return record
        letter = DeadLetter(dead["origin"], dead["died"], dead["why"]).packed()
        return counted(noted(record, dead["deliveries"], letter), 0)


def dead_letter_fields(one: Item) -> dict[str, Any] | None:
    """Return `ExportRow.dead_letter` of an item."""
    letter = dead_letter(one)
    if letter is None:
        return None
    return {**letter._asdict(), "deliveries": item_deliveries(one)}


def data_fields(data: bytes) -> dict[str, str]:
    """Return the field that holds the data of an item in JSON, by its name."""
    try:
        return {"data": data.decode()}
    except UnicodeDecodeError:
        return {"data_base64": base64.b64encode(data).decode()}


def to_json(row: ExportRow) -> str:
    """Return a row as a line of JSON; data that is not UTF-8 is in `data_base64`."""
    where: dict[str, object] = {"queue": row.queue}
    where |= {"due": row.due} if row.due else {"position": row.position}
    if row.dead_letter is not None:
        where["dead_letter"] = row.dead_letter
    return "".join(json_pieces(where, row.data, (row.add_time, row.expiry)))


def json_pieces(
    where: Mapping[str, object], data: bytes | memoryview, times: tuple[int, int]
) -> Iterator[str]:
    """Yield the pieces of what `to_json` returns, each made in a short time.

    No other thread runs while one is made. `where` has the first fields.
    """
    head = json.dumps(where, ensure_ascii=False)
    end = json.dumps({"add_time": times[0], "expiry": times[1]})
    if len(data) <= _PIECE:
        ((name, text),) = data_fields(bytes(data)).items()
        yield f'{head[:-1]}, "{name}": {json.dumps(text, ensure_ascii=False)}, {end[1:]}'
        return
    is_text = True
    try:
        for _ in _decoded(data):
            yield ""
    except UnicodeDecodeError:
        is_text = False
    name = "data" if is_text else "data_base64"
    yield f'{head[:-1]}, "{name}": "'
    if is_text:
        for text in _decoded(data):
            yield json.dumps(text, ensure_ascii=False)[1:-1]
    else:
        for at in range(0, len(data), _PIECE):
            yield base64.b64encode(data[at : at + _PIECE]).decode()
    yield f'", {end[1:]}'


def _decoded(data: bytes | memoryview) -> Iterator[str]:
    """Yield `data` as text, in pieces. Raises UnicodeDecodeError: it is not UTF-8."""
    decoder = getincrementaldecoder("utf-8")()
    for at in range(0, len(data), _PIECE):
        yield decoder.decode(data[at : at + _PIECE])
    yield decoder.decode(b"", final=True)


def from_json(line: str | bytes, number: int, now: int, queue: str | None = None) -> ExportRow:
    """Return the row of line `number`; `add_time` (default `now`), `expiry` and `due` are optional.

    With `queue`, it is a row of that queue, whatever the line says.

    Raises:
        JournalError: the line is not such a row; the message says which and why.
    """
    try:
        fields = _object(line)
        name = fields.get("queue") if queue is None else queue
        added, expiry = fields.get("add_time", now), fields.get("expiry", 0)
        row = checked_row(name, number, _data(fields), added, expiry, fields.get("due", 0))
        return replace(row, dead_letter=_dead_letter(fields.get("dead_letter")))
    except (ValueError, TypeError) as error:
        raise JournalError(f"line {number}: not a row of an export: {error}") from None


def is_empty(line: object) -> bool:
    """Whether a line has nothing but white space; `from_json` refuses what is not text."""
    return isinstance(line, str | bytes) and not line.strip()


def _object(line: str | bytes) -> dict[str, Any]:
    """Return the JSON object in a line. Raises ValueError, TypeError: there is none."""
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error.msg} at column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"no UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    if not isinstance(found, dict):
        raise TypeError("it is no JSON object")
    return found


def _data(fields: Mapping[str, Any]) -> bytes:
    """Return the data of a row. Raises ValueError, TypeError: it has none."""
    name = "data_base64" if "data_base64" in fields else "data"
    given = fields.get(name)
    if given is None:
        raise ValueError("it has neither data nor data_base64")
    if not isinstance(given, str):
        raise TypeError(f"{name} is not text")
    try:
        return base64.b64decode(given, validate=True) if name != "data" else given.encode()
    except ValueError as error:
        kind = "base64" if name != "data" else "UTF-8"
        reason = error.reason if isinstance(error, UnicodeEncodeError) else str(error)
        raise ValueError(f"{name} cannot be {kind}: {reason}") from None


def _dead_letter(given: Any) -> dict[str, Any] | None:
    """Return the object of a dead letter. Raises ValueError, TypeError: it is not one."""
    if given is None:
        return None
    kinds = {"origin": str, "died": int, "why": str, "deliveries": int}
    if not isinstance(given, dict) or any(
        type(given.get(name)) is not kind for name, kind in kinds.items()
    ):
        raise TypeError("dead_letter has an origin, when it died (ms), why, and its deliveries")
    problem = queue_name_error(given["origin"])
    if problem is not None:
        raise ValueError(problem)
    if not (0 <= given["died"] <= LATEST and given["deliveries"] >= 0):
        raise ValueError("the numbers of dead_letter are not below 0, and below 2^63")
    return {name: given[name] for name in kinds}


def checked_row(
    queue: object, number: int, data: bytes, added: object, expiry: object, due: object
) -> ExportRow:
    """Return row `number`, of these fields. Raises ValueError, TypeError: there is none like it."""
    if queue is None:
        raise ValueError("it names no queue")
    if not isinstance(queue, str):
        raise TypeError("the queue name is not a string")
    problem = queue_name_error(queue)
    if problem is not None:
        raise ValueError(problem)
    if not isinstance(added, int) or not isinstance(expiry, int) or not isinstance(due, int):
        raise TypeError("times must be whole milliseconds")
    if any(isinstance(time, bool) for time in (added, expiry, due)):
        raise TypeError("times must be whole milliseconds, not true or false")
    if not all(0 <= time <= LATEST for time in (added, expiry, due)):
        raise ValueError("times must be milliseconds since 1970, from 0 to 2^63 - 1")
    return ExportRow(queue, number, data, added, expiry, due)


def live_rows(
    lines: Iterable[str | bytes], queue: str | None, now: Callable[[], int], first: int = 1
) -> Iterator[ExportRow]:
    """Yield the rows of lines of JSON that a running queue is to get; `now` returns the time (ms).

    Empty lines, and items that have expired, are left out. An item that is due has no delay any
    more. `queue` is as for `from_json`, which says what is raised; `first` is the number of the
    first line.
    """
    for number, line in enumerate(lines, first):
        if is_empty(line):
            continue
        row = from_json(line, number, 0, queue)
        if row.expiry and row.expiry <= now():
            continue
        yield replace(row, due=0) if row.due <= now() else row
