"""The packages that `make dist` builds, installed into fresh environments without a compiler."""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

import kestrelmq
from kestrelmq.version import VERSION
from tests.support.patience import PATIENCE

ROOT: Final = Path(__file__).parent.parent.parent
_PORTS: Final = ("--memcache-port=0", "--admin-port=0", "--text-port=none", "--thrift-port=none")


def build(target: Path, kind: str, **variables: str) -> Path:
    """Build an sdist or a wheel, as the Makefile does; return the file."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    environment = {name: value for name, value in os.environ.items() if "KESTRELMQ" not in name}
    done = subprocess.run(
        command, cwd=ROOT, env=environment | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (built,) = target.iterdir()
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution."""
    return build(tmp_path_factory.mktemp("sdist"), "sdist")


class Environment:
    """An environment of its own, which has what kestrelmq depends on, but no compiler."""

    def __init__(self, path: Path) -> None:
        venv.create(path, symlinks=True)
        self._bin = path / "bin"
        self._variables = {"PATH": str(self._bin), "HOME": str(path), "LANG": "C.UTF-8"}
        (site,) = path.glob("lib/python*/site-packages")
        # The packages are found there, but not the source tree, to which a file of its own leads.
        (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))

    def pip(self, package: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Install a package, with an extra and without dependencies."""
        pip = [sys.executable, "-m", "pip", "--python", str(self._bin / "python")]
        flags = ["--no-index", "--no-deps", "--no-build-isolation", "--force-reinstall"]
        return subprocess.run(
            [*pip, "install", *flags, f"{package}[spark]"],
            env=self._variables | variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )

    def run(self, *arguments: str) -> str:
        """Run the installed command; return what it printed."""
        return subprocess.run(
            [self._bin / "kestrelmq", *arguments],
            env=self._variables,
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
        ).stdout

    @contextmanager
    def server(self, queue_path: Path) -> Iterator[list[str]]:
        """Run the installed server; yield what it printed until it was ready."""
        command = [str(self._bin / "kestrelmq"), "serve", "--queue-path", str(queue_path), *_PORTS]
        with subprocess.Popen(
            command, env=self._variables, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            try:
                printed: list[str] = []
                while printed[-1:] not in (["ready\n"], [""]):
                    printed.append(process.stdout.readline())
                yield printed
            finally:
                process.terminate()


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """A fresh environment."""
    return Environment(tmp_path / "environment")


def check(environment: Environment, tmp_path: Path, kind: str) -> None:
    """Check that the command, the server and the client run, and say what they are."""
    assert environment.run("--version") == f"kestrelmq {VERSION} ({kind})\n"
    with environment.server(tmp_path / "queues") as printed:
        assert printed[0] == f"kestrelmq {VERSION} ({kind}), queues in {tmp_path}/queues\n"
        places = dict(line.split(" listening on ") for line in printed if "listening" in line)
        servers = ("--servers", places["memcache"].strip())
        environment.run("put", "work", "an item", *servers)
        assert environment.run("get", "work", *servers) == "an item"
        admin = ("--server", places["admin"].strip())
        assert environment.run("health", *admin) == "ready\n"


@pytest.mark.compiled_only
def test_a_compiled_wheel(environment: Environment, tmp_path: Path) -> None:
    """It is for this Python only, and the command runs compiled."""
    compiled = Path(kestrelmq.__file__).parent.parent
    wheel = build(tmp_path / "wheel", "wheel", KESTRELMQ_COMPILED=str(compiled))
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert wheel.name.startswith(f"kestrelmq-{VERSION}-{version}-{version}-")
    installed = environment.pip(wheel)
    assert installed.returncode == 0, installed.stderr
    check(environment, tmp_path, "compiled")


def test_a_pure_wheel(environment: Environment, tmp_path: Path) -> None:
    """It is for every Python, and says that it is not compiled."""
    wheel = build(tmp_path / "wheel", "wheel", KESTRELMQ_PURE="1")
    assert wheel.name == f"kestrelmq-{VERSION}-py3-none-any.whl"
    installed = environment.pip(wheel)
    assert installed.returncode == 0, installed.stderr
    check(environment, tmp_path, "interpreted")


def test_an_sdist(environment: Environment, sdist: Path, tmp_path: Path) -> None:
    """Without a compiler it is installed only if plain Python is asked for."""
    refused = environment.pip(sdist)
    assert refused.returncode == 1
    assert "KESTRELMQ_PURE=1 builds plain Python" in refused.stdout + refused.stderr
    installed = environment.pip(sdist, KESTRELMQ_PURE="1")
    assert installed.returncode == 0, installed.stderr
    check(environment, tmp_path, "interpreted")


@pytest.mark.compiled_only
def test_the_command_of_a_checkout_runs_compiled(tmp_path: Path) -> None:
    """As long as no source is newer; PYTHONPATH says which build it is for tests."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / "build").mkdir()
    (tmp_path / "src").mkdir()
    command = tmp_path / ".venv" / "bin" / "kestrelmq"
    command.write_bytes((ROOT / "scripts" / "run-kestrelmq").read_bytes())
    command.chmod(0o755)
    python = command.with_name("python")
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    compiled = Path(kestrelmq.__file__).parent.parent
    (tmp_path / "build" / "compiled").symlink_to(compiled)
    source = tmp_path / "src" / "module.py"
    source.touch()
    stamp = (compiled / "stamp").stat()

    def version(path: str) -> str:
        environment = os.environ | {"PYTHONPATH": path}
        return subprocess.check_output([command, "--version"], env=environment, text=True)

    os.utime(source, ns=(stamp.st_mtime_ns - 1, stamp.st_mtime_ns - 1))
    assert "(compiled)" in version("")
    assert "(interpreted)" in version(str(ROOT / "src"))
    os.utime(source, ns=(stamp.st_mtime_ns + 1, stamp.st_mtime_ns + 1))
    assert "(interpreted)" in version("")
