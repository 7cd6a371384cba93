"""An S3 server that is not ours (moto), as a process of its own on a free port of loopback."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from pyarrow import fs

from tests.support.patience import PATIENCE, until

BUCKET: Final = "bucket"
ACCESS_KEY: Final = "an-access-key"
SECRET_KEY: Final = "very/secret+key"  # noqa: S105 # of this server only
_RUNNING: Final = re.compile(r"Running on http://[\d.]+:(\d+)")


@dataclass(frozen=True)
class ObjectStore:
    """A running server, with an empty bucket `BUCKET`."""

    endpoint: str

    @property
    def options(self) -> dict[str, str]:
        """Storage options that reach it."""
        return {
            "endpoint_override": self.endpoint,
            "scheme": "http",
            "region": "us-east-1",
            "access_key": ACCESS_KEY,
            "secret_key": SECRET_KEY,
        }

    @property
    def source_options(self) -> dict[str, str]:
        """The same, as options of a data source."""
        return {f"storage.{name}": value for name, value in self.options.items()}

    @cached_property
    def file_system(self) -> fs.FileSystem:
        """It, to prepare and check what is in it."""
        return fs.S3FileSystem(allow_bucket_creation=True, **self.options)

    def put(self, path: str, content: bytes) -> None:
        """Write an object of the bucket."""
        with self.file_system.open_output_stream(f"{BUCKET}/{path}") as stream:
            stream.write(content)

    def get(self, path: str) -> bytes:
        """Return an object of the bucket."""
        with self.file_system.open_input_file(f"{BUCKET}/{path}") as file:
            found: bytes = file.read()
            return found

    def delete(self, path: str) -> None:
        """Delete an object of the bucket."""
        self.file_system.delete_file(f"{BUCKET}/{path}")

    def names(self, path: str) -> list[str]:
        """Return the names in a directory of the bucket."""
        found = self.file_system.get_file_info(fs.FileSelector(f"{BUCKET}/{path}"))
        return sorted(one.base_name for one in found)

    def copy(self, directory: Path, path: str) -> str:
        """Copy the files of a directory to the bucket; return the URI of the copy."""
        for file in sorted(directory.iterdir()):
            if file.is_file():
                self.put(f"{path}/{file.name}", file.read_bytes())
        return f"s3://{BUCKET}/{path}"

    def ship(self, directory: Path, path: str) -> None:
        """Bring a copy up to date: new files before the current ones, deletions at the end."""
        there = set(self.names(path)) if path in self.names("") else set()
        files = [file for file in directory.iterdir() if file.is_file()]
        for file in sorted(files, key=lambda file: (file.name in there, file.name)):
            self.put(f"{path}/{file.name}", file.read_bytes())
        for name in there - {file.name for file in files}:
            self.delete(f"{path}/{name}")

    @contextlib.contextmanager
    def checking_rights(self) -> Iterator[None]:
        """Refuse every request, as of an unknown user, during a `with` block."""
        self._set_unchecked("0")
        try:
            yield
        finally:
            self._set_unchecked("inf")

    def _set_unchecked(self, requests: str) -> None:
        url = f"http://{self.endpoint}/moto-api/reset-auth"
        request = urllib.request.Request(url, requests.encode(), {"Content-Type": "text/plain"})
        with urllib.request.urlopen(request, timeout=PATIENCE):  # noqa: S310 # of this server
            pass


@contextlib.contextmanager
def running_store(host: str = "127.0.0.1") -> Iterator[ObjectStore]:
    """Run a server during a `with` block."""
    command = [sys.executable, "-u", "-m", "moto.server", "-H", host, "-p", "0"]
    # The SDK would ask for an address that only exists in Amazon's cloud.
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    with (
        tempfile.NamedTemporaryFile() as log,
        subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        try:
            until(lambda: _port(log.name) is not None or process.poll() is not None)
            store = ObjectStore(f"{host}:{_port(log.name)}")
            store.file_system.create_dir(BUCKET)
            yield store
        finally:
            process.kill()


def _port(log: str) -> str | None:
    found = _RUNNING.search(Path(log).read_text())
    return found and found[1]
