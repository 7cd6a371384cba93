"""Replies wait for what they depend on, in their order, and fail with it."""

from collections.abc import Sequence

import pytest

from kestrelmq.errors import JournalError, NotSynced
from kestrelmq.scheduling.durability import Committable, SyncRound, WriteRound
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
    assert replies.take({}) == b"abc"
    assert replies.take({}) == b""
    assert not replies.is_held


def test_only_what_depends_on_a_failure_is_replaced() -> None:
    """Each by an error of its own."""
    replies = collected((b"a", ONE), (b"b", None), (b"c", (ONE, OTHER)), (b"d", ONE))
    replies.fail({OTHER: JournalError("disk")}, failed)
    assert replies.take({}) == b"ab[c failed: disk]d"


def test_the_failure_of_an_empty_reply_is_that_of_the_next() -> None:
    """Also when that comes in a later turn, and depends on nothing that failed."""
    replies = collected((b"a", None), (b"", (ONE,)))
    replies.fail({ONE: JournalError("disk")}, failed)
    assert replies.take({}) == b"a"
    assert replies.failure is not None
    replies.add(b"b", OTHER)
    replies.add(b"c", OTHER)
    replies.fail({}, failed)
    assert replies.take({}) == b"[b failed: disk]c"
    assert replies.failure is None


def test_what_waits_for_a_sync_holds_what_comes_after_it() -> None:
    """Until its own round is over, whatever the others do."""
    first, second = SyncRound(), SyncRound()
    replies = collected((b"a", None), (b"b", (OTHER, ONE)))
    assert replies.take({ONE: first}) is None
    replies.add(b"c", None)
    assert replies.take({}) is None
    replies.add(b"d", ONE)
    assert replies.take({ONE: second}) is None
    assert replies.take_held(failed) == b""
    assert replies.is_held
    first.end()
    assert replies.take_held(failed) == b"abc"
    second.end()
    assert replies.take_held(failed) == b"d"
    assert not replies.is_held


def test_what_waits_for_several_rounds_waits_for_all() -> None:
    """Of a write, those of its syncs among them; a failure of any replaces it."""
    write, sync, other = WriteRound(), SyncRound(), SyncRound()
    write.syncs.append(sync)
    replies = collected((b"a", (ONE, OTHER)), (b"b", OTHER))
    assert replies.take({ONE: write, OTHER: other}) is None
    for one in (other, write):
        assert replies.take_held(failed) == b""
        one.end()
    assert replies.take_held(failed) == b""
    sync.end()
    sync.failures = {ONE: NotSynced("disk")}
    assert replies.take_held(failed) == b"[a failed: disk]b"


def test_a_sync_that_fails_fails_what_waited_for_it() -> None:
    """The answer to a request of several turns among it, once."""
    replies, sync = collected((b"", ONE)), SyncRound()
    assert replies.take({ONE: sync}) is None
    replies.add(b"answer", None)
    replies.add(b"next", None)
    assert replies.take({}) is None
    sync.end()
    sync.failures = {ONE: JournalError("disk")}
    assert replies.take_held(failed) == b"[answer failed: disk]next"


def test_items_that_were_removed_are_sent_although_they_are_not_synced() -> None:
    """Nobody else would get them; also if an earlier turn of the same request was not synced."""
    replies, sync = Replies(), SyncRound()
    replies.add_item(b"1", b"2", b"3", ONE)
    replies.add(b"", ONE)
    replies.add_all([b"4", b"5"], (ONE, OTHER), may_be_large=False, hands_out=True)
    replies.add_all([b"6", b"7"], ONE, may_be_large=False, hands_out=False)
    replies.add(b"8", None)
    assert replies.take({ONE: sync}) is None
    sync.end()
    sync.failures = {ONE: NotSynced("disk")}
    assert replies.take_held(failed) == b"12345[67 failed: disk]8"
    replies.add_item(b"1", b"2", b"3", ONE)
    replies.fail({ONE: JournalError("disk")}, failed)
    assert replies.take({}) == b"[123 failed: disk]"


def test_nothing_is_left_of_a_client_that_is_gone() -> None:
    """Neither what is due nor what waits."""
    replies = collected((b"a", ONE))
    replies.take({ONE: SyncRound()})
    replies.add(b"b", None)
    replies.clear()
    assert not replies.is_held
    assert replies.take({}) == b""


def test_a_reply_in_parts_is_one() -> None:
    """It leaves whole, or one error takes the place of all of it."""
    replies = collected((b"a", None))
    replies.add_item(b"1", b"2", b"3", ONE)
    replies.add_item(b"4", b"5", b"6", OTHER)
    assert replies.take({}) == b"a123456"
    replies.add_item(b"1", b"2", b"3", ONE)
    replies.add_item(b"4", b"5", b"6", OTHER)
    replies.fail({ONE: JournalError("disk")}, failed)
    assert replies.take({}) == b"[123 failed: disk]456"
