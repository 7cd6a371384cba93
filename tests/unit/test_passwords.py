"""Passwords: their hashes as text, and what is no password."""

from pathlib import Path

import pytest

from kestrelmq.passwords import (
    MAX_PASSWORD,
    PasswordHash,
    password_error,
    read_password,
    user_name_error,
)
from tests.support.users import HASH, PASSWORD


def test_a_hash_is_text_that_fits_its_password_only() -> None:
    """Each has a salt of its own."""
    one, other = PasswordHash.of("päss", 4), PasswordHash.of("päss", 4)
    assert str(one) != str(other)
    for found in (one, other):
        again = PasswordHash.parse(str(found))
        assert again == found
        assert again.fits("päss")
        assert not again.fits("pass")


def test_the_text_stays_the_same() -> None:
    """A configuration file keeps it for years."""
    assert str(PasswordHash.parse(HASH)) == HASH
    assert PasswordHash.parse(HASH).fits(PASSWORD)


def test_a_new_hash_takes_time() -> None:
    """The parameters are those that docs/security.md names."""
    found = PasswordHash.of(PASSWORD)
    assert (found.log_n, found.r, found.p) == (14, 8, 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "scrypt",
        "hunter2",
        HASH[:-1],
        HASH + "=",
        HASH.replace("scrypt", "bcrypt"),
        HASH.replace("scrypt:4:", "scrypt:19:"),
        HASH.replace("scrypt:4:1:", "scrypt:4:17:"),
        HASH.replace("scrypt:4:1:1:", "scrypt:4:1:5:"),
        HASH.replace("scrypt:4:", "scrypt:0:"),
        HASH.replace("AAAA", "A:AA", 1),
    ],
)
def test_what_is_no_hash_is_not_shown(text: str) -> None:
    """It may be the password; and parameters may not ask for all memory."""
    with pytest.raises(ValueError, match=r"^allowed: a hash that `kestrelmq user hash` prints$"):
        PasswordHash.parse(text)


@pytest.mark.parametrize("password", ["", "two words", "tab\t", "line\n", "\0", "x" * 513])
def test_a_protocol_could_not_carry_it(password: str) -> None:
    """Blanks end it in the text protocol, and its length is bounded."""
    assert password_error(password) is not None
    assert password_error("x" * MAX_PASSWORD) is None


@pytest.mark.parametrize("name", ["", "a b", "a:b", "x" * 65, "a\n"])
def test_names_of_users(name: str) -> None:
    """A colon ends one over HTTP, a blank in the other protocols."""
    assert user_name_error(name) is not None
    assert user_name_error("näme") is None


def test_the_first_line_of_a_file_is_a_password(tmp_path: Path) -> None:
    """Whatever its line end is; what is none is not shown."""
    file = tmp_path / "password"
    for content in (b"secret", b"secret\n", b"secret\r\nmore\n"):
        file.write_bytes(content)
        assert read_password(file) == "secret"
    file.write_bytes(b"two words\n")
    with pytest.raises(ValueError, match="no blanks") as raised:
        read_password(file)
    assert "two" not in str(raised.value)
