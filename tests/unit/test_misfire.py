"""What becomes of triggers that are noticed late: pure, with the clock in the test's hand."""

from __future__ import annotations

from typing import Literal

import pytest

from chronosd.broker.schedule import Schedule
from chronosd.cron import parse
from chronosd.supervisor.misfire import Plan, plan

MONDAY = 1_796_000_400  # 2026-11-30T01:00:00Z
HOUR, DAY = 3600, 86400
Misfire = Literal["skip", "fire_once"]


def schedule(spec: str, misfire: Misfire = "skip") -> Schedule:
    return Schedule("s", "job", "q", parse(spec), b"{}", misfire)


def test_nothing_is_done_before_its_time_and_one_trigger_fires_at_it() -> None:
    for spec in ("@every 1m", "* * * * *"):
        one = schedule(spec)
        assert plan(one, MONDAY, MONDAY + 59.999, 0) == Plan()
        assert plan(one, MONDAY, MONDAY + 60, 0) == Plan((MONDAY + 60,))
        assert plan(one, MONDAY, MONDAY + 60.5, 0) == Plan((MONDAY + 60,))


@pytest.mark.parametrize("misfire", ["skip", "fire_once"])
def test_what_came_while_it_was_watched_and_is_noticed_late_fires_each_in_order(misfire: Misfire) -> None:
    """chronos-go drops all of them, the newest too, where two or more elapsed in one tick (weak spot 6)."""
    one = schedule("@every 1s", misfire)
    assert plan(one, MONDAY, MONDAY + 2.3, MONDAY - 100) == Plan((MONDAY + 1, MONDAY + 2))
    assert plan(one, MONDAY, MONDAY + 10, MONDAY - 100).fire == tuple(range(MONDAY + 1, MONDAY + 11))


def test_an_outage_ends_in_no_burst() -> None:
    """Triggers up to 10 s old are late, those before were missed."""
    for misfire in ("skip", "fire_once"):
        done = plan(schedule("@every 1s", misfire), MONDAY, MONDAY + HOUR, MONDAY - 100)  # type: ignore[arg-type] # both
        assert done.passed == done.fire[0] - 1
        assert len(done.fire) == 11


@pytest.mark.parametrize("spec", ["* * * * *", "@every 1m"])
def test_after_an_hour_without_a_daemon_sixty_missed_minutes_are_one_run_or_none(spec: str) -> None:
    start = MONDAY + HOUR + 30
    assert plan(schedule(spec), MONDAY, start, start) == Plan((), MONDAY + HOUR)
    assert plan(schedule(spec, "fire_once"), MONDAY, start, start) == Plan(
        (MONDAY + HOUR,), MONDAY + HOUR - 60
    )
    # it has just come, as daemons are restarted: this one is not dropped, whatever the policy
    assert plan(schedule(spec), MONDAY, MONDAY + HOUR + 3, MONDAY + HOUR + 3) == Plan(
        (MONDAY + HOUR,), MONDAY + HOUR - 60
    )


def test_a_weekly_time_that_passed_two_days_ago_is_made_up_for_only_if_that_is_wanted() -> None:
    last = MONDAY - 7 * DAY + 60
    now = MONDAY + 2 * DAY
    assert plan(schedule("1 1 * * mon"), last, now, now) == Plan((), MONDAY + 60)
    assert plan(schedule("1 1 * * mon", "fire_once"), last, now, now) == Plan((MONDAY + 60,))


def test_what_is_late_counts_for_what_was_missed_before_it() -> None:
    """One run is enough to make up for any number."""
    one = schedule("@every 1m", "fire_once")
    done = plan(one, MONDAY, MONDAY + HOUR + 2, MONDAY + HOUR - 1)
    assert done == Plan((MONDAY + HOUR,), MONDAY + HOUR - 60)


def test_an_interval_keeps_its_beat_over_what_it_missed() -> None:
    done = plan(schedule("@every 7s"), MONDAY, MONDAY + 1000, MONDAY + 1000)
    assert done.fire == (MONDAY + 994,)
    assert (done.fire[0] - MONDAY) % 7 == 0


def test_a_clock_that_went_back_means_waiting() -> None:
    assert plan(schedule("@every 1s"), MONDAY, MONDAY - HOUR, 0) == Plan()
