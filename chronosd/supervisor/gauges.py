"""What the queues hold, read for the web process: only while there is one, and only now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from chronosd.broker.commands import BATCH, Command, Steps, plain
from chronosd.broker.consumers import consumers
from chronosd.broker.inspect import QueueStats, is_name, queue_names, stats_of
from chronosd.broker.keys import GROUP, Namespace
from chronosd.errors import BrokerError
from chronosd.supervisor.steps import Done

EVERY_S = 5.0
_MOST_QUEUES = 200
"""Queues beyond those that are served here; there may be thousands, and each is several time series."""

_OFF_S = 3600.0
_FETCHED_FROM_S = 60.0
"""A queue that no consumer has asked for so long is served by nobody; a worker asks every second."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """One queue at one moment."""

    stats: QueueStats
    oldest_pending_idle_s: float | None
    """Since the lease of the oldest entry that somebody has was last renewed; None if nobody has any."""
    is_served_here: bool
    is_unserved: bool
    """Tasks are ready there and nobody, here or elsewhere, fetches them."""


class Gauges:
    """One pass reads every queue, a batch in a round trip.

    Args:
        is_wanted: whether anybody reads them.
    """

    name = "gauges"

    def __init__(
        self,
        namespace: Namespace,
        served: Iterable[str],
        is_wanted: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._namespace = namespace
        self._served = tuple(served)
        self._is_wanted = is_wanted
        self._clock = clock
        self.queues: tuple[Gauge, ...] = ()
        self.read_at: float | None = None
        """Monotonic instant of the last complete reading; None before the first."""

    @property
    def interval_s(self) -> float:
        return EVERY_S if self._is_wanted else _OFF_S

    def run_once(self) -> Steps[Done]:
        if not self._is_wanted:
            return Done()
        ns = self._namespace
        try:
            names = yield from queue_names(ns)
            others = [name for name in names if name not in self._served and is_name(ns, name)]
            queues = [ns.queue(name) for name in (*self._served, *others[:_MOST_QUEUES])]
            stats = yield from stats_of(ns, queues)
        except BrokerError as error:
            return Done(errors={"": error})
        asked = [one for one in stats if one.active or (one.queue not in self._served and one.pending)]
        idle: dict[str, float] = {}
        fetched: set[str] = set()
        for start in range(0, len(asked), BATCH // 2):
            part = asked[start : start + BATCH // 2]
            commands: list[Command[Any]] = []
            for one in part:
                queue = ns.queue(one.queue)
                commands.append(plain("XPENDING", queue.stream, GROUP, "-", "+", 1))
                commands.append(consumers(queue))
            replies = yield commands
            for one, oldest, members in zip(part, replies[::2], replies[1::2], strict=True):
                if not isinstance(oldest, BrokerError) and oldest:
                    idle[one.queue] = int(oldest[0][2]) / 1000
                if not isinstance(members, BrokerError) and any(m.idle_s < _FETCHED_FROM_S for m in members):
                    fetched.add(one.queue)
        self.queues = tuple(
            Gauge(
                one,
                idle.get(one.queue),
                one.queue in self._served,
                bool(one.pending) and one.queue not in self._served and one.queue not in fetched,
            )
            for one in stats
        )
        self.read_at = self._clock()
        return Done({"queues_read": len(stats)})
