"""The server's status."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from kestrelmq.server.status import ServerStatus, Status, StatusNotSaved
from tests.support.fake_clock import FakeClock

pytestmark = pytest.mark.compiled

GRACE = 10.0
LIMIT = 5.0


class Member:
    """A listener that acts when it is told to."""

    def __init__(self, server: ServerStatus) -> None:
        self.heard: list[tuple[Status, bool, bool]] = []
        self.acted: list[Callable[[], None]] = []
        self._server = server
        server.listener = self

    def __call__(self, status: Status, acted: Callable[[], None]) -> None:
        """Note the status, and what was allowed when it was announced."""
        self.heard.append((status, self._server.reads_allowed, self._server.writes_allowed))
        self.acted.append(acted)


def make(
    clock: FakeClock,
    path: Path | None = None,
    default: Status = Status.UP,
    grace: float = GRACE,
) -> ServerStatus:
    """Return a server's status on a fake clock."""
    return ServerStatus(path, default, grace, clock, clock.call_later, listener_limit=LIMIT)


def allowed(server: ServerStatus) -> tuple[bool, bool]:
    """Return whether reads and writes are served."""
    return server.reads_allowed, server.writes_allowed


@pytest.fixture
def clock() -> FakeClock:
    """Return a clock that stands still."""
    return FakeClock()


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("UP", Status.UP),
        ("up", Status.UP),
        ("Up\n", Status.UP),
        ("WriteAvoid", Status.WRITE_AVOID),
        ("write_avoid", Status.WRITE_AVOID),
        ("ReadOnly", Status.READ_ONLY),
        ("READ-ONLY", Status.READ_ONLY),
        ("quiescent", Status.QUIESCENT),
        ("down", Status.DOWN),
    ],
)
def test_a_status_is_read_in_any_case(text: str, status: Status) -> None:
    """People and older servers spell a status in many ways."""
    assert Status.parse(text) is status


@pytest.mark.parametrize("text", ["", "upp", "u p", "read only", "ALIVE", "\u0130"])
def test_an_unknown_status_is_refused_with_what_is_allowed(text: str) -> None:
    """The error lists what a client may set; DOWN is not among it."""
    with pytest.raises(ValueError, match=r"allowed: UP, WRITEAVOID, READONLY, QUIESCENT$"):
        Status.parse(text)


@pytest.mark.parametrize(
    ("status", "reads", "writes", "read_set", "write_set"),
    [
        (Status.UP, True, True, True, True),
        (Status.WRITE_AVOID, True, True, True, False),
        (Status.READ_ONLY, True, False, True, False),
        (Status.QUIESCENT, False, False, False, False),
        (Status.DOWN, False, False, False, False),
    ],
)
def test_what_each_status_allows(
    clock: FakeClock, status: Status, *, reads: bool, writes: bool, read_set: bool, write_set: bool
) -> None:
    """Each status says what is served and which server sets the server is in."""
    assert (status.allows_reads, status.allows_writes) == (reads, writes)
    assert (status.in_read_set, status.in_write_set) == (read_set, write_set)
    server = make(clock, default=status)
    assert allowed(server) == (reads, writes)


def test_without_a_grace_period_a_stricter_status_is_enforced_at_once(clock: FakeClock) -> None:
    """Nobody listens and nothing is to be waited for."""
    server = make(clock, grace=0.0)
    server.set(Status.READ_ONLY)
    assert allowed(server) == (True, False)
    server.set(Status.QUIESCENT)
    assert allowed(server) == (False, False)


def test_a_stricter_status_is_told_at_once_and_enforced_after_the_grace_period(
    clock: FakeClock,
) -> None:
    """Clients have the grace period to learn of it."""
    server = make(clock)
    clock.advance(3)
    server.set(Status.READ_ONLY)
    assert (server.status, server.since) == (Status.READ_ONLY, clock.now())
    clock.advance(GRACE - 0.001)
    assert server.writes_allowed
    clock.advance(0.001)
    assert allowed(server) == (True, False)


def test_a_looser_status_is_enforced_at_once(clock: FakeClock) -> None:
    """There is no reason to make anybody wait."""
    server = make(clock, default=Status.QUIESCENT)
    server.set(Status.UP)
    assert allowed(server) == (True, True)


def test_going_back_within_the_grace_period_enforces_nothing(clock: FakeClock) -> None:
    """The earlier change is forgotten."""
    server = make(clock)
    server.set(Status.QUIESCENT)
    clock.advance(GRACE / 2)
    server.set(Status.UP)
    clock.advance(GRACE * 2)
    assert allowed(server) == (True, True)


def test_setting_the_same_status_again_does_not_prolong_the_grace_period(clock: FakeClock) -> None:
    """A script that repeats itself cannot hold off enforcement."""
    server = make(clock)
    server.set(Status.READ_ONLY)
    clock.advance(GRACE - 1)
    server.set(Status.READ_ONLY)
    clock.advance(1)
    assert not server.writes_allowed


@pytest.mark.parametrize("statuses", [("readonly", "quiescent"), ("quiescent", "readonly")])
def test_another_change_does_not_prolong_the_grace_period_of_what_both_forbid(
    clock: FakeClock, statuses: tuple[str, str]
) -> None:
    """Otherwise a server that is told again and again takes writes for ever."""
    server = make(clock)
    first, second = map(Status.parse, statuses)
    server.set(first)
    clock.advance(GRACE / 2)
    server.set(second)
    clock.advance(GRACE / 2 - 1)
    assert allowed(server) == (True, True)
    clock.advance(1)
    assert allowed(server) == (True, False)
    clock.advance(GRACE / 2)
    assert allowed(server) == (second.allows_reads, False)


def test_what_was_allowed_meanwhile_has_a_grace_period_of_its_own(clock: FakeClock) -> None:
    """The earlier change is forgotten as far as it was taken back."""
    server = make(clock)
    server.set(Status.READ_ONLY)
    clock.advance(GRACE / 2)
    server.set(Status.UP)
    server.set(Status.QUIESCENT)
    clock.advance(GRACE - 0.001)
    assert allowed(server) == (True, True)
    clock.advance(0.001)
    assert allowed(server) == (False, False)


def test_a_shutdown_within_the_grace_period_ends_it(clock: FakeClock) -> None:
    """Nothing happens when it would have been over."""
    server = make(clock)
    calls: list[float] = []
    server.on_quiescent = lambda: calls.append(clock.now())
    server.set(Status.QUIESCENT)
    server.shutdown()
    assert allowed(server) == (False, False)
    clock.advance(GRACE * 2)
    assert (calls, allowed(server)) == ([], (False, False))


def test_a_server_set_is_left_before_a_stricter_status_is_enforced(clock: FakeClock) -> None:
    """The grace period begins when the listener has acted."""
    server = make(clock)
    member = Member(server)
    server.set(Status.QUIESCENT)
    assert member.heard == [(Status.QUIESCENT, True, True)]
    clock.advance(LIMIT - 1)
    assert server.reads_allowed
    member.acted[0]()
    member.acted[0]()
    clock.advance(GRACE - 0.001)
    assert server.reads_allowed
    clock.advance(0.001)
    assert allowed(server) == (False, False)


def test_a_server_set_is_joined_after_a_looser_status_is_enforced(clock: FakeClock) -> None:
    """Whoever finds the server in a set is served."""
    server = make(clock, default=Status.QUIESCENT)
    member = Member(server)
    server.set(Status.READ_ONLY)
    server.set(Status.UP)
    assert member.heard == [(Status.READ_ONLY, True, False), (Status.UP, True, True)]


def test_a_listener_that_never_answers_delays_enforcement_by_the_limit(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A server set that cannot be left does not keep the server open for ever."""
    server = make(clock, grace=0.0)
    member = Member(server)
    server.set(Status.QUIESCENT)
    clock.advance(LIMIT - 0.001)
    assert allowed(server) == (True, True)
    clock.advance(0.001)
    assert allowed(server) == (False, False)
    assert "before every server set was left" in caplog.text
    server.set(Status.UP)
    member.acted[0]()
    assert allowed(server) == (True, True)


def test_an_answer_to_an_earlier_change_does_not_count_for_a_later_one(clock: FakeClock) -> None:
    """What left the set for READONLY has not yet left it for QUIESCENT."""
    server = make(clock, grace=0.0)
    member = Member(server)
    server.set(Status.READ_ONLY)
    server.set(Status.QUIESCENT)
    member.acted[0]()
    assert server.reads_allowed
    member.acted[1]()
    assert not server.reads_allowed


def test_a_listener_that_fails_counts_as_one_that_acted(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The status comes into force, and the log says what happened."""

    def fail(status: Status, acted: Callable[[], None]) -> None:
        raise RuntimeError("out of luck")

    server = make(clock, grace=0.0)
    server.listener = fail
    server.set(Status.QUIESCENT)
    assert not server.reads_allowed
    assert "out of luck" in caplog.text


def test_the_status_outlives_a_restart(clock: FakeClock, tmp_path: Path) -> None:
    """A new server takes it up, enforced, whatever the default; no temporary stays behind."""
    path = tmp_path / "~~status"
    make(clock, path).set(Status.READ_ONLY)
    server = make(clock, path)
    server.load()
    assert server.status is Status.READ_ONLY
    assert allowed(server) == (True, False)
    assert [file.name for file in tmp_path.iterdir()] == ["~~status"]


def test_a_missing_status_file_gives_the_default_without_a_word(
    clock: FakeClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first start is nothing to warn of."""
    server = make(clock, tmp_path / "~~status", default=Status.QUIESCENT)
    server.load()
    assert server.status is Status.QUIESCENT
    assert not caplog.records


@pytest.mark.parametrize("content", [b"", b"sideways", b"\xff\xfe", b"UP" * 10_000, None])
def test_an_unreadable_status_file_gives_the_default_and_a_warning(
    content: bytes | None, clock: FakeClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Garbage, or something that is no file, stops no server."""
    path = tmp_path / "~~status"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    server = make(clock, path, default=Status.READ_ONLY)
    server.load()
    assert server.status is Status.READ_ONLY
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert str(path) in caplog.text


def test_a_down_that_was_written_by_hand_gives_the_default(
    clock: FakeClock, tmp_path: Path
) -> None:
    """A server cannot start shut down."""
    path = tmp_path / "~~status"
    path.write_text("DOWN")
    server = make(clock, path)
    server.load()
    assert server.status is Status.UP


def test_a_client_cannot_set_down(clock: FakeClock, tmp_path: Path) -> None:
    """Nothing changes, nothing is saved."""
    server = make(clock, tmp_path / "~~status")
    with pytest.raises(ValueError, match="allowed: UP, WRITEAVOID, READONLY, QUIESCENT"):
        server.set(Status.DOWN)
    assert server.status is Status.UP
    assert list(tmp_path.iterdir()) == []


def test_shutdown_is_enforced_without_grace_period_and_not_saved(
    clock: FakeClock, tmp_path: Path
) -> None:
    """The sets are left first; the next start brings the status before it."""
    path = tmp_path / "~~status"
    server = make(clock, path)
    server.set(Status.READ_ONLY)
    member = Member(server)
    server.shutdown()
    server.shutdown()
    assert member.heard == [(Status.DOWN, True, True)]
    member.acted[0]()
    assert allowed(server) == (False, False)
    assert path.read_text() == "READONLY\n"


def test_a_status_that_cannot_be_saved_is_in_force_and_says_so(
    clock: FakeClock, tmp_path: Path
) -> None:
    """A full disk must not keep a server from being drained."""
    server = make(clock, tmp_path / "gone" / "~~status", grace=0.0)
    with pytest.raises(StatusNotSaved, match="QUIESCENT but could not be saved: No such file"):
        server.set(Status.QUIESCENT)
    assert not server.reads_allowed


@pytest.mark.parametrize(
    ("status", "write", "reason"),
    [
        (Status.READ_ONLY, True, "the server is read-only: it takes no writes"),
        (Status.QUIESCENT, True, "the server is quiescent: it serves no queue"),
        (Status.QUIESCENT, False, "the server is quiescent: it serves no queue"),
        (Status.DOWN, False, "the server is shutting down"),
    ],
)
def test_a_refusal_says_why(clock: FakeClock, status: Status, reason: str, *, write: bool) -> None:
    """The client reads what it ran into."""
    assert make(clock, default=status).reason_for_refusal(write=write) == reason
