"""The comparison with the last release: what is a loss, and what is measured again."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from bench import check
from bench.check import RELEASE, SHAPES, Subject, compare, ratios, read_release, write_release

FIRST, SECOND, *_ = SHAPES
SET = Subject(FIRST, "set", "redis")
GET = Subject(FIRST, "get", "redis")
OTHER = Subject(SECOND, "set", "memcached")
BEFORE = {SET: 0.5, GET: 0.8, OTHER: 1.0}


class Runs:
    """Measures what it was told to; `asked` are the tables that were asked for."""

    def __init__(self, *runs: Mapping[Subject, float]) -> None:
        self._runs = list(runs)
        self.asked: list[list[str]] = []

    def __call__(self, titles: Collection[str]) -> Mapping[Subject, float]:
        """Return the next run, with the tables that are asked for."""
        self.asked.append(list(titles))
        run = self._runs.pop(0)
        return {subject: value for subject, value in run.items() if subject.title in titles}


def lost(runs: Runs) -> list[Subject]:
    """Compare with the release, and return what lost."""
    return [one.subject for one in compare(BEFORE, runs) if one.is_loss]


def test_what_is_as_fast_is_measured_once() -> None:
    """Up to 10 % more is no loss, and no reason to measure again."""
    runs = Runs({SET: 0.549, GET: 0.4, OTHER: 1.09})
    assert lost(runs) == []
    assert runs.asked == [list(SHAPES)]


def test_a_loss_must_repeat() -> None:
    """One that is gone in the second or the third run was none."""
    good, bad = BEFORE, BEFORE | {SET: 0.6}
    assert lost(Runs(bad, good)) == []
    assert lost(Runs(bad, bad, good)) == []
    assert lost(Runs(bad, bad, bad)) == [SET]


def test_only_what_lost_is_measured_again() -> None:
    """Of the tables that are measured again, only the ratios that lost count."""
    runs = Runs(
        BEFORE | {SET: 0.6, OTHER: 2.0},
        BEFORE | {SET: 0.6, GET: 9.0},
        {SET: 0.7, GET: 9.0},
    )
    compared = {one.subject: one.runs for one in compare(BEFORE, runs)}
    assert compared == {SET: (0.6, 0.6, 0.7), GET: (0.8,), OTHER: (2.0, 1.0)}
    assert runs.asked == [list(SHAPES), [FIRST, SECOND], [FIRST]]


def test_a_peer_that_is_missing_is_left_out() -> None:
    """On this machine, or at the release."""
    other = Subject(FIRST, "set", "another")
    compared = compare(BEFORE, Runs({SET: 0.5, other: 7.0}))
    assert [one.subject for one in compared] == [SET]


def test_ratios_are_those_of_the_same_table() -> None:
    """CPU time per operation of our server over that of each peer."""

    def rows(**costs: float) -> list[dict[str, object]]:
        return [{"server": name, "operation": "set", "cpu": cost} for name, cost in costs.items()]

    tables = [
        {"title": FIRST, "rows": rows(kestrelmq=1.0, redis=2.0, beanstalkd=9.0)},
        {"title": SECOND, "rows": rows(kestrelmq=3.0, memcached=2.0)},
        {"title": "without ours", "rows": rows(redis=2.0)},
    ]
    expected = {SET: 0.5, Subject(SECOND, "set", "memcached"): 1.5}
    assert ratios({"tables": tables}) == expected


def test_a_release_is_read_as_it_was_written(tmp_path: Path) -> None:
    """With its version; the file in the repository has every table."""
    file = tmp_path / "release.json"
    write_release(file, "1.2.3", BEFORE)
    assert read_release(file) == ("1.2.3", BEFORE)
    _, before = read_release(RELEASE)
    assert {one.title for one in before} == set(SHAPES)


@pytest.mark.parametrize(("now", "status"), [(1.0, 0), (1.2, 1), (None, 2)])
def test_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, now: float | None, status: int
) -> None:
    """0, or 1 for a loss, or 2 if there is nothing to compare with."""
    file = tmp_path / "release.json"
    file.write_text(
        json.dumps(
            {
                "version": "1.0.0",
                "ratios": [{"load": FIRST, "operation": "set", "over": "redis", "ratio": 1.0}],
            }
        )
    )
    monkeypatch.setattr(check, "RELEASE", file)
    found = {} if now is None else {SET: now}
    monkeypatch.setattr(check, "measure", lambda _titles, _options: found)
    assert check.main([]) == status
