"""What benchmarks measured is summed up, compared and drawn as it is."""

import json
import re
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench import fairness, packing, recovery
from bench.load.generator import Phase
from bench.load.workload import Protocol
from bench.report import medians, picture, session, table
from bench.servers import PeerError, custom_peer, known_peers, ours, synced

PHASE = Phase(
    operation="set",
    operations=1000,
    misses=0,
    seconds=0.01,
    operations_per_second=100_000,
    load_cpu=2.0,
    server_cpu=9.5,
    server_resident=2048,
    server_peak=4096,
    p50=10,
    p99=20,
    max=30,
)


def rounds_of(*costs: float) -> list[Phase]:
    """One phase a round, each with another CPU time of the server."""
    return [replace(PHASE, server_cpu=cost) for cost in costs]


def test_a_table_has_names_to_the_left_and_numbers_to_the_right() -> None:
    """Columns are as wide as their widest cell, and remarks follow."""
    columns: list[table.Column[tuple[str, int]]] = [
        table.Column("server", lambda row: row[0], left=True),
        table.Column("n", lambda row: f"{row[1]:,}"),
    ]
    shown = table.render("some", columns, [("a", 1), ("longer", 1000)], ["a remark"])
    assert shown.splitlines() == [
        "some",
        "  server      n",
        "  a           1",
        "  longer  1,000",
        "  a remark",
    ]


def test_a_row_is_the_median_of_its_rounds_and_its_ratio_to_the_baseline() -> None:
    """One slow round does not move the result; without the baseline there is no ratio."""
    rows = [
        medians.medians("ours", 50, 1, rounds_of(4.0, 5.0, 90.0)),
        medians.medians("redis", 50, 1, rounds_of(10.0, 10.0, 1.0)),
    ]
    assert [row.ratio for row in medians.compared(rows, "redis")] == [0.5, 1.0]
    assert [row.ratio for row in medians.compared(rows, "absent")] == [None, None]


@pytest.mark.parametrize(
    ("server_cpu", "load_cpu", "said"),
    [
        (9.5, 2.0, []),
        (3.0, 9.9, ["ops/s bounded by the load generator: x set"]),
        (3.0, 2.0, ["ops/s bounded by the round trip or the machine: x set"]),
    ],
)
def test_a_row_that_the_server_did_not_bound_is_marked(
    server_cpu: float, load_cpu: float, said: list[str]
) -> None:
    """At 100,000 operations a second 10 us each are one whole CPU."""
    phase = replace(PHASE, server_cpu=server_cpu, load_cpu=load_cpu)
    assert medians.remarks([medians.medians("x", 50, 1, [phase])], 1) == said


def test_misses_are_told() -> None:
    """A get that found nothing is no measurement of a get."""
    row = medians.medians("x", 50, 1, [replace(PHASE, misses=2), replace(PHASE, misses=1)])
    assert medians.remarks([row], 1) == ["x set: 3 misses"]


def test_packing_compares_with_the_empty_queue_of_the_same_round() -> None:
    """The ratio is the median of the rounds' ratios, not the ratio of medians."""

    def point(backlog: int, cpu: float) -> packing.Point:
        get = replace(PHASE, operation="get", server_cpu=cpu)
        return packing.point("x", backlog, [replace(PHASE, server_cpu=cpu), get])

    costs = ((1.0, 2.0), (5.0, 10.0), (3.0, 9.0))
    rounds = [packing.beside_empty([point(0, one), point(9, other)]) for one, other in costs]
    points = [medians.middle(same) for same in zip(*rounds, strict=True)]
    assert [(one.backlog, one.pair_cpu, one.pair_ratio) for one in points] == [
        (0, 6.0, 1.0),
        (9, 18.0, 2.0),
    ]


def test_fairness_compares_percentiles_of_the_same_round() -> None:
    """p99 beside large items over p99 alone, and what the large ones got."""
    large = replace(PHASE, operations_per_second=10)
    beside = replace(PHASE, p99=100, operations_per_second=50_000)
    found = fairness.row("x", [fairness.Round(PHASE, beside, large)], 8 << 20)
    assert (found.p99_ratio, found.small_rate, found.large_rate) == (5.0, 0.5, 80 << 20)


def test_a_load_too_short_to_be_told_from_starting_has_no_speed() -> None:
    """What takes less than two starts differ by is shown as nothing, not as a miracle."""
    row = recovery.Row("x", 100, 1000, 0.1, 1.0, 1.5, 0.5, 0.7, 2048)
    assert row.per_second(row.items) == pytest.approx(200)
    assert replace(row, full=1.01).per_second(row.items) is None


def flood_results() -> dict[str, object]:
    """What bench.flood writes, with two servers."""
    rows = [
        {"server": server, "operation": operation, "cpu": cpu}
        for operation in ("set", "get")
        for server, cpu in (("kestrelmq", 2.0), ("a<b", 8.0))
    ]
    return {
        "benchmark": "flood",
        "machine": {"servers": {"kestrelmq": "kestrelmq 1.0.0", "a<b": "no version"}},
        "settings": {"size": 1024},
        "tables": [{"title": "50 connections, depth 1", "rows": rows}],
    }


def test_a_picture_draws_bars_as_long_as_the_numbers(tmp_path: Path) -> None:
    """The SVG is well-formed, and its bars are to each other as the measured values are."""
    source, target = tmp_path / "suite.json", tmp_path / "images" / "flood.svg"
    source.write_text(json.dumps({"flood": flood_results()}))
    assert picture.main([str(source), str(target)]) == 0
    drawn = target.read_text()
    root = ET.fromstring(drawn)  # noqa: S314 - made above
    bars = [one for one in root.iter("{http://www.w3.org/2000/svg}rect") if one.get("rx") == "2"]
    lengths = [float(bar.get("width", 0)) for bar in bars]
    assert [length / max(lengths) for length in lengths] == pytest.approx([0.25, 1] * 2, abs=0.01)
    assert "prefers-color-scheme: dark" in drawn
    assert "kestrelmq 1.0.0, a&lt;b" in drawn
    assert re.findall(r"https?://[^\"]+", drawn) == ["http://www.w3.org/2000/svg"]
    picture.main([str(source), str(target)])
    assert target.read_text() == drawn


def test_a_picture_of_something_else_is_refused(tmp_path: Path) -> None:
    """Only floods have what is drawn."""
    source = tmp_path / "memory.json"
    source.write_text(json.dumps({"benchmark": "memory", "tables": []}))
    assert picture.main([str(source), str(tmp_path / "no.svg")]) == 1
    assert not (tmp_path / "no.svg").exists()


def options(**given: object) -> Namespace:
    """The options that a session needs."""
    return Namespace(**({"only": None, "server": [], "json": None} | given))


def test_servers_take_turns_and_one_that_fails_drops_out() -> None:
    """Its reason is told and the exit status is 1; the others are measured to the end."""
    run = session.Session("x", options(), [custom_peer("good", "true"), custom_peer("bad", "true")])
    order: list[str] = []

    def measure(peer: object) -> int:
        name = str(getattr(peer, "name", ""))
        order.append(name)
        if name == "bad":
            raise PeerError("broken")
        return len(order)

    assert run.in_turn("x", measure, 2) == ({"good": [1, 3]}, ["bad: failed: broken"])
    assert order == ["good", "bad", "good"]
    assert run.finish() == 1


def test_a_server_that_is_not_installed_is_remarked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is left out, which is no failure; the JSON says what was measured, and how."""
    file = tmp_path / "out.json"
    absent = custom_peer("absent", "no-such-program {port}")
    run = session.Session("x", options(json=file), [absent])
    run.show("title", recovery.COLUMNS, [])
    assert run.finish() == 0
    assert "absent: missing (no-such-program is not installed)" in capsys.readouterr().out
    written = json.loads(file.read_text())
    assert (written["benchmark"], written["tables"][0]["title"]) == ("x", "title")


def test_an_unknown_server_is_refused() -> None:
    """A mistyped name measures nothing."""
    with pytest.raises(SystemExit):
        session.Session("x", options(only=["redsi"]))


def test_our_server_has_the_one_listener_that_is_measured() -> None:
    """The others are off, and cost nothing."""
    command = " ".join(ours(Protocol.TEXT).command)
    assert "--text-port {port}" in command
    assert "--memcache-port none --text-port" in command
    assert "--thrift-port none" in command


def test_peers_that_fsync_are_the_usual_ones_with_another_setting() -> None:
    """Each differs from its everyday self, which is not among them."""
    made = synced(["0ms"])
    assert [peer.name for peer in made] == ["kestrelmq 0ms", "redis always", "beanstalkd always"]
    assert not {peer.command for peer in made} & {peer.command for peer in known_peers()}
