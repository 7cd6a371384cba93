"""What `kestrelmq serve` prints, and where else a server says how it was built."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kestrelmq.version import BUILD, VERSION
from tests.admin.conftest import Admin
from tests.support.commands import run_command
from tests.support.server import running_server


@pytest.mark.compiled
def test_a_server_says_what_runs_and_where(tmp_path: Path) -> None:
    """The build, the queue path, what is not safe, the listeners, the console; then `ready`."""
    with running_server(tmp_path) as server:
        printed = [line for line in server.output.splitlines() if "INFO" not in line]
        assert printed[0] == f"kestrelmq {VERSION} ({BUILD}), queues in {tmp_path}/queues"
        assert printed[1].startswith("slow: ") == (BUILD == "interpreted")
        assert [line.partition(":")[0] for line in printed[-7:-6]] == ["not safe"]
        assert printed[-2:] == [f"console at http://127.0.0.1:{server.ports['admin']}/", "ready"]
        admin = Admin(server)
        assert admin.get("/server_info.json").json["build"] == BUILD
        assert admin.get("/api/v1/server").json["build"] == BUILD
        metrics = text_string_to_metric_families(admin.get("/metrics").text)
        (build,) = [one for family in metrics for one in family.samples if "build" in one.name]
        assert build.labels == {"version": VERSION, "build": BUILD}
    assert run_command("--version").stdout == f"kestrelmq {VERSION} ({BUILD})\n".encode()


def test_a_server_that_does_not_start_prints_only_why(tmp_path: Path) -> None:
    """Its queue path is in use."""
    with running_server(tmp_path):
        done = run_command("serve", "--queue-path", str(tmp_path / "queues"))
        assert (done.returncode, done.stdout) == (1, b"")


def test_a_log_file_that_cannot_be_opened_is_one_sentence(tmp_path: Path) -> None:
    """Nothing else is printed, and nothing is served."""
    (tmp_path / "k.toml").write_text(f'log_file = "{tmp_path}/none/log"\n')
    done = run_command("serve", "--config", str(tmp_path / "k.toml"))
    said = f"kestrelmq: error: {tmp_path}/none/log: No such file or directory\n"
    assert (done.returncode, done.stdout, done.stderr.decode()) == (1, b"", said)
