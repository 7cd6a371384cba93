"""The health of a server with many problems."""

import asyncio
from pathlib import Path

from kestrelmq.admin.health import MOST_LISTED, health_of
from kestrelmq.errors import JournalError, QueueUnavailable
from tests.support.turning import Turning


def test_many_problems_make_a_short_answer(tmp_path: Path) -> None:
    """All are counted, the first hundred are listed, and each kind has one reason."""
    with Turning(tmp_path) as turning:
        collection = turning.collection
        for number in range(3 * MOST_LISTED):
            collection.damaged[f"q{number:03}"] = QueueUnavailable(f"q{number:03} is damaged")
        collection.obtain("full").core.failure = JournalError("queue full: No space left on device")
        health = asyncio.run(health_of(turning.context))
    answer = health.as_json()
    assert health.is_ready
    assert answer["healthy"]
    assert (answer["problem_count"], len(answer["problems"])) == (301, MOST_LISTED)
    assert answer["problems"][0] == {
        "kind": "damaged",
        "queue": "q000",
        "reason": "q000 is damaged",
    }
    assert answer["reasons"] == [
        "q000 is damaged, and 299 more",
        "the journal cannot be written: queue full: No space left on device",
    ]


def test_what_stops_the_whole_server_comes_first(tmp_path: Path) -> None:
    """Before the problems of single queues, and the server is not ready then."""
    with Turning(tmp_path) as turning:
        turning.collection.damaged["old"] = QueueUnavailable("old is damaged")
        turning.context.status.shutdown()
        health = asyncio.run(health_of(turning.context))
    assert not health.is_ready
    assert [problem.kind for problem in health.problems] == ["status", "damaged"]
