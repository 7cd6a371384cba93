"""The examples and tables of the documentation fit the program."""

import ast
import inspect
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import typer

from kestrelmq import AsyncPersistentQueue, PersistentQueue, QueueCollection
from kestrelmq.cli.main import COMMANDS, _application
from kestrelmq.client import AsyncClient, Client, ClientOptions
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


def fits(method: object, told: str) -> bool:
    """Whether a method has the parameters in `name(...)`, with the defaults that are told."""
    call = ast.parse(f"def {told}: ...").body[0]
    if not isinstance(call, ast.FunctionDef) or not callable(method):
        return False
    there = inspect.signature(method).parameters
    names = [argument.arg for argument in call.args.args]
    defaults = [ast.literal_eval(one) for one in call.args.defaults]
    return set(names) <= set(there) and all(
        there[name].default == default
        for name, default in zip(reversed(names), reversed(defaults), strict=False)
    )


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


@pytest.mark.parametrize(
    ("page", "classes"),
    [
        ("client.md", [(Client,), (AsyncClient,)]),
        (
            "library.md",
            [(PersistentQueue, QueueCollection), (AsyncPersistentQueue, QueueCollection)],
        ),
    ],
)
def test_a_method_takes_what_its_page_says(page: str, classes: list[tuple[type, ...]]) -> None:
    """With these names and defaults; what a call has besides may be told elsewhere."""
    text = (ROOT / "docs" / page).read_text()
    told = re.findall(r"`((\w+)\((?:\w+(?:=[^,()`]+)?(?:, )?)+\))`", text)
    assert len(told) > 15
    for call, name in told:
        for several in classes:
            methods = [getattr(one, name) for one in several if hasattr(one, name)]
            assert any(fits(method, call) for method in methods) or not methods, call


def test_the_options_of_the_client_are_told() -> None:
    """Each of them, and no other, in its table."""
    text = (ROOT / "docs" / "client.md").read_text()
    table = text.partition("| option | default | meaning |")[2].partition("\n\n")[0]
    told = re.findall(r"^\| `(\w+)`", table, re.MULTILINE)
    assert sorted(told) == sorted(one.name for one in fields(ClientOptions))
