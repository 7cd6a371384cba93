"""Coroutines that never suspend: code that is written once, for asyncio and to block a thread."""

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
SelfT = TypeVar("SelfT")


def run(operation: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, and return its result."""
    try:
        operation.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError(f"{operation} is suspended, and nobody will continue it")


def blocking(
    operation: Callable[Concatenate[SelfT, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SelfT, P], T]:
    """Return an operation as a method that blocks."""

    @wraps(operation)
    def method(self: SelfT, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(operation(self, *args, **kwargs))

    return method


def iterated(items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """Iterate over an asynchronous generator that never suspends."""
    try:
        while True:
            try:
                item = run(items.asend(None))
            except StopAsyncIteration:
                return
            yield item
    finally:
        run(items.aclose())


@contextmanager
def entered(block: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Enter an asynchronous block that never suspends."""
    inside = run(block.__aenter__())
    try:
        yield inside
    except BaseException as error:
        if not run(block.__aexit__(type(error), error, error.__traceback__)):
            raise
    else:
        run(block.__aexit__(None, None, None))
