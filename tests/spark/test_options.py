"""Settings of a command's session, in a real one."""

import subprocess
from pathlib import Path

from tests.spark.processes import PIPELINE
from tests.spark.spools import adds, write


def test_settings_of_a_command(tmp_path: Path) -> None:
    """They reach Spark, and override those of the command."""
    write(tmp_path / "spool" / "q", adds([b"x"]))
    logs = tmp_path / "logs"
    logs.mkdir()
    settings = [
        "spark.app.name=a=b",
        "spark.eventLog.enabled=true",
        "spark.eventLog.compress=false",
    ]
    settings += [f"spark.eventLog.dir={logs}"]
    words = [word for one in settings for word in ("--conf", one)]
    command = [*PIPELINE, "verify", str(tmp_path / "spool"), "--master", "local[1]", *words]
    subprocess.run(command, check=True, capture_output=True)
    logged = "".join(log.read_text() for log in logs.rglob("events_*"))
    assert '"App Name":"a=b"' in logged
    assert '"spark.driver.host":"127.0.0.1"' in logged
