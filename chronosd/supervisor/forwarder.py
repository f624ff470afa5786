"""Moves delayed and retrying tasks that are due into their streams."""

from __future__ import annotations

from collections.abc import Sequence

from chronosd.broker import sweep
from chronosd.broker.commands import BATCH, Steps
from chronosd.broker.keys import QueueKeys
from chronosd.errors import BrokerError
from chronosd.states import WAITING_SETS
from chronosd.supervisor.steps import Done

_SOONEST_S = 0.001


class Forwarder:
    """One pass asks every waiting set of every queue, in one round trip.

    While anything is left that is due the next pass follows at once; else it comes when the next task is
    due or after the interval, whichever is sooner.
    """

    name = "forwarder"

    def __init__(self, queues: Sequence[QueueKeys], interval_s: float) -> None:
        self.interval_s = interval_s
        self._sets = [(queue, state) for queue in queues for state in WAITING_SETS]
        # Shared out, so that the whole round trip stays a bounded one however many queues there are.
        limit = self._limit = max(1, BATCH // len(self._sets))
        self._commands = [sweep.forward(queue, state, limit) for queue, state in self._sets]
        self.is_drained = False
        """Whether the last pass left nothing that was due."""

    def run_once(self) -> Steps[Done]:
        replies = yield self._commands
        counts = {"forwarded": 0, "dropped": 0}
        errors: dict[str, BrokerError] = {}
        wait_s = self.interval_s
        is_answered = False
        for (queue, _), reply in zip(self._sets, replies, strict=True):
            if isinstance(reply, BrokerError):
                errors[queue.name] = reply
                continue
            is_answered = True
            counts["forwarded"] += reply.moved
            counts["dropped"] += reply.dropped
            if reply.next_due_s is not None:
                wait_s = min(wait_s, max(reply.next_due_s, _SOONEST_S))
            if reply.moved + reply.dropped >= self._limit:
                wait_s = 0.0
        self.is_drained = wait_s > 0 and not errors
        return Done(counts if is_answered else {}, wait_s if wait_s < self.interval_s else None, errors)
