"""Requests about queues and clients, however they were read."""

from collections.abc import Callable

import pytest

from kestrelmq.protocol.managing import Browse, Declare, ListClients, Move


def test_declared_settings_have_the_names_of_the_configuration() -> None:
    """What is not given is as for other queues; times are in seconds there."""
    assert Declare("q").settings == {}
    assert Declare("q", True, False, 500, 2000, 0).settings == {
        "fanout_only": True,
        "keep_journal": False,
        "max_queue_age": 0.5,
        "max_age": 2.0,
        "max_items": 0,
    }


@pytest.mark.parametrize(
    "make",
    [
        lambda: Browse("q", -1, 1),
        lambda: Browse("q", 0, -1),
        lambda: Browse("q", 0, 1, b"x" * 1001),
        lambda: Move("q", "r", -1),
        lambda: ListClients(-1),
    ],
)
def test_a_request_checks_itself(make: Callable[[], object]) -> None:
    """However it was read."""
    with pytest.raises(ValueError, match=r"numbers|below 0|at most 1000"):
        make()
