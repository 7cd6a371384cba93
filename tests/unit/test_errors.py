"""Errors reach another process as they are."""

import pickle

import pytest

from kestrelmq import errors
from kestrelmq.errors import DamagedJournal, ImportStopped, KestrelError, ServerRefused


def of_class(kind: type[KestrelError]) -> KestrelError:
    """Return an error of that class."""
    if kind is DamagedJournal:
        return DamagedJournal(5, "unknown record", "work")
    if kind is ImportStopped:
        return ImportStopped("line 3: no JSON", 2)
    if kind is ServerRefused:
        return ServerRefused("unknown command", "ERROR")
    return kind("what happened")


@pytest.mark.parametrize(
    "kind",
    [one for one in vars(errors).values() if isinstance(one, type)],
    ids=lambda kind: str(kind.__name__),
)
def test_an_error_comes_from_another_process_as_it_was(kind: type[KestrelError]) -> None:
    """A pool of processes breaks when one of its tasks raises what cannot be sent."""
    error = of_class(kind)
    sent = pickle.loads(pickle.dumps(error))  # noqa: S301 # we have made it
    assert type(sent) is kind
    assert str(sent) == str(error)
    assert vars(sent) == vars(error)
