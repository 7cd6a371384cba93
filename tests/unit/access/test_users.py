"""Users: what their patterns stand for, and what a reload changes."""

from pathlib import Path

import pytest

from kestrelmq.access.users import NOBODY, TOKEN_USER, User, Users, explain, matches
from kestrelmq.config import ServerConfig, config_from_toml
from kestrelmq.errors import ConfigError
from tests.support.users import HASH, PASSWORD, users_config


def users_of(text: str) -> Users:
    """Return the users of a configuration, in force."""
    users = Users()
    users.put_in_force(users.load(config_from_toml(text, "test")))
    return users


@pytest.mark.parametrize(
    ("pattern", "names", "others"),
    [
        ("work", {"work"}, {"work2", "awork", "Work", "work+a"}),
        ("work*", {"work", "work2"}, {"awork", "work+a", "work2+a"}),
        ("*", {"work", "*", "[a]"}, {"work+a"}),
        ("*+*", {"work+a", "a+b"}, {"work"}),
        ("work+*", {"work+a"}, {"work", "works+a"}),
        ("w?rk", {"work", "wärk"}, {"wrk", "woork", "w+rk"}),
        ("[ab]", {"[ab]"}, {"a", "b"}),
        ("a[*", {"a[", "a[b"}, {"a"}),
    ],
)
def test_patterns(pattern: str, names: set[str], others: set[str]) -> None:
    """They stand for whole names; a fanout child takes a pattern that says so."""
    assert {name for name in names | others if matches(pattern, name)} == names


def test_a_pattern_that_no_queue_could_match_is_refused() -> None:
    """Such as one of a path."""
    with pytest.raises(ConfigError, match="matches no queue"):
        users_of(users_config(alice='read = ["a/b"]'))


def test_rights_add_up_and_reading_is_not_writing() -> None:
    """An admin may do everything."""
    users = users_of(users_config(alice='read = ["a", "b*"]\nwrite = ["c"]', root="admin = true"))
    alice, root = users.get("alice"), users.get("root")
    assert alice is not None
    assert root is not None
    assert [name for name in "abcd" if alice.may(name, write=False)] == ["a", "b"]
    assert [name for name in "abcd" if alice.may(name, write=True)] == ["c"]
    assert root.may("x+y", write=True)
    assert root.may("x+y", write=False)
    assert not NOBODY.may("a", write=False)


def test_a_reload_changes_users_in_place() -> None:
    """What was found before counts no more; one whose password is the same stays signed in."""
    users = users_of(users_config(alice='read = ["a"]', bob='read = ["a"]'))
    alice, bob = users.get("alice"), users.get("bob")
    assert alice is not None
    assert bob is not None
    digest = users.digest("alice", PASSWORD)
    alice.accepted = digest
    alice.readable["a"] = alice.writable["a"] = object()  # type: ignore[assignment]
    users.put_in_force(users.load(config_from_toml(users_config(alice='write = ["w"]'), "test")))
    assert users.get("alice") is alice
    assert users.is_in_force(alice)
    assert not users.is_in_force(bob)
    assert (alice.read, alice.write) == ((), ("w",))
    assert alice.readable == alice.writable == {}
    assert alice.accepts(digest)
    other = users_config(alice="").replace("AAAA", "BBBB", 1)
    users.put_in_force(users.load(config_from_toml(other, "test")))
    assert not alice.accepts(digest)


def test_connections_that_may_go_on_after_a_reload() -> None:
    """Without users, everyone who never signed in; with users, nobody of them."""
    none, some = Users(), users_of(users_config(alice=""))
    assert none.is_in_force(None)
    assert not some.is_in_force(None)
    assert some.is_in_force(NOBODY)
    assert not none.is_in_force(NOBODY)
    assert some.is_in_force(TOKEN_USER)
    assert none.first(0) is None
    assert some.first(None) is NOBODY


def test_a_user_of_the_system_is_known_on_a_unix_socket() -> None:
    """By name or number; with no password, nothing else is accepted."""
    users = users_of('[users.alice]\nunix_user = "1234"\n[users.root]\nunix_user = "root"\n')
    assert users.first(1234) is users.get("alice")
    assert users.first(0) is users.get("root")
    assert users.first(5) is NOBODY
    assert users.first(None) is NOBODY
    with pytest.raises(ConfigError, match=r"^users.a: unix_user: the system has no user 'no such'"):
        users_of('[users.a]\nunix_user = "no such"\n')


def test_a_password_file_has_a_password_or_a_hash(tmp_path: Path) -> None:
    """A password is known at once; what is in a file is never shown."""
    file = tmp_path / "password"
    text = f'[users.alice]\npassword_file = "{file}"\n'
    with pytest.raises(ConfigError, match=r"^users.alice: password_file: .*: No such file"):
        users_of(text)
    file.write_text(f"{PASSWORD}\n")
    users = users_of(text)
    alice = users.get("alice")
    assert alice is not None
    assert alice.accepts(users.digest("alice", PASSWORD))
    assert not alice.accepts(users.digest("alice", "other"))
    file.write_text(f"{HASH}\n")
    users.put_in_force(users.load(config_from_toml(text, "test")))
    assert not alice.accepts(users.digest("alice", PASSWORD))
    for wrong in ("", "hunter two\n", "scrypt:hunter2\n"):
        file.write_text(wrong)
        with pytest.raises(ConfigError, match=r"^users.alice: ") as raised:
            users_of(text)
        assert "hunter" not in str(raised.value)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("admin = true", "needs a password_hash, a password_file, a unix_user or a"),
        (
            f'password_hash = "{HASH}"\npassword_file = "/x"',
            "either password_hash or password_file",
        ),
        ('password_hash = "hunter2"', "found a value that is not shown; allowed: a hash"),
        ('password = "hunter2"', "unknown setting"),
    ],
)
def test_a_user_that_cannot_be_is_told_without_secrets(lines: str, problem: str) -> None:
    """The message says what is allowed."""
    with pytest.raises(ConfigError, match=problem) as raised:
        config_from_toml(f"[users.alice]\n{lines}\n", "test")
    assert "hunter2" not in str(raised.value)
    assert "AAAA" not in str(raised.value)


def test_secrets_are_not_in_what_is_printed() -> None:
    """Of a user, its hash is left out, too."""
    text = repr(User("alice", secret=b"hunter2", accepted=b"hunter3"))
    assert "hunter" not in text


def test_the_reasons_for_a_right_are_told() -> None:
    """Settings of a queue and an alias count."""
    config: ServerConfig = config_from_toml(
        users_config(alice='read = ["work*"]\nwrite = ["work"]')
        + '[queues.work2]\nallowed_client_ids_for_dequeue = ["bob"]\n'
        + '[aliases.all]\ndestination_queues = ["work", "other"]\n',
        "test",
    )
    users = Users()
    alice = users.load(config)["alice"]

    def explained(queue: str, leaves: list[str]) -> list[str]:
        return list(map(str, explain(config, alice, queue, leaves)))

    assert explained("work", ["work"]) == [
        'read work: yes, read = "work*"',
        'write work: yes, write = "work"',
        "flush, delete and pause work: no, admin is false",
    ]
    assert explained("work2", ["work2"])[0] == (
        "read work2: no, allowed_client_ids_for_dequeue does not name it"
    )
    assert explained("all", ["work", "other"])[1:3] == [
        'write work: yes, write = "work"',
        "write other: no, no pattern in write matches it",
    ]


def test_a_limit_of_requests() -> None:
    """Those of a second at once after a pause, and then as many as come free; not kept by name."""
    users = users_of(users_config(alice="rate_limit = 10", bob=""))
    alice, bob = users.get("alice"), users.get("bob")
    assert alice is not None
    assert bob is not None
    for begin in (100.0, 1000.3):
        assert [alice.count_request(begin) for _ in range(12)] == [True] * 10 + [False] * 2
        assert [alice.count_request(begin + 0.25) for _ in range(4)] == [True] * 2 + [False] * 2
    assert all(bob.count_request(100.0) for _ in range(1000))
    users.put_in_force(users.load(config_from_toml(users_config(alice=""), "test")))
    assert all(alice.count_request(1000.3) for _ in range(1000))


@pytest.mark.parametrize("limit", [1, 3, 7, 49, 1000])
def test_every_limit_is_exact(limit: int) -> None:
    """Whatever its fractions of a second are."""
    user = User("a", rate_limit=limit)
    assert [user.count_request(5e5) for _ in range(limit + 1)] == [True] * limit + [False]
