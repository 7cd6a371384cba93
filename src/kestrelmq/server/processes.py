"""Several servers on one queue path: the sub-path, the ports and the Unix sockets of each.

    QUEUE_PATH/~~lock       held by the supervisor
    QUEUE_PATH/process-0/   journals, lock and status of the first server
    QUEUE_PATH/process-1/   those of the second

The servers never communicate: each serves the queues in its sub-path on its own ports. A queue path
has either journals or sub-paths. `check_layout` refuses to start a number of servers that would not
serve all of them, so that no queue seems lost; it runs before anything is opened and changes
nothing.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from kestrelmq.config import LISTEN_PATHS, LISTEN_PORTS, ServerConfig
from kestrelmq.config.values import MAX_SOCKET_PATH
from kestrelmq.disk.opening import file_names
from kestrelmq.errors import ConfigError, KestrelError
from kestrelmq.format.names import group_files

PORT_STEP: Final = 10
"""The difference between the ports of one server and the next.

The default ports of one server differ by less, so they do not collide.
"""
_MOST_PORT: Final = 65_535
_SUB_PATH: Final = re.compile(r"process-(0|[1-9][0-9]{0,5})")
_MAX_NAMES_SHOWN: Final = 3
_LISTENING: Final = re.compile(r"(?P<listener>\w+) listening on (?!unix:)\S+:(?P<port>[0-9]+)")


@dataclass(frozen=True, slots=True)
class Process:
    """One of the server processes.

    Attributes:
        index: its number, from 0.
        queue_path: the directory of its journals.
        ports: the port of each listener ("memcache"); 0 picks a free one, None turns it off.
        paths: the Unix socket of each listener that has one.
    """

    index: int
    queue_path: Path
    ports: tuple[tuple[str, int | None], ...]
    paths: tuple[tuple[str, Path], ...] = ()

    @property
    def name(self) -> str:
        """Its name in the log, which is also the name of its sub-path."""
        return self.queue_path.name

    def with_announced_port(self, line: str) -> Self:
        """Return the process with the port in a line `memcache listening on HOST:PORT`.

        So a restarted server has the ports that its clients know.
        """
        match = _LISTENING.fullmatch(line)
        if match is None:
            return self
        bound = int(match["port"])
        ports = tuple((n, bound if n == match["listener"] else port) for n, port in self.ports)
        return replace(self, ports=ports)


def sub_path(queue_path: Path, index: int) -> Path:
    """Return the directory of the journals of server number `index`."""
    return queue_path / f"process-{index}"


def processes_of(config: ServerConfig, count: int) -> list[Process]:
    """Return `count` servers with the settings of `config`.

    Raises:
        ConfigError: they would share a port or a status file, a port is too large, or the path of
            a Unix socket is too long.
    """
    if config.status_file is not None:
        raise ConfigError(
            "status_file: several processes cannot share one; without the setting each keeps "
            "its own in its queue path"
        )
    users: dict[tuple[str, int], str] = {}
    found = []
    for index in range(count):
        ports: list[tuple[str, int | None]] = []
        for listener, setting in LISTEN_PORTS.items():
            port: int | None = getattr(config, setting)
            if port:
                port += index * PORT_STEP
                user = f"the {listener} port of process {index}"
                if port > _MOST_PORT:
                    raise ConfigError(f"{user} would be {port}; the largest is {_MOST_PORT}")
                place = (config.addresses[listener], port)
                if place in users:
                    raise ConfigError(f"{user} would be {port}, which is {users[place]}")
                users[place] = user
            ports.append((listener, port))
        paths = tuple(
            (listener, _socket_path(path, index))
            for listener, setting in LISTEN_PATHS.items()
            if (path := getattr(config, setting)) is not None
        )
        found.append(Process(index, sub_path(config.queue_path, index), tuple(ports), paths))
    return found


def _socket_path(path: Path, index: int) -> Path:
    """Return the Unix socket of server number `index`: `path` for the first, then `path.1` ...

    Raises:
        ConfigError: it is too long.
    """
    own = path.with_name(f"{path.name}.{index}") if index else path
    if len(os.fsencode(own)) > MAX_SOCKET_PATH:
        raise ConfigError(
            f"the Unix socket of process {index} would be {own}; at most {MAX_SOCKET_PATH} bytes"
            " are allowed"
        )
    return own


def check_layout(queue_path: Path, count: int | None) -> None:
    """Check that `count` servers, or one server without sub-paths (None), would serve every queue.

    Raises:
        KestrelError: they would not serve some journals, or the queue path cannot be read.
    """
    try:
        files, subs = _layout(queue_path)
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
    top = list(group_files(files).queues)
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
    """Return the files directly in `queue_path`, and the sub-paths with journals, by number.

    Raises OSError.
    """
    files = []
    subs = {}
    with os.scandir(queue_path) as entries:  # there may be very many: no path object for each
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                files.append(entry.name)
            elif (match := _SUB_PATH.fullmatch(entry.name)) is None:
                continue
            elif entry.is_dir() and group_files(file_names(entry.path)).queues:
                subs[int(match[1])] = entry.name
    return files, dict(sorted(subs.items()))


def _some(names: Iterable[str]) -> str:
    first, *others = names
    shown = [first, *others[: _MAX_NAMES_SHOWN - 1]]
    return ", ".join(shown if len(others) < _MAX_NAMES_SHOWN else [*shown, "..."])
