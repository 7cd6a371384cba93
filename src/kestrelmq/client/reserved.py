"""Items that a client holds during a `with` block, and what can be done with them, as plans.

A server of kestrelmq reserves such an item, for an owner that is the connection: if that breaks, or
this process dies, the item goes back after its grace. Until then it can be confirmed over another
connection. At a server that has no reserved reads, the item is an open read of its connection.
"""

from contextlib import suppress
from typing import Any, Final, Self

from kestrelmq.client import commands
from kestrelmq.client.commands import Command, HeldItem, Reads
from kestrelmq.client.options import check_delay, check_grace, checked_lease, checked_number
from kestrelmq.client.plans import HeldReads, Plan, PlanMethod, Planner, RunStep
from kestrelmq.errors import ClientError, InvalidRequest, LeaseEnded

BEATS: Final = 3
"""How often a lease is extended before it would end, if nothing else is said."""


class ItemPlans:
    """Makes the plans of one held item.

    Attributes:
        held: the item, its server and its connection.
        is_over: whether it was confirmed or given back.
    """

    def __init__(
        self, planner: Planner, queue: str, held: HeldReads[HeldItem], lease: float
    ) -> None:
        """Make them for an item of `queue` that is reserved for `lease` seconds."""
        self.held = held
        self.is_over = False
        self._planner = planner
        self._queue = commands.checked_queue(queue)
        self._lease = lease

    @property
    def _read(self) -> str | None:
        return self.held.result.read

    def extend(self, seconds: float | None = None) -> Plan[bool]:
        """Let the lease end `seconds` from now; by default, as many as when it began.

        Returns:
            False if it had ended: the item is delivered again. At a server that has no leases the
            item is held as long as its connection, and this does nothing.
        """
        lease = checked_lease(self._lease if seconds is None else seconds)
        if self.is_over:
            return False
        self.held.check_process()
        if self._read is None:
            return True
        extended: int = yield RunStep(
            self.held.server, commands.extend(self._queue, Reads((self._read,)), lease)
        )
        return extended > 0

    def finish(self) -> Plan[None]:
        """Confirm the item now, instead of at the end of the block.

        Raises:
            LeaseEnded: it is delivered again.
            ConnectionLost, OperationTimeout: the confirmation may not have arrived; in that case
                the item is delivered again.
        """
        if self._read is None:
            yield from self._end(commands.close_read(self._queue))
            return
        if not (yield from self._end(commands.finish(self._queue, Reads((self._read,))))):
            raise LeaseEnded("the lease of the item ended before it was confirmed")

    def release(
        self, delay: float | None = None, *, counted: bool = True, dead: bool = False
    ) -> Plan[None]:
        """Give the item back now; the end of the block then does nothing.

        Args:
            delay: seconds until it may be read again; None for the queue's `retry_delay`.
            counted: whether this was a delivery, of those that `max_deliveries` counts.
            dead: whether the item goes to the dead-letter queue at once.

        Raises:
            InvalidRequest: the delay is out of range, or the server has no reserved reads, so it
                can only take the item back.
            LeaseEnded: it was given back before.
            ServerRefused: the queue has no dead-letter queue; the item goes back.
        """
        check_delay(delay)
        if self._read is None:
            if delay is not None or not counted or dead:
                raise InvalidRequest(f"{self.held.server} can only take the item back at once")
            yield from self._end(commands.abort_read(self._queue))
            return
        which = Reads((self._read,))
        command = commands.release(self._queue, which, delay, counted=counted, dead=dead)
        if not (yield from self._end(command)):
            raise LeaseEnded("the lease of the item ended before it was released")

    def end(self) -> Plan[None]:
        """End the block: confirm the item, unless it is over. Raises as `finish`."""
        if not self.is_over:
            yield from self.finish()

    def abort(self) -> Plan[None]:
        """End the block with an error: give the item back, unless it is over."""
        if not self.is_over:
            with suppress(ClientError):
                yield from self.release()

    def _end(self, command: Command[Any]) -> Plan[Any]:
        """End the read, if need be over another connection; return the command's result."""
        if self.is_over:
            raise InvalidRequest("the item was confirmed or given back before")
        self.is_over = True
        return (yield from self._planner.end_read(self.held, command, again=self._read is not None))


def begin_block(
    planner: Planner, queue: str, timeout: float | None, lease: float, grace: float
) -> Plan[ItemPlans | None]:
    """Hold an item as `Planner.reserve` does; return the plans of the item.

    Raises:
        InvalidRequest: nothing can be reserved for so long, or for so long afterwards.
    """
    checked_lease(lease)
    check_grace(grace)
    held: HeldReads[HeldItem] | None = yield from planner.reserve(queue, timeout, lease, grace)
    return None if held is None else ItemPlans(planner, queue, held, lease)


class ItemOperations:
    """What can be done with a held item of either client."""

    extend = PlanMethod(ItemPlans.extend)
    finish = PlanMethod(ItemPlans.finish)
    release = PlanMethod(ItemPlans.release)


class ItemData(bytes):
    """The data of a held item, with what the server says about it.

    Attributes:
        server: the server that it is of.
        deliveries: how often it was handed out, this time included; None if the server does not
            say, and likewise the next two.
        add_time: when it was added (ms since the epoch).
        expiry: when it expires (ms since the epoch); 0 for never.
    """

    server: str
    deliveries: int | None
    add_time: int | None
    expiry: int | None
    client: Any
    _plans: ItemPlans

    @property
    def is_over(self) -> bool:
        """Whether it was confirmed or given back."""
        return self._plans.is_over

    @classmethod
    def of(cls, plans: ItemPlans, client: object) -> Self:
        """Return the item that these plans are of, which `client` holds."""
        found = plans.held.result
        item = cls(found.data)
        item.server = str(plans.held.server)
        item.deliveries, item.add_time, item.expiry = (
            found.deliveries,
            found.add_time,
            found.expiry,
        )
        item.client = client
        item._plans = plans
        return item

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        """Be copied, and sent to other processes, as plain data: only here it is held."""
        return bytes, (bytes(self),)


def beat_period(lease: float, *, heartbeat: float | bool | None) -> float | None:
    """Return after how many seconds each to extend a lease; None for never.

    Raises:
        InvalidRequest: the lease is not allowed, or would end before that.
    """
    if heartbeat is None or heartbeat is False:
        return None
    if heartbeat is True:
        return checked_lease(lease) / BEATS
    if not 0 < checked_number(heartbeat, "a heartbeat") < checked_lease(lease):
        raise InvalidRequest("a heartbeat must be more than 0 seconds and shorter than the lease")
    return heartbeat
