"""Configuration files of the original Kestrel, such as `production.scala`, as settings of this one.

Such a file is a Scala expression. What is read of the language is what configurations are made of:
`name = VALUE` in the body of `new KestrelConfig { ... }`, with constants, quantities such as
`8.megabytes`, `None`, `Some(...)`, lists, and builders such as `new QueueBuilder { ... }`. Whatever
else there is, or has no counterpart here, is reported with its line and the reason.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pydantic import BaseModel

from kestrelmq.config.loading import config_from_toml, validated_config
from kestrelmq.config.model import (
    AliasConfig,
    QueueConfig,
    ServerConfig,
    ZooKeeperConfig,
    value_kinds,
)
from kestrelmq.config.toml import toml_key, toml_value
from kestrelmq.errors import ConfigError
from kestrelmq.names import queue_name_error

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<text>\"\"\".*?\"\"\"|"(?:[^"\\\n]|\\.)*")
    |(?P<number>-?\d+(?:\.\d+)?)(?:[LlFfDd]\b)?
    |(?P<name>[A-Za-z_]\w*)
    |(?P<sign>::|.)""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_CLOSING: Final = {"(": ")", "{": "}", "[": "]"}
_LISTS: Final = ("List", "Seq", "Set", "Array")
_NO_LIMITS: Final = ("Int.MaxValue", "Long.MaxValue", "Duration.MaxValue", "Duration.Top")

_NO_CODE: Final = "only constants, quantities, lists and builders are carried over"
_UNKNOWN: Final = "there is no such setting"
_REASONS: Final = {
    "admin": "/metrics, /stats.json and the console need no configuration",
    "loggers": (
        "only the level and the file of the first logger are carried over; let logrotate rotate it"
    ),
    "clientInitializer": "name a Python function, `module:function`, as client_initializer",
    "serverSetInitializer": "name a Python function, `module:function`, as server_set_initializer",
}
_NEEDS_USERS: Final = (
    "carried over; but off loopback the server starts only with users, or with "
    "allow_unauthenticated = true"
)
_LEVELS: Final = {
    "OFF": "critical", "FATAL": "critical", "CRITICAL": "critical", "ERROR": "error",
    "WARNING": "warning", "WARN": "warning", "INFO": "info", "DEBUG": "debug", "TRACE": "debug",
    "ALL": "debug",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Remark:
    """What was not carried over, or needs a look.

    Attributes:
        line: where it is in the file, from 1.
        name: the setting, as the file has it.
        reason: why.
    """

    line: int
    name: str
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of a file.

    Attributes:
        toml: a configuration file with what could be carried over; it loads.
        remarks: what could not, in the order of lines.
    """

    toml: str
    remarks: Sequence[Remark]


def import_kestrel(text: str, source: str) -> Imported:
    """Convert the text of a configuration file of Kestrel; errors call it `source`.

    Raises:
        ConfigError: it is no such file: a bracket is not closed, or there is no
            `new KestrelConfig { ... }`.
    """
    try:
        body = _Reader(text, source).configuration()
    except RecursionError:
        raise ConfigError(f"{source}: it is nested too deeply") from None
    # The queue path comes first: it decides which other paths may be used.
    body = sorted(body, key=lambda one: one.name != "queuePath")
    found = _Settings()
    for setting in body:
        found.take(setting)
    try:
        config_from_toml(found.toml(), source)
    except ConfigError:
        found = _without_conflicts(body, source)
    return Imported(found.toml(), sorted(found.remarks, key=lambda one: one.line))


def _without_conflicts(body: "Sequence[_Setting]", source: str) -> "_Settings":
    """Take one setting after the other, but none that cannot stand beside those before it."""
    found = _Settings()
    for setting in body:
        before = deepcopy(found)
        found.take(setting)
        try:
            config_from_toml(found.toml(), source)
        except ConfigError as error:
            found = before
            found.remark(setting, _plain(error))
    return found


# --- the language ---


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class _Name:
    """A name in the place of a value, such as `Level.INFO`."""

    text: str


@dataclass(frozen=True, slots=True)
class _Code:
    """What is not read."""


@dataclass(frozen=True, slots=True)
class _Setting:
    """`name = value`, or with `_Code` as its value anything else."""

    line: int
    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class _Block:
    """`new NAME { ... }`."""

    line: int
    name: str
    settings: Sequence[_Setting] = ()

    def text(self, name: str) -> str:
        """Return the text of one of its settings, or none."""
        values = [one.value for one in self.settings if one.name == name]
        return values[-1] if values and isinstance(values[-1], str) else ""


class _NotRead(Exception):  # noqa: N818 # it is not an error of the file
    """The value is something else than a configuration needs."""


class _Reader:
    """Reads tokens one after the other."""

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._tokens: list[_Token] = []
        line = 1
        for match in _TOKEN.finditer(text):
            kind, token = str(match.lastgroup), match[str(match.lastgroup)]
            if kind != "space":
                self._tokens.append(_Token(kind, token, line))
            line += match[0].count("\n")
        self._tokens.append(_Token("end", "", line))
        self._at = 0

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self, text: str = "") -> _Token:
        token = self._next
        if text and token.text != text:
            raise _NotRead
        self._at += token.kind != "end"
        return token

    def _takes(self, *texts: str) -> bool:
        """Skip the next token if it is one of `texts`; return whether it was."""
        is_there = self._next.kind != "text" and self._next.text in texts
        self._at += is_there
        return is_there

    def _error(self, what: str, line: int) -> ConfigError:
        return ConfigError(f"{self._source}: line {line}: {what}")

    def configuration(self) -> Sequence[_Setting]:
        """Return the settings of the outermost `new ... {}`; what stands before are imports."""
        while self._next.kind != "end":
            if self._takes("new"):
                block = self._block()
                if block.name.endswith("Config"):
                    return block.settings
            else:
                self._take()
        raise self._error("there is no `new KestrelConfig { ... }`", self._next.line)

    def _block(self) -> _Block:
        line, name = self._next.line, self._dotted()
        if self._next.text == "(":
            self._skip_brackets()
        settings: list[_Setting] = []
        if self._takes("{"):
            while not self._takes("}"):
                if self._next.kind == "end":
                    raise self._error("a bracket is not closed", line)
                settings.append(self._setting())
                self._takes(";")
        return _Block(line, name, settings)

    def _setting(self) -> _Setting:
        start, line = self._at, self._next.line
        try:
            name = self._dotted()
            self._take("=")
            value = self._value()
            last = self._tokens[self._at - 1]
            is_whole = self._next.line > last.line or self._next.text in {";", "}", ""}
            if is_whole and self._next.text not in {"+", "-", "*", "/", "."}:
                return _Setting(line, name, value)
        except _NotRead:
            pass
        self._at = start
        name = self._skip_code()
        return _Setting(line, name, _Code())

    def _skip_code(self) -> str:
        """Skip anything but a setting, to the end of its last line; return its name."""
        name = self._next.text
        while self._next.kind == "name" and self._tokens[self._at + 1].text == ".":
            self._at += 2
            name += f".{self._next.text}"
        line = self._next.line
        while self._next.line == line and self._next.kind != "end" and self._next.text != "}":
            if self._next.text in _CLOSING:
                line = self._skip_brackets()
            else:
                self._take()
        return name

    def _skip_brackets(self) -> int:
        """Skip from a bracket to the one that closes it; return the line of that."""
        first = self._take()
        open_brackets, line = [_CLOSING[first.text]], first.line
        while open_brackets:
            token = self._take()
            if token.kind == "end":
                raise self._error("a bracket is not closed", first.line)
            if token.kind == "sign" and token.text in _CLOSING:
                open_brackets.append(_CLOSING[token.text])
            elif token.kind == "sign" and token.text == open_brackets[-1]:
                open_brackets.pop()
            line = token.line
        return line

    def _dotted(self) -> str:
        if self._next.kind != "name":
            raise _NotRead
        name = self._take().text
        while self._next.text == "." and self._tokens[self._at + 1].kind == "name":
            self._take()
            name += f".{self._take().text}"
        return name

    def _value(self) -> Any:
        """Return a value; elements joined by `::` are a list."""
        values = [self._one_value()]
        while self._takes("::"):
            values.append(self._one_value())
        if len(values) == 1:
            return values[0]
        return [one for one in values if one != []]  # the last one is often `Nil`

    def _one_value(self) -> Any:
        token = self._next
        if token.kind == "text":
            return _unquoted(self._take().text)
        if token.kind == "number":
            return self._quantity()
        if self._takes("new"):
            return self._block()
        name = self._dotted()
        if name in {"true", "false"}:
            return name == "true"
        if name == "None" or name in _NO_LIMITS:
            return None
        if name == "Nil":
            return []
        if self._next.text != "(":
            return _Name(name)
        if name != "Some" and name not in _LISTS:
            raise _NotRead
        values = self._arguments()
        if name != "Some":
            return values
        if len(values) != 1:
            raise _NotRead
        return values[0]

    def _quantity(self) -> Any:
        text = self._take().text
        number = float(text) if "." in text else int(text)
        if self._next.text == "." and self._tokens[self._at + 1].kind == "name":
            self._take()
            return f"{text} {self._take().text}"
        return number

    def _arguments(self) -> list[Any]:
        self._take("(")
        values = []
        while not self._takes(")"):
            values.append(self._value())
            if not self._takes(",") and self._next.text != ")":
                raise _NotRead
        return values


def _unquoted(text: str) -> str:
    if text.startswith('"""'):
        return text[3:-3]
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text[1:-1])


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


# --- the settings ---


@dataclass
class _Settings:
    """The tables of the new file, and what does not go into them."""

    server: dict[str, Any] = field(default_factory=dict)
    tables: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)

    def toml(self) -> str:
        """Return the configuration file."""
        lines = [f"{name} = {toml_value(value)}" for name, value in self.server.items()]
        for path, settings in self.tables.items():
            lines += ["", f"[{toml_key(path)}]"]
            lines += [f"{name} = {toml_value(value)}" for name, value in settings.items()]
        return "\n".join(lines).lstrip("\n") + "\n"

    def take(self, setting: _Setting) -> None:
        """Put a setting of the server where it belongs."""
        first, _, rest = setting.name.partition(".")
        if setting.name == "admin.httpPort":
            self._put(self.server, ServerConfig, setting, "admin_http_port")
        elif setting.name == "admin.enabled" and setting.value is False:
            self._put(self.server, ServerConfig, setting, "admin_http_port", "none")
        elif first == "default" and rest:
            table = self.tables.setdefault(("default",), {})
            self._put(table, QueueConfig, setting, _snake(rest))
        elif first == "default" and isinstance(setting.value, _Block):
            self._take_queue(("default",), setting.value, QueueConfig)
        elif first in {"queues", "aliases"}:
            self._take_named(first, setting)
        elif first == "zookeeper" and isinstance(setting.value, _Block):
            self._take_zookeeper(setting)
        elif first == "loggers":
            self._take_loggers(setting)
        elif first == "listenAddress":
            self._put(self.server, ServerConfig, setting, "listen_address")
            if self.server.get("listen_address") not in {None, "127.0.0.1", "::1", "localhost"}:
                self.remark(setting, _NEEDS_USERS)
        elif first == "defaultStatus" and isinstance(setting.value, _Name):
            status = setting.value.text.rpartition(".")[2].lower()
            self._put(self.server, ServerConfig, setting, "default_status", status)
        else:
            self._put(self.server, ServerConfig, setting, _snake(setting.name))

    def _put(
        self,
        table: dict[str, Any],
        model: type[BaseModel],
        setting: _Setting,
        name: str,
        value: Any = ...,
    ) -> None:
        """Put a setting into the table of a `model` under `name`, unless it has a problem."""
        found = setting.value if value is ... else value
        reason = _NO_CODE
        if not isinstance(found, (_Code, _Block, _Name)):
            if found is None:
                kind = value_kinds(model).get(name)
                found = "none" if kind is None else kind.none
            found = tuple(found) if isinstance(found, list) else found
            reason = _problem(model, name, found)
        if reason:
            self.remark(setting, reason)
        else:
            table[name] = found

    def remark(self, setting: _Setting, reason: str = "") -> None:
        """Say that a setting was not carried over, or what else there is to say about it."""
        known = _REASONS.get(setting.name.partition(".")[0])
        self.remarks.append(Remark(setting.line, setting.name, known or reason))

    def _take_named(self, table: str, setting: _Setting) -> None:
        """Take a list of builders, each of which has a name."""
        values = setting.value if isinstance(setting.value, list) else [setting.value]
        for block in values:
            name = block.text("name") if isinstance(block, _Block) else ""
            problem = queue_name_error(name) if name else "it has no name"
            if not isinstance(block, _Block):
                self.remark(setting, _NO_CODE)
            elif problem is not None:
                self.remarks.append(Remark(block.line, f"{setting.name} {name}".strip(), problem))
            else:
                model = QueueConfig if table == "queues" else AliasConfig
                self._take_queue((table, name), block, model)

    def _take_queue(
        self, path: tuple[str, ...], block: _Block, model: type[QueueConfig | AliasConfig]
    ) -> None:
        table: dict[str, Any] = {}
        for one in block.settings:
            if one.name != "name":
                self._put(table, model, one, _snake(one.name))
        if table or model is QueueConfig:
            self.tables[path] = table

    def _take_zookeeper(self, setting: _Setting) -> None:
        table: dict[str, Any] = {}
        values = {one.name: one.value for one in setting.value.settings}
        host, port = values.get("host"), values.get("port", 2181)
        if isinstance(host, str) and isinstance(port, int):
            table["hosts"] = (f"{host}:{port}",)
        user, password = values.get("username"), values.get("password", "")
        if isinstance(user, str) and isinstance(password, str):
            table["credentials"] = f"{user}:{password}"
        for one in setting.value.settings:
            if one.name not in {"host", "port", "username", "password"}:
                self._put(table, ZooKeeperConfig, one, _snake(one.name))
            elif not isinstance(one.value, (str, int)):
                self.remark(one, _NO_CODE)
        try:
            ZooKeeperConfig(**table)
        except ConfigError as error:
            self.remark(setting, _plain(error))
        else:
            self.tables["zookeeper",] = table

    def _take_loggers(self, setting: _Setting) -> None:
        """Take the level and the file of the first logger; the rest is another program's."""
        values = setting.value if isinstance(setting.value, list) else [setting.value]
        blocks = [one for one in values if isinstance(one, _Block)]
        for block in blocks[:1]:
            for one in block.settings:
                if one.name == "level" and isinstance(one.value, _Name):
                    level = _LEVELS.get(one.value.text.rpartition(".")[2], "")
                    self._put(self.server, ServerConfig, one, "log_level", level)
                handlers = one.value if isinstance(one.value, list) else [one.value]
                for handler in handlers:
                    if isinstance(handler, _Block) and (file := handler.text("filename")):
                        self._put(self.server, ServerConfig, one, "log_file", file)
        self.remark(setting)


_CHECKS: Final[Mapping[type[BaseModel], Callable[..., object]]] = {
    ServerConfig: lambda **given: validated_config(given, "file"),
    QueueConfig: QueueConfig,
    AliasConfig: AliasConfig,
    ZooKeeperConfig: partial(ZooKeeperConfig, hosts=("host",), path_prefix="/kestrel"),
}
"""What checks a single setting of each model. Raises ConfigError."""


def _problem(model: type[BaseModel], name: str, value: Any) -> str:
    """Return why a setting cannot have a value, or an empty text."""
    if name not in model.model_fields:
        return _UNKNOWN
    try:
        _CHECKS[model](**{name: value})
    except ConfigError as error:
        return _plain(error)
    return ""


def _plain(error: ConfigError) -> str:
    return str(error).partition(": ")[2] or str(error)
