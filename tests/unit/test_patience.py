"""How long a worker waits until it can run a task alone, and how often."""

from __future__ import annotations

import math

import pytest

from chronosd.worker.patience import REMEMBERED, SOLO_WAIT_S, Patience


def test_each_wait_in_vain_is_twice_as_long_as_the_one_before() -> None:
    patience = Patience()
    assert [patience.in_vain("t", 0.0) for _ in range(12)] == [SOLO_WAIT_S * 2**n for n in range(12)]
    assert patience.wait_s("other") == SOLO_WAIT_S


def test_one_that_has_started_is_waited_for_as_at_first() -> None:
    patience = Patience()
    for _ in range(3):
        patience.in_vain("t", 0.0)
    patience.started("t", 1.0, 0.0)
    patience.started("never put off", 0.0, 0.0)
    assert patience.wait_s("t") == SOLO_WAIT_S


@pytest.mark.parametrize("tasks", [1, 2, 20])
def test_waiting_costs_at_most_half_of_the_time_and_every_task_starts_in_the_end(tasks: int) -> None:
    """Twenty suspects that took turns at waiting would have kept their worker from fetching all the time."""
    patience, longest_s = Patience(), 600.0
    due = {f"t{n}": 0.0 for n in range(tasks)}
    now = waited_s = 0.0
    while due:
        task_id = min(due, key=lambda one: due[one])
        now = max(now, due.pop(task_id))
        put_off_s = patience.rest_s(now)
        if not put_off_s:
            wait_s = patience.wait_s(task_id)
            assert waited_s <= now / 2, "it has rested for as long as it had waited"
            lasted_s = min(wait_s, longest_s)  # by then all that ran beside it has ended
            now += lasted_s
            waited_s += lasted_s
            if wait_s >= longest_s:
                patience.started(task_id, lasted_s, now)
                continue
            put_off_s = patience.in_vain(task_id, now)
        due[task_id] = now + put_off_s


def test_while_it_rests_a_task_is_put_off_for_a_first_wait_at_most_so_that_others_can_have_it() -> None:
    patience = Patience()
    assert patience.rest_s(100.0) == 0
    while patience.in_vain("t", 100.0) < 60:
        pass
    long_s = patience.wait_s("t") / 2
    assert patience.rest_s(100.0) == SOLO_WAIT_S
    assert math.isclose(patience.rest_s(100.0 + long_s - 1), 1)
    patience.started("found the worker idle", 0.0, 101.0)
    assert patience.rest_s(102.0) == SOLO_WAIT_S, "it rests on"
    assert patience.rest_s(100.0 + long_s) == 0


def test_of_too_many_tasks_the_one_put_off_longest_ago_is_forgotten() -> None:
    patience = Patience()
    for number in range(REMEMBERED):
        patience.in_vain(f"t{number}", 0.0)
    patience.in_vain("t0", 0.0)
    patience.in_vain("one more", 0.0)
    assert patience.wait_s("t1") == SOLO_WAIT_S
    assert patience.wait_s("t2") == 2 * SOLO_WAIT_S
    assert patience.wait_s("t0") == 4 * SOLO_WAIT_S
