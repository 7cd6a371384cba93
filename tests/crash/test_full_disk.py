"""The real server on a disk that fills up: errors to clients, nothing lost, and it heals."""

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelmq.disk.opening import file_size
from tests.crash.test_kill import Wire, drain
from tests.support import wire as wires
from tests.support.limits import largest_file
from tests.support.patience import until
from tests.support.server import ServerProcess, running_server

pytestmark = pytest.mark.compiled_only

SIZE = 2 << 20
CONFIG = """
min_free_disk = "none"
[default]
max_memory_size = "200 KiB"
default_journal_size = "100 KiB"
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A queue path with little room, and a file in it that takes half of that."""
    path = tmp_path / "queues"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(path)]
    if os.getuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        (path / "~~ballast").write_bytes(bytes(SIZE // 2))
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.parametrize("sync", ['"never"', '"0ms"'])
def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path, small_disk: Path, sync: str) -> None:
    """Adds fail while there is no room; they succeed when there is, without a restart."""
    config = f"{CONFIG}sync_journal = {sync}\n"
    with running_server(tmp_path, config=config) as server:
        wire = Wire(server.ports["memcache"])
        stored, refused = _fill(wire, b"a")
        assert refused
        assert wire.ask(b"version\r\n").startswith(b"VERSION")
        (small_disk / "~~ballast").unlink()
        more, _ = _fill(wire, b"b", most=len(stored) // 2)
        assert more
        wire.close()
        server.restart()
        assert drain(server.ports["memcache"]) == stored + more
        wire = Wire(server.ports["memcache"])
        assert wire.ask(b"set jobs 0 0 1\r\n!\r\n") == b"STORED"
        wire.close()


def test_a_file_size_limit_refuses_and_loses_nothing(tmp_path: Path) -> None:
    """The same where nothing can be mounted: writes beyond a limit fail with EFBIG."""
    limit = 100 << 10
    with running_server(tmp_path, config=CONFIG) as server:
        wire = Wire(server.ports["memcache"])
        with largest_file(limit, server.process.pid):
            stored, refused = _fill(wire, b"a")
        assert refused
        more, _ = _fill(wire, b"b", most=10)
        wire.close()
        server.kill9()
        server.start()
        assert drain(server.ports["memcache"]) == stored + more


def test_reads_that_cannot_be_written(tmp_path: Path) -> None:
    """Each of several in a row is answered with one error, what is between them as ever."""
    requests = b"get work\r\nversion\r\nget work\r\nget other\r\nget work\r\n"
    with running_server(tmp_path) as server, wires.Wire(server) as wire:
        items = [b"%d" % number * 1000 for number in range(3)]
        for item in items:
            wire.ask(b"set work 0 0 %d\r\n%b\r\n" % (len(item), item), b"STORED\r\n")
        with largest_file(1000, server.process.pid):
            wire.send(requests)
            for expected in (b"SERVER_ERROR", b"VERSION", b"SERVER_ERROR", b"END", b"SERVER_ERROR"):
                assert wire.until(b"\r\n").startswith(expected)
            wire.expect_silence()
        assert drain(server.ports["memcache"], "work") == items


@pytest.mark.parametrize("size", [10, 300_000])
def test_a_fanout_queue_that_cannot_be_written(tmp_path: Path, size: int) -> None:
    """What it does not get is not acknowledged by its master either."""
    limit = 500 << 10
    item = b"x" * size
    with running_server(tmp_path) as server:
        wire = Wire(server.ports["memcache"])
        assert wire.ask(b"set master 0 0 1\r\n1\r\n") == b"STORED"
        long = b"y" * (limit + size)
        assert wire.ask(b"set master+copy 0 0 %d\r\n%b\r\n" % (len(long), long)) == b"STORED"
        asked = b"set master 0 0 %d\r\n%b\r\n" % (size, item)
        with largest_file(limit, server.process.pid):
            assert wire.ask(asked).startswith(b"SERVER_ERROR queue master")
        assert wire.ask(asked) == b"STORED"
        wire.close()
        server.kill9()
        server.start()
        assert drain(server.ports["memcache"], "master+copy") == [long, item]


def test_an_overdue_read_that_cannot_be_written(tmp_path: Path) -> None:
    """It comes back when the disk works again, and journals are synced in time as ever."""
    config = '[default]\nopen_transaction_timeout = "100ms"\nsync_journal = "50ms"\n'
    with running_server(tmp_path, config=config) as server, wires.Wire(server) as wire:
        wires.put(wire, "work", "x" * 1000)
        with largest_file(1024, server.process.pid):
            wire.ask_until(b"get work/open\r\n", b"END\r\n")
            assert server.logged("File too large")
        with wires.Wire(server) as other:
            other.ask(b"get work/t=20000\r\n", wires.value("work", "x" * 1000) + b"END\r\n")
        synced = int(wires.stats(wire, "work")["journal_syncs"])
        wires.put(wire, "work", "y")
        wires.wait_for(wire, "work", "journal_syncs", synced + 1)


def _fill(wire: Wire, mark: bytes, most: int = 100_000) -> tuple[list[bytes], int]:
    """Add items until some are refused; return those stored, and how many were not."""
    stored: list[bytes] = []
    refused = 0
    for number in range(100_000):
        data = b"%b%d " % (mark, number) + b"x" * 1000
        reply = wire.ask(b"set work 0 0 %d\r\n%b\r\n" % (len(data), data))
        if reply == b"STORED":
            stored.append(data)
        else:
            assert reply.startswith(b"SERVER_ERROR"), reply
            refused += 1
        if refused >= 20 or len(stored) >= most:
            break
    return stored, refused


class UnhurriedServer(ServerProcess):
    """Applies what one client sends together in one turn, however slow the machine is."""

    command = """
from kestrelmq.cli import serve
from kestrelmq.cli.main import main

class Server(serve.Server):
    def run(self):
        self._turns.slow_share = 3600.0
        super().run()

serve.Server = Server
main()
"""


def test_reads_that_were_sent_stay_reserved_when_the_connection_ends(tmp_path: Path) -> None:
    """Answers that were sent stay good, although a failed read before them ends the connection."""
    with running_server(tmp_path, kind=UnhurriedServer) as server, wires.Wire(server) as other:
        wires.put(other, "work", "a", "b" * 1000)
        wires.put(other, "jobs", "c")
        with wires.Wire(server) as wire:
            wire.ask(b"monitor work 0 1\r\n", wires.arrived("work", "a") + b"END\r\n")
            with largest_file(1000, server.process.pid):
                wire.send(b"monitor work 0 1\r\nreserve jobs 1 lease=600000\r\n")
                wire.until(b"ITEM jobs ")
                read = wire.until(b" ").strip()
                wire.until(b"c\r\nEND\r\n")
                wire.expect_close()
        other.ask(b"finish jobs %b\r\n" % read, b"FINISHED 1\r\n")


def test_a_repeated_reserve_fails_without_those_behind_it(tmp_path: Path) -> None:
    """What the next `reserve` of a connection answers stays reserved."""
    line_end, end = b"\r\n", b"END\r\n"
    again = b"reserve work 1 lease=600000 tag=a:1:1"
    with running_server(tmp_path) as server, wires.Wire(server) as other:
        wires.put(other, "work", "b" * 1000)
        wires.put(other, "jobs", "c")
        with wires.Wire(server) as wire:
            wire.ask_until(again + line_end, end)
            with largest_file(1000, server.process.pid):
                # With another owner, the tag's terms must be written.
                asked = again + b" owner=o" + line_end + b"reserve jobs 1 lease=600000" + line_end
                wire.send(asked)
                assert b"work" in wire.until(line_end)
                wire.until(b"jobs ")
                read = wire.until(b" ").strip()
                wire.until(end)
            wire.ask_until(b"version" + line_end, line_end)
            other.ask(b"finish jobs %b\r\n" % read, b"FINISHED 1\r\n")


def test_a_tag_is_not_done_if_that_cannot_be_written(tmp_path: Path) -> None:
    """A reader that reserves in the same turn gets the error, too."""
    line_end, end = b"\r\n", b"END\r\n"
    reserve = b"reserve work 1 lease=600000 tag=a:1:1" + line_end
    with running_server(tmp_path, kind=UnhurriedServer) as server, wires.Wire(server) as other:
        wires.put(other, "work", "b" * 1000)
        with wires.Wire(server) as wire:
            first = wire.ask_until(reserve, end)
            with largest_file(1000, server.process.pid):
                wire.send(b"finish work tag=a:1:1" + line_end + reserve)
                assert b"File too large" in wire.until(line_end)
                assert b"File too large" in wire.until(line_end)
            assert wire.ask_until(reserve, end) == first


@pytest.mark.parametrize("least", ["none", "300 KiB"])
def test_an_empty_queue_gives_its_files_back(tmp_path: Path, small_disk: Path, least: str) -> None:
    """When it is flushed, or the disk is short; until then it fails, and everybody is told."""
    config = CONFIG.replace("none", least).replace("100 KiB", "16 MiB")
    (small_disk / "~~crumb").write_bytes(bytes(16 << 10))
    with running_server(tmp_path, config=config) as server:
        wire = Wire(server.ports["memcache"])
        stored, refused = _fill(wire, b"a")
        assert refused
        (small_disk / "~~crumb").unlink()
        until(lambda: health(server, "failing", "work"))
        assert wire.ask(b"flush work\r\n") == b"END"
        assert health(server, "failing", "work")
        until(lambda: journals(small_disk, "work") < 5000)
        more: list[bytes] = []

        def is_taken() -> bool:
            more.extend(_fill(wire, b"b", most=1)[0])
            return bool(more)

        until(is_taken)
        until(lambda: not health(server, "failing", "work"))
        wire.close()
        server.kill9()
        server.start()
        assert drain(server.ports["memcache"]) == more
        assert len(stored) > 100


def test_a_short_disk_refuses_adds_and_serves_readers(tmp_path: Path, small_disk: Path) -> None:
    """A queue that is drained gives its files back; one without a journal takes items."""
    config = CONFIG.replace("none", "600 KiB") + "[queues.fleeting]\nkeep_journal = false\n"
    with running_server(tmp_path, config=config) as server, wires.Wire(server) as wire:
        for number in range(100):
            wires.put(wire, "jobs", f"{number} " + "x" * 1000)
        wires.put(wire, "other", "y")
        (small_disk / "~~more").write_bytes(bytes(SIZE // 2 - (700 << 10)))
        until(lambda: health(server, "disk", None))
        assert b"min_free_disk" in wire.ask_until(b"set jobs 0 0 1\r\nx\r\n", b"\r\n")
        assert b"min_free_disk" in wire.ask_until(b"set jobs/delay=9 0 0 1\r\nx\r\n", b"\r\n")
        wires.put(wire, "fleeting", "z")
        for _ in range(100):
            wire.ask_until(b"get jobs\r\n", b"END\r\n")
        until(lambda: journals(small_disk, "jobs") < 5000)
        wire.ask(b"get other\r\n", wires.value("other", "y") + b"END\r\n")
        assert health(server, "failing", "jobs")
        assert not health(server, "failing", "other")
        metrics = get(server, "/metrics")
        assert 'kestrelmq_queue_failing{queue="jobs"} 1' in metrics
        assert 'kestrelmq_queue_refusals_total{queue="jobs",reason="disk"} 2' in metrics
        (small_disk / "~~more").unlink()
        until(lambda: not health(server, "disk", None))
        assert health(server, "failing", "jobs")
        wires.put(wire, "jobs", "x")
        assert not health(server, "failing", "jobs")


def get(server: ServerProcess, path: str) -> str:
    """Return what the admin service answers."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.ports['admin']}{path}") as reply:
        return str(reply.read().decode())


def health(server: ServerProcess, kind: str, queue: str | None) -> bool:
    """Whether `/health` lists a problem of this kind."""
    problems = json.loads(get(server, "/health"))["problems"]
    return any((one["kind"], one["queue"]) == (kind, queue) for one in problems)


def journals(path: Path, queue: str) -> int:
    """Return how many bytes the journal of a queue has."""
    return sum(file_size(str(one)) for one in path.iterdir() if one.name.split(".")[0] == queue)
