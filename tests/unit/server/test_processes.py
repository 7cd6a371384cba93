"""Which sub-path and ports each server has, and which queue paths they may not serve."""

import errno
import json
import logging
import os
import signal
import threading
from pathlib import Path

import pytest

from kestrelmq.config import ServerConfig
from kestrelmq.errors import ConfigError, KestrelError
from kestrelmq.server.logs import JsonFormatter
from kestrelmq.server.processes import check_layout, processes_of
from kestrelmq.server.supervisor import LONGEST_PAUSE, Supervisor, restart_pause


def test_each_has_its_own(tmp_path: Path) -> None:
    """Sub-paths are numbered; ports are ten apart, a free one stays free and none stays none."""
    config = ServerConfig(queue_path=tmp_path, text_listen_port=None, thrift_listen_port=0)
    first, second = processes_of(config, 2)
    assert (first.queue_path, first.name) == (tmp_path / "process-0", "process-0")
    assert dict(first.ports) == {"memcache": 22133, "text": None, "thrift": 0, "admin": 2223}
    assert second.queue_path == tmp_path / "process-1"
    assert dict(second.ports) == {"memcache": 22143, "text": None, "thrift": 0, "admin": 2233}


def test_each_has_its_own_unix_sockets(tmp_path: Path) -> None:
    """The first has those of the configuration, the others their number behind the name."""
    config = ServerConfig(queue_path=tmp_path, text_listen_path=Path("/run/k.text"))
    paths = [dict(process.paths) for process in processes_of(config, 3)]
    assert paths == [{"text": Path(f"/run/k.text{end}")} for end in ("", ".1", ".2")]


def test_default_ports_do_not_meet() -> None:
    """With the default ports any reasonable number of servers can be started."""
    assert len(processes_of(ServerConfig(), 64)) == 64


def test_ports_of_different_addresses_do_not_meet() -> None:
    """One address may have the port of another."""
    settings = {"admin_http_port": 2232, "text_listen_port": 2222, "admin_http_address": "::1"}
    first, second = processes_of(ServerConfig.model_validate(settings), 2)
    assert dict(first.ports)["admin"] == dict(second.ports)["text"]
    ServerConfig(admin_http_port=2222, admin_http_address="::1")


@pytest.mark.parametrize(
    ("settings", "count", "message"),
    [
        ({"admin_http_port": 2232}, 2, "text port of process 1 would be 2232, which is the admin"),
        ({"memcache_listen_port": 65_530}, 2, "memcache port of process 1 would be 65540"),
        ({"status_file": "status"}, 1, "status_file"),
        ({"admin_listen_path": f"/{'s' * 102}"}, 2, "process 1 would be /s*.1; at most 103 bytes"),
    ],
)
def test_what_cannot_be_shared(settings: dict[str, object], count: int, message: str) -> None:
    """Ports that meet or do not exist, and one status file for all, are refused."""
    with pytest.raises(ConfigError, match=message):
        processes_of(ServerConfig.model_validate(settings), count)


def test_bound_ports_are_kept(tmp_path: Path) -> None:
    """What a server told when it listened is what it is started with again."""
    config = ServerConfig(
        queue_path=tmp_path,
        memcache_listen_port=0,
        text_listen_port=0,
        thrift_listen_port=None,
        admin_http_port=None,
    )
    (process,) = processes_of(config, 1)
    bound = process.with_announced_port("memcache listening on ::1:4711")
    bound = bound.with_announced_port("something else")
    bound = bound.with_announced_port("text listening on unix:/run/k:7")
    assert dict(bound.ports) == {"memcache": 4711, "text": 0, "thrift": None, "admin": None}


def journals(path: Path, *names: str) -> None:
    """Put empty journals there."""
    path.mkdir(parents=True, exist_ok=True)
    for name in names:
        (path / name).touch()


@pytest.mark.parametrize("count", [None, 1, 3])
def test_new_queue_path(tmp_path: Path, count: int | None) -> None:
    """A queue path that is not there, or holds no journals, may be served in any way."""
    check_layout(tmp_path / "absent", count)
    journals(tmp_path, "~~lock", "~~status")
    (tmp_path / "process-7").mkdir()
    (tmp_path / "process-x").mkdir()
    check_layout(tmp_path, count)


def test_layout_is_served_as_it_is(tmp_path: Path) -> None:
    """A queue path is served by one server, or by as many as there are sub-paths, or more."""
    journals(tmp_path / "one", "work", "work.123")
    check_layout(tmp_path / "one", None)
    journals(tmp_path / "many" / "process-0", "work")
    journals(tmp_path / "many" / "process-1", "work.123")
    check_layout(tmp_path / "many", 2)
    check_layout(tmp_path / "many", 3)
    check_layout(tmp_path / "many" / "process-1", None)


def test_layout_that_would_hide_queues(tmp_path: Path) -> None:
    """Nothing starts that would leave journals out; the error says which, and what to do."""
    journals(tmp_path / "one", "a", "b", "c", "d")
    with pytest.raises(KestrelError, match=r"\(a, b, c, \.\.\.\): move its files into .*process-0"):
        check_layout(tmp_path / "one", 2)
    journals(tmp_path / "many" / "process-2", "work")
    with pytest.raises(KestrelError, match=r"\(process-2\): start with --processes 3, or serve"):
        check_layout(tmp_path / "many", None)
    with pytest.raises(KestrelError, match=r"2 processes would leave out \(process-2\): start"):
        check_layout(tmp_path / "many", 2)


def test_queue_path_that_cannot_be_read(tmp_path: Path) -> None:
    """A file in the place of the queue path is an error of ours, with its name."""
    (tmp_path / "file").touch()
    with pytest.raises(KestrelError, match=f"{tmp_path}/file: Not a directory"):
        check_layout(tmp_path / "file", 1)


def test_pause_grows() -> None:
    """A server that goes on crashing is started again ever more rarely, but always."""
    pauses = [restart_pause(crashes) for crashes in (1, 2, 3, 100_000)]
    assert pauses == [0.1, 0.2, 0.4, LONGEST_PAUSE]


def of_shell(tmp_path: Path, script: str) -> tuple[Supervisor, list[str]]:
    """A supervisor of two shells that run `script`, and what it announces."""
    ports: dict[str, object] = {f"{n}_listen_port": 0 for n in ("memcache", "text", "thrift")}
    config = ServerConfig.model_validate({"queue_path": tmp_path} | ports)
    announced: list[str] = []
    supervisor = Supervisor(
        processes_of(config, 2),
        lambda process: ["sh", "-c", script, process.name, str(tmp_path / process.name)],
        announced.append,
        lambda: None,
    )
    return supervisor, announced


def test_ends_with_the_last(tmp_path: Path) -> None:
    """The lines come in the order of the servers, and `ready` once; when all ended so has it."""
    supervisor, announced = of_shell(tmp_path, "echo $0 here; echo ready")
    supervisor.run()
    assert announced == ["process-0 here", "process-1 here", "ready"]


def test_started_again(tmp_path: Path) -> None:
    """A server is started again until it ends with status 0, also when it was not even ready."""
    script = "echo x >> $1; case $(wc -l < $1) in 1) echo ready; exit 3;; 3) echo ready;; esac"
    supervisor, _ = of_shell(tmp_path, script)
    supervisor.run()
    assert [(tmp_path / f"process-{index}").read_text() for index in (0, 1)] == ["x\n" * 3] * 2


def test_a_log_file_that_cannot_be_opened_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The servers read their configuration all the same."""
    config = ServerConfig(queue_path=tmp_path, memcache_listen_port=0, admin_http_port=0)
    script = "trap 'echo x > $1; exit' HUP; echo ready; for _ in $(seq 300); do sleep 0.1; done"

    def announce(line: str) -> None:
        if line == "ready":
            os.kill(os.getpid(), signal.SIGHUP)

    def reopen_log() -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "log")

    Supervisor(
        processes_of(config, 1),
        lambda process: ["sh", "-c", script, process.name, str(tmp_path / process.name)],
        announce,
        reopen_log,
    ).run()
    assert (tmp_path / "process-0").read_text() == "x\n"
    assert "the log file cannot be opened again: [Errno 13] Permission denied" in caplog.text


def test_no_thread_for_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Python before 3.12 watches each server with one. It is tried again; the others stay up."""
    script = "echo x >> $1; case $0-$(wc -l < $1) in process-0-1) echo ready; exit 3;; esac; "
    supervisor, announced = of_shell(tmp_path, script + "echo ready; sleep 0.5")
    start, starts = threading.Thread.start, 0

    def sometimes(thread: threading.Thread) -> None:
        nonlocal starts
        starts += 1
        if starts == 3:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", sometimes)
    supervisor.run()
    assert announced == ["ready"]
    assert starts == 0 or "process-0: can't start new thread" in caplog.text
    assert (tmp_path / "process-1").read_text() == "x\n"


def test_not_ready(tmp_path: Path) -> None:
    """When a server ends before it is ready, the others are ended and the error says which."""
    script = "case $0 in process-0) exec cat;; *) exit 4;; esac"
    supervisor, announced = of_shell(tmp_path, script)
    with pytest.raises(KestrelError, match="process-1 ended with status 4 before it was ready"):
        supervisor.run()
    assert announced == []


@pytest.mark.parametrize(("name", "shown"), [("process-1", "process-1"), ("MainProcess", None)])
def test_log_says_which(name: str, shown: str | None) -> None:
    """A JSON line names its process where there are several."""
    record = logging.makeLogRecord({"msg": "hello", "processName": name})
    assert json.loads(JsonFormatter().format(record)).get("process") == shown
