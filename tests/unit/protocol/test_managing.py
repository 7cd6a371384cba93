"""Requests about queues and clients, however they were read."""

from kestrelmq.protocol.managing import Declare


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
