"""What an operation does when servers fail, refuse, or have nothing: plans with played servers."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from kestrelmq.client import commands
from kestrelmq.client.address import Address
from kestrelmq.client.cluster import ServerSet
from kestrelmq.client.core import Exchange, has_open_read
from kestrelmq.client.plans import (
    BATCH_ITEMS,
    HeldReads,
    HoldStep,
    PauseStep,
    Plan,
    Planner,
    ReleaseStep,
    RunStep,
    Step,
)
from kestrelmq.errors import (
    ClientError,
    ConnectionLost,
    ImportStopped,
    InvalidRequest,
    OperationTimeout,
    ServerRefused,
    ServerUnavailable,
)
from kestrelmq.protocol.memcache_client import ReplyParser

A, B, C = Address("a"), Address("b"), Address("c")
Answer = bytes | ClientError


@dataclass
class Play:
    """Plays the servers: `answer` gives the bytes, or the error, for each request to a server."""

    answer: Callable[[Address, bytes], Answer]
    members: list[Address] = field(default_factory=lambda: [A, B, C])
    now: float = 1000.0
    asked: list[tuple[Address, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.servers = ServerSet(lambda: self.members, self.clock, Random(7))
        self.planner = Planner(self.servers, self.servers, self.clock)

    def clock(self) -> float:
        """Return the played time."""
        return self.now

    def run(self, plan: Plan[Any]) -> Any:
        """Carry a plan out."""
        resume: Callable[[Any], Step] = plan.send
        answer: Any = None
        try:
            while True:
                step = resume(answer)
                try:
                    answer, resume = self._perform(step), plan.send
                except ClientError as error:
                    answer, resume = error, plan.throw
        except StopIteration as done:
            return done.value

    def servers_asked(self) -> list[Address]:
        """Return the servers in the order in which they were asked."""
        return [server for server, _ in self.asked]

    def _perform(self, step: Step) -> Any:
        match step:
            case PauseStep(seconds):
                self.now += seconds
                return None
            case RunStep(server, command):
                return self._ask(server, command)
            case HoldStep(server, command, on):
                if not isinstance(command, commands.Command):
                    command = command("a connection")
                result = self._ask(server, command)
                streak = on.streak + 1 if on else 0
                return HeldReads(server, None, result, streak) if has_open_read(result) else None
            case ReleaseStep(held, command):
                return self._ask(held.server, command)

    def _ask(self, server: Address, command: commands.Command[Any]) -> Any:
        self.asked.append((server, command.request))
        answer = self.answer(server, command.request)
        if isinstance(answer, ClientError):
            raise answer
        if answer == b"END\r\n":
            self.now += command.wait
        if command.request.endswith(b"\r\nversion\r\n"):
            answer += b"VERSION 1.0\r\n"
        exchange = Exchange(server, ReplyParser(), command)
        if not exchange.receive(answer):
            exchange.lose(ConnectionLost("cut"))
        return exchange.result


def value(data: bytes) -> bytes:
    """Return the reply that holds an item."""
    return b"VALUE q 0 %d\r\n%b\r\nEND\r\n" % (len(data), data)


STORED, NOT_STORED, EMPTY = b"STORED\r\n", b"NOT_STORED\r\n", b"END\r\n"


def put(play: Play, *items: bytes, retry: bool | None = None) -> Any:
    """Put items into queue q."""
    return play.run(play.planner.put_many("q", items or (b"x",), retry_unknown=retry))


def get(play: Play, timeout: float | None = None) -> Any:
    """Get an item of queue q."""
    return play.run(play.planner.get("q", timeout))


# Adding


def test_a_put_that_reached_no_server_moves_on_to_another() -> None:
    """A dead server costs the caller nothing but time, and is not asked again."""
    play = Play(lambda server, _: STORED if server == C else ServerUnavailable("down"))
    assert [put(play) for _ in range(20)] == [[True]] * 20
    assert play.servers_asked().count(A) <= 1
    assert play.servers_asked().count(B) <= 1


def test_a_put_fails_when_no_server_can_be_reached() -> None:
    """Every server is tried once, those set aside too, and the error names what each said."""
    play = Play(lambda server, _: ServerUnavailable(f"{server} is down"))
    for _ in range(2):
        play.asked.clear()
        with pytest.raises(ServerUnavailable, match=r"a:22133 is down") as failure:
            put(play)
        assert sorted(play.servers_asked()) == [A, B, C]
        assert failure.value.stored == (False,)


@pytest.mark.parametrize("error", [ConnectionLost("cut"), OperationTimeout("slow")])
def test_a_put_whose_reply_was_lost_is_not_repeated(error: ClientError) -> None:
    """It may be stored, so only the caller can decide."""
    play = Play(lambda *_: error)
    with pytest.raises(type(error)) as failure:
        put(play)
    assert len(play.asked) == 1
    assert failure.value.stored == (None,)


def test_a_put_whose_reply_was_lost_is_repeated_where_duplicates_are_accepted() -> None:
    """With retry_unknown the caller sees no error while any server answers."""
    play = Play(lambda server, _: STORED if server == C else ConnectionLost("cut"))
    assert [put(play, retry=True) for _ in range(5)] == [[True]] * 5


def imported(play: Play, count: int) -> Any:
    """Import items, each with an expiry of its own, into queue q."""
    far = 4_000_000_000_000
    lines = [
        json.dumps({"queue": "q", "data": "x", "expiry": far + 1000 * number})
        for number in range(count)
    ]
    return play.run(play.planner.import_items(lines))


def test_items_with_different_times_are_imported_together() -> None:
    """They need no round trip each."""
    play = Play(lambda _, request: STORED * request.count(b"set q "), [A])
    assert imported(play, BATCH_ITEMS + 10) == BATCH_ITEMS + 10
    assert [request.count(b"set q ") for _, request in play.asked] == [BATCH_ITEMS, 10]
    assert b"set q 0 4000000009 1\r\n" in play.asked[0][1]


def test_an_import_stops_with_what_was_sent_together() -> None:
    """What was stored behind the refused item counts; nothing else is sent."""

    def answer(_server: Address, request: bytes) -> bytes:
        count = request.count(b"set q ")
        return STORED * 3 + NOT_STORED + STORED * (count - 4) if count > 1 else NOT_STORED

    play = Play(answer, [A])
    with pytest.raises(ImportStopped) as stopped:
        imported(play, 3 * BATCH_ITEMS)
    assert stopped.value.added == BATCH_ITEMS - 1
    assert [request.count(b"set q ") for _, request in play.asked] == [BATCH_ITEMS]


def test_a_full_queue_is_tried_elsewhere_and_then_reported() -> None:
    """False means that every server that answered refused."""
    play = Play(lambda server, _: STORED if server == B else NOT_STORED)
    assert put(play) == [True]
    play = Play(lambda *_: NOT_STORED)
    assert put(play) == [False]
    assert sorted(play.servers_asked()) == [A, B, C]


def test_a_server_that_refuses_by_its_state_is_passed_over() -> None:
    """A read-only server sends writers to the others; when all refuse the caller learns why."""
    refuse = b"SERVER_ERROR Server is read-only\r\n"
    play = Play(lambda server, _: STORED if server == C else refuse)
    assert [put(play) for _ in range(5)] == [[True]] * 5
    with pytest.raises(ServerRefused, match="read-only"):
        put(Play(lambda *_: refuse))


def test_what_is_stored_behind_a_refusal_is_not_sent_to_another_server() -> None:
    """A queue that was loaded, or could be written again, in the middle of a batch."""
    refuse = b"SERVER_ERROR queue q is still loading\r\n"
    answers: Iterator[Answer] = iter([refuse + STORED + refuse + STORED, NOT_STORED + STORED])
    play = Play(lambda *_: next(answers), [A, B])
    assert put(play, b"1", b"2", b"3", b"4") == [False, True, True, True]
    assert play.asked[1][1] == b"set q 0 0 1\r\n1\r\nset q 0 0 1\r\n3\r\n"


def test_a_server_that_closes_behind_a_refusal_is_passed_over() -> None:
    """It did none of what follows, so all of that goes to another server."""
    refuse = b"SERVER_ERROR Server is read-only\r\n"
    answers: Iterator[Answer] = iter([STORED + refuse, STORED * 2])
    play = Play(lambda *_: next(answers), [A, B])
    assert put(play, b"1", b"2", b"3") == [True, True, True]
    assert play.asked[1][1] == b"set q 0 0 1\r\n2\r\nset q 0 0 1\r\n3\r\n"


def test_what_a_lost_connection_had_stored_behind_a_refusal_is_unknown() -> None:
    """The server went on, so it may have stored what it did not answer."""
    answer = b"SERVER_ERROR queue q is still loading\r\n" + STORED
    play = Play(lambda *_: answer, [A, B])
    with pytest.raises(ConnectionLost) as failure:
        put(play, b"1", b"2", b"3")
    assert failure.value.stored == (False, True, None)
    assert len(play.asked) == 1


def test_a_request_that_every_server_refuses_is_not_repeated() -> None:
    """CLIENT_ERROR and ERROR are about the request, not about the server."""
    for refusal in (b"CLIENT_ERROR no\r\n", b"ERROR\r\n"):
        play = Play(lambda *_, refusal=refusal: refusal)
        with pytest.raises(ServerRefused):
            put(play)
        assert len(play.asked) == 1


def test_what_is_behind_a_request_that_is_not_repeated_is_unknown() -> None:
    """The server goes on behind it, but no one reads the answers."""
    with pytest.raises(ServerRefused) as failure:
        put(Play(lambda *_: STORED + b"CLIENT_ERROR no\r\n" + STORED), b"1", b"2", b"3")
    assert failure.value.stored == (True, False, None)


def test_items_that_every_server_refused_by_its_state_are_not_stored() -> None:
    """Nothing is unknown about them, unlike about one whose reply was lost before."""
    refuse = b"SERVER_ERROR Server is read-only\r\n"
    with pytest.raises(ServerRefused) as failure:
        put(Play(lambda *_: STORED + refuse * 2, [A]), b"1", b"2", b"3")
    assert failure.value.stored == (True, False, False)
    answers: Iterator[Answer] = iter([STORED, ServerUnavailable("down"), ServerUnavailable("down")])
    with pytest.raises(ConnectionLost) as lost:
        put(Play(lambda *_: next(answers), [A, B]), b"1", b"2", retry=True)
    assert lost.value.stored == (True, None)


def test_a_producer_learns_that_an_item_may_be_stored_whatever_follows() -> None:
    """The server that did not answer is gone when the item is sent again."""
    answers: Iterator[Answer] = iter([ConnectionLost("cut")])
    play = Play(lambda *_: next(answers, ServerUnavailable("down")), [A])
    with pytest.raises(ConnectionLost, match="cut; down") as lost:
        play.run(play.planner.put_many("q", [b"1"], producer="p", sequence=1))
    assert lost.value.stored == (None,)


def test_a_batch_goes_on_from_the_items_that_were_answered() -> None:
    """Stored items are not sent again; of the others the error says that nothing is known."""
    answers: Iterator[Answer] = iter([STORED * 2, NOT_STORED * 3])
    play = Play(lambda *_: next(answers))
    with pytest.raises(ConnectionLost) as failure:
        put(play, b"1", b"2", b"3")
    assert failure.value.stored == (True, True, None)


def test_a_batch_moves_only_refused_items_to_the_next_server() -> None:
    """An item is sent on only when its own answer was a refusal."""
    answers: Iterator[Answer] = iter([STORED + NOT_STORED + STORED, STORED])
    play = Play(lambda *_: next(answers))
    assert put(play, b"1", b"2", b"3") == [True, True, True]
    assert play.asked[1][1] == b"set q 0 0 1\r\n2\r\n"


def test_an_item_is_not_reported_refused_when_a_later_answer_was_lost() -> None:
    """A refusal is forgotten when the item was sent to another server that did not answer."""
    answers: Iterator[Answer] = iter([NOT_STORED, ConnectionLost("cut")])
    with pytest.raises(ConnectionLost) as failure:
        put(Play(lambda *_: next(answers)))
    assert failure.value.stored == (None,)


def test_many_items_are_sent_in_bounded_batches() -> None:
    """A batch is small enough that its replies fit into a socket's buffer."""
    play = Play(lambda _, request: STORED * request.count(b"set q"))
    assert put(play, *[b"x"] * 1000) == [True] * 1000
    assert max(request.count(b"set q") for _, request in play.asked) == BATCH_ITEMS


def test_a_bad_queue_name_asks_no_server() -> None:
    """The name is checked before anything is sent."""
    play = Play(lambda *_: STORED)
    for name in ("", "a/b", "a b", "a\r\nflush_all"):
        with pytest.raises(InvalidRequest):
            play.run(play.planner.put(name, b"x"))
    assert play.asked == []


# Reading


def test_a_get_finds_an_item_on_any_server() -> None:
    """None means that every server that answered was empty."""
    play = Play(lambda server, _: value(b"x") if server == B else EMPTY)
    assert [get(play) for _ in range(5)] == [b"x"] * 5
    play = Play(lambda *_: EMPTY)
    assert get(play) is None
    assert sorted(play.servers_asked()) == [A, B, C]


def test_an_empty_item_is_an_item() -> None:
    """Zero bytes are not the same as nothing."""
    play = Play(lambda *_: value(b""))
    assert get(play) == b""
    held = play.run(play.planner.hold("q", None))
    assert held.result == b""


def test_a_blocking_get_over_a_cluster_waits_at_each_server_in_turn() -> None:
    """The wait is cut into short slices, over all servers alike, and ends in time."""
    play = Play(lambda *_: EMPTY)
    assert get(play, 3.0) is None
    assert play.now == pytest.approx(1003.0, abs=0.001)
    slices = [server for server, request in play.asked if b"/t=50" in request]
    counts = [slices.count(server) for server in (A, B, C)]
    assert max(counts) - min(counts) <= 1
    assert sum(counts) >= 59


def test_a_blocking_get_of_one_server_leaves_the_waiting_to_it() -> None:
    """One server is asked once, not polled."""
    play = Play(lambda *_: EMPTY, members=[A])
    assert get(play, 3.0) is None
    assert play.asked == [(A, b"get q/t=3000\r\n")]


def test_a_get_survives_a_server_that_dies_and_comes_back() -> None:
    """While there is time left, a blocking get keeps trying."""

    def answer(*_: object) -> Answer:
        return value(b"x") if play.now > 1002 else ServerUnavailable("down")

    play = Play(answer, members=[A])
    assert get(play, 5.0) == b"x"
    play.now = 1000.0
    with pytest.raises(ServerUnavailable):
        get(play, 1.0)


def test_a_broken_connection_of_a_read_is_made_again_once() -> None:
    """A server that was restarted is not taken for dead."""
    answers: Iterator[Answer] = iter([ConnectionLost("cut"), value(b"x")])
    play = Play(lambda *_: next(answers), members=[A])
    assert get(play) == b"x"


def test_a_read_passes_over_a_server_that_refuses() -> None:
    """A quiescent server, or one whose queue is damaged, does not stop the others."""
    play = Play(lambda server, _: value(b"x") if server == A else b"SERVER_ERROR damaged\r\n")
    assert [get(play) for _ in range(10)] == [b"x"] * 10


def test_a_consumer_confirms_and_opens_in_one_step() -> None:
    """While a server has items, an item costs one round trip."""
    play = Play(lambda *_: value(b"x"), members=[A])
    held = play.run(play.planner.advance("q", None, 1.0))
    held = play.run(play.planner.advance("q", held, 1.0))
    assert [request for _, request in play.asked] == [
        b"get q/t=1000/open\r\n",
        b"get q/close/open\r\n",
    ]
    play.run(play.planner.confirm_last("q", held))
    assert play.asked[-1] == (A, b"get q/close\r\n")


def test_a_consumer_leaves_a_busy_server_after_a_while() -> None:
    """A server that never runs dry does not keep the items of the others waiting."""
    play = Play(lambda *_: value(b"x"))
    held = None
    for _ in range(1000):
        held = play.run(play.planner.advance("q", held, 1.0))
    assert all(play.servers_asked().count(server) > 100 for server in (A, B, C))


def test_a_consumer_whose_confirmation_is_lost_goes_on() -> None:
    """The item may come again; the consumer gets the next from a server that works."""
    play = Play(lambda server, _: value(b"x") if server == A else EMPTY)
    held = play.run(play.planner.advance("q", None, 1.0))
    play.answer = lambda server, _: value(b"y") if server == B else ConnectionLost("cut")
    held = play.run(play.planner.advance("q", held, 1.0))
    assert (held.server, held.result) == (B, b"y")


def test_a_consumer_waits_for_ever_when_it_is_told_to() -> None:
    """An endless wait survives five minutes without any server."""

    def answer(*_: object) -> Answer:
        return value(b"x") if play.now > 1300 else ServerUnavailable("down")

    play = Play(answer)
    assert play.run(play.planner.advance("q", None, math.inf)).result == b"x"


def test_a_monitor_of_a_cluster_collects_from_every_server() -> None:
    """Servers are watched in turn, and every item read is confirmed where it came from."""
    play = Play(lambda server, _: value(str(server).encode()))
    batch = play.run(play.planner.monitor("q", 5, 3))
    assert sorted(held.result[0] for held in batch) == [b"a:22133", b"b:22133", b"c:22133"]
    play.asked.clear()
    play.answer = lambda *_: EMPTY
    play.run(play.planner.confirm("q", batch))
    assert sorted(play.asked) == [(s, b"confirm q 1\r\n") for s in (A, B, C)]


def test_a_monitor_ends_after_its_time() -> None:
    """With nothing to collect it takes as long as it was told, and gives nothing."""
    play = Play(lambda *_: EMPTY, members=[A])
    assert play.run(play.planner.monitor("q", 25, None)) == []
    assert play.now == 1025.0


def test_every_server_is_asked_even_when_one_fails() -> None:
    """The operation fails, and has been done wherever it could be."""
    play = Play(lambda server, _: ServerUnavailable("down") if server == A else EMPTY)
    with pytest.raises(ServerUnavailable):
        play.run(play.planner.flush("q"))
    assert play.servers_asked() == [A, B, C]


def test_no_known_server_is_an_error() -> None:
    """An empty server set is told apart from an empty queue."""
    play = Play(lambda *_: EMPTY, members=[])
    for plan in (
        play.planner.get("q"),
        play.planner.put("q", b"x"),
        play.planner.stats(),
    ):
        with pytest.raises(ServerUnavailable, match="no server is known"):
            play.run(plan)


def test_an_add_waits_for_the_only_server() -> None:
    """It is sent again until the server is back, or the patience is over."""
    play = Play(lambda _server, _request: ServerUnavailable("refused"), members=[A])
    play.planner.restart_patience = 2.0
    with pytest.raises(ServerUnavailable):
        put(play)
    assert 1002.0 <= play.now < 1002.5
    refusals = [ServerUnavailable("refused")] * 5
    play.answer = lambda _server, _request: refusals.pop() if refusals else STORED
    assert put(play) == [True]


def test_an_add_does_not_wait_for_what_is_no_restart() -> None:
    """Another server is tried instead, and an answer is an answer."""
    play = Play(lambda _server, _request: ServerUnavailable("refused"))
    play.planner.restart_patience = 2.0
    with pytest.raises(ServerUnavailable):
        put(play)
    answers: list[Answer] = [b"SERVER_ERROR full\r\n", ConnectionLost("gone")]
    play.members = [A]
    for answer in answers:
        play.answer = lambda _server, _request, answer=answer: answer  # type: ignore[misc]
        with pytest.raises((ServerRefused, ConnectionLost)):
            put(play)
    assert play.now == 1000.0


def test_an_item_may_be_text() -> None:
    """It is sent as UTF-8, and an error says what cannot be."""
    play = Play(lambda _server, _request: STORED, members=[A])
    assert play.run(play.planner.put("q", "ärger")) is True
    assert "ärger".encode() in play.asked[0][1]
    with pytest.raises(InvalidRequest, match="UTF-8: surrogates not allowed at character 1"):
        play.run(play.planner.put("q", "a\udc80"))
    with pytest.raises(InvalidRequest, match="bytes or text, not int"):
        play.run(play.planner.put("q", 7))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="what to search for is bytes or text, not int"):
        play.run(play.planner.browse("q", text=7))  # type: ignore[arg-type]


def test_several_items_may_come_from_anywhere() -> None:
    """Any iterable will do, but not one item, whose characters would be taken for items."""
    play = Play(lambda _server, _request: STORED * 2, members=[A])
    assert play.run(play.planner.put_many("q", (item for item in ("a", "b")))) == [True, True]  # type: ignore[arg-type]
    for one in ("ab", b"ab", bytearray(b"ab")):
        with pytest.raises(InvalidRequest, match="put_many takes a list"):
            play.run(play.planner.put_many("q", one))  # type: ignore[arg-type]


@pytest.mark.parametrize("operation", ["get", "peek", "hold", "monitor", "reserve_many"])
def test_a_timeout_that_is_no_number_is_refused(operation: str) -> None:
    """It would never be over, and the servers would be asked again and again."""
    play = Play(lambda _server, _request: b"END\r\n", members=[A])
    planner = play.planner
    plans: dict[str, Callable[[float], Plan[Any]]] = {
        "get": lambda timeout: planner.get("q", timeout),
        "peek": lambda timeout: planner.peek("q", timeout),
        "hold": lambda timeout: planner.hold("q", timeout),
        "monitor": lambda timeout: planner.monitor("q", timeout, None),
        "reserve_many": lambda timeout: planner.reserve_many("q", 1, 30, timeout),
    }
    with pytest.raises(InvalidRequest, match="a timeout is a number of seconds"):
        play.run(plans[operation](math.nan))
    assert play.asked == []
