"""The table of the last marks of producers, against an ordered dict."""

from collections import OrderedDict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kestrelmq.journal.mark_table import LastMark, MarkTable, can_be_held
from tests.support.examples import examples

pytestmark = pytest.mark.compiled

NAMES = st.one_of(
    st.sampled_from([b"%d" % number for number in range(30)]),
    st.binary(min_size=1, max_size=65).filter(can_be_held),
)
SEQUENCES = st.integers(0, 2**64 - 1)
TIMES = st.one_of(st.integers(0, 3), st.integers(0, 2**32 - 1))


class MarkTableMachine(RuleBasedStateMachine):
    """The rules, for the table and a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.table = MarkTable()
        self.model: OrderedDict[bytes, LastMark] = OrderedDict()

    @initialize(count=st.sampled_from([0, 0, 5, 70]))
    def begin(self, count: int) -> None:
        """Begin with some producers."""
        for number in range(count):
            self.set(b"%d" % number, number, number)

    @rule(name=NAMES, sequence=SEQUENCES, added=TIMES)
    def set(self, name: bytes, sequence: int, added: int) -> None:
        """Set a mark, which is the newest then, unless the one before it is of that second."""
        before = self.model.get(name)
        assert self.table.set(name, sequence, added) == before
        self.model[name] = LastMark(sequence, added)
        if before is not None and before.added != added:
            self.model.move_to_end(name)

    @rule(name=NAMES)
    def drop(self, name: bytes) -> None:
        """Forget a producer, if it is there."""
        assert self.table.drop(name) == self.model.pop(name, None)

    @rule(count=st.integers(1, 60))
    def drop_oldest(self, count: int) -> None:
        """Forget the producers whose marks were set first."""
        for _ in range(min(count, len(self.model))):
            name, mark = self.table.oldest()
            assert (name, mark) == self.model.popitem(last=False)
            assert self.table.drop(name) == mark

    @rule(name=NAMES)
    def get(self, name: bytes) -> None:
        """Look up a producer."""
        assert self.table.get(name) == self.model.get(name)

    @rule(name=NAMES)
    def copy(self, name: bytes) -> None:
        """Go on with a copy, which the other table no longer concerns."""
        before, self.table = self.table, self.table.copy()
        before.set(name, 1, 1)
        before.drop(before.oldest()[0])

    @invariant()
    def has_the_same(self) -> None:
        """Both have the same, in the same order."""
        assert list(self.table) == list(self.model.items())
        assert len(self.table) == len(self.model)
        assert all(self.table.get(name) == mark for name, mark in self.model.items())


TestMarkTable = MarkTableMachine.TestCase
TestMarkTable.settings = settings(max_examples=examples(100), stateful_step_count=50)
