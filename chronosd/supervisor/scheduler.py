"""Fires schedules: each of their triggers once, whatever number of daemons has them.

Nothing here decides whether a trigger fires: the script does, by the server's clock and the schedule's mark.
This only asks it at the right moment. The daemon that has the lease asks at the trigger's time; the others
ask a tenth of a second later, so that one that was killed or hangs is missed by nobody, and are told in
general that it has fired. One that had to step in asks in time from then on, until somebody else is first.
The host's own clock is never looked at.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from chronosd.broker import schedule as broker
from chronosd.broker.commands import Command, Steps
from chronosd.broker.keys import Namespace
from chronosd.broker.schedule import Attended, Fired, Schedule
from chronosd.broker.timetable import Registered, registry
from chronosd.errors import BrokerError, BrokerRefused
from chronosd.log import get_logger
from chronosd.supervisor.misfire import plan
from chronosd.supervisor.steps import Done

log = get_logger("chronosd.supervisor")

STANDBY_S = 0.1
"""How much later than the leader the others ask."""
_SHOWN_EVERY_S = 20.0
_TIDY_EVERY_S = 60.0
_FORGOTTEN_AFTER_S = 30 * 86_400
"""A schedule that no daemon has had for so long is forgotten, wherever it came from."""
_AGAIN_S = 1.0
"""How long what went wrong with one schedule rests while the others go on."""
_FAULT_S = 60.0
_SOONEST_S = 0.001
_ATTENDED_AT_ONCE = 100
_FIRED_AT_ONCE = 50
"""Schedules per pass; each has at most a dozen triggers to fire."""

_Ask = tuple[Command[Any], Callable[[Any], None]]


@dataclass(slots=True)
class Watch:
    """What is known of one schedule."""

    schedule: Schedule
    mark: int | None = None
    """Newest trigger, fired or passed over; None before the first look."""
    since: float = math.inf
    """Since when some daemon has looked after it, as far as this one knows; by the server's clock."""
    leader: str = ""
    steps_in: bool = False
    """Whether it has fired although another daemon has the lease, which has not been heard of since."""
    fired: int | None = None
    """Newest trigger that this daemon has fired."""
    next: int = 0
    """The trigger that comes next; kept, for it takes a calendar to find."""
    rests_until: float = -math.inf
    """Monotonic."""

    def advance(self, mark: int) -> None:
        """The mark is there, or was."""
        if self.mark is None or mark > self.mark:
            self.mark = mark
            self.next = self.schedule.rule.next_after(mark)


@dataclass(frozen=True, slots=True)
class ScheduleFacts:
    """What is shown of a schedule."""

    name: str
    is_leader: bool
    fired: int | None
    """Newest trigger that this daemon has fired, unix seconds."""


class Scheduler:
    """One pass is one round trip: leases that are to be renewed, triggers that have come, or both.

    It is kept over reloads, and told of the new schedules by `tune`. ``owner`` is unique to this run; ``by``
    names the file, so that a later run knows which schedules were taken out of it meanwhile.
    """

    name = "scheduler"

    def __init__(
        self,
        namespace: Namespace,
        owner: str,
        by: str,
        schedules: Sequence[Schedule],
        *,
        lease_s: float = broker.LEASE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval_s = lease_s / 3
        self._namespace = namespace
        self._owner = owner
        self._by = by
        self._lease_s = lease_s
        self._clock = clock
        self._watches: dict[str, Watch] = {}
        self._leaving: dict[str, bool] = {}
        """Ids to let go of, and whether to forget them."""
        self._ahead: float | None = None
        """The server's clock less ours; None before the first reply."""
        self._attend_at = self._show_at = self._tidy_at = -math.inf
        self._is_over = False
        self._counts: dict[str, int] = {}
        self._errors: dict[str, BrokerError] = {}
        self.tune(schedules)

    # -- configuration --------------------------------------------------------------------------------

    def tune(self, schedules: Sequence[Schedule]) -> None:
        """From now on these: what stays keeps its marks, what is gone is let go of and forgotten."""
        watches = {one.id: self._watches.get(one.id) or Watch(one) for one in schedules}
        for one in schedules:
            watches[one.id].schedule = one  # its name or misfire may be new
        self._leaving = {id_: forget for id_, forget in self._leaving.items() if id_ not in watches}
        self._leaving |= {id_: True for id_ in self._watches if id_ not in watches}
        self._watches = watches
        self._attend_at = self._show_at = self._tidy_at = -math.inf

    def leave(self) -> None:
        """The daemon ends: nothing fires any more, and the next pass gives the leases back."""
        self._is_over = True
        self._leaving |= dict.fromkeys(self._watches, False)
        self._watches = {}

    @property
    def facts(self) -> list[ScheduleFacts]:
        """Of each schedule."""
        return [
            ScheduleFacts(one.schedule.name, one.leader == self._owner, one.fired)
            for one in self._watches.values()
        ]

    def document(self) -> list[dict[str, Any]]:
        """The same for the page of the web process and for the control socket."""
        return [{"name": one.name, "leader": one.is_leader, "fired_at": one.fired} for one in self.facts]

    # -- a pass ---------------------------------------------------------------------------------------

    def run_once(self) -> Steps[Done]:
        now = self._clock()
        asks: list[_Ask] = [*self._retire()]
        if not self._is_over:
            asks += [*self._attend(now), *self._tidy(now), *self._fire(now)]
        if not asks:
            return Done(next_in_s=self._next_in_s(now))
        self._counts, self._errors = {}, {}
        replies = yield [command for command, _ in asks]
        for (_, take), reply in zip(asks, replies, strict=True):
            take(reply)
        return Done(self._counts, self._next_in_s(self._clock()), self._errors)

    def _next_in_s(self, now: float) -> float:
        due_at = [self._attend_at, *(self._due_at(watch) for watch in self._watches.values())]
        return min(max(min(due_at) - now, _SOONEST_S), self.interval_s) if self._watches else self.interval_s

    def _due_at(self, watch: Watch) -> float:
        """When to ask for its next trigger."""
        if watch.mark is None or self._ahead is None:
            return math.inf
        is_first = watch.leader == self._owner or watch.steps_in
        standby_s = 0.0 if is_first else STANDBY_S
        return max(watch.next - self._ahead + standby_s, watch.rests_until)

    # -- leases ---------------------------------------------------------------------------------------

    def _attend(self, now: float) -> Iterator[_Ask]:
        if now < self._attend_at:
            return
        is_shown = now >= self._show_at
        watches = list(self._watches.values())
        for at in range(0, len(watches), _ATTENDED_AT_ONCE):
            part = watches[at : at + _ATTENDED_AT_ONCE]
            command = broker.attend(
                self._namespace,
                self._owner,
                [(watch.schedule, watch.mark) for watch in part],
                by=self._by,
                refresh=is_shown,
                lease_s=self._lease_s,
            )
            yield command, partial(self._take_attended, part, is_shown)

    def _take_attended(self, watches: Sequence[Watch], is_shown: bool, reply: Attended | BrokerError) -> None:
        now = self._clock()
        if isinstance(reply, BrokerError):
            self._errors[""] = reply
            self._attend_at, self._show_at = now + _AGAIN_S, -math.inf
            return
        self._tell_time(reply.now_ms)
        self._attend_at = now + self.interval_s
        if is_shown:
            self._show_at = now + _SHOWN_EVERY_S
        self._counts["attended"] = self._counts.get("attended", 0) + len(watches)
        won: list[str] = []
        for watch, seen in zip(watches, reply.seen, strict=True):
            if isinstance(seen, str):
                self._errors[f"schedule {watch.schedule.name}"] = BrokerRefused(seen)
                continue
            mark, leader = seen
            if watch.mark is None:
                # Somebody else who has the lease may be slow, or have died a moment ago: what came meanwhile
                # was not missed, and a newcomer that says so would take it from whoever is about to fire it.
                watch.since = reply.now_ms / 1000 if leader == self._owner else -math.inf
            if leader != watch.leader and leader == self._owner:
                won.append(watch.schedule.name)
            watch.leader = leader
            watch.advance(mark)
        if won:
            log.info("leads schedules", count=len(won), schedules=won[:20])

    def _tell_time(self, now_ms: int) -> None:
        self._ahead = now_ms / 1000 - self._clock()

    # -- triggers -------------------------------------------------------------------------------------

    def _fire(self, now: float) -> Iterator[_Ask]:
        due = [watch for watch in self._watches.values() if self._due_at(watch) <= now]
        for watch in sorted(due, key=self._due_at)[:_FIRED_AT_ONCE]:
            try:
                yield from list(self._fire_one(watch, now))
            except Exception:  # one that nobody had thought of must not stop the others
                log.exception("schedule failed", schedule=watch.schedule.name)
                watch.rests_until = now + _FAULT_S

    def _fire_one(self, watch: Watch, now: float) -> Iterator[_Ask]:
        assert watch.mark is not None
        assert self._ahead is not None
        what = plan(watch.schedule, watch.mark, now + self._ahead, watch.since)
        known = watch.mark
        if what.passed is not None:
            command = broker.fire(self._namespace, watch.schedule, what.passed, known, passing=True)
            yield command, partial(self._take_fired, watch, what.passed)
        for trigger in what.fire:
            command = broker.fire(self._namespace, watch.schedule, trigger, known)
            yield command, partial(self._take_fired, watch, trigger)

    def _take_fired(self, watch: Watch, trigger: int, reply: Fired | BrokerError) -> None:
        name = watch.schedule.name
        if isinstance(reply, BrokerError):
            # Whether it fired or not, nothing is known, so nothing is noted: the next try will tell.
            self._errors[f"schedule {name}"] = reply
            watch.rests_until = self._clock() + _AGAIN_S
            return
        self._tell_time(reply.now_ms)
        late_s = round(reply.now_ms / 1000 - trigger, 3)
        if reply.word == "passed":
            log.warning("schedule missed its times", schedule=name, newest=trigger, late_s=late_s)
        elif reply.word == "fired":
            watch.fired = trigger
            watch.steps_in = True
            log.debug("schedule fired", schedule=name, trigger=trigger, late_s=late_s)
        elif reply.word == "old":
            watch.steps_in = False
        self._counts[reply.word] = self._counts.get(reply.word, 0) + 1
        watch.advance(reply.mark)

    # -- letting go -----------------------------------------------------------------------------------

    def _retire(self) -> Iterator[_Ask]:
        for forget in (True, False):
            ids = [id_ for id_, wanted in self._leaving.items() if wanted is forget][:_ATTENDED_AT_ONCE]
            if ids:
                command = broker.retire(self._namespace, self._owner, ids, forget=forget)
                yield command, partial(self._take_retired, ids)

    def _take_retired(self, ids: Sequence[str], reply: int | BrokerError) -> None:
        if isinstance(reply, BrokerError):
            self._errors[""] = reply
            return
        for id_ in ids:
            self._leaving.pop(id_, None)
        self._counts["forgotten"] = self._counts.get("forgotten", 0) + reply

    def _tidy(self, now: float) -> Iterator[_Ask]:
        """What was taken out of the file while no daemon ran is found at the start, and now and then."""
        if now >= self._tidy_at:
            yield registry(self._namespace), self._take_registry

    def _take_registry(self, reply: Iterable[Registered] | BrokerError) -> None:
        if isinstance(reply, BrokerError):
            self._errors[""] = reply
            self._tidy_at = self._clock() + _AGAIN_S
            return
        self._tidy_at = self._clock() + _TIDY_EVERY_S if self._watches else math.inf
        server_now = -math.inf if self._ahead is None else self._clock() + self._ahead
        for one in reply:
            is_old = one.last_seen < server_now - _FORGOTTEN_AFTER_S
            if one.name and one.id not in self._watches and (one.by == self._by or is_old):
                self._leaving[one.id] = True
