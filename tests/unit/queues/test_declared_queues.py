"""Queues with settings that clients declared: what is in force, and for how long."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kestrelmq.config import QueueConfig, ServerConfig, config_from_toml
from kestrelmq.errors import InvalidDeclaration, InvalidQueueName, JournalError
from kestrelmq.queue.paused import Paused
from kestrelmq.queues.registry import declaration
from tests.support.examples import examples
from tests.support.fake_clock import FakeClock
from tests.support.local_queues import LocalQueues

pytestmark = pytest.mark.compiled


def saved(spool: LocalQueues) -> None:
    """Save what is set."""
    failures: list[JournalError | None] = []
    spool.collection.registry.save(failures.append)
    assert failures == [None]


def declare(spool: LocalQueues, name: str, **given: object) -> None:
    """Declare a queue, and save that."""
    spool.collection.declare(name, declaration(given))
    saved(spool)


@pytest.fixture(name="spool")
def local_queues(tmp_path: Path) -> Iterator[LocalQueues]:
    """Queues with default settings."""
    queues = LocalQueues(ServerConfig(queue_path=tmp_path))
    yield queues
    queues.close()


def test_a_declared_queue_is_there_with_its_settings(spool: LocalQueues) -> None:
    """All of them are in force, and all others are as for other queues; also after a restart."""
    given = {
        "fanout_only": True,
        "keep_journal": False,
        "max_queue_age": 60.0,
        "max_age": 1.5,
        "max_items": 3,
    }
    declare(spool, "jobs", **given)
    expected = QueueConfig().model_copy(update=given)
    for _ in range(2):
        assert list(spool.collection.queues) == ["jobs"]
        assert dict(spool.queue().config) == dict(expected)
        assert not (spool.config.queue_path / "jobs").exists()
        spool.restart()


def test_a_queue_without_a_journal_is_there_after_a_restart(spool: LocalQueues) -> None:
    """Empty; as a fanout child, it gets what is added to its master."""
    declare(spool, "jobs+replies", keep_journal=False)
    spool.add(b"lost")
    spool.restart()
    assert spool.items("jobs+replies") == []
    spool.add(b"x")
    assert (spool.items("jobs+replies"), spool.items()) == ([b"x"], [b"lost", b"x"])


def test_the_configuration_of_exactly_this_queue_wins(tmp_path: Path) -> None:
    """What clients declare stands before what the queue inherits."""
    toml = '[default]\nmax_items = 1\nmax_age = 1\n[queues.jobs]\nmax_items = 2\n[queues."m+c"]\n'
    config = config_from_toml(toml, "test").model_copy(update={"queue_path": tmp_path})
    spool = LocalQueues(config)
    for name in ("jobs", "m", "m+c"):
        declare(spool, name, max_items=5, max_age=5)
    declare(spool, "m+other")

    def found(name: str) -> tuple[int | None, float | None]:
        config = spool.queue(name).config
        return config.max_items, config.max_age

    assert [found(name) for name in ("jobs", "m", "m+c", "m+other")] == [(2, 5.0), *[(5, 5.0)] * 3]
    without = config_from_toml("[default]\nmax_items = 1\n", "test")
    spool.reload(without.model_copy(update={"queue_path": tmp_path}))
    assert found("jobs") == (5, 5.0)
    spool.close()


def test_children_inherit_what_is_declared_for_their_master(spool: LocalQueues) -> None:
    """At once, and no longer than it is declared; but never `fanout_only`."""
    child = spool.queue("jobs+audit")
    declare(spool, "jobs", max_items=1, fanout_only=True)
    assert (child.config.max_items, child.config.fanout_only) == (1, False)
    assert spool.queue("jobs+new").config.max_items == 1
    spool.collection.delete("jobs")
    assert (child.config.max_items, spool.queue("jobs+new").config.max_items) == (None, None)


def test_declaring_again_replaces_the_settings(spool: LocalQueues) -> None:
    """The same again changes nothing, and is not written; the items stay."""
    declare(spool, "jobs", max_items=5)
    spool.add(b"x")
    file = spool.config.queue_path / "~~queues"
    before = file.stat()
    declare(spool, "jobs", max_items=5)
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    declare(spool, "jobs", max_age=5)
    assert (spool.queue().config.max_items, spool.queue().config.max_age) == (None, 5)
    declare(spool, "jobs")
    spool.restart()
    assert (spool.items(), spool.queue().config) == ([b"x"], QueueConfig())


@pytest.mark.parametrize("keep_journal", [False, True])
def test_whether_a_queue_keeps_a_journal_is_declared_before_it_exists(
    spool: LocalQueues, *, keep_journal: bool
) -> None:
    """Later that is refused; to say again what is so is not."""
    declare(spool, "jobs", keep_journal=keep_journal)
    declare(spool, "jobs", keep_journal=keep_journal, max_items=5)
    with pytest.raises(InvalidDeclaration, match="cannot be changed: delete it first"):
        declare(spool, "jobs", keep_journal=not keep_journal)
    config = spool.queue().config
    assert (config.keep_journal, config.max_items) == (keep_journal, 5)
    spool.collection.delete("jobs")
    declare(spool, "jobs", keep_journal=not keep_journal)
    assert spool.queue().config.keep_journal is not keep_journal


def test_what_is_not_declared_again_holds_for_the_next_start(spool: LocalQueues) -> None:
    """As in a configuration that is reloaded."""
    declare(spool, "jobs", keep_journal=False)
    declare(spool, "jobs", max_items=5)
    assert not spool.queue().config.keep_journal
    spool.restart()
    assert spool.queue().config.keep_journal


def test_a_deleted_queue_is_as_others_again(spool: LocalQueues) -> None:
    """Whether a client deletes it or it gets too old."""
    declare(spool, "jobs", max_items=5)
    declare(spool, "reply", max_queue_age=1)
    spool.collection.delete("jobs")
    spool.clock.advance(2)
    spool.collection.sweep()
    for _ in range(2):
        assert list(spool.collection.queues) == []
        spool.restart()
    assert spool.queue().config == spool.queue("reply").config == QueueConfig()


def test_what_is_paused_and_what_is_declared_do_not_touch_each_other(spool: LocalQueues) -> None:
    """Both survive changes of the other, and a restart."""
    declare(spool, "jobs", max_items=5)
    spool.collection.pause("jobs", Paused.READS)
    declare(spool, "jobs", max_items=6)
    spool.collection.resume("jobs", Paused.WRITES)
    saved(spool)
    spool.restart()
    assert (spool.queue().config.max_items, str(spool.queue().paused)) == (6, "reads")


def test_what_cannot_be_declared_changes_nothing(spool: LocalQueues) -> None:
    """Other settings, bad values, bad names, aliases, a journal that cannot end."""
    spool.reload(
        config_from_toml(
            "[default]\nmax_memory_size = 4\n[aliases.both]\ndestination_queues = ['a']\n", "test"
        ).model_copy(update={"queue_path": spool.config.queue_path})
    )
    for given in ({"max_size": 5}, {"max_items": -1}, {"max_age": "never"}, {"unknown": 1}):
        with pytest.raises(InvalidDeclaration):
            declaration(given)
    with pytest.raises(InvalidDeclaration, match="may not declare max_size"):
        spool.collection.declare("jobs", QueueConfig(max_size=5))
    for name in ("both", "a/b"):
        with pytest.raises(InvalidQueueName):
            declare(spool, name, max_items=1)
    spool.add(b"12345", b"67890")
    with pytest.raises(InvalidDeclaration, match="delete it first"):
        declare(spool, "jobs", keep_journal=False)
    assert list(spool.collection.queues) == ["jobs"]
    assert (spool.collection.registry.declared, spool.queue().config.keep_journal) == ({}, True)
    assert not (spool.config.queue_path / "~~queues").exists()
    assert spool.drain() == [b"12345", b"67890"]


def test_a_queue_that_cannot_be_created_is_not_declared(spool: LocalQueues) -> None:
    """A directory has its name."""
    (spool.config.queue_path / "jobs").mkdir()
    with pytest.raises(Exception, match="cannot be created"):
        declare(spool, "jobs", max_items=1)
    assert spool.collection.registry.declared == {}


GIVEN = st.fixed_dictionaries(
    {},
    optional={
        "fanout_only": st.booleans(),
        "keep_journal": st.booleans(),
        "max_queue_age": st.floats(0, 1e6),
        "max_age": st.floats(0, 1e6),
        "max_items": st.integers(0, 2**40),
    },
)
NAMES = st.sampled_from(["jobs", "jobs+a", "other"])


class RegistryMachine(RuleBasedStateMachine):
    """What clients set, against a dictionary; restarts and damaged files come in between."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(self._directory())
        self.spool = LocalQueues(ServerConfig(queue_path=self.path), clock=FakeClock())
        self.declared: dict[str, dict[str, object]] = {}
        self.paused: dict[str, Paused] = {}

    @staticmethod
    def _directory() -> str:
        return tempfile.mkdtemp(prefix="kestrelmq-registry-")

    @rule(name=NAMES, given=GIVEN)
    def declare(self, name: str, given: dict[str, object]) -> None:
        """Declare a queue."""
        queue = self.spool.collection.queues.get(name)
        if queue is not None and given.get("keep_journal", queue.config.keep_journal) != (
            queue.config.keep_journal
        ):
            with pytest.raises(InvalidDeclaration):
                declare(self.spool, name, **given)
            return
        declare(self.spool, name, **given)
        self.declared[name] = given

    @rule(name=NAMES, operations=st.sampled_from(Paused), resume=st.booleans())
    def pause(self, name: str, operations: Paused, *, resume: bool) -> None:
        """Pause or resume a queue."""
        collection = self.spool.collection
        change = collection.resume if resume else collection.pause
        if change(name, operations):
            before = self.paused.get(name, Paused.NOTHING)
            self.paused[name] = before & ~operations if resume else before | operations
        saved(self.spool)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        """Delete a queue."""
        if self.spool.collection.delete(name):
            self.declared.pop(name, None)
            self.paused.pop(name, None)

    @rule()
    def restart(self) -> None:
        """Load everything again."""
        self.spool.restart()

    @rule()
    def damage(self) -> None:
        """Have nothing left of what was set; declared queues with journals stay, as others."""
        self.spool.close()
        if (self.path / "~~queues").exists():
            (self.path / "~~queues").write_bytes(b"damaged")
            self.declared.clear()
            self.paused.clear()
        self.spool.open()

    @invariant()
    def agrees(self) -> None:
        """What is declared is there and in force; what is paused is."""
        queues = self.spool.collection.queues
        assert set(self.declared) <= set(queues)
        for name, given in self.declared.items():
            config = queues[name].config
            assert {key: getattr(config, key) for key in given} == given
        for name, queue in queues.items():
            assert queue.paused == self.paused.get(name, Paused.NOTHING)

    def teardown(self) -> None:
        """Remove the files."""
        self.spool.close()
        rmtree(self.path)


TestRegistry = RegistryMachine.TestCase
TestRegistry.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
