"""Sizes, durations and times."""

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrelmq.units import format_duration, format_size, parse_duration, parse_size, parse_time


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0),
        (1000, 1000),
        ("1000", 1000),
        ("0", 0),
        ("5 B", 5),
        ("1 byte", 1),
        ("2k", 2048),
        ("16MB", 16 * 1024**2),
        ("16 MiB", 16 * 1024**2),
        ("16 megabytes", 16 * 1024**2),
        (" 16M ", 16 * 1024**2),
        ("1.5k", 1536),
        (".5 KiB", 512),
        ("1 GB", 1024**3),
        ("2 TiB", 2 * 1024**4),
    ],
)
def test_sizes_are_bytes_in_multiples_of_1024(text: int | str, size: int) -> None:
    """A size is a number of bytes, or text in any of the usual units."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [-1, "-1", "-1 MiB", "", "MiB", "x", "1.3 B", "0.3k", "1 XB", "nan", "1e3", "1 2", "\u0661"],
)
def test_what_is_no_size_is_refused(text: int | str) -> None:
    """Negative numbers, fractions of bytes, unknown units and other text are no sizes."""
    with pytest.raises(ValueError, match=r"size|negative"):
        parse_size(text)


@pytest.mark.parametrize("value", [1.0, 1.5, float("nan"), True, None, [1]])
def test_a_size_of_another_type_is_refused(value: object) -> None:
    """Only whole numbers and text are sizes."""
    with pytest.raises(TypeError, match="a size is"):
        parse_size(value)  # type: ignore[arg-type] # the wrong type is the point


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (0, 0.0),
        (3, 3.0),
        (0.25, 0.25),
        ("0ms", 0.0),
        ("100ms", 0.1),
        ("250 us", 0.00025),
        ("250 \u00b5s", 0.00025),
        ("250 \u03bcs", 0.00025),
        ("7 microseconds", 7e-06),
        ("1s", 1.0),
        ("1.5", 1.5),
        ("30 minutes", 1800.0),
        ("1 Minute", 60.0),
        ("2h", 7200.0),
        ("1d", 86400.0),
        ("1 week", 604800.0),
    ],
)
def test_durations_are_seconds(text: float | str, seconds: float) -> None:
    """A duration is a number of seconds, or text in any unit from microseconds to weeks."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [-1, -0.5, "-1s", float("nan"), float("inf"), "nan", "inf", "", "s", "1 fortnight", "9" * 400],
)
def test_what_is_no_duration_is_refused(text: float | str) -> None:
    """Negative numbers, what is not finite, unknown units and other text are no durations."""
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize("value", [True, None, [1]])
def test_a_duration_of_another_type_is_refused(value: object) -> None:
    """Only numbers and text are durations."""
    with pytest.raises(TypeError, match="a duration is"):
        parse_duration(value)  # type: ignore[arg-type] # the wrong type is the point


@pytest.mark.parametrize(
    "value",
    [
        1769853600001,
        "1769853600001",
        "2026-01-31T10:00:00.001",
        "2026-01-31T10:00:00.001Z",
        "2026-01-31 12:00:00.001+02:00",
        datetime(2026, 1, 31, 10, 0, 0, 1000),  # noqa: DTZ001 # without a zone it is UTC
    ],
)
def test_times_are_milliseconds(value: datetime | int | str) -> None:
    """A time is UTC unless it has a zone; a number is milliseconds since 1970 already."""
    assert parse_time(value) == 1769853600001


def test_a_day_is_a_time() -> None:
    """It means its begin."""
    assert parse_time("2026-01-31") == parse_time("20260131") == parse_time("2026-01-31T00:00Z")
    assert parse_time("1795061512345") == 1795061512345  # although it begins like a date


@pytest.mark.parametrize("text", ["", "soon", "2026-13-01", "-1", "9" * 20, "9" * 5000])
def test_what_is_no_time_is_refused(text: str) -> None:
    """Neither a time nor a number that fits into 64 bits."""
    with pytest.raises(ValueError, match="a time is text such as"):
        parse_time(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1000, "1000 B"), (1536, "1536 B"), (2048, "2 KiB"), (1024**3, "1 GiB")],
)
def test_a_size_prints_in_the_largest_unit_that_divides_it(size: int, text: str) -> None:
    """No size is rounded to look nicer."""
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.1, "100ms"),
        (0.00025, "250us"),
        (90.0, "90s"),
        (5400.0, "90m"),
        (7200.0, "2h"),
        (86400.0, "1d"),
        (1.5, "1500ms"),
        (1e-09, "0.000000001s"),
    ],
)
def test_a_duration_prints_in_the_largest_unit_that_is_whole(seconds: float, text: str) -> None:
    """No duration is rounded to look nicer."""
    assert format_duration(seconds) == text


@given(st.integers(min_value=0, max_value=2**70))
def test_a_printed_size_parses_back(size: int) -> None:
    """Printing loses nothing."""
    assert parse_size(format_size(size)) == size


@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_a_printed_duration_parses_back(seconds: float) -> None:
    """Printing loses nothing, for every float there is."""
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.integers(min_value=0, max_value=10**12), st.sampled_from(["us", "ms", "s", "m", "h"]))
def test_a_printed_text_means_what_was_written(count: int, unit: str) -> None:
    """What people write survives parsing and printing."""
    seconds = parse_duration(f"{count} {unit}")
    assert parse_duration(format_duration(seconds)) == seconds
