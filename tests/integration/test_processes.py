"""`serve --processes 2`: real processes, which crash, end and are started again."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelmq import Client
from kestrelmq.cli.main import main
from kestrelmq.disk.locks import QueuePathLock, is_locked
from kestrelmq.version import BUILD, VERSION
from tests.support.patience import PATIENCE, until

FLAGS = ("--memcache-port", "0", "--admin-port", "none", "--text-port", "none")


class Processes:
    """A supervisor of two servers on free ports; its log goes to a file."""

    def __init__(self, path: Path, *flags: str) -> None:
        self.path = path / "queues"
        self.log = path / "log"
        command = [sys.executable, "-m", "kestrelmq", "serve", "--queue-path", str(self.path)]
        with self.log.open("ab") as log:
            self.supervisor = subprocess.Popen(
                [*command, *FLAGS, "--thrift-port", "none", "--processes", "2", *flags],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.supervisor.stdout is not None
        self.output = []
        for line in self.supervisor.stdout:
            self.output.append(line.strip())
            if line == "ready\n":
                break
        self.servers = [line.split()[-1] for line in self.output if " listening on " in line]

    def pid(self, index: int) -> int:
        """Return the process id of a server; 0 while it is about to be written."""
        return int((self.path / f"process-{index}" / "~~lock").read_text() or 0)

    def runs(self, index: int) -> bool:
        """Whether a server is there."""
        return is_locked(self.path / f"process-{index}")

    def signal(self, number: signal.Signals) -> None:
        """Send the supervisor a signal."""
        self.supervisor.send_signal(number)

    def ended(self) -> int:
        """Wait until the supervisor has ended; return its status."""
        self.supervisor.communicate(timeout=PATIENCE)
        return self.supervisor.returncode


@contextlib.contextmanager
def running(path: Path, *flags: str) -> Iterator[Processes]:
    """Run two servers for the length of a `with` block."""
    processes = Processes(path, *flags)
    try:
        assert processes.output[-1:] == ["ready"], processes.log.read_text()
        yield processes
    finally:
        # Those it runs end with it.
        processes.supervisor.kill()
        processes.ended()
        until(lambda: not processes.runs(0) and not processes.runs(1))
        sys.stderr.write(processes.log.read_text())


def answers(server: str) -> bool:
    """Whether a server takes requests."""
    with contextlib.suppress(Exception), Client(server) as client:
        return bool(client.status())
    return False


def put_on_each(processes: Processes) -> None:
    """Put an item that names its server into `work` on each."""
    for index, server in enumerate(processes.servers):
        with Client(server) as client:
            client.put("work", b"item of %d" % index)


def items(processes: Processes) -> list[bytes]:
    """Take what is in `work`, with one client of both servers."""
    with Client(processes.servers) as client:
        found = [client.get("work", timeout=PATIENCE) for _ in processes.servers]
    return sorted(item for item in found if item is not None)


def test_crashes(tmp_path: Path) -> None:
    """A server that is killed comes back with its items and port; none outlives the supervisor."""
    with running(tmp_path) as processes:
        assert len(processes.servers) == 2
        heading, *listening, _ = processes.output
        assert heading == f"kestrelmq {VERSION} ({BUILD}), queues in {processes.path}"
        assert all(line.startswith("memcache listening on ") for line in listening[-2:])
        put_on_each(processes)
        killed = processes.pid(1)
        os.kill(killed, signal.SIGKILL)
        until(lambda: processes.pid(1) != killed and answers(processes.servers[1]))
        assert items(processes) == [b"item of 0", b"item of 1"]
        log = processes.log.read_text()
        assert re.search("ERROR supervisor .*process-1 was ended by SIGKILL", log)
        processes.signal(signal.SIGKILL)
        until(lambda: not processes.runs(0) and not processes.runs(1))


def test_signals(tmp_path: Path) -> None:
    """SIGHUP reloads all, a server that is shut down stays down, SIGTERM ends the others."""
    config = tmp_path / "kestrelmq.toml"
    config.write_text("")
    with running(tmp_path, "--config", str(config)) as processes:
        config.write_text("[queues.work]\nmax_items = 0\n")
        processes.signal(signal.SIGHUP)
        with Client(processes.servers[0]) as first, Client(processes.servers[1]) as second:
            until(lambda: not first.put("work", b"refused"))
            until(lambda: not second.put("work", b"refused"))
            first.shutdown()
            until(lambda: "process-0 was shut down" in processes.log.read_text())
            assert not second.put("work", b"refused")
        processes.signal(signal.SIGTERM)
        assert processes.ended() == 0
        assert (processes.runs(0), processes.runs(1)) == (False, False)


def test_no_server_starts_if_one_cannot(tmp_path: Path) -> None:
    """When one server cannot start none does, and the error says which."""
    queues = tmp_path / "queues"
    (queues / "process-1").mkdir(parents=True)
    lock = QueuePathLock(queues / "process-1")
    lock.acquire()
    processes = Processes(tmp_path)
    assert processes.ended() == 1
    assert processes.output == []
    assert not processes.runs(0)
    lock.release()
    log = processes.log.read_text()
    assert f"queue path {queues}/process-1 is in use by a server, a tool or the library" in log
    assert "kestrelmq: error: process-1 ended with status 1 before it was ready" in log


def test_wrong_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Queues that would be left out are an error, with `--processes` and without."""
    queues = tmp_path / "queues"
    (queues / "process-0").mkdir(parents=True)
    (queues / "process-0" / "work").touch()
    with pytest.raises(SystemExit, match="1"):
        main(["serve", "--queue-path", str(queues)])
    assert "start with --processes 1" in capsys.readouterr().err
    (queues / "work").touch()
    processes = Processes(tmp_path)
    assert processes.ended() == 1
    assert "move its files into" in processes.log.read_text()
