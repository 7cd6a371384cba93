"""The server's loop. One turn is: receive, apply, write the journals, reply.

The sockets of clients are not asyncio transports. `TurnLoop` serves all of them that are ready in
one turn, while an ordinary asyncio loop waits for events (see `event_loop`). asyncio handles only
the rest: timers, threads, the admin service. So a turn costs one wait, one read per connection, one
journal write per changed queue and one send per connection, and the journal is always written
before the reply is sent.

Changes that asyncio callbacks make are committed before the next wait. Turns follow each other
without returning to asyncio until a timer is due, another descriptor is ready, or an asyncio
callback was scheduled (see `event_loop.ServerEventLoop`).

Connections hold the replies that wait for a round, of writes or of fsyncs. A thread runs the rounds
of fsyncs, one at a time (see `SyncScheduler`). The next round begins once no client has anything
more to say, but waits for that no longer than the last round took: an fsync costs much CPU, and
covers all that was written.
"""

import asyncio
import contextlib
import logging
import math
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from queue import SimpleQueue
from typing import Final

from kestrelmq.clock import TurnClock, no_pause
from kestrelmq.errors import JournalError
from kestrelmq.queues.metrics import Latencies
from kestrelmq.scheduling.durability import Committable, GroupCommit, Round, Rounds, failures_of
from kestrelmq.scheduling.worker import Done, Job, JobRunner
from kestrelmq.server.loop.busy_poll import BusyPoll
from kestrelmq.server.loop.event_loop import MAX_EVENTS, READABLE, TurnSelector

# When many clients are busy but few of them are ready in each turn, the turn itself is most of the
# cost. A short pause lets requests gather, so that one write and one wait serve more of them;
# bench/measurements.md has the measurements.
GATHER_PAUSE: Final = 100e-6
SLOW_SHARE: Final = 2e-3
"""Seconds of each turn for slow requests; the rest is for all others."""
HANDSHAKE_SHARE: Final = 2e-3
"""Seconds of each turn for the handshakes of TLS; the one that exceeds it is finished."""
LARGE_SHARE: Final = 4 << 20
"""Bytes of large items that are handed out in a turn; copying and sending them takes some 10 ms."""
_FOR_EVER: Final = -1.0
_WAKE_SIZE: Final = 64
"""Bytes to read at once of those by which a thread wakes the loop."""
_FEW: Final = 8
"""The loop pauses before a turn only if the last turn had fewer events than this."""
_MANY: Final = 16
"""Many clients are busy if the ready ones were last served more than so many events ago."""

AfterCommit = Callable[[Mapping[Committable, JournalError]], None]
_NO_ROUNDS: Final[Mapping[Committable, Round]] = {}

log = logging.getLogger(__name__)


class TurnConnection:
    """What a turn needs of a client's connection, or of another descriptor that it serves.

    One that never has replies needs `on_input` only; one that is only resumed, `resume`.

    Attributes:
        last_served: the number of the event for which it was last served.
    """

    last_served: int = 0

    def on_input(self) -> None:
        """Receive input and apply the requests in it."""
        raise NotImplementedError

    def on_events(self, mask: int) -> None:  # noqa: ARG002 # a client's connection uses it
        """Handle an event other than just input; `mask` is the system's event mask."""
        self.on_input()

    def resume(self) -> None:
        """Continue with input that was received before."""
        raise NotImplementedError

    def reply(
        self, failures: Mapping[Committable, JournalError], rounds: Mapping[Committable, Round]
    ) -> None:
        """Send the replies of the turn.

        Args:
            failures: queues that could not be written, whose replies become errors.
            rounds: by queue, the rounds that replies wait for.
        """
        raise NotImplementedError

    def round_ended(self) -> None:
        """Send the replies whose rounds are over."""
        raise NotImplementedError

    @property
    def is_held(self) -> bool:
        """Whether replies wait for a round."""
        raise NotImplementedError


class SyncThread(TurnConnection):
    """Runs jobs one after the other in a thread, for which clients wait.

    At the end of a job it writes a byte to a pipe. So that is an event of a turn as any other, and
    needs no iteration of asyncio. If the pipe fails, asyncio wakes the loop. The thread starts with
    the first job, and lives until `close`.
    """

    def __init__(self, turns: "TurnLoop") -> None:
        self._turns = turns
        self._jobs: SimpleQueue[tuple[Job, Done] | None] = SimpleQueue()
        self._ended: deque[tuple[Done, BaseException | None]] = deque()
        self._runner: threading.Thread | None = None
        self._reader = self._writer = -1
        self._is_closed = False

    def run(self, job: Job, done: Done) -> None:
        """Run `job` in the thread; call `done` with its exception in a later turn.

        If the system has no room for the thread, `done` is called at once. Nothing is run once this
        is closed: a thread that starts then would never end, and neither would the process.
        """
        if self._is_closed:
            return
        if self._runner is None:
            try:
                self._start()
            except (OSError, RuntimeError) as error:
                self._close_pipe()
                done(error)
                return
        self._jobs.put((job, done))

    def _start(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        loop = asyncio.get_running_loop()
        runner = threading.Thread(target=self._work, args=(loop,), name="fsync")
        runner.start()
        self._runner = runner
        self._turns.add(self._reader, self, selectors.EVENT_READ)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the jobs; this is the thread."""
        while (ordered := self._jobs.get()) is not None:
            job, done = ordered
            failure: BaseException | None = None
            try:
                job(no_pause)
            except BaseException as error:  # noqa: BLE001 # it is passed on
                failure = error
            self._ended.append((done, failure))
            try:
                os.write(self._writer, b"\0")
            except OSError:
                loop.call_soon_threadsafe(self._report)

    def on_input(self) -> None:
        """Report the jobs that have ended."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, _WAKE_SIZE)
        self._report()

    def _report(self) -> None:
        while self._ended:
            done, failure = self._ended.popleft()
            done(failure)

    def close(self) -> None:
        """Finish the jobs; what they report is lost, and so are later jobs."""
        self._is_closed = True
        if self._runner is not None:
            self._jobs.put(None)
            self._runner.join()
            self._runner = None
            self._turns.discard(self._reader)
        self._close_pipe()

    def _close_pipe(self) -> None:
        if self._reader >= 0:
            os.close(self._reader)
            os.close(self._writer)
            self._reader = self._writer = -1


class TurnLoop:
    """Serves the connections of clients, one turn after another.

    Attributes:
        selector: the loop's selector; it calls `run_turns` for every wait.
        clock: the clock that is read once a turn.
        replying: connections with replies to send at the end of this turn.
        resuming: connections with input to apply in the next turn.
        latencies: how long operations take; about one operation a millisecond is measured.
        served: how many events of connections were served.
        turn_count: how many turns had something to write or to send.
        slow_share: seconds of each turn for slow requests.
        handshake_share: seconds of each turn for the handshakes of TLS.
        handshake_time: seconds that they have taken in this turn.
        large_output: bytes of large items in replies of this turn.
    """

    def __init__(self, clock: TurnClock, commits: GroupCommit) -> None:
        self.selector = TurnSelector(self.run_turns)
        self.clock = clock
        self.replying: list[TurnConnection] = []
        self.resuming: list[TurnConnection] = []
        self.latencies = Latencies()
        self.served = 0
        self.turn_count = 0
        self.slow_share = SLOW_SHARE
        self.handshake_share = HANDSHAKE_SHARE
        self.handshake_time = 0.0
        self.large_output = 0
        self._busy_poll = BusyPoll(self.selector.poll)
        self._commits = commits
        self._syncs = commits.syncs
        self._sync_thread: JobRunner = SyncThread(self)
        self._last_began = self._last_ended = 0.0
        self._held: dict[TurnConnection, None] = {}
        self._after_rounds: list[tuple[Rounds, AfterCommit]] = []
        self._connections: dict[int, TurnConnection] = {}
        self._gather = False
        self._began = 0.0
        self._slow_share_ends = 0.0
        self._after_commit: list[tuple[Collection[Committable], AfterCommit]] = []
        commits.on_written = self._round_ended

    def add(self, descriptor: int, connection: TurnConnection, events: int) -> None:
        """Serve `connection` when `descriptor` has one of `events` (flags of `selectors`)."""
        self._connections[descriptor] = connection
        self.selector.register(descriptor, events)

    def watch(self, descriptor: int, events: int) -> None:
        """Change the events for which the connection of `descriptor` is served to `events`."""
        self.selector.watch(descriptor, events)

    def discard(self, descriptor: int) -> None:
        """Stop serving the connection of `descriptor`."""
        if self._connections.pop(descriptor, None) is not None:
            self.selector.unregister(descriptor)

    def slow_share_is_over(self) -> bool:
        """Whether slow requests have used up their time in this turn; call it before each piece.

        The first check of a turn starts the time and returns False, so every turn does at least one
        piece of slow work.
        """
        now = time.perf_counter()
        if not self._slow_share_ends:
            self._slow_share_ends = now + self.slow_share
            return False
        return now > self._slow_share_ends

    async def committed(self, *queues: Committable) -> None:
        """Wait until all changes made so far are written to the journals, but need not be synced.

        Raises:
            JournalError: one of `queues` could not be written; its changes were undone.
        """
        future, complete = _completion(queues)
        self._after_commit.append((queues, complete))
        await future

    async def synced(self, queues: set[Committable]) -> None:
        """Wait until everything written to `queues` so far is on disk.

        Raises:
            JournalError: one of them could not be synced.
        """
        if queues:
            future, complete = _completion(queues)
            covering = self._syncs.request(queues)
            assert covering is not None  # noqa: S101 # it covers the queues
            self._after_rounds.append(((covering,), complete))
            await future

    def run_turns(self, timeout: float | None) -> list[tuple[int, int]]:
        """Serve clients, turn after turn, until asyncio has something to do.

        Args:
            timeout: seconds until asyncio's next timer; None when there is none.

        Returns:
            The events of asyncio's descriptors, as (descriptor, system's event mask).
        """
        selector = self.selector
        selector.has_callback = False
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        wait = _FOR_EVER if timeout is None else timeout
        self._end_turn()
        while True:
            if self.resuming or self._after_commit or selector.has_callback:
                wait = 0.0
            others = self._run_turn(wait)
            if others or selector.has_callback:
                return others
            if timeout is not None:
                wait = deadline - time.monotonic()
                if wait <= 0:
                    return others

    def _run_turn(self, wait: float) -> list[tuple[int, int]]:
        """Run one turn, after waiting at most `wait` seconds; return the events for asyncio."""
        if self._syncs.is_due:
            wait = 0.0
        if self._gather and (wait > GATHER_PAUSE or wait < 0):
            time.sleep(GATHER_PAUSE)
        events = self._busy_poll.wait(wait, MAX_EVENTS)
        self.clock.tick()
        self._began = time.perf_counter()
        self._slow_share_ends = 0.0
        self.handshake_time = 0.0
        self.large_output = 0
        others: list[tuple[int, int]] = []
        connections = self._connections
        served = self.served
        busy = 0
        for event in events:
            descriptor, mask = event
            connection = connections.get(descriptor)
            if connection is None:
                others.append(event)
                continue
            served += 1
            if served - connection.last_served > _MANY:
                busy += 1
            connection.last_served = served
            if mask == READABLE:
                connection.on_input()
            else:
                connection.on_events(mask)
        if self.resuming:
            resuming, self.resuming = self.resuming, []
            for connection in resuming:
                connection.resume()
        self._gather = 0 < len(events) < _FEW and busy == len(events)
        self.served = served
        self._end_turn()
        if self._syncs.is_due:
            self._begin_round(is_idle=not events)
        return others

    def _end_turn(self) -> None:
        """Write the journals, then reply."""
        commits = self._commits
        replying = self.replying
        if not (replying or commits.dirty or commits.failures or self._after_commit):
            return
        now = self.clock.now()
        sample = (
            self.latencies.choose_sample(now, commits.dirty)
            if now != self.latencies.last_look
            else None
        )
        failures = commits.commit()
        rounds = _NO_ROUNDS
        if self._syncs.unsynced or commits.writing is not None:
            rounds = commits.take_rounds()
        self.turn_count += 1
        if replying:
            self.replying = []
            for connection in replying:
                connection.reply(failures, rounds)
                if rounds and connection.is_held:
                    self._held[connection] = None
        if sample is not None:
            took = time.perf_counter() - self._began
            self.latencies.record_sample(sample, int(took * 1e6))
        if self._after_commit:
            callbacks, self._after_commit = self._after_commit, []
            for queues, callback in callbacks:
                waits_for = commits.writing_of(queues)
                if waits_for:
                    self._after_rounds.append((tuple(waits_for.values()), callback))
                else:
                    callback(failures)

    # --- syncs ---

    def _begin_round(self, *, is_idle: bool) -> None:
        """Begin the next round if no client had anything to say, or if it has waited long enough.

        Clients that just got their replies may send more to write, and the round should cover that,
        too. Otherwise clients fall into two groups that wait for each other's rounds.
        """
        now = time.perf_counter()
        if is_idle or now - self._last_ended >= self._last_ended - self._last_began:
            begun = self._syncs.begin()
            if begun is not None:
                self._last_began = now
                self._sync_thread.run(begun.run, self._end_round)

    def _end_round(self, error: BaseException | None) -> None:
        """Send the replies that waited for the round of syncs."""
        self._last_ended = time.perf_counter()
        self._syncs.end(error)
        self._round_ended()

    def _round_ended(self) -> None:
        """Send the replies whose rounds, of syncs or of writes, are over."""
        for connection in list(self._held):
            try:
                connection.round_ended()
            except Exception:
                log.exception("a connection failed to send the replies that waited for a round")
            if not connection.is_held:
                del self._held[connection]
        waiting, self._after_rounds = self._after_rounds, []
        for rounds, complete in waiting:
            if all(one.is_over for one in rounds):
                complete(failures_of(rounds))
            else:
                self._after_rounds.append((rounds, complete))

    def close(self) -> None:
        """Wait for the running round of fsyncs, if any; no other round begins after that."""
        self._sync_thread.close()


def _completion(queues: Collection[Committable]) -> tuple[asyncio.Future[None], AfterCommit]:
    """Return a future, and the function that sets its result, or the failure of one of `queues`."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def complete(failures: Mapping[Committable, JournalError]) -> None:
        if future.done():
            return
        failed = [failures[queue] for queue in queues if queue in failures]
        if failed:
            future.set_exception(failed[0])
        else:
            future.set_result(None)

    return future, complete
