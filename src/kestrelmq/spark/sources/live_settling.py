"""Settle what a streaming query of `kestrel` holds that will not go on, from its checkpoint.

What its last committed batch holds is finished: Spark has it. Whatever else the query holds goes
back to its queues. This module does not need Spark.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kestrelmq.client import Client, ClientOptions
from kestrelmq.errors import ConfigError, ServerRefused
from kestrelmq.spark.sources.live_offsets import HeldOffset, parse_offset
from kestrelmq.spark.sources.refusals import is_retired
from kestrelmq.spark.storage.locations import GivenPath, Location


@dataclass(frozen=True, slots=True)
class SettledServer:
    """What was settled at a server: the reads that were finished, and those that went back."""

    server: str
    finished: int
    released: int


def settle(checkpoint: GivenPath, options: ClientOptions | None = None) -> Iterator[SettledServer]:
    """Settle what the query of a checkpoint holds, server by server; it must not run.

    It may be repeated, as after an error. `options` are those of the clients of the servers.

    Raises:
        ConfigError: there is no such checkpoint, or it is not of a query that reads `kestrel`.
        ClientError: a server cannot be told.
    """
    place = checkpoint if isinstance(checkpoint, Location) else Path(checkpoint)
    offsets = {
        number: _offsets(place / "offsets" / name)
        for number, name in _logged(place / "offsets")[-2:]
    }
    if not any(offsets.values()):
        raise ConfigError(f"{checkpoint} is not a checkpoint of a query that reads kestrel")
    committed = [number for number, _ in _logged(place / "commits")]
    last = [one for one in offsets.get(committed[-1], []) if one.name] if committed else []
    known = [one for found in offsets.values() for one in found if one.name]
    names = {one.name for one in known} | {held.name for one in known for held in one.held.values()}
    for server in sorted({server for one in known for server in (*one.servers, *one.held)}):
        with Client(server, options=options) as client:
            finished = 0
            for held in (one.held[server] for one in last if server in one.held):
                for queue, tag, _ in held.tags():
                    finished += _finish(client, queue, tag)
            released = sum(client.release_owner(name, counted=False) for name in sorted(names))
        yield SettledServer(server, finished, released)


def _finish(client: Client, queue: str, tag: str) -> int:
    try:
        return client.finish(queue, tag=tag)
    except ServerRefused as error:
        if not is_retired(error):  # the query has finished it, and gone on
            raise
        return 0


def _logged(directory: Path | Location) -> list[tuple[int, str]]:
    """Return the numbers of the batches that a log of Spark's has, in order, and their files."""
    there = directory.iterdir() if directory.exists() else ()
    return sorted((int(one.name), one.name) for one in there if one.name.isdecimal())


def _offsets(file: Path | Location) -> list[HeldOffset]:
    """Return the offsets of ours in a file of Spark's log: a line for each source."""
    found = []
    for line in file.read_bytes().decode().splitlines():
        with suppress(KeyError, TypeError, ValueError):
            found.append(parse_offset(json.loads(line)))
    return found
