"""The steps of an operation, which a client carries out, and the answers it gives to its plan."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from kestrelmq.client.address import Address
from kestrelmq.client.commands import Command

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Run(Generic[T]):
    """Run `command` at `server`; the answer is its result."""

    server: Address
    command: Command[T]


@dataclass(frozen=True, slots=True)
class Held(Generic[T]):
    """The result of a `Hold`, and the connection whose open reads it is about.

    `streak` counts how often in a row the connection was held on to.
    """

    server: Address
    connection: Any
    result: T
    streak: int = 0


@dataclass(frozen=True, slots=True)
class Hold(Generic[T]):
    """Run `command` and keep the connection: the answer is a `Held`.

    When the result is None or empty, the answer is None, and the connection is free again. With
    `on` it runs over a connection that is already held, and otherwise over any to `server`.
    """

    server: Address
    command: Command[T]
    on: Held[Any] | None = None


@dataclass(frozen=True, slots=True)
class Free(Generic[T]):
    """Run `command` over a held connection, which is free afterwards; the answer is its result."""

    held: Held[Any]
    command: Command[T]


@dataclass(frozen=True, slots=True)
class Pause:
    """Do nothing for `seconds`."""

    seconds: float


def is_something(result: object) -> bool:
    """Whether a result holds an open read; an empty item does, an empty list does not."""
    return result is not None and result != []


Step: TypeAlias = Run[Any] | Hold[Any] | Free[Any] | Pause
Plan: TypeAlias = Generator[Step, Any, T]
