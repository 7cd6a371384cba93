"""What is connected to find servers, and who disconnects it."""

import asyncio
from threading import Event, Lock

import pytest

from kestrelmq.client import AsyncClient
from kestrelmq.client.address import Address
from kestrelmq.client.discovery import ZooKeeperMembership
from kestrelmq.errors import ClientClosed
from tests.support.forks import in_a_fork
from tests.support.patience import PATIENCE


class SlowMembership:
    """Knows no servers, and is only connected when it is told to be.

    Attributes:
        begins: set when it begins to connect.
        may_connect: lets it.
        calls: what was done.
    """

    def __init__(self) -> None:
        self.begins, self.may_connect = Event(), Event()
        self.calls: list[str] = []
        self._lock = Lock()

    def start(self) -> None:
        """Connect."""
        with self._lock:
            self.begins.set()
            self.may_connect.wait(PATIENCE)
            self.calls.append("start")

    def reads(self) -> list[Address]:
        """Return none."""
        return []

    def writes(self) -> list[Address]:
        """Return none."""
        return []

    def close(self) -> None:
        """Disconnect; while it connects, wait for that."""
        with self._lock:
            self.calls.append("close")


async def test_what_was_connecting_for_a_cancelled_task_is_disconnected() -> None:
    """The thread that connects goes on; nobody but the client knows of it."""
    membership = SlowMembership()
    async with AsyncClient(membership) as client:
        task = asyncio.create_task(client.get("work"))
        await asyncio.to_thread(membership.begins.wait, PATIENCE)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        membership.may_connect.set()
    assert membership.calls[-1] == "close"


def test_nothing_is_connected_after_the_close() -> None:
    """A thread that was about to do so finds the client closed."""
    membership = ZooKeeperMembership("host.invalid:1", "/kestrel")
    membership.close()
    with pytest.raises(ClientClosed):
        membership.start()


class Session:
    """Stands for a client of ZooKeeper that is connected."""

    def stop(self) -> None:
        """Fail: this would end a session that another process uses."""
        raise AssertionError


def test_a_fork_leaves_the_session_of_its_parent() -> None:
    """It makes one of its own, and closes only that."""
    membership = ZooKeeperMembership("host.invalid:1", "/kestrel", timeout=0.01)
    membership._session.get().zookeeper = Session()
    membership.start()
    assert in_a_fork(membership.start) == "ServerUnavailable"
    assert in_a_fork(membership.close) == "None"
    with pytest.raises(AssertionError):
        membership.close()
