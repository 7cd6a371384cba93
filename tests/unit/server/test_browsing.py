"""Looking into queues and searching them, while others do the same."""

import asyncio
from pathlib import Path
from threading import Event

import pytest

from kestrelmq.config import ServerConfig
from kestrelmq.queues.browsing import View
from kestrelmq.queues.searching import Begun, Search
from kestrelmq.server import browsing
from kestrelmq.server.browsing import Browser
from tests.support.patience import PATIENCE
from tests.support.turning import Turning


def test_a_slow_search_keeps_nobody_waiting_who_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And another search reads its items only when this one has ended."""
    begun, may_end = Event(), Event()
    loaded: list[View] = []
    load = View.load

    def counted(view: View) -> None:
        loaded.append(view)
        load(view)

    def slow(_search: Search, _records: list[bytes], _begun: Begun) -> list[int]:
        begun.set()
        may_end.wait(PATIENCE)
        return []

    async def scenario() -> None:
        queue, browser = turning.collection.queues["jobs"], Browser()
        searches = [asyncio.create_task(browser.page(queue, 0, 1, Search(b"z"))) for _ in range(2)]
        await asyncio.to_thread(begun.wait, PATIENCE)
        page = await browser.page(queue, 40, 1)
        assert [place for place, _ in page.items] == [40]
        assert len(loaded) == 2
        may_end.set()
        await asyncio.gather(*searches)
        assert len(loaded) == 3

    monkeypatch.setattr(View, "load", counted)
    monkeypatch.setattr(browsing, "matches", slow)
    config = ServerConfig.model_validate(
        {"queue_path": tmp_path, "default": {"max_memory_size": 1000}}
    )
    with Turning(tmp_path, config) as turning:
        for _ in range(50):
            turning.collection.add("jobs", b"x" * 100)
            turning.collection.commits.commit()
        turning.run(scenario())
