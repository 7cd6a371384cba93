"""Both clients have the same operations, with the same parameters and the same help."""

import inspect
from types import FunctionType

import pytest

from kestrelmq.client import AsyncClient, Client
from kestrelmq.client.plans import ClientOperations, PlanMethod, Planner
from kestrelmq.errors import InvalidRequest

SHARED = [name for name, one in vars(ClientOperations).items() if isinstance(one, PlanMethod)]
HOLDING = ["close", "consume", "discover", "export", "monitor", "reserve"]


def public(client: type) -> list[str]:
    """Return the names of the operations of a client."""
    return sorted(name for name in dir(client) if not name.startswith("_"))


def test_both_clients_have_the_same_operations() -> None:
    """Those that are one plan, and those that have several or are about the client itself."""
    assert public(Client) == public(AsyncClient) == sorted(SHARED + HOLDING)


@pytest.mark.parametrize("name", SHARED)
def test_an_operation_is_the_same_in_both(name: str) -> None:
    """It has its parameters, its result and its help; one of the two is to be awaited."""
    plan = getattr(Planner, name)
    blocking, awaited = getattr(Client, name), getattr(AsyncClient, name)
    assert isinstance(blocking, FunctionType)
    assert isinstance(awaited, FunctionType)
    assert not inspect.iscoroutinefunction(blocking)
    assert inspect.iscoroutinefunction(awaited)
    assert inspect.signature(blocking) == inspect.signature(awaited)
    assert inspect.signature(blocking).parameters == inspect.signature(plan).parameters
    assert blocking.__name__ == awaited.__name__ == name
    assert blocking.__doc__ == awaited.__doc__ == plan.__doc__
    assert plan.__doc__


def test_the_result_of_an_operation_is_that_of_its_plan() -> None:
    """Not the plan itself."""
    assert inspect.signature(Client.put).return_annotation is bool
    assert (
        inspect.signature(AsyncClient.queues).return_annotation
        != inspect.signature(Planner.queues).return_annotation
    )


@pytest.mark.parametrize("name", HOLDING)
def test_an_operation_that_holds_reads_has_the_same_parameters(name: str) -> None:
    """These are written in each client, as they are context managers and iterators."""
    blocking = inspect.signature(getattr(Client, name))
    assert blocking.parameters == inspect.signature(getattr(AsyncClient, name)).parameters


def test_no_reads_are_ended_without_asking_a_server() -> None:
    """An empty list of reads is what a reserve of several queues may find for one of them."""
    with Client("host.invalid:1") as client:
        assert client.finish("work", []) == 0
        assert client.release("work", ()) == 0
        assert client.extend("work", 30, []) == 0
        with pytest.raises(InvalidRequest):
            client.finish("a/b", [])
