"""Queue names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrelmq.names import MAX_NAME_BYTES, master_of, queue_name_error


@pytest.mark.parametrize(
    "name",
    [
        "work",
        "a",
        "a-b_c",
        "work+audit",
        "caf\u00e9",
        "\u4ed5\u4e8b",
        "q:1",
        "$q",
        "a" * 200,
        b"work",
        "\U0001f980",
    ],
)
def test_ordinary_names_are_allowed(name: str | bytes) -> None:
    """Any printable UTF-8 text of 1 to 200 bytes names a queue, one `+` included."""
    assert queue_name_error(name) is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        (b"", "empty"),
        ("a" * 201, "at most 200 bytes, this one has 201"),
        ("\u00e9" * 101, "at most 200 bytes, this one has 202"),
        (b"\xff", "UTF-8"),
        ("\ud800", "control"),
        ("a/b", "'/'"),
        ("../x", "'.'"),
        ("a~", "'~'"),
        ("~~lock", "'~'"),
        ("a.b", "'.'"),
        ("a b", "whitespace"),
        ("a\u00a0b", "whitespace"),
        ("a\u2003b", "whitespace"),
        ("a\u2028b", "whitespace"),
        ("a\u2029b", "whitespace"),
        ("a\nb", "whitespace"),
        ("a\x00b", "control"),
        ("a\x7fb", "control"),
        ("a\u0090b", "control"),
        ("a+b+c", "one '+'"),
        ("+b", "each side"),
        ("a+", "each side"),
        ("+", "each side"),
    ],
)
def test_other_names_are_refused_with_the_reason(name: str | bytes, reason: str) -> None:
    """A name that is refused says why."""
    problem = queue_name_error(name)
    assert problem is not None
    assert reason in problem


@given(st.binary(max_size=250))
def test_an_allowed_name_is_a_plain_file_name(name: bytes) -> None:
    """No allowed name, whatever its bytes, can leave its directory or hide in it."""
    if queue_name_error(name) is None:
        assert 1 <= len(name) <= MAX_NAME_BYTES
        assert not set(name) & set(b"/~.\0\n\r\t ")


@given(st.text(max_size=250))
def test_text_and_its_bytes_get_the_same_answer(name: str) -> None:
    """The rule is about the name, not about the type that carries it."""
    assert queue_name_error(name) == queue_name_error(name.encode())


def test_only_a_fanout_child_has_a_master() -> None:
    """The master is what stands before the `+`."""
    assert master_of("orders+audit") == "orders"
    assert master_of("orders") is None


@pytest.mark.parametrize("code", range(128))
def test_every_ascii_character(code: int) -> None:
    """The quick way, for names of printable ASCII alone, allows what the other rules allow."""
    character = chr(code)
    allowed = character.isprintable() and character not in " /~."
    assert (queue_name_error(f"a{character}b") is None) == allowed
    # Beside another character the quick way is not taken.
    assert (queue_name_error(f"\u00e9{character}b") is None) == allowed
