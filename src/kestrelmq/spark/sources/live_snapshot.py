"""`kestrel`, read as a table: a snapshot of what waits in queues, of which nothing is taken.

The places where a queue begins and ends are asked for when an action is planned; tasks look at the
items in between. What others have read by then is missing, and what was added later is not there.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from kestrelmq.client import commands
from kestrelmq.client.address import parse_address
from kestrelmq.client.blocking import connected
from kestrelmq.client.commands import BrowsedItem
from kestrelmq.client.options import ClientOptions
from kestrelmq.errors import KestrelError, ServerRefused
from kestrelmq.protocol.reserving import MAX_RESERVED
from kestrelmq.spark.sources.refusals import is_refusal
from kestrelmq.spark.sources.server_probe import ServerProbe


class QueueBeganAnew(KestrelError):  # noqa: N818 # says what it is
    """A server has loaded a queue anew, or made it, while a snapshot of it was read."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Items of a queue that follow each other.

    Attributes:
        server: the server.
        queue: the queue.
        run: what the places begin with.
        begin: the number of the first place.
        end: that of the place behind the last.
        position: the `position` of the first row.
    """

    server: str
    queue: str
    run: str
    begin: int
    end: int
    position: int


def stretches(probe: ServerProbe, patience: float, partitions: int) -> list[Stretch]:
    """Return what waits now, in at least `partitions` parts if there are so many items.

    Raises:
        QueueCannotBeRead: a server does not let a queue be read.
        ServerUnavailable: no server can be asked.
    """
    found: list[Stretch] = []
    position = 0
    for server, queues in sorted(probe.present(patience).items()):
        for queue in sorted(queues):
            run, begin, end = probe.ends(server, queue)
            if begin < end:
                found.append(Stretch(server, queue, run, begin, end, position))
                position += end - begin
    each = -(-partitions // max(1, len(found)))
    return [part for one in found for part in _divided(one, each)]


def _divided(one: Stretch, parts: int) -> Iterator[Stretch]:
    size = -(-(one.end - one.begin) // parts)
    for begin in range(one.begin, one.end, size):
        end = min(begin + size, one.end)
        yield replace(one, begin=begin, end=end, position=one.position + begin - one.begin)


def look_through(
    one: Stretch, options: ClientOptions | None = None
) -> Iterator[tuple[int, Sequence[BrowsedItem]]]:
    """Yield the items of a stretch that still wait, with the position of the first of some.

    Raises:
        QueueBeganAnew: the server was restarted, or the queue deleted.
        ClientError: the server cannot be asked.
    """
    with closing(connected(parse_address(one.server), options or ClientOptions())) as connection:
        at = one.begin
        while at < one.end:
            most = min(MAX_RESERVED, one.end - at)
            command = commands.browse(commands.checked_queue(one.queue), f"{one.run}:{at}", most)
            try:
                page = connection.run(command)
            except ServerRefused as error:
                if is_refusal(error):
                    raise
                page = None
            if page is None:
                raise QueueBeganAnew(
                    f"queue {one.queue!r} on {one.server} was loaded anew or deleted while it was "
                    "read: run the action again"
                )
            behind = int(page.place.rpartition(":")[2])
            begin = behind - len(page.items)
            items = page.items[: max(0, one.end - begin)]
            if items:
                yield one.position + begin - one.begin, items
            if behind <= at:
                return  # the rest is not written yet
            at = behind
