"""Durations and sizes as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronosd.durations import format_duration, format_size, parse_duration, parse_size, span


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("100ms", 0.1),
        ("1h30m", 5400.0),
        ("7d", 604_800.0),
        ("1d2h3m4.5s", 93_784.5),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("250μs", 0.00025),
        ("-5s", -5.0),
        ("+5s", 5.0),
        ("0", 0.0),
        ("0s", 0.0),
        ("30", 30.0),
        ("1.25", 1.25),
        (" 90s ", 90.0),
        (30, 30.0),
        (0.25, 0.25),
        (timedelta(minutes=2), 120.0),
    ],
)
def test_a_duration_is_go_notation_with_days_or_a_number_of_seconds(
    text: str | float | timedelta, seconds: float
) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "", "s", "5 m", "5x", "1h 30m", "5m-3s", "1..5s", "1,5s", "1:30", "5w", "5mm", "5y", "٣s", "5s!",
        "--5s", "1e3s", "nan", "inf", "999999999999999999h", None, True, float("nan"), float("inf"), 10**400,
        [], "5s\x00",
    ],
)  # fmt: skip
def test_what_is_no_duration_is_refused_with_one_sentence(text: object) -> None:
    with pytest.raises(ValueError) as caught:
        parse_duration(text)  # type: ignore[arg-type]
    assert str(caught.value).startswith("must be a duration such as 250ms")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_months_weeks_and_years_are_refused_because_go_knows_none() -> None:
    """durationpy reads ``mm`` as thirty days, one letter away from a minute."""
    for unit in ("w", "mm", "y"):
        with pytest.raises(ValueError):
            parse_duration(f"1{unit}")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (90, "1m30s"),
        (0.25, "250ms"),
        (0, "0s"),
        (7_776_000, "90d"),
        (93_600, "1d2h"),
        (-90, "-1m30s"),
        (8640, "2h24m"),
        (0.0001, "100us"),
        (float("inf"), "inf"),
    ],
)
def test_a_duration_is_shown_as_one_would_write_it(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(min_value=-(10**10), max_value=10**10))
def test_what_is_shown_reads_back_as_the_same_duration(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=1e-4)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MiB", 512 << 20),
        ("64KiB", 64 << 10),
        ("1GiB", 1 << 30),
        ("1TiB", 1 << 40),
        ("2GB", 2_000_000_000),
        ("10kB", 10_000),
        ("10KB", 10_000),
        ("1.5MiB", 1_572_864),
        ("100B", 100),
        ("1 MiB", 1 << 20),
        ("4096", 4096),
        (4096, 4096),
        (0, 0),
    ],
)
def test_a_size_names_its_powers_or_is_a_number_of_bytes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "MiB", "5M", "5 mb", "-1", -1, "-1MiB", "1.3B", "1e3", "5PiB", "kiB", "1kiB", True, None, 1.5, "٣B"],
)
def test_what_is_no_size_is_refused_with_one_sentence(text: object) -> None:
    with pytest.raises(ValueError, match=r"^must be a size such as 64KiB"):
        parse_size(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "text"), [(1 << 20, "1MiB"), (1536, "1536B"), (0, "0B"), (3 << 40, "3TiB")])
def test_a_size_is_shown_in_the_largest_unit_that_divides_it(size: int, text: str) -> None:
    assert format_size(size) == text
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.25, "250ms"), (1.9, "1s"), (90, "1m30s"), (3700, "1h1m"), (90_061, "1d1h")],
)
def test_times_are_shown_as_short_as_they_are_read(seconds: float, text: str) -> None:
    assert span(seconds) == text
