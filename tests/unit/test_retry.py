from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronosd.retry import FLOOR_S, backoff


@pytest.mark.parametrize(
    ("retried", "bound"), [(0, 5), (1, 10), (2, 20), (7, 640), (8, 900), (1000, 900), (10**9, 900)]
)
def test_the_bound_doubles_with_each_failure_up_to_the_cap(retried: int, bound: float) -> None:
    assert backoff(retried, 5, 900, random=lambda: 1.0) == bound


def test_the_wait_is_drawn_from_the_whole_range_below_the_bound() -> None:
    source = random.Random(7)
    draws = [backoff(3, 5, 900, random=source.random) for _ in range(2000)]
    assert min(draws) < 1
    assert max(draws) > 39
    assert 18 < sum(draws) / len(draws) < 22


def test_no_wait_is_shorter_than_the_floor() -> None:
    assert backoff(5, 5, 900, random=lambda: 0.0) == FLOOR_S


@given(st.integers(), st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1, exclude_max=True))
def test_any_count_gives_a_wait_between_floor_and_cap(
    retried: int, base: float, cap: float, draw: float
) -> None:
    assert FLOOR_S <= backoff(retried, base, cap, random=lambda: draw) <= max(cap, FLOOR_S)
