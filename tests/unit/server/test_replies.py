"""Replies wait for what they depend on, in their order, and fail with it."""

from collections.abc import Sequence

import pytest

from kestrelmq.errors import JournalError, NotSynced
from kestrelmq.scheduling.durability import Committable
from kestrelmq.server.replies import Replies

pytestmark = pytest.mark.compiled


ONE, OTHER = Committable(), Committable()


def failed(failure: JournalError, reply: bytes, _queues: Sequence[Committable]) -> bytes:
    """Return the reply to what was taken back."""
    return b"[%b failed: %b]" % (reply, str(failure).encode())


def collected(*replies: tuple[bytes, Committable | tuple[Committable, ...] | None]) -> Replies:
    """Return replies of one turn."""
    collected = Replies()
    for reply, queues in replies:
        collected.add(reply, queues)
    return collected


def test_replies_leave_together_and_once() -> None:
    """In their order."""
    replies = collected((b"a", ONE), (b"b", None), (b"c", (ONE, OTHER)))
    assert replies.take(frozenset(), 0) == b"abc"
    assert replies.take(frozenset(), 0) == b""
    assert not replies.is_held


def test_only_what_depends_on_a_failure_is_replaced() -> None:
    """Each by an error of its own."""
    replies = collected((b"a", ONE), (b"b", None), (b"c", (ONE, OTHER)), (b"d", ONE))
    replies.fail({OTHER: JournalError("disk")}, failed)
    assert replies.take(frozenset(), 0) == b"ab[c failed: disk]d"


def test_the_failure_of_an_empty_reply_is_that_of_the_next() -> None:
    """Also when that comes in a later turn, and depends on nothing that failed."""
    replies = collected((b"a", None), (b"", (ONE,)))
    replies.fail({ONE: JournalError("disk")}, failed)
    assert replies.take(frozenset(), 0) == b"a"
    assert replies.failure is not None
    replies.add(b"b", OTHER)
    replies.add(b"c", OTHER)
    replies.fail({}, failed)
    assert replies.take(frozenset(), 0) == b"[b failed: disk]c"
    assert replies.failure is None


def test_what_waits_for_a_sync_holds_what_comes_after_it() -> None:
    """Until its own sync is done, or a later one."""
    replies = collected((b"a", None), (b"b", (OTHER, ONE)))
    assert replies.take({ONE}, 1) is None
    replies.add(b"c", None)
    assert replies.take(frozenset(), 0) is None
    replies.add(b"d", ONE)
    assert replies.take({ONE}, 2) is None
    assert replies.synced(0, {}, failed) == b""
    assert replies.is_held
    assert replies.synced(1, {}, failed) == b"abc"
    assert replies.synced(2, {}, failed) == b"d"
    assert not replies.is_held


def test_a_sync_that_fails_fails_what_waited_for_it() -> None:
    """The answer to a request of several turns among it, once."""
    replies = collected((b"", ONE))
    assert replies.take({ONE}, 1) is None
    replies.add(b"answer", None)
    replies.add(b"next", None)
    assert replies.take(frozenset(), 0) is None
    assert replies.synced(1, {ONE: JournalError("disk")}, failed) == b"[answer failed: disk]next"


def test_items_that_were_removed_are_sent_although_they_are_not_synced() -> None:
    """Nobody else would get them; also if an earlier turn of the same request was not synced."""
    not_synced = {ONE: NotSynced("disk")}
    replies = Replies()
    replies.add_item(b"1", b"2", b"3", ONE)
    replies.add(b"", ONE)
    replies.add_all([b"4", b"5"], (ONE, OTHER), may_be_large=False, hands_out=True)
    replies.add_all([b"6", b"7"], ONE, may_be_large=False, hands_out=False)
    replies.add(b"8", None)
    assert replies.take({ONE}, 1) is None
    assert replies.synced(1, not_synced, failed) == b"12345[67 failed: disk]8"
    replies.add_item(b"1", b"2", b"3", ONE)
    replies.fail({ONE: JournalError("disk")}, failed)
    assert replies.take(frozenset(), 0) == b"[123 failed: disk]"


def test_nothing_is_left_of_a_client_that_is_gone() -> None:
    """Neither what is due nor what waits."""
    replies = collected((b"a", ONE))
    replies.take({ONE}, 1)
    replies.add(b"b", None)
    replies.clear()
    assert not replies.is_held
    assert replies.take(frozenset(), 0) == b""


def test_a_reply_in_parts_is_one() -> None:
    """It leaves whole, or one error takes the place of all of it."""
    replies = collected((b"a", None))
    replies.add_item(b"1", b"2", b"3", ONE)
    replies.add_item(b"4", b"5", b"6", OTHER)
    assert replies.take(frozenset(), 0) == b"a123456"
    replies.add_item(b"1", b"2", b"3", ONE)
    replies.add_item(b"4", b"5", b"6", OTHER)
    replies.fail({ONE: JournalError("disk")}, failed)
    assert replies.take(frozenset(), 0) == b"[123 failed: disk]456"
