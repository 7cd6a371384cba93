"""The commands `kestrelmq config` and what every command shares."""

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.markup import render

from kestrelmq.cli.main import COMMANDS, _application, main
from kestrelmq.config import ServerConfig, config_from_toml, effective_settings
from kestrelmq.version import BUILD, VERSION

FULL = """
listen_address = "0.0.0.0"
allow_unauthenticated = true
thrift_listen_port = "none"
queue_path = "/var/spool/kestrel"
log_file = "/var/log/kestrel"
client_timeout = 0.1

[zookeeper]
hosts = ["a:2181"]
path_prefix = "/kestrel"

[default]
max_items = 10
max_size = 1000001

[queues.q]
max_items = "unlimited"
sync_journal = "0ms"
allowed_client_ids_for_enqueue = ["a\\"b", "c\\u007f"]

[queues."q+child"]
max_age = "36 hours"

[aliases."all"]
destination_queues = ["q", "other"]
"""


def run(*arguments: str) -> int:
    """Run the command in this process and return its exit status."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a configuration file that uses every kind of setting."""
    path = tmp_path / "k.toml"
    path.write_text(FULL)
    return path


def test_check_accepts_a_good_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A good file gives status 0 and a line that says so."""
    assert run("config", "check", str(file)) == 0
    assert capsys.readouterr().out == f"{file}: ok, 2 queues and 1 aliases configured\n"


def test_check_warns_of_a_masked_queue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is allowed but odd is a warning, and the status stays 0."""
    path = tmp_path / "k.toml"
    path.write_text("[queues.q]\n[aliases.q]\ndestination_queues = ['r']\n")
    assert run("config", "check", str(path)) == 0
    assert capsys.readouterr().err == f"{path}: warning: aliases.q masks the queue of that name\n"


def test_check_prints_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a file that is good, and of one that is not."""
    assert run("config", "check", "--json", str(file)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"ok": True, "queues": 2, "aliases": 1, "warnings": []}
    file.write_text("max_items = 1\n[tls]\n")
    assert run("config", "check", "--json", str(file)) == 1
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert not found["ok"]
    assert found["problems"] == [
        line.removeprefix("kestrelmq: error: ") for line in err.splitlines()
    ]
    assert len(found["problems"]) > 1


def test_check_reports_every_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong file gives status 1 and one line for each problem, no traceback."""
    path = tmp_path / "k.toml"
    path.write_text("log_level = 'loud'\n[default]\nmax_itms = 1\n")
    assert run("config", "check", str(path)) == 1
    assert capsys.readouterr().err.splitlines() == [
        (
            f'kestrelmq: error: {path}: log_level: found "loud"; '
            "allowed: debug, info, warning, error, critical"
        ),
        f"kestrelmq: error: {path}: default.max_itms: unknown setting; did you mean max_items?",
    ]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("listen_address = '0.0.0.0'", "listen_address 0.0.0.0 can be reached"),
        ("[tls]\ncertificate = '/none.pem'", "tls.certificate: /none.pem: No such file"),
    ],
)
def test_check_refuses_what_no_server_starts_with(
    settings: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each setting is right by itself."""
    path = tmp_path / "k.toml"
    path.write_text(settings)
    assert run("config", "check", str(path)) == 1
    assert problem in capsys.readouterr().err


def test_show_prints_what_loads_again(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The settings shown, loaded as a file, are in force unchanged for every queue."""
    assert run("config", "show", "--config", str(file)) == 0
    original, again = (config_from_toml(text, "test") for text in (FULL, capsys.readouterr().out))
    globals_of = [
        {name: getattr(config, name) for name in ServerConfig.model_fields} | {"queues": None}
        for config in (original, again)
    ]
    assert globals_of[1] == globals_of[0] | {"status_file": original.status_path}
    for queue in ("q", "q+child", "q+other", "unheard-of"):
        assert effective_settings(again, queue) == effective_settings(original, queue)


def test_show_without_a_file_prints_every_default(capsys: pytest.CaptureFixture[str]) -> None:
    """The output is a complete configuration file to start from."""
    assert run("config", "show") == 0
    shown = tomllib.loads(capsys.readouterr().out)
    tables = {"zookeeper", "tls", "queues", "aliases", "users"}
    assert shown.keys() == ServerConfig.model_fields.keys() - tables
    assert shown["default"].keys() == ServerConfig().default.model_dump().keys()


def test_show_of_queues_prints_only_those(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A queue that has no table of its own is shown with what it inherits."""
    assert run("config", "show", "--config", str(file), "q+child", "new") == 0
    shown = tomllib.loads(capsys.readouterr().out)
    assert shown.keys() == {"queues"}
    assert shown["queues"].keys() == {"q+child", "new"}
    assert shown["queues"]["q+child"]["max_age"] == "36h"
    assert shown["queues"]["q+child"]["sync_journal"] == "0s"
    assert shown["queues"]["new"]["max_items"] == 10


def test_show_hides_credentials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is shown may be pasted anywhere, and still loads."""
    path = tmp_path / "k.toml"
    path.write_text("[zookeeper]\nhosts = ['a']\npath_prefix = '/k'\ncredentials = 'u:hunter2'\n")
    assert run("config", "show", "--config", str(path)) == 0
    out = capsys.readouterr().out
    assert "hunter2" not in out
    assert "# credentials" in out
    assert config_from_toml(out, "shown").zookeeper is not None


def test_show_refuses_what_is_no_queue_name(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that no queue can have is an error, not an empty answer."""
    assert run("config", "show", "a/b") == 2
    assert "must not contain '/'" in capsys.readouterr().err


def test_import_prints_what_loads_and_names_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output is the new file, whatever was left out."""
    file = tmp_path / "production.scala"
    file.write_text('new KestrelConfig {\n  queuePath = "/q"\n  colour = 3\n}\n')
    assert run("config", "import", str(file)) == 0
    printed = capsys.readouterr()
    assert config_from_toml(printed.out, "imported") == ServerConfig(queue_path=Path("/q"))
    assert printed.err == f"{file}: line 3: colour: there is no such setting\n"
    file.write_text("max_items = 3")
    assert run("config", "import", str(file)) == 1
    assert "there is no `new KestrelConfig { ... }`" in capsys.readouterr().err


def test_schema_describes_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """The schema knows each setting, and that no other is allowed."""
    assert run("config", "schema") == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["properties"].keys() == ServerConfig.model_fields.keys()
    assert schema["additionalProperties"] is False
    assert all("description" in setting for setting in schema["properties"].values())


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("confg",),
        ("config",),
        ("config", "check"),
        ("config", "show", "--nope"),
        ("--nope",),
    ],
)
def test_wrong_usage_is_status_2(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong usage is told apart from failure."""
    assert run(*arguments) == 2
    assert "Usage" in "".join(capsys.readouterr())


def test_the_version_is_printed_without_loading_a_command() -> None:
    """`--version` is quick because it imports neither typer nor a command."""
    script = (
        "import sys, kestrelmq.cli.main as m\n"
        "try: m.main(['--version'])\n"
        "finally: print(*sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ
    ).stdout.splitlines()
    assert found[0] == f"kestrelmq {VERSION} ({BUILD})"
    assert {"typer", "pydantic", "kestrelmq.cli.config"}.isdisjoint(found[1].split())


@pytest.mark.parametrize(
    "flags",
    [("--memcache-port", "abc"), ("--memcache-port", "99999"), ("--log-format", "xml")],
)
def test_a_wrong_flag_of_serve_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, str]
) -> None:
    """It is named, and no server starts; the same value in the file is a failure."""
    queues = tmp_path / "queues"
    assert run("serve", "--queue-path", str(queues), *flags) == 2
    setting = {"--memcache-port": "memcache_listen_port", "--log-format": "log_format"}[flags[0]]
    assert setting in capsys.readouterr().err
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(f"{setting} = {json.dumps(flags[1])}\n")
    assert run("serve", "--queue-path", str(queues), "--config", str(wrong)) == 1
    assert not queues.exists()


def test_an_empty_queue_path_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a variable that was not set, and does not stand for the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delattr("kestrelmq.cli.serve.Server")  # nothing may start
    assert run("serve", "--queue-path", "") == 2
    assert 'queue_path: found ""' in capsys.readouterr().err


@pytest.mark.parametrize("time", ["first", "second"])
def test_help_fills_the_lines_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], time: str
) -> None:
    """A paragraph is broken where the terminal ends; examples keep their lines, every time."""
    monkeypatch.setenv("COLUMNS", "300")
    assert run("get", "--help") == 0, time
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "kestrelmq get work" in lines
    assert "kestrelmq get work --count 0 | wc -l" in lines
    [filled] = [line for line in lines if line.startswith("Each item is read")]
    assert filled.endswith("the queue is not created.")


def test_no_help_has_markup() -> None:
    """A name in brackets would be taken for a style, and not be shown."""
    waiting: list[Any] = [typer.main.get_command(_application(list(COMMANDS)))]
    while waiting:
        one = waiting.pop()
        waiting += [*getattr(one, "params", ()), *getattr(one, "commands", {}).values()]
        text = (getattr(one, "help", None) or "").replace("\b", "")
        assert render(text).plain == text, one.name


def test_a_second_signal_does_not_spoil_a_clean_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process has stopped serving and is about to exit with 0."""
    stops = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in stops]
    monkeypatch.setattr("kestrelmq.cli.serve.Server.run", lambda _: None)
    monkeypatch.setattr("kestrelmq.cli.serve.set_up_logging", lambda _: None)
    try:
        assert run("serve", "--queue-path", str(tmp_path)) == 0
        assert [signal.getsignal(number) for number in stops] == [signal.SIG_IGN] * 3
    finally:
        for number, handler in zip(stops, before, strict=True):
            signal.signal(number, handler)


def test_an_interrupt_while_a_command_starts_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Importing what a command needs takes a while, in which users may change their minds."""

    def interrupted(_module: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kestrelmq.cli.main.importlib.import_module", interrupted)
    assert run("serve") == 130
    assert capsys.readouterr().err == ""
