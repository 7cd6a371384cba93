"""Searching, exporting and importing the items of queues without a server."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from kestrelmq import AsyncPersistentQueue, PersistentQueue, QueueCollection, QueueConfig
from kestrelmq.errors import ImportStopped, PatternRefused
from kestrelmq.library import FoundItems

BINARY = bytes(range(256))
ITEMS = [BINARY, *[b"%d" % number for number in range(12_000)]]
SMALL = QueueConfig(max_memory_size=1000)


def places(found: FoundItems) -> list[tuple[int, bytes]]:
    """Return what a search found."""
    return [(one.place, one.item.data) for one in found.items]


def test_items_are_searched(tmp_path: Path) -> None:
    """In memory and on disk; a search ends after some items and says where to go on."""
    with PersistentQueue("work", tmp_path, SMALL) as queue:
        for item in ITEMS:
            queue.add(item)
        first = queue.search("777")
        assert places(first)[0] == (778, b"777")
        assert first.next_offset == 10_000
        rest = queue.search("777", offset=10_000)
        assert places(rest) == [(10_778, b"10777"), (11_778, b"11777")]
        assert rest.next_offset is None
        assert places(queue.search(pattern="^77.$", count=2)) == [(771, b"770"), (772, b"771")]
        assert places(queue.search(b"\xff\xfe")) == []
        assert places(queue.search(b"\xfe\xff")) == [(0, BINARY)]
        with pytest.raises(PatternRefused, match="no regular expression"):
            queue.search(pattern="(")
        assert len(queue) == len(ITEMS)


@pytest.mark.parametrize(
    "wrong", [{}, {"text": "a", "pattern": "b"}, {"text": ""}, {"text": "a", "offset": -1}]
)
def test_a_search_that_makes_no_sense_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """Before the queue is looked at."""
    with PersistentQueue("work", tmp_path) as queue, pytest.raises(ValueError, match=r"give|below"):
        queue.search(**wrong)


def test_what_is_searched_for_is_text_or_bytes(tmp_path: Path) -> None:
    """The errors are those of an item that is added."""
    with PersistentQueue("work", tmp_path) as queue:
        with pytest.raises(ValueError, match="what to search for cannot be encoded as UTF-8"):
            queue.search("a\udc80")
        with pytest.raises(TypeError, match="what to search for is bytes or text, not int"):
            queue.search(7)  # type: ignore[arg-type]
        queue.add(b"abc")
        assert [one.place for one in queue.search(bytearray(b"b")).items] == [0]  # type: ignore[arg-type]


def test_what_is_exported_can_be_imported(tmp_path: Path) -> None:
    """From a queue by itself to one of a collection."""
    with PersistentQueue("work", tmp_path / "a", SMALL) as queue:
        for item in ITEMS:
            queue.add(item, expiry=600)
        lines = list(queue.export())
        assert len(queue) == len(ITEMS)
    assert [json.loads(line)["position"] for line in lines] == list(range(len(ITEMS)))
    with QueueCollection(tmp_path / "b", default=SMALL) as queues:
        other = queues.queue("other")
        assert other.import_items(lines) == len(ITEMS)
        found = other.browse(0, len(ITEMS))
        assert [item.data for item in found] == ITEMS
        assert [item.expiry for item in found] == [json.loads(line)["expiry"] for line in lines]
        assert [line for line in other.export() if '"other"' not in line] == []


def test_tasks_do_the_same(tmp_path: Path) -> None:
    """Reading from disk in a thread."""

    async def scenario() -> None:
        async with AsyncPersistentQueue("work", tmp_path, SMALL) as queue:
            for item in ITEMS:
                await queue.add(item)
            assert places(await queue.search("11999", offset=9000)) == [(12_000, b"11999")]
            lines = [line async for line in queue.export()]
            await queue.flush()
            assert await queue.import_items(lines) == len(ITEMS)
            assert [item.data for item in await queue.browse(0, len(ITEMS))] == ITEMS
            with pytest.raises(ImportStopped) as stopped:
                await queue.import_items([lines[0], "wrong"])
            assert stopped.value.added == 1

    asyncio.run(scenario())


def test_an_import_keeps_times_and_says_where_it_stopped(tmp_path: Path) -> None:
    """What has expired is left out, what is not due waits, and what was added stays."""
    now = round(time.time() * 1000)
    lines = [
        json.dumps(fields)
        for fields in (
            {"data": "old", "expiry": 5},
            {"data": "late", "due": now + 600_000},
            {"data": "due", "due": 5},
        )
    ]
    with PersistentQueue("work", tmp_path, QueueConfig(max_items=3)) as queue:
        assert queue.import_items(lines) == 2
        assert [item.data for item in queue.browse()] == [b"due"]
        with pytest.raises(ImportStopped, match=r"work is full.*; 1 items added"):
            queue.import_items(['{"data": "x"}'] * 2)
        queue.flush()
        assert queue.import_items(['{"data": "x", "expiry": 9223372036854775807}']) == 1
        assert [item.expiry for item in queue.browse()] == [9223372036854775807]
        for wrong in ("wrong", None):
            with pytest.raises(ImportStopped, match="line 1: not a row"):
                queue.import_items([wrong])  # type: ignore[list-item]
