"""A setting is declared once, and then known everywhere."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import kestrelmq
from kestrelmq.cli.main import main
from kestrelmq.config import (
    RELOADED,
    AliasConfig,
    QueueConfig,
    ServerConfig,
    UserConfig,
    ZooKeeperConfig,
    config_from_toml,
    config_toml,
    effective_settings,
    queue_settings,
    secret_settings,
)
from kestrelmq.config.model import LISTEN_ADDRESSES, value_kinds
from kestrelmq.config.rendering import value_in_toml

ROOT = Path(__file__).parents[3]
MODELS = (ServerConfig, QueueConfig, ZooKeeperConfig, AliasConfig, UserConfig)
SETTINGS = [(model, name) for model in MODELS for name in value_kinds(model)]
OTHERS = {
    "hosts": ["a:2181"],
    "path_prefix": "/k",
    "session_timeout": "1s",
    "acl": "everyone-read-creator-all",
    "client_initializer": "a:b",
    "server_set_initializer": "a:b",
    "destination_queues": ["q"],
    "admin_tokens": ["0123456789abcdef"],
    "credentials": "user:password",
    "log_file": "/var/log/k",
    "journal_dialect": "kestrel-2",
    "default_status": "readonly",
    "log_level": "debug",
    "listen_path_mode": "0660",
    "log_format": "json",
    "memcache_dialect": "memcached",
}
"""Values that are no default, for the settings that take only some texts."""
PROPERTIES = {"status_file": "status_path"} | dict.fromkeys(LISTEN_ADDRESSES.values(), "addresses")
"""What the settings are looked at by that have a property."""


def other_value(model: type[BaseModel], name: str) -> Any:
    """Return a value that is not the default, as it is written."""
    if name in OTHERS:
        return OTHERS[name]
    annotation = str(model.model_fields[name].annotation)
    if "bool" in annotation:
        return not model.model_fields[name].default
    if "str" in annotation or "Path" in annotation:
        return ["other"] if "tuple" in annotation else "other"
    return 7


@pytest.mark.parametrize(("model", "name"), SETTINGS)
def test_a_setting_is_documented(model: type[BaseModel], name: str) -> None:
    """It has a help text, which is in the JSON Schema and in the reference."""
    help_text = model.model_fields[name].description
    assert help_text
    schema = ServerConfig.model_json_schema()
    properties = schema if model is ServerConfig else schema["$defs"][model.__name__]
    assert properties["properties"][name]["description"] == help_text
    reference = (ROOT / "docs" / "settings.md").read_text()
    assert re.search(
        rf"^\| `{name}` \|.*\| {re.escape(' '.join(help_text.split()))} \|$",
        reference,
        re.MULTILINE,
    )


@pytest.mark.parametrize(("model", "name"), SETTINGS)
def test_a_setting_is_obeyed_somewhere(model: type[BaseModel], name: str) -> None:
    """A module outside of the configuration looks at it; at some by a property."""
    package = Path(kestrelmq.__file__).parent
    attribute = PROPERTIES.get(name, name)
    used = re.compile(rf"\.{attribute}\b")
    files = [file for file in package.rglob("*.py") if file.parent.name != "config"]
    assert any(used.search(file.read_text()) for file in files), f"{model.__name__}.{name}"


@pytest.mark.parametrize("name", value_kinds(QueueConfig))
def test_a_queue_setting_is_known_everywhere(name: str) -> None:
    """It loads, is inherited by a fanout child, is written so that it loads again, and dumped."""
    needed = {"dead_letter_queue": "dead"} if name == "max_deliveries" else {}
    given = needed | {name: other_value(QueueConfig, name)}
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in given.items()]
    config = config_from_toml(f"[queues.q]\n{''.join(lines)}", "test")
    set_value = getattr(config.queues["q"], name)
    assert set_value != getattr(QueueConfig(), name)
    child = getattr(effective_settings(config, "q+child"), name)
    assert child == (False if name == "fanout_only" else set_value)
    assert getattr(config_from_toml(config_toml(config), "test").queues["q"], name) == set_value
    shown = dict(queue_settings(config.queues["q"]))
    assert shown[name] == value_in_toml(value_kinds(QueueConfig)[name], set_value).strip('"')
    assert list(shown) == list(QueueConfig.model_fields)


@pytest.mark.parametrize(
    ("model", "name"), [one for one in SETTINGS if one[0] in {ServerConfig, ZooKeeperConfig}]
)
def test_a_server_setting_is_written_or_secret(model: type[BaseModel], name: str) -> None:
    """What is written loads to the same settings; of a secret it is only said that it is set."""
    needed = (
        {"hosts": ["a"], "path_prefix": "/k", "credentials": "a:b"}
        if model is ZooKeeperConfig
        else {}
    )
    given = needed | {name: other_value(model, name)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in given.items()]
    table = "[zookeeper]\n" if model is ZooKeeperConfig else ""
    config = config_from_toml(table + "\n".join(lines), "test")
    text = config_toml(config)
    found = tomllib.loads(text).get("zookeeper", {}) if table else tomllib.loads(text)
    if value_kinds(model)[name].secret:
        assert name not in found
        assert re.search(rf"^# {name} (is|are) set, and not shown$", text, re.MULTILINE)
        assert not any(part in text for part in ("0123456789abcdef", "password"))
    else:
        assert found[name] == json.loads(
            value_in_toml(
                value_kinds(model)[name], getattr(config.zookeeper if table else config, name)
            )
        )


def test_flags_have_the_help_of_their_settings(capsys: pytest.CaptureFixture[str]) -> None:
    """With the default, unless that depends on the user."""
    with pytest.raises(SystemExit):
        main(("serve", "--help"))
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "Port of the memcache protocol (22133)." in shown
    assert "Least severity that is logged (info)." in shown
    assert "`~/.local/state/kestrelmq`." in shown


def test_secrets_are_left_out_of_what_the_admin_service_shows() -> None:
    """Wherever in the configuration they are."""
    assert secret_settings(ServerConfig) == {
        "admin_tokens": True,
        "zookeeper": {"credentials": True},
        "users": {"__all__": {"password_hash": True}},
    }


def test_what_a_reload_changes_are_tables() -> None:
    """A setting of the server itself takes a restart."""
    assert set(ServerConfig.model_fields) - set(value_kinds(ServerConfig)) == RELOADED | {
        "zookeeper"
    }


def test_the_reference_is_up_to_date() -> None:
    """It is made from the declarations."""
    command = [sys.executable, str(ROOT / "scripts" / "make-reference"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
