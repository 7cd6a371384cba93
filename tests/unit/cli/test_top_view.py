"""What `kestrelmq top` shows."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from kestrelmq.cli.top import ServerSample, _uptime, _view
from kestrelmq.client import QueueStats
from kestrelmq.client.address import Address

HERE = Address("127.0.0.1", 22133)
GONE = Address("10.0.0.9", 22133)


def sample(time: float, taken: int) -> dict[Address, ServerSample]:
    """Return a look at two servers, one of which is down, after so many items were taken."""
    values = {"uptime": "7300", "curr_connections": "12", "curr_items": "500", "bytes": "1392"}
    stats = {"items": str(5000 - taken), "bytes": "1392", "total_items": "5000", "waiters": "3"}
    names = ["a_rather_long_queue_name_that_somebody_chose", "b", "c"]
    queues = {name: QueueStats(str(HERE), name, stats) for name in names}
    return {
        HERE: ServerSample(time, {**values, "cmd_get": str(taken)}, queues),
        GONE: ServerSample(time, {}, {}, f"{GONE}: connection refused"),
    }


def shown(width: int, most: int = 40) -> list[str]:
    """Return the lines on a screen so wide, two seconds after the first look."""
    console = Console(width=width, file=StringIO())
    with console.capture() as captured:
        console.print(_view(sample(0.0, 0), sample(2.0, 200), most))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_rates_are_differences_between_two_looks() -> None:
    """A server that is down is shown as such, and why."""
    assert [line.split() for line in shown(100)] == [
        ["server", "up", "connections", "items", "bytes", "set/s", "get/s"],
        ["127.0.0.1:22133", "2h", "12", "500", "1,392", "0.0", "100.0"],
        ["10.0.0.9:22133", "down"],
        ["10.0.0.9:22133:", "connection", "refused"],
        [],
        ["queue", "items", "bytes", "in/s", "out/s", "age", "ms", "open", "waiters"],
        *(
            [name, "4,800", "1,392", "0.0", "100.0", "0", "0", "3"]
            for name in ("a_rather_long_queue_name_that_somebody_chose", "b", "c")
        ),
    ]


def test_on_a_narrow_terminal_names_give_way_and_numbers_stay() -> None:
    """A long name is cut; each queue keeps one line."""
    line = shown(64)[6]
    assert line.startswith("a_rather")
    assert "\N{HORIZONTAL ELLIPSIS}" in line
    assert line.split()[1:] == ["4,800", "1,392", "0.0", "100.0", "0", "0", "3"]


def test_what_is_paused_is_shown() -> None:
    """In a column of its own, if anything is."""
    before, after = sample(0.0, 0), sample(2.0, 0)
    stats = {"items": "7", "total_items": "7", "paused": "reads"}
    queues = {**after[HERE].queues, "b": QueueStats(str(HERE), "b", stats)}
    after[HERE] = replace(after[HERE], queues=queues)
    console = Console(width=100, file=StringIO())
    with console.capture() as captured:
        console.print(_view(before, after, 40))
    lines = [line.split() for line in captured.get().splitlines()]
    assert lines[5][-1] == "paused"
    assert {line[0]: line[-1] for line in lines[6:]}["b"] == "reads"
    assert {line[0]: line[-1] for line in lines[6:]}["c"] == "3"


def test_what_does_not_fit_is_counted() -> None:
    """So nobody takes the list for all there is."""
    assert shown(100, most=2)[-1] == "and 1 more"
    assert not shown(100, most=3)[-1].startswith("and")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172800, "2d")],
)
def test_an_uptime_has_one_unit(seconds: int, text: str) -> None:
    """The largest of which there are two."""
    assert _uptime(seconds) == text
