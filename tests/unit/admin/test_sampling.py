"""Samples of the queues: only what changed is looked at, and what is known is as if all were."""

import random
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest

from kestrelmq.admin.sampling import ALL, Sampler, snapshot_of
from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.queue.paused import Paused
from kestrelmq.queue.waiters import ReadMode, Waiter
from tests.support.crashing_directory import CrashingDirectory
from tests.support.open_reads import open_read
from tests.support.turning import Turning

NAMES = ("a", "b", "b+child", "c", "d")
CONFIG = {"queues": {"c": QueueConfig(keep_journal=False), "d": QueueConfig(max_memory_size=50)}}


class Working:
    """Queues that clients use in every way that a sample shows."""

    def __init__(self, turning: Turning, directory: CrashingDirectory, seed: int) -> None:
        self.turning = turning
        self.collection = turning.collection
        self.directory = directory
        self.rng = random.Random(seed)
        self.open: list[tuple[str, int]] = []
        self.waiters: list[tuple[str, Waiter]] = []

    def step(self) -> None:
        """Do something."""
        steps: list[Callable[[str], object]] = [
            *([self.add] * 6),
            *([self.take] * 3),
            self.open_read,
            self.end_read,
            self.wait,
            self.cancel,
            self.pause,
            self.delete,
            self.fail,
            self.delay,
            self.collection.flush,
        ]
        name = self.rng.choice(NAMES)
        if name in self.collection.queues or self.rng.random() < 0.2:
            self.rng.choice(steps)(name)
        self.collection.commits.commit()
        self.directory.mend()

    def add(self, name: str) -> None:
        """Add an item."""
        if self.collection.registry.entry(name).paused:
            self.collection.resume(name, Paused.READS | Paused.WRITES)
        self.collection.add(name, b"x" * self.rng.randrange(60))

    def take(self, name: str) -> None:
        """Remove an item."""
        self.collection.obtain(name).line.remove()

    def open_read(self, name: str) -> None:
        """Open a read."""
        opened = open_read(self.collection.obtain(name))
        if opened is not None:
            self.open.append((name, opened[0]))

    def end_read(self, _: str) -> None:
        """Confirm a read, or give it back."""
        if self.open:
            name, xid = self.open.pop(self.rng.randrange(len(self.open)))
            queue = self.collection.queues.get(name)
            if queue is not None and queue.reads.is_held(xid):
                if self.rng.random() < 0.5:
                    queue.reads.confirm(xid)
                else:
                    queue.returns.give_back([xid])

    def wait(self, name: str) -> None:
        """Wait for an item."""
        waiter = Waiter(ReadMode.REMOVE, lambda *_: None, lambda _: None)
        queue = self.collection.obtain(name)
        if not len(queue) and not queue.paused:
            queue.waiters.add(waiter)
            self.waiters.append((name, waiter))

    def cancel(self, _: str) -> None:
        """End a wait."""
        if self.waiters:
            name, waiter = self.waiters.pop()
            if name in self.collection.queues:
                self.collection.queues[name].waiters.cancel(waiter)

    def pause(self, name: str) -> None:
        """Pause the reads of a queue, or go on."""
        self.rng.choice([self.collection.pause, self.collection.resume])(name, Paused.READS)

    def delete(self, name: str) -> None:
        """Delete a queue."""
        if self.rng.random() < 0.3:
            self.collection.delete(name)

    def fail(self, name: str) -> None:
        """Add an item that cannot be written."""
        self.directory.fail = lambda point: point.startswith("append")
        self.add(name)

    def delay(self, name: str) -> None:
        """Add an item for later."""
        self.collection.obtain(name).add(b"later", due=self.turning.turns.clock.now() + 10**6)


@pytest.mark.parametrize("seed", range(8))
def test_samples_are_as_if_all_queues_were_looked_at(tmp_path: Path, seed: int) -> None:
    """Whatever changed in between; and so are the sums."""
    directory = CrashingDirectory.within(tmp_path)
    config = ServerConfig.model_validate({"queue_path": tmp_path, **CONFIG})

    async def scenario() -> None:
        working = Working(turning, directory, seed)
        sampler = Sampler(turning.context)
        for _ in range(60):
            for _ in range(working.rng.randrange(12)):
                working.step()
            if working.rng.random() < 0.3:
                turning.collection.tick()
            await sampler.take_sample()
            found = {name: one.snapshot for name, one in sampler.sampled.items()}
            expected = {
                name: snapshot_of(queue, found[name].put_rate, found[name].get_rate)
                for name, queue in turning.collection.queues.items()
            }
            assert found == expected
            versions = [one.version for one in sampler.sampled.values()]
            assert versions == sorted(versions)  # so watchers need not look at those before
            for since in range(sampler.version):
                changed = {n: o.snapshot for n, o in sampler.sampled.items() if o.version > since}
                assert dict(chain(*sampler.changed_since(since))) == changed
            totals, all_of_them = sampler.totals, expected.values()
            assert totals.queues == len(expected)
            assert totals.items == sum(one.items for one in all_of_them)
            assert totals.bytes == sum(one.bytes for one in all_of_them)
            assert totals.open_reads == sum(one.open_reads for one in all_of_them)
            assert totals.waiters == sum(one.waiters for one in all_of_them)
            assert totals.failing == sum(one.state == "failing" for one in all_of_them)
            assert totals.oldest == min((o.oldest for o in all_of_them if o.oldest), default=0)
            assert totals.memory_bytes == sum(
                queue.backlog.memory_bytes for queue in turning.collection.queues.values()
            )
            assert totals.put_rate == round(sum(one.put_rate for one in all_of_them), 1)
            assert totals.get_rate == round(sum(one.get_rate for one in all_of_them), 1)

    with Turning(tmp_path, config, directory=directory) as turning:
        turning.run(scenario())


def test_idle_queues_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate is followed until it is 0 again, and then only changes are."""
    looked: list[str] = []
    sample = Sampler._sample_queue

    def noted(sampler: Sampler, name: str, *rest: object) -> None:
        looked.append(name)
        sample(sampler, name, *rest)  # type: ignore[arg-type]

    async def scenario() -> None:
        sampler = Sampler(turning.context)
        collection = turning.collection
        for name in NAMES:
            collection.add(name, b"x")
        collection.commits.commit()
        await sampler.take_sample()
        await sampler.take_sample()
        monkeypatch.setattr(Sampler, "_sample_queue", noted)
        await sampler.take_sample()
        assert looked == []
        collection.add("a", b"y")
        collection.commits.commit()
        for _ in range(3):
            await sampler.take_sample()
        assert looked == ["a", "a"]
        rates = [point.put_rate > 0 for point in sampler.history.points("a")]
        assert rates == [False, True, False]
        assert len(sampler.total_history.points(ALL)) == sampler.version
        collection.delete("a")
        await sampler.take_sample()
        assert sampler.removed_since(sampler.version - 1) == ["a"]

    with Turning(tmp_path) as turning:
        turning.run(scenario())
