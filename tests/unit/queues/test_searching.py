"""Regular expressions that are searched in a process: what becomes of those that cannot be."""

import sys
from pathlib import Path

import pytest

from kestrelmq.errors import PatternRefused
from kestrelmq.format.records import item
from kestrelmq.queues import searching
from kestrelmq.queues.searching import Search, matches, places_of


def test_items_are_found_by_what_is_in_them() -> None:
    """A text or a regular expression; what comes before an item in its record does not count."""
    records = [item(1, 0, data) for data in (b"one", b"two\nlines", b"")]
    assert matches(Search(b"o"), records) == [0, 1]
    assert matches(Search(b"^(o|l)", is_pattern=True), records) == [0]
    assert matches(Search(b"(?m)^(o|l)", is_pattern=True), records) == [0, 1]
    assert matches(Search(b"^$", is_pattern=True), records) == [2]


def test_what_is_no_regular_expression_is_refused() -> None:
    """With the reason."""
    with pytest.raises(PatternRefused, match=r"no regular expression: .*unterminated"):
        places_of(b"(", [b"x"])


def test_a_search_that_would_never_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its time, whatever that is: the expression takes longer than the age of the world."""
    monkeypatch.setattr(searching, "MAX_SECONDS", 0.125)
    with pytest.raises(PatternRefused, match=r"took longer than 0\.125 s"):
        places_of(b"(a+)+$", [b"a" * 99 + b"b"])


def test_a_search_without_a_process_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the system has no room for one."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(PatternRefused, match="no process for the search: No such file"):
        places_of(b"a", [b"a"])
