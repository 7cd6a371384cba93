"""A cluster under ZooKeeper whose servers die, join and close for writing, all under load."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from kestrelmq.client import Client
from kestrelmq.errors import ConnectionLost, OperationTimeout, ServerRefused
from tests.support.patience import until
from tests.support.server import ServerProcess, running_server
from tests.support.zookeeper import SERVE_ON_LOOPBACK, ZooKeeper

PREFIX = "/services/kestrel"
QUEUE = "work"
PAIRS = 10
PAUSE_SECONDS = 0.01


class Cluster:
    """Servers that join the sets of one ZooKeeper."""

    def __init__(self, directory: Path, zookeeper: ZooKeeper, stack: ExitStack) -> None:
        self.servers: list[ServerProcess] = []
        self.zookeeper = zookeeper
        self._directory = directory
        self._stack = stack
        self._observer: KazooClient = zookeeper.client()
        stack.callback(self._observer.close)
        stack.callback(self._observer.stop)

    def add(self) -> ServerProcess:
        """Start one more server."""
        config = (
            f'[zookeeper]\nhosts = ["{self.zookeeper.hosts}"]\npath_prefix = "{PREFIX}"\n'
            'session_timeout = "5s"\n'
        )
        directory = self._directory / str(len(self.servers))
        self.servers.append(self._stack.enter_context(running_server(directory, config=config)))
        return self.servers[-1]

    def sizes(self) -> tuple[int, int]:
        """Return how many servers give items, and how many take them."""
        return self._size("read"), self._size("write")

    def _size(self, kind: str) -> int:
        try:
            return len(self._observer.get_children(f"{PREFIX}/{kind}"))
        except NoNodeError:
            return 0


class Load:
    """Ten producers that accept duplicates, ten that accept gaps, and twenty consumers.

    Attributes:
        produced: the items that are stored for certain.
        unknown: those of which the client could not tell; not put again.
        seen: the items that consumers got, with how often.
        errors: what no caller should see.
    """

    def __init__(self, producing: Client, consuming: Client) -> None:
        self.produced: set[bytes] = set()
        self.unknown: set[bytes] = set()
        self.seen: Counter[bytes] = Counter()
        self.errors: list[BaseException] = []
        self.sent = [0] * (2 * PAIRS)
        self._producing = producing
        self._consuming = consuming
        self._enough = threading.Event()
        self._empty = threading.Event()
        self._lock = threading.Lock()
        self._producers = [self._thread(self._produce, who) for who in range(2 * PAIRS)]
        self._consumers = [self._thread(self._consume, who) for who in range(2 * PAIRS)]
        for thread in self._producers + self._consumers:
            thread.start()

    def go_on(self, items: int = 20) -> None:
        """Wait until every producer has put so many more items."""
        goals = [sent + items for sent in self.sent]
        until(
            lambda: (
                bool(self.errors)
                or all(sent >= goal for sent, goal in zip(self.sent, goals, strict=True))
            )
        )
        assert self.errors == []

    def stop_producing(self) -> None:
        """End the producers."""
        self._enough.set()
        for thread in self._producers:
            thread.join(30)

    def finish(self) -> None:
        """End the consumers when they have seen all there is."""
        until(lambda: bool(self.errors) or self.produced <= set(self.seen))
        self._empty.set()
        for thread in self._consumers:
            thread.join(30)

    def _thread(self, work: Callable[[int], None], who: int) -> threading.Thread:
        def run() -> None:
            try:
                work(who)
            except BaseException as error:  # noqa: BLE001 # whatever it is, the test must see it
                self.errors.append(error)

        return threading.Thread(target=run)

    def _produce(self, who: int) -> None:
        while not self._enough.wait(PAUSE_SECONDS):
            item = b"%d:%d" % (who, self.sent[who])
            if who < PAIRS:
                assert self._producing.put(QUEUE, item, retry_unknown=True)
                self._store(self.produced, item)
            else:
                try:
                    assert self._producing.put(QUEUE, item)
                    self._store(self.produced, item)
                except (ConnectionLost, OperationTimeout):
                    # What docs/client.md says a put without retry_unknown raises.
                    self._store(self.unknown, item)
            self.sent[who] += 1

    def _consume(self, _: int) -> None:
        while not self._empty.is_set():
            for item in self._consuming.consume(QUEUE, idle_timeout=0.5):
                with self._lock:
                    self.seen[item] += 1

    def _store(self, where: set[bytes], item: bytes) -> None:
        with self._lock:
            where.add(item)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Run five servers under a ZooKeeper."""
    monkeypatch.setattr(ServerProcess, "command", SERVE_ON_LOOPBACK)
    zookeeper = ZooKeeper(tmp_path)
    zookeeper.start()
    with ExitStack() as stack:
        stack.callback(zookeeper.stop)
        running = Cluster(tmp_path, zookeeper, stack)
        for _ in range(5):
            running.add()
        until(lambda: running.sizes() == (5, 5))
        yield running


def number(server: ServerProcess, stat: str) -> int:
    """Return a statistic of the queue on one server; 0 while it has no such queue."""
    with Client(server.address) as direct:
        return int(direct.stats()[server.address].get(f"queue_{QUEUE}_{stat}", "0"))


def refuses_writes(server: ServerProcess) -> bool:
    """Whether a server is read-only by now."""
    with Client(server.address) as direct:
        try:
            direct.put("probe", b"x")
        except ServerRefused:
            return True
    return False


def test_servers_die_join_and_close_and_nobody_notices(cluster: Cluster) -> None:
    """No error but those of the documents reaches the callers; no item that was stored is lost."""
    dying, closing = cluster.servers[:2]
    hosts = cluster.zookeeper.hosts
    with Client.discover(hosts, PREFIX) as producing, Client.discover(hosts, PREFIX) as consuming:
        load = Load(producing, consuming)
        try:
            load.go_on()
            dying.kill9()
            load.go_on()
            until(lambda: cluster.sizes() == (4, 4))

            joining = cluster.add()
            until(lambda: cluster.sizes() == (5, 5))
            load.go_on()
            assert number(joining, "total_items") > 0

            with Client(closing.address) as direct:
                direct.set_status("readonly")
            until(lambda: cluster.sizes() == (5, 4))
            until(lambda: refuses_writes(closing))  # it leaves the set first
            before = number(closing, "total_items")
            load.go_on()
            assert number(closing, "total_items") == before

            dying.restart()
            until(lambda: cluster.sizes() == (6, 5))
            load.go_on()
        finally:
            load.stop_producing()
            load.finish()
    assert load.errors == []
    check(load)
    for server in cluster.servers:
        assert (number(server, "items"), number(server, "open_transactions")) == (0, 0)


def check(load: Load) -> None:
    """Compare what came with what was put."""
    assert load.produced - set(load.seen) == set()
    assert set(load.seen) - load.produced - load.unknown == set()
    # One put of each producer and one confirmation of each consumer was in flight at the kill.
    assert len(load.unknown) <= PAIRS
    repeated = sum(count - 1 for count in load.seen.values())
    assert repeated <= PAIRS + 2 * PAIRS
