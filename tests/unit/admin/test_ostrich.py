"""The statistics endpoints of Ostrich."""

import asyncio
import json
from pathlib import Path

from kestrelmq.admin.ostrich import Ostrich, as_json, as_text
from tests.support.turning import Turning


def test_a_damaged_queue_says_why_it_was_not_loaded(tmp_path: Path) -> None:
    """In one line, as over the other protocols; it has no numbers."""
    (tmp_path / "old").write_bytes(b"\x55garbage")
    (tmp_path / "jobs").touch()
    with Turning(tmp_path) as turning:
        ostrich = Ostrich(turning.context)
        told = json.loads(b"".join(asyncio.run(ostrich.rendered(None, as_json))))
        text = b"".join(asyncio.run(ostrich.rendered(60, as_text))).decode()
    assert told["labels"]["q/old/failure"].startswith("queue old cannot be loaded: ")
    assert f"  q/old/failure: {told['labels']['q/old/failure']}\n" in text
    numbers = told["counters"] | told["gauges"]
    assert "q/jobs/items" in numbers
    assert not any(name.startswith("q/old/") for name in numbers)
