"""A stream of journals beside a server that packs them all the time, without Spark."""

from pathlib import Path
from typing import Any

from kestrelmq.client import Client
from kestrelmq.format.records import item_data
from kestrelmq.spark.sources.journal_options import JournalStreamOptions
from kestrelmq.spark.sources.spool_follower import EVERYTHING, SpoolFollower
from tests.support.patience import until
from tests.support.server import running_server

CONFIG = """\
[default]
max_memory_size = "64 KiB"
default_journal_size = "16 KiB"
max_journal_size = "32 KiB"
min_journal_compact_delay = 0
keep_replaced_journals = "{kept}"
"""


def added(follower: SpoolFollower, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    """Return the items that a batch adds."""
    found = []
    for one in follower.ranges(start, end):
        view = one.open()
        for chunk in view.chunks(begin=one.file.begin):
            items = chunk.part(chunk.adds)
            for begin, stop in zip(items.starts, items.ends, strict=True):
                found.append(item_data(view.bytes[begin:stop].tobytes()))
    return found


def test_nothing_is_missed_of_files_that_are_kept(tmp_path: Path) -> None:
    """Each item once, though the server packs the file that the stream is in, and is killed."""
    config = CONFIG.format(kept="1d")
    with running_server(tmp_path, config=config) as server, Client(server.address) as client:
        follower = SpoolFollower(JournalStreamOptions(str(server.queue_path), wait=0))
        offset = follower.initial_offset()
        sent: list[bytes] = []
        found: list[bytes] = []
        for place in range(4):
            client.put("work", sent_item := b"first %d" % place)
            sent.append(sent_item)
            end = follower.latest_offset(offset, EVERYTHING)
            found += added(follower, offset, end)
            offset = end
            assert client.get("work") == sent_item
            before = set(server.queue_path.glob("work.*.pack"))

            def is_packed(before: set[Path] = before) -> bool:
                item = b"%d " % len(sent) + bytes(2000)
                client.put("work", item)
                assert client.get("work") == item
                sent.append(item)
                return not set(server.queue_path.glob("work.*.pack")) <= before

            until(is_packed)
            server.kill9()
            server.start()
            end = follower.latest_offset(offset, 10_000)
            while end != offset:
                found += added(follower, offset, end)
                offset = end
                end = follower.latest_offset(offset, 10_000)
        assert found == sent
