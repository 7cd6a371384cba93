"""The life cycles that beanstalkd and SQS document, acted out on a real server.

beanstalkd's `doc/protocol.txt` draws a job in four states. The words here are on the right:

    put            READY       set, waiting
    put with delay DELAYED     set/delay=
    reserve        RESERVED    reserve, with the time to run as its lease
    touch                      extend
    release                    release, release delay=
    bury           BURIED      release dead: the dead-letter queue
    kick                       redrive, or move with a bound
    delete                     finish; a buried job is read from the dead-letter queue

Two things differ. A job that is given back is the head of its queue again, because there are no
priorities. Kicking is for buried jobs only: a delayed item waits for its time.

SQS's developer guide tells the life of a message: sent, perhaps delayed; received, and invisible
for its visibility timeout; deleted, or visible again; after `maxReceiveCount` receives in the
dead-letter queue, from which it is redriven. Here that is `set`, `reserve` with a lease, `finish`,
`max_deliveries` and `redrive`. A message is dead when its last receive has failed, not at the
receive that would follow.

Every story is told twice: by the client, and in bytes of the memcache protocol.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, Self

import pytest

from kestrelmq.client import Client
from tests.integration.test_memcache_reserve import items
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, stats

pytestmark = pytest.mark.compiled_only

CONFIG: Final = """
[queues.tube]
dead_letter_queue = "buried"

[queues.orders]
max_deliveries = 3
dead_letter_queue = "orders-dead"
"""
HOUR: Final = 3600.0
SOON: Final = 0.2
"""A delay that a reader waits for, in seconds."""
AT_LEAST: Final = SOON - 0.01
"""How long that takes at least: the server counts whole milliseconds, by another clock."""


@dataclass(frozen=True)
class Got:
    """A reserved item."""

    queue: str
    data: str
    deliveries: int
    read: str


class Actor(Protocol):
    """Who acts a story out. All times are in seconds."""

    def put(self, queue: str, data: str, delay: float = 0) -> None:
        """Add an item."""

    def reserve(
        self, queues: str, count: int = 1, *, lease: float = HOUR, wait: float = 0, tag: str = ""
    ) -> list[Got] | None:
        """Reserve items of the queues, which commas part; None if the tag is done."""

    def finish(self, one: Got, tag: str = "") -> int:
        """Finish a reserved item, or all of its tag; return how many were reserved still."""

    def release(self, one: Got, *, delay: float | None = None, dead: bool = False) -> int:
        """Give a reserved item back; return how many were reserved still."""

    def extend(self, one: Got, lease: float) -> int:
        """Let the lease end so much later than now; return how many were reserved still."""

    def redrive(self, queue: str) -> int:
        """Move the dead letters back; return how many."""

    def move(self, queue: str, target: str, count: int) -> int:
        """Move the first items to another queue; return how many."""

    def number(self, queue: str, statistic: str) -> int:
        """Return a statistic of a queue."""


class ByClient:
    """Acts by the client of the project."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def put(self, queue: str, data: str, delay: float = 0) -> None:
        """Add an item."""
        assert self._client.put(queue, data, delay=delay or None)

    def reserve(
        self, queues: str, count: int = 1, *, lease: float = HOUR, wait: float = 0, tag: str = ""
    ) -> list[Got] | None:
        """Reserve items."""
        found = self._client.reserve_many(queues.split(","), count, lease, wait, tag=tag)
        if found is None:
            return None
        return [Got(one.queue, one.data.decode(), one.deliveries, one.read) for one in found]

    def finish(self, one: Got, tag: str = "") -> int:
        """Finish an item or a tag."""
        return self._client.finish(one.queue, () if tag else one.read, tag=tag)

    def release(self, one: Got, *, delay: float | None = None, dead: bool = False) -> int:
        """Give an item back."""
        return self._client.release(one.queue, one.read, delay=delay, dead=dead)

    def extend(self, one: Got, lease: float) -> int:
        """Change the end of a lease."""
        return self._client.extend(one.queue, lease, one.read)

    def redrive(self, queue: str) -> int:
        """Move dead letters back."""
        (moved,) = self._client.redrive(queue).values()
        return moved.count

    def move(self, queue: str, target: str, count: int) -> int:
        """Move items."""
        (moved,) = self._client.move(queue, target, count).values()
        return moved.count

    def number(self, queue: str, statistic: str) -> int:
        """Return a statistic."""
        return next(one.number(statistic) for one in self._client.queues() if one.name == queue)


class ByBytes:
    """Acts by sending the lines of the protocol."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def put(self, queue: str, data: str, delay: float = 0) -> None:
        """Add an item."""
        key = f"{queue}/delay={delay * 1000:.0f}" if delay else queue
        self._wire.ask(f"set {key} 0 0 {len(data)}\r\n{data}\r\n".encode(), b"STORED\r\n")

    def reserve(
        self, queues: str, count: int = 1, *, lease: float = HOUR, wait: float = 0, tag: str = ""
    ) -> list[Got] | None:
        """Reserve items."""
        line = f"reserve {queues} {count} lease={lease * 1000:.0f} t={wait * 1000:.0f}"
        self._wire.send(f"{line} tag={tag}\r\n".encode() if tag else f"{line}\r\n".encode())
        first = self._wire.until(b"\r\n")
        if first == b"DONE\r\n":
            return None
        reply = first if first == b"END\r\n" else first + self._wire.until(b"END\r\n")
        return [Got(one.queue, one.data, one.deliveries, one.read) for one in items(reply)]

    def _counted(self, line: str) -> int:
        """Send a line; return the number in the answer."""
        return int(self._wire.ask_until(line.encode() + b"\r\n", b"\r\n").split()[1])

    def finish(self, one: Got, tag: str = "") -> int:
        """Finish an item or a tag."""
        return self._counted(f"finish {one.queue} " + (f"tag={tag}" if tag else one.read))

    def release(self, one: Got, *, delay: float | None = None, dead: bool = False) -> int:
        """Give an item back."""
        how = "" if delay is None else f" delay={delay * 1000:.0f}"
        return self._counted(f"release {one.queue} {one.read}{how}{' dead' * dead}")

    def extend(self, one: Got, lease: float) -> int:
        """Change the end of a lease."""
        return self._counted(f"extend {one.queue} {lease * 1000:.0f} {one.read}")

    def redrive(self, queue: str) -> int:
        """Move dead letters back."""
        return self._counted(f"redrive {queue}")

    def move(self, queue: str, target: str, count: int) -> int:
        """Move items."""
        return self._counted(f"move {queue} {target} {count}")

    def number(self, queue: str, statistic: str) -> int:
        """Return a statistic."""
        return int(stats(self._wire, queue)[statistic])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Run one server for the stories in which it does not end."""
    with running_server(tmp_path_factory.mktemp("server"), config=CONFIG) as process:
        yield process


class Cast(ExitStack):
    """Connects actors of one kind to a server."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def enter(self, server: ServerProcess) -> Actor:
        """Return an actor with a connection of its own."""
        if self._kind == "client":
            return ByClient(self.enter_context(Client(server.address)))
        return ByBytes(self.enter_context(Wire(server)))


@pytest.fixture(params=["client", "bytes"])
def cast(request: pytest.FixtureRequest) -> Iterator[Cast]:
    """Tell the story by one kind of actor."""
    with Cast(request.param) as made:
        yield made


@pytest.fixture
def actor(cast: Cast, server: ServerProcess) -> Actor:
    """Return an actor; there are no queues yet."""
    with Client(server.address) as client:
        for queue in client.queues():
            client.delete(queue.name)
    return cast.enter(server)


def reserved(actor: Actor, queues: str, *, lease: float = HOUR, wait: float = 0) -> Got:
    """Reserve one item, which must be there."""
    found = actor.reserve(queues, lease=lease, wait=wait)
    assert found is not None
    (one,) = found
    return one


class Stopwatch:
    """Tells how long ago something began."""

    def __enter__(self) -> Self:
        self.begun = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.took = time.monotonic() - self.begun


# --- beanstalkd ---


def test_a_job_is_put_reserved_and_deleted(actor: Actor) -> None:
    """A put -> READY -> reserve -> RESERVED -> delete."""
    actor.put("tube", "job")
    assert actor.number("tube", "items") == 1
    job = reserved(actor, "tube")
    assert (job.data, job.deliveries) == ("job", 1)
    assert (actor.number("tube", "items"), actor.number("tube", "open_transactions")) == (0, 1)
    assert actor.reserve("tube") == []
    assert actor.finish(job) == 1
    assert (actor.number("tube", "items"), actor.number("tube", "open_transactions")) == (0, 0)
    assert actor.finish(job) == 0


def test_a_job_is_put_with_a_delay(actor: Actor) -> None:
    """A put with delay -> DELAYED -> (time passes) -> READY; jobs that are ready pass it."""
    with Stopwatch() as watch:
        actor.put("tube", "late", SOON)
        assert reserved(actor, "tube", wait=PATIENCE).data == "late"
    assert watch.took >= AT_LEAST
    actor.put("tube", "later", HOUR)
    actor.put("tube", "now")
    assert actor.number("tube", "delayed") == 1
    assert reserved(actor, "tube").data == "now"
    assert actor.reserve("tube") == []


def test_a_job_is_released(actor: Actor) -> None:
    """RESERVED -> release -> READY, for anybody; the server counts the reserves."""
    actor.put("tube", "job")
    for reserves in (1, 2, 3):
        job = reserved(actor, "tube")
        assert (job.data, job.deliveries) == ("job", reserves)
        assert actor.release(job) == 1
        assert actor.finish(job) == 0
    assert actor.number("tube", "items") == 1


def test_a_job_is_released_with_a_delay(actor: Actor) -> None:
    """RESERVED -> release with delay -> DELAYED -> (time passes) -> READY; others are served."""
    actor.put("tube", "first")
    actor.put("tube", "second")
    with Stopwatch() as watch:
        assert actor.release(reserved(actor, "tube"), delay=SOON) == 1
        assert actor.finish(reserved(actor, "tube", wait=PATIENCE)) == 1
        last = reserved(actor, "tube", wait=PATIENCE)
        assert actor.finish(last) == 1
    assert watch.took >= AT_LEAST
    assert last.deliveries == (2 if last.data == "first" else 1)
    actor.put("tube", "first")
    actor.put("tube", "second")
    assert actor.release(reserved(actor, "tube"), delay=HOUR) == 1
    assert actor.number("tube", "delayed") == 1
    assert reserved(actor, "tube").data == "second"
    assert actor.reserve("tube") == []


def test_a_job_is_buried_and_kicked(actor: Actor) -> None:
    """RESERVED -> bury -> BURIED, where nobody touches it -> kick, with a bound -> READY."""
    for job in ("a", "b", "c"):
        actor.put("tube", job)
    for _ in range(3):
        assert actor.release(reserved(actor, "tube"), dead=True) == 1
    assert actor.reserve("tube") == []
    assert actor.number("buried", "items") == 3
    assert actor.move("buried", "tube", 2) == 2
    assert [reserved(actor, "tube").data for _ in range(2)] == ["a", "b"]
    assert actor.redrive("buried") == 1
    assert reserved(actor, "tube").data == "c"
    assert actor.redrive("buried") == 0


def test_a_buried_job_is_deleted(actor: Actor) -> None:
    """BURIED -> delete; it says how often it had been reserved before."""
    actor.put("tube", "job")
    assert actor.release(reserved(actor, "tube")) == 1
    assert actor.release(reserved(actor, "tube"), dead=True) == 1
    buried = reserved(actor, "buried")
    assert (buried.data, buried.deliveries) == ("job", 3)
    assert actor.finish(buried) == 1
    assert actor.redrive("buried") == 0


def test_a_job_times_out(actor: Actor) -> None:
    """RESERVED -> (time to run) -> READY; its worker is too late to delete it."""
    actor.put("tube", "job")
    with Stopwatch() as watch:
        job = reserved(actor, "tube", lease=SOON)
        again = reserved(actor, "tube", wait=PATIENCE)
    assert watch.took >= AT_LEAST
    assert (again.data, again.deliveries) == ("job", 2)
    assert (actor.finish(job), actor.release(job), actor.extend(job, HOUR)) == (0, 0, 0)
    assert actor.finish(again) == 1


def test_a_job_is_touched(actor: Actor) -> None:
    """RESERVED -> touch -> RESERVED: the job that was touched outlasts the one that was not."""
    actor.put("tube", "touched")
    actor.put("tube", "not touched")
    # The first lease is long enough for the machine to be slow; touching also cuts one short.
    touched, other = reserved(actor, "tube"), reserved(actor, "tube")
    assert actor.extend(touched, 2 * HOUR) == 1
    assert actor.extend(other, SOON) == 1
    assert reserved(actor, "tube", wait=PATIENCE).data == "not touched"
    assert actor.finish(touched) == 1


def test_a_worker_watches_several_tubes(actor: Actor) -> None:
    """`watch` and `reserve`: a job of any of them, in one wait."""
    actor.put("other", "second")
    actor.put("tube", "first")
    assert [reserved(actor, "tube,other").data for _ in range(2)] == ["first", "second"]
    actor.put("other", "third", SOON)
    third = reserved(actor, "tube,other", wait=PATIENCE)
    assert (third.queue, third.data) == ("other", "third")


def test_the_jobs_of_a_worker_that_disconnects(server: ServerProcess, actor: Actor) -> None:
    """RESERVED -> (the connection closes) -> READY, here for reads that have an owner."""
    actor.put("tube", "job")
    with Wire(server) as worker:
        reply = worker.ask_until(
            b"reserve tube 1 lease=3600000 owner=worker grace=1\r\n", b"END\r\n"
        )
        assert [one.data for one in items(reply)] == ["job"]
        assert actor.reserve("tube") == []
    assert reserved(actor, "tube", wait=PATIENCE).deliveries == 2


def test_jobs_outlive_the_server(tmp_path: Path, cast: Cast) -> None:
    """A kill leaves each job in its state, as the binlog does; a reserved one keeps its worker."""
    with running_server(tmp_path, config=CONFIG) as server:
        actor = cast.enter(server)
        for data in ("buried", "reserved", "ready"):
            actor.put("tube", data)
        actor.put("tube", "delayed", HOUR)
        assert actor.release(reserved(actor, "tube"), dead=True) == 1
        job = reserved(actor, "tube")
        server.kill9()
        server.restart()
        actor = cast.enter(server)
        counts = [actor.number("tube", one) for one in ("items", "open_transactions", "delayed")]
        assert (counts, actor.number("buried", "items")) == ([1, 1, 1], 1)
        assert actor.finish(job) == 1
        assert reserved(actor, "tube").data == "ready"
        assert actor.redrive("buried") == 1
        assert reserved(actor, "tube").data == "buried"
        assert actor.reserve("tube") == []


# --- SQS ---


def test_a_message_is_sent_received_and_deleted(actor: Actor) -> None:
    """SendMessage -> visible -> ReceiveMessage -> in flight -> DeleteMessage."""
    actor.put("orders", "message")
    message = reserved(actor, "orders")
    assert (message.data, message.deliveries) == ("message", 1)
    assert actor.reserve("orders") == []
    assert actor.number("orders", "items") == 0  # ApproximateNumberOfMessages
    assert actor.number("orders", "open_transactions") == 1  # ...NotVisible
    assert actor.finish(message) == 1
    assert actor.number("orders", "open_transactions") == 0


def test_messages_are_received_ten_at_a_time(actor: Actor) -> None:
    """ReceiveMessage with MaxNumberOfMessages; each is deleted by a handle of its own."""
    for number in range(12):
        actor.put("orders", f"{number}")
    found = actor.reserve("orders", 10)
    assert found is not None
    assert [one.data for one in found] == [f"{number}" for number in range(10)]
    assert len({one.read for one in found}) == 10
    assert [actor.finish(one) for one in found[::2]] == [1] * 5
    assert actor.number("orders", "open_transactions") == 5
    assert actor.number("orders", "items") == 2


def test_a_consumer_polls_for_long(server: ServerProcess, cast: Cast, actor: Actor) -> None:
    """ReceiveMessage with WaitTimeSeconds: it is answered when a message comes."""
    assert actor.reserve("orders") == []
    producer = cast.enter(server)
    with ThreadPoolExecutor() as threads:
        polling = threads.submit(reserved, actor, "orders", wait=PATIENCE)
        until(lambda: producer.number("orders", "waiters") == 1)
        producer.put("orders", "message")
        assert polling.result(PATIENCE).data == "message"


def test_the_visibility_timeout_ends(actor: Actor) -> None:
    """In flight -> (visibility timeout) -> visible; ApproximateReceiveCount grows.

    Each receive has a receipt handle of its own, and an older one deletes nothing.
    """
    actor.put("orders", "message")
    with Stopwatch() as watch:
        first = reserved(actor, "orders", lease=SOON)
        second = reserved(actor, "orders", wait=PATIENCE)
    assert watch.took >= AT_LEAST
    assert (first.deliveries, second.deliveries) == (1, 2)
    assert first.read != second.read
    assert actor.finish(first) == 0
    assert actor.number("orders", "open_transactions") == 1
    assert actor.finish(second) == 1


def test_the_visibility_timeout_is_changed(actor: Actor) -> None:
    """ChangeMessageVisibility: longer; shorter; and to 0, which ends it at once."""
    for message in ("longer", "shorter", "none"):
        actor.put("orders", message)
    longer, shorter, none = (reserved(actor, "orders") for _ in range(3))
    assert actor.extend(longer, 12 * HOUR) == 1
    assert actor.release(none, delay=0) == 1
    again = reserved(actor, "orders")
    assert (again.data, again.deliveries) == ("none", 2)
    with Stopwatch() as watch:
        assert actor.extend(shorter, SOON) == 1
        again = reserved(actor, "orders", wait=PATIENCE)
    assert watch.took >= AT_LEAST
    assert (again.data, again.deliveries) == ("shorter", 2)
    assert actor.reserve("orders") == []
    assert actor.finish(longer) == 1


def test_a_message_fails_too_often(actor: Actor) -> None:
    """RedrivePolicy: after `maxReceiveCount` receives it is in the dead-letter queue.

    Receives that time out count like those that are given up.
    """
    actor.put("orders", "bad")
    actor.put("orders", "good")
    assert actor.release(reserved(actor, "orders")) == 1
    second, good = reserved(actor, "orders"), reserved(actor, "orders")
    assert (second.data, second.deliveries, good.data) == ("bad", 2, "good")
    assert actor.extend(second, SOON) == 1
    third = reserved(actor, "orders", lease=SOON, wait=PATIENCE)
    assert (third.data, third.deliveries) == ("bad", 3)
    dead = reserved(actor, "orders-dead", wait=PATIENCE)
    assert (dead.data, dead.deliveries) == ("bad", 4)
    assert actor.reserve("orders") == []
    assert actor.finish(good) == 1


def test_dead_letters_are_redriven(actor: Actor) -> None:
    """StartMessageMoveTask: back to the source queue, where they begin anew."""
    for message in ("a", "b"):
        actor.put("orders", message)
    for _ in range(2):
        assert actor.release(reserved(actor, "orders"), dead=True) == 1
    assert actor.number("orders-dead", "items") == 2
    assert actor.redrive("orders-dead") == 2
    for message in ("a", "b"):
        again = reserved(actor, "orders")
        assert (again.data, again.deliveries) == (message, 1)
        assert actor.finish(again) == 1


def test_messages_of_a_delay_queue(actor: Actor) -> None:
    """DelaySeconds: sent -> invisible, but not in flight -> (delay) -> visible."""
    with Stopwatch() as watch:
        actor.put("orders", "timer", SOON)
        message = reserved(actor, "orders", wait=PATIENCE)
    assert watch.took >= AT_LEAST
    assert (message.data, message.deliveries) == ("timer", 1)
    assert actor.finish(message) == 1
    actor.put("orders", "later", 15 * 60)
    assert actor.number("orders", "delayed") == 1  # ApproximateNumberOfMessagesDelayed
    assert actor.number("orders", "open_transactions") == 0
    assert actor.reserve("orders") == []


def test_a_receive_is_tried_again(actor: Actor) -> None:
    """ReceiveRequestAttemptId of a FIFO queue: the same messages under the same handles.

    The tag goes further: it has no window of time, and the delete can be tried again, too.
    """
    for message in ("a", "b", "c"):
        actor.put("other", message)
    tag = "attempt:1:0"
    first = actor.reserve("other", 2, tag=tag)
    assert first is not None
    assert [one.data for one in first] == ["a", "b"]
    assert actor.reserve("other", 2, tag=tag) == first
    assert [actor.finish(first[0], tag) for _ in range(2)] == [2, 2]
    assert actor.reserve("other", 2, tag=tag) is None
    assert reserved(actor, "other").data == "c"


def test_messages_outlive_the_server(tmp_path: Path, cast: Cast) -> None:
    """A kill leaves messages in flight, with their handles; receive counts are kept."""
    with running_server(tmp_path, config=CONFIG) as server:
        actor = cast.enter(server)
        for data in ("dead", "in flight", "visible"):
            actor.put("orders", data)
        actor.put("orders", "delayed", HOUR)
        assert actor.release(reserved(actor, "orders"), dead=True) == 1
        message = reserved(actor, "orders")
        other = reserved(actor, "orders")
        assert (message.data, actor.release(other)) == ("in flight", 1)
        server.kill9()
        server.restart()
        actor = cast.enter(server)
        again = reserved(actor, "orders")
        assert (again.data, again.deliveries) == ("visible", 2)
        assert actor.finish(message) == 1
        dead = reserved(actor, "orders-dead")
        assert (dead.data, dead.deliveries) == ("dead", 2)
        assert actor.number("orders", "delayed") == 1
