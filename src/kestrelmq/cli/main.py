"""The entry point of the `kestrelmq` command.

Exit status: 0 done, 1 failed (the reason is one line on standard error), 2 wrong usage: what was
asked for can never be done, such as reading a queue of a name that no queue can have.
"""

import importlib
import inspect
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from kestrelmq.cli.terminal import (
    OutputError,
    drop_output,
    os_error_reason,
    printable,
    tell_output_errors_apart,
)
from kestrelmq.errors import InvalidRequest, KestrelError
from kestrelmq.version import BUILD, VERSION

if TYPE_CHECKING:
    import typer

# The module and the attribute of each command. The attribute is a function for a single command, or
# a `typer.Typer` for a group of commands. Only the module of the requested command is imported. The
# order is that of `kestrelmq --help`.
COMMANDS: Final = {
    "serve": ("kestrelmq.cli.serve", "serve"),
    "put": ("kestrelmq.cli.client", "put"),
    "get": ("kestrelmq.cli.client", "get"),
    "peek": ("kestrelmq.cli.client", "peek"),
    "browse": ("kestrelmq.cli.moving", "browse"),
    "monitor": ("kestrelmq.cli.client", "monitor"),
    "reserve": ("kestrelmq.cli.reserving", "reserve"),
    "finish": ("kestrelmq.cli.reserving", "finish"),
    "release": ("kestrelmq.cli.reserving", "release"),
    "extend": ("kestrelmq.cli.reserving", "extend"),
    "extend-owner": ("kestrelmq.cli.reserving", "extend_owner"),
    "retire": ("kestrelmq.cli.reserving", "retire"),
    "owners": ("kestrelmq.cli.reserving", "owners"),
    "queues": ("kestrelmq.cli.tables", "queues"),
    "stats": ("kestrelmq.cli.tables", "stats"),
    "top": ("kestrelmq.cli.top", "top"),
    "flush": ("kestrelmq.cli.control", "flush"),
    "delete": ("kestrelmq.cli.control", "delete"),
    "clients": ("kestrelmq.cli.clients", "app"),
    "move": ("kestrelmq.cli.moving", "move"),
    "copy": ("kestrelmq.cli.moving", "copy"),
    "redrive": ("kestrelmq.cli.moving", "redrive"),
    "export": ("kestrelmq.cli.moving", "export"),
    "import": ("kestrelmq.cli.moving", "import_items"),
    "declare": ("kestrelmq.cli.control", "declare"),
    "pause": ("kestrelmq.cli.control", "pause"),
    "resume": ("kestrelmq.cli.control", "resume"),
    "status": ("kestrelmq.cli.control", "status"),
    "health": ("kestrelmq.cli.health", "health"),
    "reload": ("kestrelmq.cli.control", "reload"),
    "shutdown": ("kestrelmq.cli.control", "shutdown"),
    "bench": ("kestrelmq.cli.bench", "app"),
    "backup": ("kestrelmq.cli.backup", "backup"),
    "restore": ("kestrelmq.cli.backup", "restore"),
    "journal": ("kestrelmq.cli.journal", "app"),
    "pipeline": ("kestrelmq.cli.pipeline", "app"),
    "config": ("kestrelmq.cli.config", "app"),
    "user": ("kestrelmq.cli.user", "app"),
}


_INTERRUPTED: Final = 130
"""The exit status after SIGINT, as that of typer."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command in `arguments`, by default those of the process, and exit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    tell_output_errors_apart()
    try:
        try:
            _run(words)
        finally:
            sys.stdout.flush()  # at the end of the process, an error would be no one's
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)  # before a command has begun, which would handle it
    except OutputError as error:
        drop_output()
        if not error.is_closed:  # then its reader has enough
            _complain(str(error))
        sys.exit(1)
    except KestrelError as error:
        _complain(str(error))
        sys.exit(2 if isinstance(error, InvalidRequest) else 1)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # then nobody reads standard error
            _complain(os_error_reason(error))
        sys.exit(1)
    sys.exit(0)


def _run(words: list[str]) -> None:
    if words == ["--version"]:
        print(f"kestrelmq {VERSION} ({BUILD})")
        return
    # With any other first word all commands are needed: to list them, or to suggest the right one.
    asked = words[:1] if words and words[0] in COMMANDS else list(COMMANDS)
    _application(asked)(args=words, prog_name="kestrelmq")


def _complain(text: str) -> None:
    for line in text.splitlines():
        print(f"kestrelmq: error: {printable(line)}", file=sys.stderr)


def _application(names: Sequence[str]) -> "typer.Typer":
    import typer  # noqa: PLC0415 # `--version` answers without it

    application = typer.Typer(
        help="A durable, ordered message queue that speaks the memcache protocol.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )

    @application.callback()
    def everywhere(
        *, version: bool = typer.Option(False, "--version", help="Print the version and exit.")
    ) -> None:
        if version:
            print(f"kestrelmq {VERSION} ({BUILD})")
            raise typer.Exit

    for name in names:
        module, attribute = COMMANDS[name]
        command = getattr(importlib.import_module(module), attribute)
        if isinstance(command, typer.Typer):
            application.add_typer(command, name=name)
            _spread_flags(command)
            _fill_lines(command)
        else:
            application.command(name)(command)
    _spread_flags(application)
    _fill_lines(application)
    return application


def _spread_flags(application: "typer.Typer") -> None:
    """Give the commands the flags of their groups."""
    from kestrelmq.cli.flag_groups import spread  # noqa: PLC0415 # `--version` goes without

    for one in (*application.registered_commands, application.registered_callback):
        if one is not None and one.callback is not None:
            one.callback = spread(one.callback)


def _fill_lines(application: "typer.Typer") -> None:
    """Let the help of each command fill the lines of the terminal, whatever those of its docstring.

    A paragraph that begins with a backspace, as examples do, keeps its lines.
    """
    for command in application.registered_commands:
        text = inspect.cleandoc(getattr(command.callback, "__doc__", None) or "")
        command.help = "\n\n".join(
            paragraph.removeprefix("\b\n")
            if paragraph.startswith("\b")
            else paragraph.replace("\n", " ")
            for paragraph in text.split("\n\n")
        )
