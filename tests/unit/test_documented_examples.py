"""The examples of the documentation fit the program, those too that `tests/pages` does not run."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from kestrelmq.cli.main import COMMANDS, _application
from kestrelmq.config import config_from_toml

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def examples(language: str) -> list[tuple[str, str]]:
    """Return the examples in a language, each with its page and line."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in re.finditer(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, match.start()) + 1
            found.append((f"{page.name}:{line}", match[1]))
    return found


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Yield the words of each `kestrelmq` command in the examples for a shell."""
    for where, script in examples("sh"):
        for line in script.replace("\\\n", "").splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.wordchars += ":,+"
            words: list[str] = []
            for word in [*lexer, ";"]:
                if not set(word) <= set("();<>|&"):
                    words.append(word)
                    continue
                if words[:1] == ["kestrelmq"]:
                    yield where, words[1:]
                words = []


@pytest.mark.parametrize(("where", "text"), examples("toml"))
def test_a_configuration_loads(where: str, text: str) -> None:
    """As it stands there."""
    config_from_toml(text, where)


@pytest.mark.parametrize(("where", "text"), examples("python"))
def test_a_program_is_python(where: str, text: str) -> None:
    """A part of one, perhaps, which may await."""
    compile(text, where, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize(("where", "words"), list(command_lines()))
def test_a_command_is_no_wrong_usage(where: str, words: list[str]) -> None:
    """Its words and options are those of the command."""
    command = typer.main.get_command(_application(list(COMMANDS)))
    context = command.make_context(where, words)
    while hasattr(command, "resolve_command") and words:
        name, command, words = command.resolve_command(context, words)
        assert command is not None
        context = command.make_context(name, list(words), parent=context)
