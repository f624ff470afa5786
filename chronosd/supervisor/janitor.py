"""Keeps archived and completed tasks within their limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from chronosd.broker import sweep
from chronosd.broker.commands import BATCH, Steps
from chronosd.broker.dead_letter import DeadLetters
from chronosd.broker.keys import QueueKeys
from chronosd.broker.members import trim_members
from chronosd.broker.workflow import nothing_more
from chronosd.config.schema import JanitorConfig
from chronosd.errors import BrokerError
from chronosd.log import get_logger
from chronosd.metrics import TRIMMED
from chronosd.states import State
from chronosd.supervisor.steps import Done
from chronosd.supervisor.totals import Totals

log = get_logger("chronosd.supervisor")

_ROUND_TRIPS = 200
_PASS_S = 2.0
_LOOK_S = 1.0


class Janitor:
    """Deletes batches until every set is within its limits; 0 is no limit.

    It sweeps at its interval, and before that where a second's look finds a full batch to delete: at 30,000
    tasks a second, kept for five, a minute would be two million.

    A pass ends after some hundred round trips, and the next one goes on at once: only a pass that has come
    back is progress, and without progress the watchdog ends the daemon.
    """

    name = "janitor"

    def __init__(
        self,
        queues: Sequence[QueueKeys],
        limits: JanitorConfig,
        totals: Totals | None = None,
        dead_letters: DeadLetters | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._totals = totals or Totals()
        self._then = nothing_more if dead_letters is None else dead_letters.following
        self.interval_s = min(limits.interval, _LOOK_S)
        self._sweep_every_s = limits.interval
        self._clock = clock
        self._sweep_at = self._tell_at = clock()
        self._untold: dict[tuple[str, str], int] = {}
        self._sets: list[tuple[QueueKeys, State, float | None, int]] = []
        for queue in queues:
            age_s = limits.archived_retention or None
            self._sets.append((queue, State.ARCHIVED, age_s, limits.max_archived))
            # The completed set is scored by expiry: what is 0 s past it has had its retention.
            self._sets.append((queue, State.COMPLETED, 0.0, limits.max_completed))
        self._looks = [sweep.surplus(*item) for item in self._sets]

    def run_once(self) -> Steps[Done]:
        began_at = self._clock()
        open_ = list(self._sets)
        is_early = began_at < self._sweep_at
        if is_early:
            replies = yield self._looks
            # what a set says of its type is for the next sweep to tell
            open_ = [s for s, n in zip(open_, replies, strict=True) if isinstance(n, int) and n >= BATCH]
            if not open_:
                return Done()
        counts = {"expired": 0, "trimmed": 0}
        errors: dict[str, BrokerError] = {}
        is_answered = False
        for _ in range(_ROUND_TRIPS):
            if self._clock() - began_at > _PASS_S:
                break
            limit = max(1, BATCH // len(open_))
            replies = yield [
                sweep.trim(queue, state, age_s, keep, limit) for queue, state, age_s, keep in open_
            ]
            unfinished = []
            for item, reply in zip(open_, replies, strict=True):
                queue, state = item[0], item[1]
                if isinstance(reply, BrokerError):
                    errors[queue.name] = reply
                    continue
                is_answered = True
                aged, over = reply.aged, reply.over
                if reply.aged_members or reply.over_members:
                    try:
                        aged += yield from trim_members(queue, reply.aged_members, self._then)
                        over += yield from trim_members(queue, reply.over_members, self._then)
                    except BrokerError as error:
                        errors[queue.name] = error
                        continue
                counts["expired"] += aged
                counts["trimmed"] += over
                if over:
                    self._totals.add(TRIMMED, queue.name, state.label, n=over)
                    key = (queue.name, state.label)
                    self._untold[key] = self._untold.get(key, 0) + over
                # also members that are only out of the set: there may be more behind them
                if reply.aged + reply.over + len(reply.aged_members) + len(reply.over_members) >= limit:
                    unfinished.append(item)
            open_ = unfinished
            if not open_:
                break
        self._tell()
        if open_:
            self._sweep_at = began_at  # the rest of it
        elif is_answered and not is_early:
            self._sweep_at = began_at + self._sweep_every_s
        return Done(counts if is_answered else {}, 0.0 if open_ else None, errors)

    def _tell(self) -> None:
        """Not expiry: somebody may still have wanted these. Told once in a while, for it may go on and on."""
        if self._untold and self._clock() >= self._tell_at:
            self._tell_at = self._clock() + self._sweep_every_s
            for (name, label), count in self._untold.items():
                log.warning("tasks deleted to stay within a limit", queue=name, state=label, count=count)
            self._untold = {}
