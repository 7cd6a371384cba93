"""Loads what crashes may leave, and compares it with what a model allows."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from kestrelmq.config import ServerConfig
from kestrelmq.errors import DamagedJournal
from kestrelmq.format.names import group_files, parse_name
from kestrelmq.format.records import item, item_data, unremove
from kestrelmq.journal.delayed_items import DelayedItems
from kestrelmq.journal.life import RESTART
from kestrelmq.journal.loading import load_queue, remove_left_over
from kestrelmq.queue.adding import Put
from tests.support.crash_scenarios import as_delayed
from tests.support.fake_clock import FakeClock
from tests.support.local_queues import LocalQueues
from tests.support.recording_directory import (
    Contents,
    CrashCause,
    Operation,
    RecordingDirectory,
    StateBounds,
    crash_states,
)

Items = tuple[bytes, ...]
Queues = tuple[tuple[str, Items], ...]
"""What a server finds: the items of each queue, by name."""
Allowed = Callable[[CrashCause, Contents, Queues], bool]
"""Whether a crash may leave this, and a server find that in it."""
ONE_MORE = b"one more"
STATUS = "~~status"
REGISTRY = "~~queues"
DAMAGED: Items = (b"this queue is damaged",)
"""What a queue that does not load is said to hold."""


class WrongState(AssertionError):  # noqa: N818 # says what it is
    """A crash leaves what it must not."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    queues: Queues
    operations: tuple[Operation, ...]

    @property
    def is_damaged(self) -> bool:
        return any(items == DAMAGED for _, items in self.queues)


@dataclass
class Checker:
    """Loads states, each once.

    Attributes:
        spool: an empty directory to load them in.
        bounds: for the crashes of the loading itself.
        nested_every: of how many states that are loaded one has crashes of its loading tried.
        states: how many were loaded.
    """

    spool: Path
    bounds: StateBounds = field(default_factory=StateBounds)
    nested_every: int = 1
    states: int = 0
    _cache: dict[Contents, Queues] = field(default_factory=dict)

    def check(self, found: Mapping[Contents, Iterable[CrashCause]], allowed: Allowed) -> None:
        """Load each state. Raises WrongState."""
        for contents, crashes in found.items():
            queues = self._load(contents)
            for crash in crashes:
                if not allowed(crash, contents, queues):
                    raise WrongState(_told(contents, queues, crash))

    def _load(self, contents: Contents) -> Queues:
        known = self._cache.get(contents)
        if known is None:
            known = self._load_new(contents)
        return known

    def _load_new(self, contents: Contents) -> Queues:
        self.states += 1
        loaded = self._come_up(contents)
        self._cache[contents] = loaded.queues
        if self.states % self.nested_every == 0 and not loaded.is_damaged:
            self._serve(contents, loaded.queues)
            self._check_crashes_of_loading(contents, loaded)
        return loaded.queues

    def _come_up(self, contents: Contents) -> _Loaded:
        """Load everything twice; what is added after the first is all that the second adds."""
        _write(contents, self.spool)
        directory = RecordingDirectory(self.spool)
        first = _load(directory)
        if first.is_damaged:
            return first
        second = _load(RecordingDirectory(self.spool))
        _check_one_more(contents, first.queues, second.queues)
        return first

    def _serve(self, contents: Contents, wanted: Queues) -> None:
        """Have a whole server come up, twice."""
        found = []
        for started in two_starts(contents, _server(self.spool)):
            queues = started.collection.queues
            found.append(
                tuple(
                    (
                        name,
                        (
                            *_in_order(queue.backlog.delayed),
                            *map(item_data, queue.backlog.browse(10_000)),
                        ),
                    )
                    for name, queue in sorted(queues.items())
                )
            )
            for queue in queues.values():
                queue.accept(Put(item(started.clock.now(), 0, ONE_MORE)), alone=True)
        if found[0] != wanted:
            raise WrongState(_told(contents, found[0], wanted))
        _check_one_more(contents, *found)

    def _check_crashes_of_loading(self, contents: Contents, loaded: _Loaded) -> None:
        states = crash_states(loaded.operations, dict(contents), self.bounds, unread=is_unread)
        for left in states:
            if left == contents:
                continue
            found = self._cache.get(left)
            if found is None:
                self.states += 1
                found = self._cache[left] = self._come_up(left).queues
            if found != loaded.queues:
                raise WrongState(_told(left, found, loaded.queues))
            _check_nothing_is_lost(contents, left)


def two_starts(contents: Contents, config: ServerConfig) -> Iterator[LocalQueues]:
    """Yield the queues of a server that finds these files, and then those of the next server.

    Whatever is done to the first is closed, and so committed, before the second starts. Raises
    WrongState if a queue is damaged.
    """
    _write(contents, Path(config.queue_path))
    for _ in range(2):
        queues = LocalQueues(config)
        try:
            if queues.collection.damaged:
                raise WrongState(_told(contents, dict(queues.collection.damaged), None))
            yield queues
        finally:
            queues.close()


def _write(contents: Contents, spool: Path) -> None:
    """Let these files be all that there are in the directory `spool`."""
    spool.mkdir(exist_ok=True)
    for file in spool.iterdir():
        file.unlink()
    for name, data in contents:
        if "/" not in name:
            (spool / name).write_bytes(data)


def _load(directory: RecordingDirectory) -> _Loaded:
    """Load every queue as a server does, and add an item to each."""
    clock = FakeClock()
    spool = group_files(directory.names())
    remove_left_over(directory, spool.dead)
    found: dict[str, Items] = {}
    journals = []
    for name, queue in spool.queues.items():
        try:
            loaded = load_queue(directory, queue, None, clock)
        except DamagedJournal:
            return _Loaded(((name, DAMAGED),), ())
        state = loaded.state
        late = _in_order(state.delayed)
        given_back = sorted(state.open, reverse=True)
        for xid in given_back:
            state.end_read(RESTART, xid)
        found[name] = (*late, *map(item_data, state.memory))
        loaded.journal.open()
        records = b"".join(map(unremove, given_back)) + item(clock.now(), 0, ONE_MORE)
        journals.append((loaded.journal, records))
    operations = tuple(directory.operations)
    for journal, records in journals:
        journal.append(records)
        journal.close()
    return _Loaded(tuple(sorted(found.items())), operations)


def _in_order(delayed: DelayedItems | None) -> Items:
    """Return the delayed items, in the order in which they are due."""
    return tuple(as_delayed(item_data(one)) for one in delayed.in_order()) if delayed else ()


def _check_one_more(contents: Contents, first: Queues, second: Queues) -> None:
    if second != tuple((name, (*items, ONE_MORE)) for name, items in first):
        raise WrongState(_told(contents, first, second))


@cache
def _server(spool: Path) -> ServerConfig:
    return ServerConfig(queue_path=spool)


def _check_nothing_is_lost(before: Contents, after: Contents) -> None:
    """What is cut off the end of a file must be in another one."""
    files = [data for name, data in after if not is_unread(name)]
    dead = [name for queue in group_files(dict(before)).queues.values() for name in queue.dead]
    for name, data in before:
        if "~~" in name or name in dead or any(one.startswith(data) for one in files):
            continue
        if not any(data.startswith(one) and data[len(one) :] in files for one in files):
            raise WrongState(_told(before, data, after))


def is_unread(name: str) -> bool:
    """Whether nobody reads what is in a file of that name."""
    is_read = "~~torn" in name or "~~damaged" in name or name in {STATUS, REGISTRY}
    return "~~" in name and not is_read and parse_name(name) is None


def _told(contents: Contents, found: object, about: object) -> str:
    files = "".join(f"\n    {name}: {data!r}" for name, data in contents)
    return f"found {found}\n  for {about}\n  in{files}"
