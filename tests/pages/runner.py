"""Run the blocks of a page as a reader would: `python -m tests.pages.runner PAGE FOLDER`.

It runs as root of a network and a file system of its own (see `test_pages`), in an empty folder.

- `sh`: a script, which must succeed. One whose last line serves (`kestrelmq serve`, `make serve`)
  goes on until another one serves, or the page ends. If none has served before, a server runs.
- `python`: a program, which must succeed.
- `toml`, `python`, `scala` whose first line is a comment with the name of a file: that file.
- `text`: what the block before it printed; `...` stands for any text.
- `json`, `yaml`: must be that.

A comment `<!-- not run: REASON -->` on the line before a block keeps it from being run.
Indented text is no block: it shows a format, or is a drawing.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from kestrelmq.config import config_from_toml

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE: Final = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]*) -->\n)?^```(?P<language>\S*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_FILE: Final = re.compile(r"(?:#|//) (?P<name>[\w-]+\.(?:py|toml|scala))\n")
_SERVES: Final = re.compile(r"^(?:\.venv/bin/)?kestrelmq serve\b|^make serve\b")
_HOT: Final = "build/compiled/stamp"
_PATIENCE: Final = 550


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a page, the line at which it begins, and why it is not run, if it is not."""

    line: int
    language: str
    text: str
    reason: str | None

    @property
    def serves(self) -> bool:
        """Whether it starts a server that stays."""
        last = self.text.replace("\\\n", " ").rstrip().rpartition("\n")[2]
        return self.language == "sh" and _SERVES.match(last) is not None


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start("language")) + 1
        if not found["language"].startswith("{"):  # these are the site's
            yield Block(line, found["language"], found["text"], found["reason"])


class Reader:
    """Somebody who does what a page says, in a folder.

    Attributes:
        printed: what the last program printed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: subprocess.Popen[str] | None = None
        self.printed = ""
        programs = Path(sys.executable).parent
        self._environment = os.environ | {
            "HOME": str(folder / "home"),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONWARNINGS": "",
        }
        for name in ("KESTRELMQ_SERVERS", "XDG_STATE_HOME", "PYTEST_CURRENT_TEST", "MAKEFLAGS"):
            self._environment.pop(name, None)
        (folder / "home").mkdir()
        # What a reader has who has cloned the repository, and has installed and compiled it once.
        for name in ("Makefile", "pyproject.toml", "constraints.txt", "src", "scripts"):
            (folder / name).symlink_to(ROOT / name)
        for part in (ROOT / ".venv").iterdir():
            if part.name != ".stamps":
                _parent(folder / ".venv" / part.name).symlink_to(part)
        for stamp in (".venv/.stamps/venv", ".venv/.stamps/compiler", ".venv/.stamps/build", _HOT):
            _parent(folder / stamp).touch()

    def do(self, block: Block) -> None:
        """Run or check a block."""
        named = _FILE.match(block.text)
        if block.language == "text":
            _compare(block.text, self.printed)
            return
        if block.serves:
            self._serve(block.text)
        elif block.language == "sh":
            self.printed = self._run(["bash", "-euo", "pipefail", "-c", block.text])
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "yaml":
            yaml.safe_load(block.text)
        elif block.language == "toml":
            config_from_toml(block.text, "the page")
        elif block.language not in {"python", "scala"}:
            raise ValueError(f"nothing runs {block.language or 'a block without a language'}")
        if named is not None:
            (self._folder / named["name"]).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            self.printed = self._run([sys.executable, "-c", block.text])

    def _run(self, command: list[str]) -> str:
        run = subprocess.run(
            command,
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
        if run.returncode != 0:
            raise ValueError(f"exit status {run.returncode}\n{run.stdout}{run.stderr}")
        return run.stdout

    def _serve(self, script: str) -> None:
        self.stop()
        self._server = subprocess.Popen(
            ["bash", "-euc", script],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._server.stdout is not None
        self.printed = ""
        for line in self._server.stdout:
            self.printed += line
            if line == "ready\n":
                return
        raise ValueError(f"the server ended with status {self._server.wait()}")

    def serve(self) -> None:
        """Start a server without any settings."""
        self._serve("kestrelmq serve\n")

    def stop(self) -> None:
        """Press Ctrl-C where the server runs, if one does."""
        if self._server is not None:
            os.killpg(self._server.pid, signal.SIGINT)
            self._server.wait(_PATIENCE)
            self._server = None


def _parent(path: Path) -> Path:
    """Make the folder in which `path` is to be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _compare(told: str, printed: str) -> None:
    pattern = re.escape(told.strip()).replace(re.escape("..."), ".*")
    if re.fullmatch(pattern, printed.strip(), re.DOTALL) is None:
        raise ValueError(f"it printed\n{printed}\nwhich is not\n{told}")


def main() -> None:
    """Run a page; name the block that failed."""
    page, folder = Path(sys.argv[1]), Path(sys.argv[2])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for place in ("/run", "/var/lib", "/var/spool"):
        subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
    reader = Reader(folder)
    found = [block for block in blocks(page) if block.reason is None]
    scripts = [block for block in found if block.language in {"sh", "python"}]
    if scripts and not scripts[0].serves:
        reader.serve()
    for block in found:
        try:
            reader.do(block)
        except Exception as error:  # noqa: BLE001 # whatever it is, the block has failed
            sys.exit(f"{page.name}, line {block.line}: {error}")
    reader.stop()


if __name__ == "__main__":
    main()
