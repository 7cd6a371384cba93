"""Which server an operation goes to: chance, and servers that are set aside."""

from hashlib import sha256
from random import Random

from kestrelmq.client.address import Address
from kestrelmq.client.cluster import FIRST_BACKOFF, LONGEST_BACKOFF, ServerSet, by_affinity

A, B, C = Address("a"), Address("b"), Address("c")


def test_the_choice_is_random_and_reaches_every_server() -> None:
    """Over many operations each server comes first about equally often."""
    servers = ServerSet(lambda: [A, B, C], lambda: 0.0, Random(1))
    first = [servers.choose().ready[0] for _ in range(900)]
    assert all(240 < first.count(server) < 360 for server in (A, B, C))


def test_a_failed_server_is_set_aside_for_longer_each_time() -> None:
    """The time aside doubles, is spread by half, is bounded, and ends with a success."""
    now = 0.0
    servers = ServerSet(lambda: [A, B], lambda: now, Random(1))
    for failure in range(14):
        longest = min(LONGEST_BACKOFF, FIRST_BACKOFF * 2**failure)
        assert servers.failed(A)
        assert servers.choose().aside == (A,)
        now += longest / 2 - 0.001
        assert servers.choose().aside == (A,)
        now += longest / 2 + 0.001
        assert set(servers.choose().ready) == {A, B}
    servers.succeeded(A)
    assert servers.failed(A)
    now += FIRST_BACKOFF
    assert servers.choose().aside == ()


def test_one_fault_seen_by_many_operations_counts_once() -> None:
    """Operations that fail together do not drive the time aside up."""
    now = 0.0
    servers = ServerSet(lambda: [A], lambda: now, Random(1))
    assert [servers.failed(A) for _ in range(50)] == [True] + [False] * 49
    now = FIRST_BACKOFF
    assert servers.choose().ready == (A,)


def test_a_server_that_left_and_joined_again_starts_afresh() -> None:
    """Membership may change at any time; failures of a server that left are forgotten."""
    members = [A, B]
    servers = ServerSet(lambda: members, lambda: 0.0, Random(1))
    servers.failed(B)
    members.remove(B)
    assert servers.choose().ready == (A,)
    members.append(B)
    assert set(servers.choose().ready) == {A, B}


QUEUES = [f"queue{number}" for number in range(900)]


def test_the_home_of_a_queue_is_a_matter_of_names() -> None:
    """Another client can compute it; a fanout child lives where its master does."""
    for queue in QUEUES[:20]:
        weights = {server: sha256(f"{server}\0{queue}".encode()).digest() for server in (A, B, C)}
        assert list(by_affinity(frozenset([C, A, B]), queue)) == sorted(
            weights, key=lambda server: weights[server], reverse=True
        )
        assert by_affinity(frozenset([A, B, C]), f"{queue}+child")[0] == max(
            weights, key=lambda server: weights[server]
        )


def test_homes_are_spread_and_stay() -> None:
    """Each server is the home of its share, and only the queues of one that leaves move."""
    three = {queue: by_affinity(frozenset([A, B, C]), queue)[0] for queue in QUEUES}
    assert all(240 < list(three.values()).count(server) < 360 for server in (A, B, C))
    two = {queue: by_affinity(frozenset([A, B]), queue)[0] for queue in QUEUES}
    assert all(two[queue] == three[queue] for queue in QUEUES if three[queue] != C)


def test_a_home_that_failed_is_still_the_home() -> None:
    """Reads ask it after the others for a while; adds go to it alone."""
    servers = ServerSet(lambda: [A, B, C], lambda: 0.0, Random(1))
    home, *others = by_affinity(frozenset([A, B, C]), "work")
    assert servers.choose("work").ready == (home, *others)
    servers.failed(home)
    assert (servers.choose("work").ready, servers.choose("work").aside) == ((*others,), (home,))
    assert servers.home("work").ready == (home,)
