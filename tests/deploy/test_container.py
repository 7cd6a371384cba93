"""The container file: its steps are run in root file systems of their own, and the image works.

No container engine is needed. A stage is a directory that mmdebstrap fills, and a step runs there
with chroot, with mounts of its own. That needs root rights, and takes minutes.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.support.patience import PATIENCE

_ROOT = Path(__file__).parents[2]
_FILE = _ROOT / "deploy" / "container" / "Containerfile"
_MACHINE: Final = (
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/pip.conf",
    "/etc/xdg/pip",
    "/etc/ssl/certs",
    "/usr/local/share/ca-certificates",
)
"""How this machine reaches the indexes of packages; a builder of images has ways of its own."""


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction of a container file, such as `RUN`, and what stands behind it."""

    name: str
    value: str


@dataclass
class Stage:
    """What follows one `FROM`."""

    base: str
    name: str
    steps: list[Step] = field(default_factory=list)


def stages() -> list[Stage]:
    """Read the container file."""
    found: list[Stage] = []
    text = "\n".join(
        line for line in _FILE.read_text().splitlines() if not line.startswith("#")
    ).replace("\\\n", " ")
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, value = line.partition(" ")
        if name == "FROM":
            base, _, alias = value.partition(" AS ")
            found.append(Stage(base, alias))
        else:
            found[-1].steps.append(Step(name, value))
    return found


def test_the_file_is_as_it_should_be() -> None:
    """What can be said without running it."""
    last = stages()[-1]
    by_name = {step.name: step.value for step in last.steps}
    assert by_name["USER"] == "10001"
    assert json.loads(by_name["HEALTHCHECK"].partition("CMD ")[2]) == ["kestrelmq", "health"]
    assert json.loads(by_name["CMD"])[0] == "serve"
    for stage in stages():
        for step in stage.steps:
            if step.name == "COPY" and "--from" not in step.value:
                assert (_ROOT / step.value.split()[0]).exists()


class Machine:
    """A root file system in which the steps of a stage are run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        self.user = "0"

    def command(self, arguments: Sequence[str], *, read_only: bool = False) -> list[str]:
        """Return the command that runs `arguments` inside."""
        root = shlex.quote(str(self.root))
        machine = [path for path in (*_MACHINE, *_indexes()) if Path(path).exists()]
        mounts = [f"mount --bind {root} {root}"]
        for path in machine:
            inside = f"{root}{path}"
            make = f"mkdir -p {inside}" if Path(path).is_dir() else f"touch {inside}"
            mounts += [f"mkdir -p $(dirname {inside})", make, f"mount --bind {path} {inside}"]
        mounts += [f"mount -t proc proc {root}/proc", f"mount -t tmpfs none {root}/tmp"]  # noqa: S108
        mounts += [f"mount --rbind /dev {root}/dev"]
        if read_only:
            queues = f"{root}/var/lib/kestrelmq"
            mounts += [f"mount --bind {queues} {queues}", f"mount -o remount,ro,bind {root}"]
        environment = [f"{name}={value}" for name, value in self.environment.items()]
        environment += [f"{n}={v}" for n, v in os.environ.items() if n.startswith("PIP_")]
        chroot = ["chroot", f"--userspec={self.user}", str(self.root), "env", "-i", *environment]
        script = " && ".join([*mounts, f"exec {shlex.join([*chroot, *arguments])}"])
        sudo = [] if os.geteuid() == 0 else ["sudo"]
        return [*sudo, "unshare", "--mount", "sh", "-c", script]

    def run(self, *arguments: str) -> str:
        """Run a command inside; return what it printed.

        Raises:
            AssertionError: it failed.
        """
        done = subprocess.run(
            self.command(arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        output = done.stdout.decode(errors="replace")
        assert done.returncode == 0, output
        return output


def _indexes() -> list[str]:
    """Return the directories of this machine in which pip looks for packages."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    words = done.stdout.replace("file://", " ").replace("'", " ").replace("=", " ").split()
    return [str(Path(word)) for word in words if word.startswith("/") and Path(word).is_dir()]


def take(step: Step, machine: Machine, earlier: dict[str, Machine]) -> None:
    """Do what an instruction says, in `machine`."""
    if step.name == "RUN":
        machine.run("sh", "-ec", step.value)
    elif step.name == "ENV":
        machine.environment |= dict(word.split("=", 1) for word in shlex.split(step.value))
    elif step.name == "USER":
        machine.user = step.value
    elif step.name == "COPY":
        words = step.value.split()
        origin = _ROOT
        if words[0].startswith("--from="):
            origin = earlier[words.pop(0).removeprefix("--from=")].root
        source, target = origin / words[0].lstrip("/"), machine.root / words[1].lstrip("/")
        if source == _ROOT / ".":
            _copy_repository(target)
        elif source.is_dir():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    else:
        assert step.name in {"VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}


def _copy_repository(target: Path) -> None:
    """Copy what git has, and what it would have; a clone has nothing else."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=_ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (_ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(_ROOT / name, target / name)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """The last stage, after all steps."""
    folder = tmp_path_factory.mktemp("image")
    machines: dict[str, Machine] = {}
    base = folder / "base"
    suite = stages()[0].base.partition(":")[2].removesuffix("-slim")
    subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=minbase", "--include=ca-certificates", suite, base],
        check=True,
    )
    for stage in stages():
        machine = Machine(folder / f"stage-{stage.name}")
        subprocess.run(["cp", "-a", base, machine.root], check=True)
        for step in stage.steps:
            take(step, machine, machines)
        machines[stage.name] = machine
    yield machines[""]
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_image_serves(image: Machine) -> None:
    """As its user, on a root file system that cannot be written; its health check agrees."""
    steps = {step.name: step.value for step in stages()[-1].steps}
    assert "compiled" in image.run("kestrelmq", "--version")
    secret = image.root / "run" / "secrets" / "kestrelmq-admin"
    secret.parent.mkdir(parents=True, exist_ok=True)
    secret.write_text("a-password\n")
    secret.chmod(0o444)
    arguments = [*json.loads(steps["ENTRYPOINT"]), *json.loads(steps["CMD"])]
    ports = ["--memcache-port", "0", "--text-port", "none", "--thrift-port", "none"]
    command = image.command([*arguments, *ports], read_only=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as server:
        assert server.stdout is not None
        lines = []
        for line in server.stdout:
            lines.append(line.decode())
            if line == b"ready\n":
                break
        else:
            raise AssertionError("".join(lines))
        try:
            health = json.loads(steps["HEALTHCHECK"].partition("CMD ")[2])
            image.run(*health)
        finally:
            server.terminate()
            assert server.wait(PATIENCE) == 0
    with pytest.raises(AssertionError):
        image.run(*health)
    assert (image.root / "var" / "lib" / "kestrelmq").stat().st_uid == int(steps["USER"])
