"""Signing in: how often a password is hashed, who waits, and what a reload does meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kestrelmq.access.failures import FAILURE_BURST
from kestrelmq.access.signing_in import (
    MOST_OF_ONE,
    MOST_WAITING,
    SignInLater,
    SignIns,
    WrongPassword,
)
from kestrelmq.access.users import User, Users
from kestrelmq.config import config_from_toml
from tests.support.held_worker import HeldWorker
from tests.support.users import HASH, PASSWORD, users_config

pytestmark = pytest.mark.asyncio
Known = tuple[Users, HeldWorker, SignIns]


@pytest.fixture
def known() -> Known:
    """Two users, and a worker that hashes when the test says so."""
    users, worker = Users(), HeldWorker()
    users.put_in_force(users.load(config_from_toml(users_config(alice="", bob=""), "test")))
    return users, worker, SignIns(users, worker)


async def begun(*attempts: Awaitable[User]) -> list["asyncio.Future[User]"]:
    """Begin attempts; return them once they wait, or have ended."""
    tasks: list[asyncio.Future[User]] = [asyncio.ensure_future(one) for one in attempts]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


async def test_a_right_password_is_hashed_once(known: Known) -> None:
    """Those that are tried at the same time share it, and later ones need none."""
    users, worker, sign_ins = known
    tasks = await begun(*(sign_ins.sign_in("alice", PASSWORD, f"peer-{n}") for n in range(100)))
    assert len(worker) == 1
    worker.step()
    assert set(await asyncio.gather(*tasks)) == {users.get("alice")}
    assert await sign_ins.sign_in("alice", PASSWORD, "peer") is users.get("alice")
    assert len(worker) == 0


async def test_a_wrong_password_is_hashed_each_time(known: Known) -> None:
    """It is never remembered, and an unknown name costs the same."""
    _, worker, sign_ins = known
    for name in ("alice", "nobody", "alice"):
        (task,) = await begun(sign_ins.sign_in(name, "wrong", "peer"))
        assert len(worker) == 1
        worker.step()
        with pytest.raises(WrongPassword, match=r"^authentication failure$"):
            await task


async def test_the_password_of_another_user_is_none(known: Known) -> None:
    """What is remembered is of one user."""
    _, worker, sign_ins = known
    (task,) = await begun(sign_ins.sign_in("alice", PASSWORD, "peer"))
    worker.step()
    await task
    (task,) = await begun(sign_ins.sign_in("nobody", PASSWORD, "peer"))
    assert len(worker) == 1
    worker.step()
    with pytest.raises(WrongPassword):
        await task


async def test_few_attempts_wait_and_peers_take_turns(known: Known) -> None:
    """One peer has few places, and then all have; whoever is late is told to try again."""
    users, worker, sign_ins = known
    guesses = await begun(
        *(sign_ins.sign_in("alice", f"guess-{n}", "bad") for n in range(2 * MOST_WAITING))
    )
    refused = [one for one in guesses if one.done()]
    assert len(refused) == 2 * MOST_WAITING - MOST_OF_ONE - 1
    for one in refused:
        with pytest.raises(SignInLater, match="too many sign-ins"):
            one.result()
    (good,) = await begun(sign_ins.sign_in("bob", PASSWORD, "good"))
    worker.step()  # the guess that was being checked
    worker.step()  # one more of the same peer, which was first in line
    worker.step()
    assert await good is users.get("bob")
    assert sum(one.done() for one in guesses) < 2 * MOST_WAITING
    while worker.step():
        pass
    await asyncio.gather(*guesses, return_exceptions=True)
    many = await begun(
        *(sign_ins.sign_in("alice", f"guess-{n}", f"peer-{n}") for n in range(2 * MOST_WAITING))
    )
    assert sum(one.done() for one in many) == MOST_WAITING - 1
    while worker.step():
        pass
    await asyncio.gather(*many, return_exceptions=True)


async def test_whoever_failed_often_must_wait(known: Known) -> None:
    """Even with the right password, or guessing would cost nothing; others do not wait."""
    users, worker, sign_ins = known
    for number in range(FAILURE_BURST):
        (task,) = await begun(sign_ins.sign_in("alice", f"guess-{number}", "bad"))
        worker.step()
        with pytest.raises(WrongPassword):
            await task
    with pytest.raises(SignInLater, match=r"^too many failures; wait a moment$") as raised:
        await sign_ins.sign_in("alice", PASSWORD, "bad")
    assert 0 < raised.value.seconds <= 1
    (task,) = await begun(sign_ins.sign_in("alice", PASSWORD, "good"))
    worker.step()
    assert await task is users.get("alice")
    with pytest.raises(SignInLater):
        await sign_ins.sign_in("alice", PASSWORD, "bad")


@pytest.mark.parametrize(
    "after",
    [
        lambda: users_config(bob=""),
        lambda: users_config(alice="").replace("AAAA", "BBBB", 1),
        lambda: "",
    ],
    ids=["removed", "another password", "no users"],
)
async def test_a_reload_during_the_check_counts(known: Known, after: Callable[[], str]) -> None:
    """What was right before is not right any more."""
    users, worker, sign_ins = known
    (task,) = await begun(sign_ins.sign_in("alice", PASSWORD, "peer"))
    users.put_in_force(users.load(config_from_toml(after(), "test")))
    worker.step()
    with pytest.raises(WrongPassword):
        await task


async def test_a_cancelled_check_ends_no_other(known: Known) -> None:
    """As when an HTTP client disconnects."""
    users, worker, sign_ins = known
    first, second = await begun(
        sign_ins.sign_in("alice", PASSWORD, "peer"), sign_ins.sign_in("alice", PASSWORD, "peer")
    )
    first.cancel()
    await asyncio.sleep(0)
    worker.step()
    assert await second is users.get("alice")


async def test_a_password_in_a_file_needs_no_hashing(
    known: Known, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A wrong one costs as much as any."""
    users, worker, sign_ins = known
    file = tmp_path_factory.mktemp("secret") / "password"
    file.write_text("plain\n")
    users.put_in_force(
        users.load(config_from_toml(f'[users.alice]\npassword_file = "{file}"\n', "test"))
    )
    assert await sign_ins.sign_in("alice", "plain", "peer") is users.get("alice")
    (task,) = await begun(sign_ins.sign_in("alice", HASH, "peer"))
    worker.step()
    with pytest.raises(WrongPassword):
        await task
