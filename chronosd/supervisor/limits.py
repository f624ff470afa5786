"""Looks for work in queues with limits, once for all workers of this daemon.

Such a queue cannot be in a blocking read, which would claim what may not start. So one script per queue is
asked how many of its tasks wait and may start, and the workers are told; they ask for their part of it. A
worker that has ended such a task asks again by itself, so a queue at its limit does not wait for this.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping

from chronosd.broker import limit
from chronosd.broker.commands import Steps
from chronosd.broker.keys import QueueKeys
from chronosd.broker.limit import Limit
from chronosd.errors import BrokerError
from chronosd.supervisor.overrun import beat_age_s
from chronosd.supervisor.steps import Done
from chronosd.supervisor.worker import Phase, Worker

_ASK_S = 0.05
_IDLE_S = 0.1
"""The longest that an idle worker hears nothing of a task in such a queue; well within the rate's burst."""
_NEVER_S = 60.0
_STALE_S = 1.0
"""A worker whose loop has stood still that long reads nothing: more messages would only fill its link."""


class Limits:
    """One pass asks every queue that has limits and is not paused, in one round trip."""

    name = "limits"

    def __init__(
        self,
        queues: Mapping[QueueKeys, Limit],
        workers: Callable[[], Iterable[Worker]],
        paused: Callable[[], frozenset[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queues = queues
        self._workers = workers
        self._paused = paused
        self._clock = clock
        self.interval_s = _IDLE_S if queues else _NEVER_S

    def run_once(self) -> Steps[Done]:
        paused = self._paused()
        open_ = [(queue, given) for queue, given in self._queues.items() if queue.name not in paused]
        if not open_:
            return Done({"offered": 0})
        replies = yield [limit.room(queue, given) for queue, given in open_]
        errors: dict[str, BrokerError] = {}
        offers: dict[str, int] = {}
        for (queue, _), reply in zip(open_, replies, strict=True):
            if isinstance(reply, BrokerError):
                errors[queue.name] = reply
            elif reply:
                offers[queue.name] = reply
        self._tell(offers)
        counts = {"offered": len(offers)} if len(errors) < len(open_) else {}
        return Done(counts, _ASK_S if offers else None, errors)

    def _tell(self, offers: Mapping[str, int]) -> None:
        if not offers:
            return
        now = self._clock()
        workers = [w for w in self._workers() if w.phase is Phase.RUNNING and beat_age_s(w, now) < _STALE_S]
        # Nobody always comes first, and each asks for a part only: the tasks are to be spread.
        random.shuffle(workers)
        message = {
            "t": "offer",
            "queues": {name: -(-room // len(workers)) for name, room in offers.items()} if workers else {},
        }
        for worker in workers:
            worker.link.send(message)  # if there is no room for it, the next one is as good
