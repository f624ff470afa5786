"""``--burst``: notices when there is nothing left to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chronosd.broker import server
from chronosd.broker.commands import Steps
from chronosd.broker.keys import QueueKeys
from chronosd.errors import BrokerError
from chronosd.supervisor.steps import Done


class Burst:
    """Counts what is ready, running or due. Twice nothing in a row is nothing: a handler that ends may have
    enqueued another task, and a task on its way from a waiting set is in neither for no time at all. What
    waits in a paused queue is not to be done now; what runs of it is waited for by the stop."""

    name = "burst"
    interval_s = 0.1

    def __init__(self, queues: Sequence[QueueKeys], paused: Callable[[], frozenset[str]]) -> None:
        self._queues = queues
        self._paused = paused
        self._empty_looks = 0

    @property
    def is_drained(self) -> bool:
        return self._empty_looks >= 2

    def run_once(self) -> Steps[Done]:
        paused = self._paused()
        queues = [queue for queue in self._queues if queue.name not in paused]
        replies = (yield [server.backlog(queue) for queue in queues]) if queues else []
        errors = {
            queue.name: reply
            for queue, reply in zip(queues, replies, strict=True)
            if isinstance(reply, BrokerError)
        }
        left = 0 if errors else sum(replies)
        self._empty_looks = self._empty_looks + 1 if not errors and left == 0 else 0
        return Done({"left": left}, None, errors)
