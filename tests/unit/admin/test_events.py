"""The events of the console, without the sockets that they are sent to."""

import asyncio
from pathlib import Path

from kestrelmq.admin.calls import AdminContext, LongRequests
from kestrelmq.admin.events import QueueEvents
from kestrelmq.admin.sampling import SLICE, Sampler
from kestrelmq.admin.sessions import Sessions
from kestrelmq.config import ServerConfig
from tests.support.turning import Turning


def test_events_for_many_watchers_are_encoded_once(tmp_path: Path) -> None:
    """Also if there are so many queues that it takes several slices."""
    config = ServerConfig.model_validate(
        {"queue_path": tmp_path, "default": {"keep_journal": False}}
    )

    async def scenario() -> None:
        sampler = Sampler(turning.context)
        admin = AdminContext(
            turning.context,
            sampler,
            token_needed=False,
            changes_allowed=True,
            reserves=LongRequests(1, "reserves", "too_many_reserves"),
            sessions=Sessions(turning.context.users, 0),
        )
        watching = QueueEvents(admin)
        await sampler.take_sample()
        (seen, first), *others = await asyncio.gather(*[watching._since(0) for _ in range(3)])
        assert [events is first for _, events in others] == [True, True]
        assert b"".join(first).count(b'["queue-') == 3 * SLICE
        turning.collection.add("queue-0", b"x")
        turning.collection.commits.commit()
        await sampler.take_sample()
        _, later = await watching._since(seen)
        assert b"".join(later).count(b'["queue-') == 1

    with Turning(tmp_path, config) as turning:
        for number in range(3 * SLICE):
            turning.collection.add(f"queue-{number}", b"x")
        turning.run(scenario())
