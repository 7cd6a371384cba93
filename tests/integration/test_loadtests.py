"""The load tests at small sizes against a real server, and what they say when items go astray."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kestrelmq.cli.main import main
from kestrelmq.client import Client
from kestrelmq.client.address import parse_address
from kestrelmq.loadtests import flood, leaky_reader, many_clients, packing, put_many
from kestrelmq.loadtests.common import Outcome, Target, connector
from kestrelmq.loadtests.connections import LoadTestError, WireProtocol
from kestrelmq.loadtests.items import Verdict
from kestrelmq.loadtests.workers import Show, open_connections
from tests.support.patience import PATIENCE
from tests.support.server import ServerProcess, running_server

SMALL = {
    "put-many": ["--clients", "20", "--items", "600", "--rollup", "7", "--fanouts", "2"],
    "many-clients": ["--clients", "20", "--items", "100", "--pause", "1ms"],
    "flood": ["--clients", "3", "--items", "500", "--bytes", "4KB"],
    "packing": ["--cycles", "3", "--items", "500", "--backlog", "200"],
    "leaky-reader": ["--clients", "2", "--items", "200", "--leak", "20"],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Run one server with a journal that is rotated and packed all the time."""
    config = '[default]\ndefault_journal_size = "64KB"\n[queues.small]\nmax_items = 50\n'
    with running_server(tmp_path_factory.mktemp("loadtests"), config=config) as process:
        yield process


def bench(
    server: ServerProcess,
    capsys: pytest.CaptureFixture[str],
    *words: str,
    protocol: str = "memcache",
) -> tuple[int, str, str]:
    """Run `kestrelmq bench`; return its exit status, and what it printed."""
    where = ["--protocol", protocol, "--server", f"127.0.0.1:{server.ports[protocol]}"]
    with pytest.raises(SystemExit) as ended:
        main(["bench", *words, *where])
    printed = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, printed.out, printed.err


@pytest.mark.parametrize("protocol", ["memcache", "text", "thrift"])
@pytest.mark.parametrize("test", SMALL)
def test_every_load_test_in_every_protocol(
    server: ServerProcess,
    client: Client,
    capsys: pytest.CaptureFixture[str],
    test: str,
    protocol: str,
) -> None:
    """All items arrive; the last line says so, and nothing stays behind."""
    status, out, err = bench(server, capsys, test, *SMALL[test], protocol=protocol)
    assert (status, err) == (0, "")
    assert out.splitlines()[-1].startswith("verified: all ")
    assert all(" a second" in line for line in out.splitlines()[:2])
    left = {queue.name: queue.items for queue in client.queues()}
    assert (left["spam"], "spam+fanout_0" in left) == (0, False)


@pytest.mark.parametrize("words", [["--blocking"], ["--preload", "--rollup", "50"]])
def test_flood_with_consumers_that_wait_or_come_later(
    server: ServerProcess, client: Client, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """The original's other two ways to flood."""
    status, out, _ = bench(server, capsys, "flood", "--items", "300", *words)
    assert status == 0
    assert "verified: all 300 items arrived, once and in order" in out


def test_leaks_are_counted(
    server: ServerProcess, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """One reader, every tenth of its reads: so many come twice, and nothing else does."""
    status, out, _ = bench(server, capsys, "leaky-reader", "--items", "90", "--leak", "10")
    assert status == 0
    # The ninth of 99 reads that is leaked is the 90th: ten reads for each nine items.
    assert "9 reads leaked" in out
    assert "verified: all 90 items arrived, once; 9 were given back and came again" in out


def test_a_queue_that_is_not_empty_is_left_alone(
    server: ServerProcess, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 1, and the item is still there; --flush discards it."""
    client.put("mine", b"precious")
    words = ["flood", "--items", "50", "--queue", "mine"]
    status, out, err = bench(server, capsys, *words)
    assert (status, out) == (1, "")
    assert "queue mine is not empty" in err
    assert client.peek("mine", timeout=PATIENCE) == b"precious"
    assert bench(server, capsys, *words, "--flush")[0] == 0
    assert client.get("mine") is None


@pytest.mark.parametrize("protocol", ["memcache", "text", "thrift"])
def test_a_queue_that_refuses_items_ends_the_test(
    server: ServerProcess, client: Client, capsys: pytest.CaptureFixture[str], protocol: str
) -> None:
    """All producers stop; the reason is one line."""
    words = ["put-many", "--items", "500", "--clients", "5", "--queue", "small", "--rollup", "10"]
    status, out, err = bench(server, capsys, *words, protocol=protocol)
    assert (status, out) == (1, "")
    assert err.startswith("kestrelmq: error: queue small ")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("protocol", ["memcache", "text", "thrift"])
def test_without_a_server_there_is_an_error(
    capsys: pytest.CaptureFixture[str], protocol: str
) -> None:
    """One line, exit status 1."""
    with pytest.raises(SystemExit) as ended:
        main(["bench", "flood", "--server", "127.0.0.1:1", "--protocol", protocol])
    assert ended.value.code == 1
    assert "127.0.0.1:1: Connection refused" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["flood", "--bytes", "10"],
        ["flood", "--bytes", "many"],
        ["flood", "--queue", "a/b"],
        ["flood", "--queue", "a+b"],
        ["flood", "--server", "nonsense:x"],
        ["leaky-reader", "--leak", "1"],
        ["many-clients", "--pause", "soon"],
        ["packing", "--cycles", "0"],
        ["nonsense"],
    ],
)
def test_wrong_usage_is_exit_status_2(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """Nothing is connected."""
    with pytest.raises(SystemExit) as ended:
        main(["bench", *words])
    assert ended.value.code == 2


def target(server: ServerProcess, at_read: Callable[[], None]) -> Target:
    """Return a target of which `at_read` does mischief before the phase that reads."""

    @contextmanager
    def show_progress(phase: str, items: int) -> Iterator[Show]:
        if phase.startswith("read"):
            at_read()
        yield lambda _done, _note: None

    connect = connector(WireProtocol.MEMCACHE, parse_address(server.address))
    return Target(connect, "spam", "abcd1234", show_progress, patience=0.5)


def flooded(server: ServerProcess, at_read: Callable[[], None]) -> Verdict:
    """Return the verdict of a flood of 100 items into which somebody meddled."""
    options = flood.Options(items=100, size=100, blocking=True, preload=True)
    return flood.run(target(server, at_read), options).verdict


def taken(client: Client) -> bytes:
    """Take an item away from the test."""
    item = client.get("spam")
    assert item is not None
    return item


def thief(client: Client) -> Callable[[], None]:
    """Return what steals one item."""

    def steal() -> None:
        taken(client)

    return steal


def test_a_stolen_item_is_lost(server: ServerProcess, client: Client) -> None:
    """The test does not wait for it forever."""
    assert flooded(server, thief(client)) == Verdict(100, lost=1)


def test_an_item_that_comes_twice_is_repeated(server: ServerProcess, client: Client) -> None:
    """And it comes late."""

    def repeat() -> None:
        client.put_many("spam", [taken(client)] * 2)

    assert flooded(server, repeat) == Verdict(100, repeated=1, disordered=2)


def test_a_changed_item_is_foreign(server: ServerProcess, client: Client) -> None:
    """It is not taken for the one it was."""

    def change() -> None:
        client.put("spam", taken(client)[:-1] + b"!")

    assert flooded(server, change) == Verdict(100, lost=1, foreign=1)


@pytest.mark.parametrize(
    "run",
    [
        lambda where: put_many.run(where, put_many.Options(clients=3, items=100)),
        lambda where: flood.run(where, flood.Options(items=100, preload=True)),
        lambda where: leaky_reader.run(where, leaky_reader.Options(items=100)),
    ],
)
def test_each_test_that_reads_later_notices_a_loss(
    server: ServerProcess, client: Client, run: Callable[[Target], Outcome]
) -> None:
    """No test says that all is well when one item is missing."""
    verdict = run(target(server, thief(client))).verdict
    assert (verdict.lost, verdict.is_good) == (1, False)


def test_a_server_that_dies_ends_every_worker(tmp_path: Path) -> None:
    """The error reaches the caller, from tests that write, that read and that wait."""
    with running_server(tmp_path) as server:

        @contextmanager
        def show_progress(phase: str, items: int) -> Iterator[Show]:
            yield killer(server)

        connect = connector(WireProtocol.MEMCACHE, parse_address(server.address))
        where = Target(connect, "spam", "abcd1234", show_progress, patience=5)
        runs: list[Callable[[], Outcome]] = [
            lambda: many_clients.run(where, many_clients.Options(clients=5, pause=0.001)),
            lambda: packing.run(where, packing.Options(cycles=1000)),
        ]
        for run in runs:
            with pytest.raises(LoadTestError, match=server.address):
                run()
            server.restart()
            with open_connections(connect, 1) as (connection,):
                connection.flush("spam")


def killer(server: ServerProcess) -> Show:
    """Return what kills the server when things have begun to move."""

    def kill(done: int, _note: str) -> None:
        if done:
            server.kill9()

    return kill
