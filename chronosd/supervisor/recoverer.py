"""Takes over what the dead of other hosts left pending.

Their entries are known by their idle time alone, and that misleads after an outage: while nobody could
renew a lease, every live entry grew old. So after anything of the kind the recoverer holds still for one
`recover_min_idle`, in which this host's leases and those of all others are renewed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from chronosd.broker.commands import Steps
from chronosd.broker.keys import QueueKeys
from chronosd.broker.recover import recover
from chronosd.broker.settle import Policy
from chronosd.log import get_logger
from chronosd.supervisor.steps import Done, together
from chronosd.supervisor.told import tell
from chronosd.supervisor.totals import Totals

log = get_logger("chronosd.supervisor")

_START = "0-0"


class Grace:
    """A time in which idle entries prove nothing. Instants are monotonic."""

    def __init__(self, length_s: float) -> None:
        self.length_s = length_s
        self._until = 0.0
        self._is_renewed = True

    def begin(self, reason: str, now: float) -> None:
        """From now on nothing is taken over until the own leases are renewed and one length has passed."""
        if now >= self._until:
            log.info("recovery of other hosts' tasks waits", reason=reason, seconds=self.length_s)
        self._until = now + self.length_s
        self._is_renewed = False

    def renewed(self, now: float) -> None:
        """Every lease of this host has been renewed since; the others have one length for theirs."""
        if not self._is_renewed:
            self._is_renewed = True
            self._until = max(self._until, now + self.length_s)

    def is_over(self, now: float) -> bool:
        return self._is_renewed and now >= self._until

    def left_s(self, now: float) -> float:
        return max(self._until - now, 0.0)


class Recoverer:
    """One pass looks at the next stretch of every queue's pending list; the cursors are carried over."""

    name = "recoverer"

    def __init__(
        self,
        queues: Sequence[QueueKeys],
        *,
        consumer: str,
        min_idle_s: float,
        interval_s: float,
        policy: Policy,
        grace: Grace,
        own_entries: Callable[[], Mapping[str, Mapping[str, str]]],
        clock: Callable[[], float] = time.monotonic,
        totals: Totals | None = None,
    ) -> None:
        self._totals = totals or Totals()
        self.interval_s = interval_s
        self._queues = {queue.name: queue for queue in queues}
        self._cursors = dict.fromkeys(self._queues, _START)
        self._consumer = consumer
        self._min_idle_s = min_idle_s
        self._policy = policy
        self._grace = grace
        self._own_entries = own_entries
        self._clock = clock

    def run_once(self) -> Steps[Done]:
        now = self._clock()
        if not self._grace.is_over(now):
            return Done(next_in_s=min(max(self._grace.left_s(now), 0.5), self.interval_s))
        own = self._own_entries()
        passes = {
            name: recover(
                queue,
                self._consumer,
                self._min_idle_s,
                self._cursors[name],
                own.get(name, {}),
                self._policy,
            )
            for name, queue in self._queues.items()
        }
        results, errors = yield from together(passes)
        counts = {"recovered": 0, "recovered_archived": 0}
        is_more = False
        for name, result in results.items():
            # Only a pass that succeeded moves the cursor; one that failed looks at the same stretch again.
            self._cursors[name] = result.cursor
            is_more = is_more or result.cursor != _START
            settled = result.settled
            self._totals.settled("host", settled)
            errors.update(settled.errors)
            again = settled.retried + settled.returned
            counts["recovered"] += again
            counts["recovered_archived"] += settled.archived
            for end in settled.ends:
                tell(end, "its worker on another host was lost")
            if settled.total:
                log.warning(
                    "recovered tasks that nobody held any more",
                    queue=name,
                    again=again,
                    archived=settled.archived,
                    archived_ids=settled.archived_ids[:20],
                    dropped=settled.dropped,
                )
        return Done(counts if results else {}, 0.0 if is_more and results else None, errors)
