"""Stream the changes of the queues as server-sent events.

Events that go to many watchers are encoded once. A watcher that reads slowly skips samples and
then gets the difference from the last sample it received, so the server never buffers more for it.
A watcher that reads nothing for `STALL_TIMEOUT` seconds is dropped.

There are `MOST_WATCHERS` places. When all are taken, a newcomer replaces the oldest watcher of
the peer that has the most, if the newcomer's peer has fewer: nobody can keep all others out.
"""

import asyncio
import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from aiohttp import web

from kestrelmq.access.users import User
from kestrelmq.admin.calls import AdminContext
from kestrelmq.admin.connections import displaced, peer_of
from kestrelmq.admin.errors import ApiError
from kestrelmq.admin.guard import USER

MOST_WATCHERS: Final = 64
STALL_TIMEOUT = 30.0
"""Seconds after which a watcher that reads nothing is dropped."""


@dataclass(frozen=True, slots=True, eq=False)
class _Watcher:
    peer: str
    request: web.Request
    task: asyncio.Task[Any]

    @property
    def is_gone(self) -> bool:
        return self.request.transport is None

    def drop(self) -> None:
        """Close the stream at once and drop what is unsent."""
        if self.request.transport is not None:
            self.request.transport.abort()
        self.task.cancel()


class QueueEvents:
    """Serves `/api/v1/events`."""

    __slots__ = ("_admin", "_cache", "_cached", "_closing", "_encoding", "_watchers")

    def __init__(self, admin: AdminContext) -> None:
        self._admin = admin
        self._closing = False
        self._cached = 0
        self._cache: dict[tuple[int, User | None], list[bytes]] = {}
        self._encoding = asyncio.Lock()
        self._watchers: dict[_Watcher, None] = {}

    def close(self) -> None:
        """Close every stream."""
        self._closing = True
        for watcher in self._watchers:
            watcher.task.cancel()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Send events until the client disconnects."""
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        if request.method == "HEAD":
            await response.prepare(request)
            return response
        watcher = self._admit(request)
        try:
            with self._admin.sampler.watching():
                await response.prepare(request)
                await self._follow(response, request.get(USER))
        except ConnectionError:
            pass  # the client disconnected
        except TimeoutError:
            watcher.drop()
        except asyncio.CancelledError:
            if not self._closing:
                raise
        finally:
            self._watchers.pop(watcher, None)
        return response

    def _admit(self, request: web.Request) -> _Watcher:
        """Give `request` a place among the watchers. Raises ApiError: there is none for it."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a handler runs in a task")
        transport = request.transport
        peer = peer_of(None if transport is None else transport.get_extra_info("peername"))
        present = [watcher for watcher in self._watchers if not watcher.is_gone]
        if self._closing:
            raise ApiError(503, "too_many_watchers", "the server is shutting down")
        if len(present) >= MOST_WATCHERS:
            loser = displaced(peer, present, lambda one: one.peer, lambda _: True, own=False)
            if loser is None:
                raise ApiError(
                    503, "too_many_watchers", f"there are {MOST_WATCHERS} watchers already"
                )
            self._watchers.pop(loser, None)
            loser.drop()
        watcher = _Watcher(peer, request, task)
        self._watchers[watcher] = None
        return watcher

    async def _follow(self, response: web.StreamResponse, user: User | None) -> None:
        sampler = self._admin.sampler
        seen = 0
        while True:
            await sampler.wait_for_sample(seen)
            if not self._admin.context.users.is_in_force(user):
                return
            seen, events = await self._since(seen, user)
            for event in events:
                async with asyncio.timeout(STALL_TIMEOUT):
                    await response.write(event)
                await asyncio.sleep(0)  # there may be very many, and the socket may take all

    async def _since(self, seen: int, user: User | None = None) -> tuple[int, list[bytes]]:
        """Return the number of the last sample, and the events that lead there from `seen`.

        They are about the queues that `user` may read. All watchers wake up at the same time. One
        encodes, and the others wait for that.
        """
        async with self._encoding:
            version = self._admin.sampler.version
            if self._cached != version:
                self._cached, self._cache = version, {}
            key = seen, user
            if key not in self._cache:
                self._cache[key] = await self._encode(seen, user)
            return version, self._cache[key]

    async def _encode(self, seen: int, user: User | None = None) -> list[bytes]:
        def sees(name: str) -> bool:
            return user is None or user.may(name, write=False)

        sampler = self._admin.sampler
        gone = sampler.removed_since(seen) if seen else []
        reset = not seen or gone is None
        events = []
        if reset:
            seen = 0
            events.append(_event("reset", {}))
        elif gone:
            events.append(_event("gone", list(filter(sees, gone))))
        for snapshots in sampler.changed_since(seen):
            rows = [[name, *snapshot] for name, snapshot in snapshots if sees(name)]
            events.append(_event("rows", rows))
            await asyncio.sleep(0)
        events.append(_event("server", self._server()))
        return events

    def _server(self) -> dict[str, Any]:
        context = self._admin.context
        return asdict(self._admin.sampler.totals) | {
            "status": context.status.status.value,
            "reads_allowed": context.status.reads_allowed,
            "writes_allowed": context.status.writes_allowed,
            "connections": context.counters.curr_connections,
        }


def _event(name: str, content: object) -> bytes:
    data = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return f"event: {name}\ndata: {data}\n\n".encode()
