"""A stream from live servers to Parquet in a process of its own, which a test may kill.

    python -m tests.spark.stream_session SERVERS QUEUE ROOT STEP NTH

The process that is the NTH to come to STEP of the staging protocol writes `ROOT/reached` and stands
still: the test then kills the session.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from kestrelmq.spark.session import local_session
from kestrelmq.spark.stream import LiveSource
from tests.support.patience import PATIENCE

FORMAT: Final = "kestrel.stopping"


class StreamSession:
    """The process, and every process that it starts."""

    def __init__(self, servers: str, queue: str, root: Path, step: str, nth: int = 1) -> None:
        self._reached = root / "reached"
        self._reached.unlink(missing_ok=True)
        self._log = (root / "session.log").open("ab")
        words = [servers, queue, str(root), step, str(nth)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.stream_session", *words],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def has_reached(self) -> bool:
        """Whether it stands still at its step."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the stream ended: {self._log.name}")
        return self._reached.exists()

    def wait_until_reached(self) -> None:
        """Wait until it stands still at its step."""
        deadline = time.monotonic() + PATIENCE
        while not self.has_reached():
            if time.monotonic() > deadline:
                self.kill9()
                raise RuntimeError(f"the stream never came to its step: {self._log.name}")
            time.sleep(0.05)

    def kill9(self) -> None:
        """Kill the driver, the JVM and the workers at once."""
        for process in _processes_of(self.process.pid):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
        self._log.close()


def _processes_of(session: int) -> list[int]:
    """Return the processes of a session; Spark's workers have process groups of their own."""
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdecimal():
            try:
                # After the command, in parentheses: state, parent, group, session.
                fields = (directory / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[3]) == session:
                found.append(int(directory.name))
    return found


def main(servers: str, queue: str, root: Path, step: str, nth: int) -> None:
    """Run the stream."""
    # Each task has a copy of its own of what is here; a file is what they share.
    hits = root / "hits"
    hits.write_bytes(b"")

    def reached(point: str) -> None:
        if point != step:
            return
        with hits.open("ab") as file:
            file.write(b".")
        if hits.stat().st_size >= nth:
            (root / "reached").touch()
            while True:
                time.sleep(60)

    class StoppingSource(LiveSource):
        """The source, told where to stop."""

        @classmethod
        def name(cls) -> str:
            """Return the format's name."""
            return FORMAT

    StoppingSource.reached = staticmethod(reached)
    with local_session("local[2,2]", quick=True) as spark:
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(StoppingSource)
        rows = (
            spark.readStream.format(FORMAT)
            .options(servers=servers, queue=queue, staging_location=str(root / "staging"))
            .options(max_items_per_batch="400", wait="200ms")
            .load()
        )
        writer = rows.writeStream.format("parquet").option("path", str(root / "table"))
        writer = writer.option("checkpointLocation", str(root / "checkpoint"))
        writer.start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
