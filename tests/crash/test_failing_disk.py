"""The real server on a disk that fails for moments, while clients do all kinds of things.

In each round several clients send requests, all before they read any reply, so that many of them
are of one turn of the server. In some rounds its files may not grow, in some it is killed, and some
clients disconnect. In a round a queue is used by one client only, so its replies say what became of
each item. A model takes note, and this must hold:

    an item whose add was answered STORED comes back until a reader has confirmed it
    a read that is answered with an error takes nothing
    an item that was confirmed never comes back
    an item that a reader has is given to nobody else
    the count of its deliveries is never too low
    a tag has the same items each time

`make soak` prints each seed that it tries, with `KESTRELMQ_ROUNDS` rounds, 300 unless set.
"""

import os
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.support.limits import largest_file
from tests.support.patience import until
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, stats

pytestmark = pytest.mark.compiled_only

CONFIG: Final = """
max_open_transactions = 100
[default]
max_memory_size = "12 KiB"
default_journal_size = "8 KiB"
max_journal_size = "40 KiB"
min_journal_compact_delay = 0
[queues.older]
journal_dialect = "kestrel-2"
[queues.synced]
sync_journal = "0ms"
[queues.roomy]
max_memory_size = "1 MiB"
"""
FAMILIES: Final = (("work",), ("older",), ("synced",), ("roomy",), ("fan", "fan+copy"))
"""The queues; an add to one of a family may reach the others."""
QUEUES: Final = tuple(queue for family in FAMILIES for queue in family)
TARGETS: Final = {"fan": ("fan", "fan+copy")}
SIZES: Final = (10, 100, 800, 3000)
OWNER: Final = "o"
LEASE: Final = f"lease=600000 owner={OWNER} grace=600000"
READS: Final = (("open",), ("open",), ("close",), ("close", "open"), ("abort",))
CLIENTS: Final = 4
MOST_RESERVED: Final = 4


@dataclass
class Copy:
    """An item in one queue.

    Attributes:
        queue: the queue.
        data: what it is.
        stored: whether its add was answered; None if that is not known.
        gone: whether it was confirmed; None if that is not known.
        holder: who has it: the number of a client, or the name of a reserved read.
        seen: how often it was delivered at least.
        history: what happened to it, for the message of a failure.
    """

    queue: str
    data: bytes
    stored: bool | None = None
    gone: bool | None = False
    holder: int | str | None = None
    seen: int = 0
    history: list[str] = field(default_factory=list)


class Client:
    """A connection, what it asked, and the reads that it has open by queue, the oldest first.

    An open read is None if it is not known whether there is one.
    """

    count = 0

    def __init__(self, server: ServerProcess) -> None:
        Client.count += 1
        self.number = Client.count
        self.wire = Wire(server)
        self.asked: deque[Request] = deque()
        self.open: defaultdict[str, deque[Copy | None]] = defaultdict(deque)


@dataclass
class Request:
    """What a client asks.

    Attributes:
        line: its bytes.
        read: reads the reply and tells the model; raises ConnectionError if it does not come.
        lose: tells the model that no reply came.
    """

    line: bytes
    read: Callable[[], None]
    lose: Callable[[], None]


class Model:
    """What clients know of the items."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.copies: dict[tuple[str, bytes], Copy] = {}
        self.reads: dict[str, Copy] = {}
        self.tags: dict[tuple[str, str], list[str]] = {}
        self.steps: Counter[str] = Counter()
        # Tags that may have reads which nobody knows.
        self.unknown: set[tuple[str, str]] = set()
        # How many reads a tag that was finished had; None if it is not known.
        self.finished: dict[tuple[str, str], int | None] = {}
        # Items of each queue that may have been taken by a read whose reply nobody got.
        self.doubtful: Counter[str] = Counter()
        # The clients whose open reads may end in this round without their knowing.
        self.releasing: set[int | str] = set()
        self.counts: Counter[str] = Counter()
        self.round = 0

    def note(self, copy: Copy, what: str) -> None:
        """Add to the history of a copy."""
        copy.history.append(f"{self.round}: {what}")

    def added(self, queue: str, data: bytes) -> list[Copy]:
        """Return the copies of an item that is to be added."""
        made = [Copy(target, data) for target in TARGETS.get(queue, (queue,))]
        self.copies.update({(copy.queue, data): copy for copy in made})
        return made

    def deliver(self, queue: str, data: bytes, holder: int | str | None) -> Copy:
        """Take note of a delivery; without a `holder` the item was removed."""
        copy = self.copies[queue, data]
        self.note(copy, f"delivered to {holder}")
        assert copy.gone is not True, copy
        free = copy.holder is None or copy.holder in self.releasing
        assert free or copy.holder == holder, copy
        copy.seen += copy.holder != holder or holder is None
        copy.holder = holder
        copy.stored = True
        if holder is None:
            copy.gone = True
        return copy

    def end(self, copy: Copy, *, gone: bool | None, why: str) -> None:
        """Take note that a read has ended."""
        self.note(copy, why)
        copy.holder = None
        copy.gone = copy.gone or gone

    # --- requests ---

    def version(self, client: Client) -> Request:
        """Ask for the version, to see whether the server has closed the connection."""

        def read() -> None:
            assert client.wire.until(b"\r\n").startswith(b"VERSION ")

        return Request(b"version\r\n", read, lambda: None)

    def put(self, client: Client, queue: str) -> Request:
        """Add an item."""
        data = b"%d " % len(self.copies) + bytes(self.random.choice(SIZES))
        copies = self.added(queue, data)

        def read() -> None:
            reply = client.wire.until(b"\r\n")
            assert reply == b"STORED\r\n" or reply.startswith(b"SERVER_ERROR"), reply
            for copy in copies:
                self.note(copy, f"{reply!r}")
                copy.stored = copy.stored or reply == b"STORED\r\n" or None

        return Request(
            b"set %b 0 0 %d\r\n%b\r\n" % (queue.encode(), len(data), data), read, lambda: None
        )

    def get(self, client: Client, queue: str, *options: str) -> Request:
        """Read an item, perhaps with /open, and perhaps after /close or /abort."""
        opened, ends = client.open[queue], bool({"close", "abort"} & {*options})
        takes = not ends or "open" in options

        def read() -> None:
            line = client.wire.until(b"\r\n")
            is_error = line.startswith(b"SERVER_ERROR")
            if ends and opened:
                before = opened.popleft()
                assert before is not None
                is_confirmed = not is_error and "close" in options
                self.end(before, gone=is_confirmed, why=f"{options} {line!r}")
            if line.startswith(b"VALUE "):
                size = int(line.split()[3])
                data = client.wire.read(size + 7)[:size]
                holder = client.number if "open" in options else None
                copy = self.deliver(queue, data, holder)
                if holder is not None:
                    opened.append(copy)
            else:
                assert is_error or line == b"END\r\n", line

        def lose() -> None:
            if ends and opened:
                before = opened.popleft()
                if before is None:
                    self.doubtful[queue] += 1
                else:
                    self.end(before, gone=None if "close" in options else False, why="lost")
            if takes and "open" in options:
                opened.append(None)
            elif takes:
                self.doubtful[queue] += 1

        key = "/".join([queue, *options])
        return Request(f"get {key}\r\n".encode(), read, lose)

    def reserve(self, client: Client, queue: str, tag: str = "") -> Request:
        """Reserve some items, perhaps again."""
        count = self.random.randint(1, MOST_RESERVED)
        line = f"reserve {queue} {count} {LEASE}{f' tag={tag}' if tag else ''}\r\n"

        def read() -> None:
            found: list[str] = []
            while (line := client.wire.until(b"\r\n")).startswith(b"ITEM "):
                name, deliveries, size = line.split()[2].decode(), *map(int, line.split()[3::3])
                copy = self.deliver(queue, client.wire.read(size + 2)[:-2], name)
                assert deliveries >= copy.seen, (deliveries, copy)
                self.reads[name] = copy
                found.append(name)
            is_error = line.startswith(b"SERVER_ERROR")
            assert not (is_error and found), (line, found)
            if tag and not is_error:
                finished = self.finished.get((queue, tag), 0)
                assert line == (b"DONE\r\n" if finished else b"END\r\n") or finished is None, line
                left = [name for name in self.tags.get((queue, tag), []) if name in self.reads]
                assert not left or left == found, (tag, left, found)
                self.tags[queue, tag] = found
                self.unknown.discard((queue, tag))

        return Request(line.encode(), read, lambda: self.unknown.add((queue, tag)))

    def end_reads(self, client: Client, queue: str, verb: str, names: list[str]) -> Request:
        """Finish or release some reserved reads."""
        options = self.random.choice(["", " uncounted"]) if verb == "release" else ""
        line = f"{verb} {queue} {' '.join(names)}{options}\r\n"

        def read() -> None:
            reply = client.wire.until(b"\r\n")
            if not reply.startswith(b"SERVER_ERROR"):
                ended = [self.reads[name].history for name in names]
                assert reply.endswith(b"ED %d\r\n" % len(names)), (reply, ended)
                end(gone=verb == "finish")

        def end(*, gone: bool | None, is_lost: bool = False) -> None:
            for name in names:
                copy = self.reads.pop(name)
                copy.seen -= bool(options) or is_lost
                self.end(copy, gone=gone, why=f"{verb}{options}, gone: {gone}")

        def lose() -> None:
            self.unknown.update(key for key, some in self.tags.items() if set(names) & set(some))
            end(gone=None if verb == "finish" else False, is_lost=True)

        return Request(line.encode(), read, lose)

    def finish_tag(self, client: Client, queue: str, tag: str) -> Request:
        """Finish the reads of a tag."""

        def read() -> None:
            reply = client.wire.until(b"\r\n")
            if not reply.startswith(b"SERVER_ERROR"):
                known = (queue, tag) not in self.unknown
                count = end(gone=True) or self.finished.get((queue, tag), 0)
                if count is not None and known:
                    assert reply == b"FINISHED %d\r\n" % count, (reply, tag, count)
                self.finished[queue, tag] = count if known else None

        def end(*, gone: bool | None) -> int:
            names = [name for name in self.tags.pop((queue, tag), ()) if name in self.reads]
            for name in names:
                copy = self.reads.pop(name)
                copy.seen -= gone is None
                self.end(copy, gone=gone, why=f"{tag} finished, gone: {gone}")
            self.doubtful[queue] += MOST_RESERVED * ((queue, tag) in self.unknown)
            self.steps[queue] += 1
            return len(names)

        def lose() -> None:
            end(gone=None)
            self.finished[queue, tag] = None

        line = f"finish {queue} tag={tag}\r\n"
        return Request(line.encode(), read, lose)


class Run:
    """Clients that use a server, round by round."""

    def __init__(self, server: ServerProcess, seed: int) -> None:
        self._server = server
        self._model = Model(seed)
        self._random = self._model.random
        self._clients: list[Client] = []
        with Wire(server) as wire:  # so that the fanout queue has its child
            wire.ask(b"get fan+copy\r\n", b"END\r\n")

    def round(self) -> None:
        """Do one round."""
        model, choose = self._model, self._random
        model.round += 1
        while len(self._clients) < CLIENTS:
            self._clients.append(Client(self._server))
        self._ask()
        fails, is_killed = choose.random() < 0.4, choose.random() < 0.05
        leaving = {client for client in self._clients if choose.random() < 0.05}
        model.releasing = {client.number for client in self._clients if fails or client in leaving}
        with ExitStack() as disk:
            if fails and not is_killed:
                disk.enter_context(
                    largest_file(choose.randint(0, 30_000), self._server.process.pid)
                )
            for client in self._clients:
                client.wire.send(b"".join(request.line for request in client.asked))
            if is_killed:
                self._server.kill9()
            for client in list(self._clients):
                if client in leaving:
                    self._drop(client)
                else:
                    self._read_replies(client)
        if not is_killed:
            if fails:
                self._drop_closed()
            self._wait_until_gone()
        model.counts["failing rounds"] += fails and not is_killed
        if is_killed:
            model.counts["kills"] += 1
            for client in list(self._clients):
                self._drop(client)
            self._server.start()

    def _ask(self) -> None:
        """Let the clients make requests; those of a queue are all of one client."""
        choose = self._random
        queues: dict[Client, list[str]] = {client: [] for client in self._clients}
        for family in FAMILIES:
            queues[choose.choice(self._clients)].extend(family)
        ending: set[str] = set()
        for client, some in queues.items():
            opening = {queue for queue, reads in client.open.items() if reads}
            for _ in range(choose.randint(0, 8) if some else 0):
                client.asked.append(self._request(client, choose.choice(some), opening, ending))
            client.asked.append(self._model.version(client))

    def _request(self, client: Client, queue: str, opening: set[str], ending: set[str]) -> Request:
        """Return a request.

        `opening` are the queues of which the client will have open reads; `ending` are the
        reserved reads that will have ended. It adds to both.
        """
        model, choose = self._model, self._random
        tag = f"step:{model.steps[queue]}:0"
        kind = choose.random()
        if kind < 0.4:
            return model.put(client, queue)
        if kind < 0.6:
            if queue in opening or choose.random() < 0.5:
                opening.add(queue)
                return model.get(client, queue, *choose.choice(READS))
            return model.get(client, queue)
        if kind < 0.8:
            return model.reserve(client, queue, choose.choice(["", tag]))
        tagged = set(model.tags.get((queue, tag), ()))
        if kind < 0.87 and not tagged & ending:
            ending |= tagged
            return model.finish_tag(client, queue, tag)
        names = [
            name
            for name, copy in sorted(model.reads.items())
            if copy.queue == queue and name not in ending
        ]
        if not names:
            return model.put(client, queue)
        names = choose.sample(names, min(len(names), choose.randint(1, 3)))
        ending.update(names)
        return model.end_reads(client, queue, choose.choice(["finish", "release"]), names)

    def _read_replies(self, client: Client) -> None:
        """Read the replies of a client, unless the server closes its connection."""
        while client.asked:
            try:
                client.asked[0].read()
            except ConnectionError:
                self._drop(client)
                return
            client.asked.popleft()
            self._model.counts["requests"] += 1

    def _wait_until_gone(self) -> None:
        """Wait until the server has done what clients that left had asked for."""
        with Wire(self._server) as wire:
            connections = len(self._clients) + 1
            until(lambda: int(stats(wire)["curr_connections"]) == connections)

    def _drop_closed(self) -> None:
        """Drop those whose connections the server closed once all replies were sent.

        It does so if a failed reply opened an item.
        """
        for client in list(self._clients):
            try:
                client.wire.send(b"version\r\n")
                client.wire.until(b"\r\n")
            except ConnectionError:
                self._drop(client)

    def _drop(self, client: Client) -> None:
        """Disconnect a client."""
        client.wire.close()
        self._clients.remove(client)
        for request in client.asked:
            request.lose()
        for reads in client.open.values():
            for copy in reads:
                # The server may have given it to another in this round already.
                if copy is not None and copy.holder == client.number:
                    self._model.end(copy, gone=False, why="its reader disconnected")

    def close(self) -> None:
        """Disconnect all clients."""
        for client in list(self._clients):
            self._drop(client)

    def check(self) -> Counter[str]:
        """Check that all is there that must be, and nothing else; return what was done."""
        model = self._model
        self.close()
        self._server.restart()
        found: Counter[tuple[str, bytes]] = Counter()
        with Wire(self._server) as wire:
            for queue in QUEUES:
                wire.ask_until(f"release {queue} owner={OWNER}\r\n".encode(), b"\r\n")
                while (line := wire.ask_until(f"get {queue}\r\n".encode(), b"\r\n")) != b"END\r\n":
                    size = int(line.split()[3])
                    found[queue, wire.read(size + 7)[:size]] += 1
        lost: Counter[str] = Counter()
        for key, copy in model.copies.items():
            assert found[key] <= (copy.gone is not True), (found[key], copy)
            lost[copy.queue] += copy.stored is True and copy.gone is False and not found[key]
            assert lost[copy.queue] <= model.doubtful[copy.queue], copy
        assert set(found) <= set(model.copies)
        return model.counts


def run(tmp_path: Path, seed: int, rounds: int) -> Counter[str]:
    """Run some rounds and check what is left."""
    with running_server(tmp_path, config=CONFIG) as server:
        clients = Run(server, seed)
        try:
            for _ in range(rounds):
                clients.round()
            counts = clients.check()
        finally:
            clients.close()
        assert "Traceback" not in server.output
        return counts


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_or_comes_back(tmp_path: Path, seed: int) -> None:
    """A short run, the same each time but for when the server is killed."""
    assert run(tmp_path, seed, 60)["failing rounds"] > 0


@pytest.mark.soak
@pytest.mark.parametrize("_", range(10))
def test_nothing_is_lost_or_comes_back_for_long(tmp_path: Path, _: int) -> None:
    """Longer runs, with seeds of their own."""
    seed = random.randrange(1 << 32)
    print(f"\nseed {seed}")  # noqa: T201 # what the soak is for
    print(run(tmp_path, seed, int(os.environ.get("KESTRELMQ_ROUNDS", "300"))))  # noqa: T201
