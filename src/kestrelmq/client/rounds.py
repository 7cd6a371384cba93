"""What an operation remembers on its way from server to server."""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from kestrelmq.client.address import Address
from kestrelmq.client.cluster import ServerSet
from kestrelmq.errors import ClientError, ConnectionLost, ServerRefused, ServerUnavailable

BATCH_ITEMS: Final = 256
BATCH_BYTES: Final = 1024 * 1024

_log: Final = logging.getLogger("kestrelmq.client")


class Round:
    """One round of servers: the ready ones, then, only if none answered, those set aside."""

    def __init__(self, servers: ServerSet) -> None:
        self._servers = servers
        choice = servers.choose()
        self._ready = deque(choice.ready)
        self._aside = deque(choice.aside)
        self._again: set[Address] = set()
        self._errors: list[ClientError] = []
        self.is_cluster = len(choice.ready) + len(choice.aside) > 1
        self.any_answered = False

    def next_server(self) -> Address | None:
        """Return the next server to try, None when the round is over."""
        if self._ready:
            return self._ready.popleft()
        if self._aside and not self.any_answered:
            return self._aside.popleft()
        return None

    def answered(self, server: Address) -> None:
        """Note that the server did as it was asked, be it with nothing to give."""
        self.any_answered = True
        self._servers.succeeded(server)

    def refused(self, error: ServerRefused) -> None:
        """Note a refusal; raise it when another server would refuse as well."""
        if error.kind != "SERVER_ERROR":
            raise error
        self._errors.append(error)

    def failed(self, server: Address, error: ClientError, *, again: bool) -> None:
        """Note a failure. With `again`, one broken connection does not give the server up."""
        self._errors.append(error)
        if again and isinstance(error, ConnectionLost) and server not in self._again:
            # It may have been restarted since the connection was made.
            self._again.add(server)
            self._ready.append(server)
            return
        if self._servers.failed(server):
            _log.warning("%s is set aside: %s", server, error)

    def error(self) -> ClientError:
        """Return why no server of this round did it."""
        return joined(self._errors) if self._errors else ServerUnavailable("no server is known")


class Batch:
    """The items of one batch that are not stored yet, by their index."""

    def __init__(
        self, items: Sequence[bytes], indexes: Sequence[int], outcomes: list[bool | None]
    ) -> None:
        self.pending = list(indexes)
        self._items = items
        self._outcomes = outcomes

    def left(self) -> list[bytes]:
        """Return the items that are not stored yet."""
        return [self._items[index] for index in self.pending]

    def record(self, answers: list[bool], *, others_unknown: bool = False) -> None:
        """Take the answers for the first of the pending items."""
        for index, stored in zip(self.pending, answers, strict=False):
            self._outcomes[index] = stored
        if others_unknown:
            for index in self.pending[len(answers) :]:
                self._outcomes[index] = None
        self.pending = [i for i in self.pending if self._outcomes[i] is not True]

    def all_refused(self) -> bool:
        """Whether each item that is left was refused by a server that answered."""
        return all(self._outcomes[index] is False for index in self.pending)


def batches(items: Sequence[bytes]) -> Iterator[range]:
    """Cut `items` into ranges, small enough that replies never fill up unread while we send."""
    start, size = 0, 0
    for index, item in enumerate(items):
        if index > start and (index - start == BATCH_ITEMS or size + len(item) > BATCH_BYTES):
            yield range(start, index)
            start, size = index, 0
        size += len(item)
    if start < len(items):
        yield range(start, len(items))


def joined(errors: list[ClientError]) -> ClientError:
    """Return the errors as one of the last one's kind, with what each said."""
    last = errors[-1]
    messages = "; ".join(dict.fromkeys(str(error) for error in errors))
    if messages == str(last):
        return last
    if isinstance(last, ServerRefused):
        return ServerRefused(messages, last.kind)
    return type(last)(messages)
