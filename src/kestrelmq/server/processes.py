"""Several servers of one queue path: what each of them has of its own.

    QUEUE_PATH/~~lock       held by the one that supervises them
    QUEUE_PATH/process-0/   journals, lock and status of the first server
    QUEUE_PATH/process-1/   of the second

The servers never talk to each other: each serves the queues in its sub-path, on ports of its own. A
queue path holds either journals or sub-paths, and is served only as it is, so that no queue seems
lost; `check_layout` sees to that before anything is opened, and changes nothing.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from kestrelmq.config import LISTENERS, ServerConfig
from kestrelmq.errors import ConfigError, KestrelError
from kestrelmq.journal.files import file_names
from kestrelmq.journal.names import plan

PORT_STEP: Final = 10
"""Between the ports of one server and the next; the default ports are nearer to each other."""
_MOST_PORT: Final = 65_535
_SUB_PATH: Final = re.compile(r"process-(0|[1-9][0-9]{0,5})")
_NAMED: Final = 3
_LISTENING: Final = re.compile(r"(?P<listener>\w+) listening on \S+:(?P<port>[0-9]+)")


@dataclass(frozen=True, slots=True)
class Process:
    """One of the servers.

    Attributes:
        index: its number, from 0.
        queue_path: where its journals are.
        ports: by listener ("memcache"); 0 is a free one, None turns the listener off.
    """

    index: int
    queue_path: Path
    ports: tuple[tuple[str, int | None], ...]

    @property
    def name(self) -> str:
        """What the log calls it; also the name of its sub-path."""
        return self.queue_path.name

    def told(self, line: str) -> Self:
        """Return it with the port that a line `memcache listening on HOST:PORT` tells.

        So a server that is started again has the ports that its clients know.
        """
        match = _LISTENING.fullmatch(line)
        if match is None:
            return self
        bound = int(match["port"])
        ports = tuple((n, bound if n == match["listener"] else port) for n, port in self.ports)
        return replace(self, ports=ports)


def sub_path(queue_path: Path, index: int) -> Path:
    """Return where server number `index` keeps its journals."""
    return queue_path / f"process-{index}"


def processes_of(config: ServerConfig, count: int) -> list[Process]:
    """Return the `count` servers that `config` asks for.

    Raises:
        ConfigError: they would share a port or a status file, or a port is too large.
    """
    if config.status_file is not None:
        raise ConfigError(
            "status_file: several processes cannot share one; without the setting each keeps "
            "its own in its queue path"
        )
    users: dict[int, str] = {}
    found = []
    for index in range(count):
        ports: list[tuple[str, int | None]] = []
        for setting in LISTENERS:
            listener = setting.split("_")[0]
            port: int | None = getattr(config, setting)
            if port:
                port += index * PORT_STEP
                user = f"the {listener} port of process {index}"
                if port > _MOST_PORT:
                    raise ConfigError(f"{user} would be {port}; the largest is {_MOST_PORT}")
                if port in users:
                    raise ConfigError(f"{user} would be {port}, which is {users[port]}")
                users[port] = user
            ports.append((listener, port))
        found.append(Process(index, sub_path(config.queue_path, index), tuple(ports)))
    return found


def check_layout(queue_path: Path, count: int | None) -> None:
    """Make sure that `count` servers, or one without sub-paths (None), find every queue there is.

    Raises:
        KestrelError: journals would be left out, or the queue path cannot be read.
    """
    try:
        top, subs = _layout(queue_path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise KestrelError(f"{queue_path}: {error.strerror or error}") from error
    if count is None:
        if subs:
            raise KestrelError(
                f"{queue_path} holds the queues of several processes ({_some(subs.values())}): "
                f"start with --processes {max(subs) + 1}, or serve one of them with "
                f"--queue-path {sub_path(queue_path, min(subs))}"
            )
        return
    if top:
        raise KestrelError(
            f"{queue_path} holds queues of a server without --processes ({_some(top)}): "
            f"move its files into {sub_path(queue_path, 0)}, or start without --processes"
        )
    if subs and max(subs) >= count:
        left_out = [name for index, name in subs.items() if index >= count]
        raise KestrelError(
            f"{queue_path} holds queues that {count} processes would leave out "
            f"({_some(left_out)}): start with --processes {max(subs) + 1}, or drain these first "
            f"and then remove their directories"
        )


def _layout(queue_path: Path) -> tuple[list[str], dict[int, str]]:
    """Return the queues at the top, and the sub-paths with journals by number. Raises OSError."""
    files = []
    subs = {}
    for entry in queue_path.iterdir():
        match = _SUB_PATH.fullmatch(entry.name)
        if entry.is_file() and not entry.is_symlink():
            files.append(entry.name)
        elif match is not None and entry.is_dir() and _queues(entry):
            subs[int(match[1])] = entry.name
    return list(plan(files).queues), dict(sorted(subs.items()))


def _queues(path: Path) -> list[str]:
    return list(plan(file_names(path)).queues)


def _some(names: Iterable[str]) -> str:
    first, *others = names
    shown = [first, *others[: _NAMED - 1]]
    return ", ".join(shown if len(others) < _NAMED else [*shown, "..."])
