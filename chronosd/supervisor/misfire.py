"""Which triggers of a schedule fire when it is looked at late. Pure; instants are unix seconds.

A trigger is late if some daemon had the schedule when it came and is only slow to notice, or could not reach
the server: up to `LATE_S` late it fires all the same, each one, in order. What is older than that, or
passed before anybody watched, was missed: the newest of those may be made up for, the others never, so that
no downtime ends in a burst.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from chronosd.broker.schedule import Schedule

LATE_S = 10
"""About what a restart of the daemon or the server takes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do about the triggers that have come."""

    fire: tuple[int, ...] = ()
    """To be fired, oldest first."""
    passed: int | None = None
    """The newest of those that are passed over for good, if any are."""


def plan(schedule: Schedule, last: int, now: float, watched_since: float) -> Plan:
    """What to do about the triggers after ``last`` that have come by ``now``.

    Args:
        watched_since: since when some daemon has looked after the schedule, as far as is known.
    """
    rule, until = schedule.rule, math.floor(now)
    first = rule.next_after(last)
    if first > until:
        return Plan()
    edge = max(last, until - LATE_S - 1, math.floor(max(watched_since, 0)))
    late: list[int] = []
    trigger = first if first > edge else rule.first_after(last, edge)
    while trigger <= until:
        late.append(trigger)
        trigger = rule.next_after(trigger)
    if late:
        return Plan(tuple(late), None if first == late[0] else rule.newest(last, late[0] - 1))
    newest = rule.newest(last, until)
    assert newest is not None, "the first has come"
    if schedule.misfire == "fire_once" or until - newest <= LATE_S:
        return Plan((newest,), None if first == newest else rule.newest(last, newest - 1))
    return Plan((), newest)
