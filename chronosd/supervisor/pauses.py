"""Which queues are paused: asked of Redis, told to the workers, and remembered while Redis is away.

A paused queue is not fetched from, and what a worker has of it and has not started goes back. All else (due
tasks moved into the stream, the dead's tasks recovered, tasks enqueued) goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from chronosd.broker import pause
from chronosd.broker.commands import Steps
from chronosd.broker.keys import Namespace
from chronosd.errors import BrokerError, Trouble
from chronosd.log import get_logger
from chronosd.supervisor.steps import Done

log = get_logger("chronosd.supervisor")


class Pauses:
    """Asks often enough that a pause holds everywhere within a second, a round trip to Redis included.

    Args:
        tell: told which queues are paused whenever that changes.
    """

    name = "pauses"
    interval_s = 0.5

    def __init__(
        self, namespace: Namespace, queues: Iterable[str], tell: Callable[[frozenset[str]], None]
    ) -> None:
        self._namespace = namespace
        self._queues = tuple(queues)
        self._tell = tell
        self.paused: frozenset[str] = frozenset()
        """As last known."""
        self.known: set[str] = set()
        """Queues that have been asked about; before that they may not be fetched from."""

    def look_after(self, queues: Iterable[str]) -> None:
        """From the next pass on these, and no others."""
        self._queues = tuple(queues)
        self.known.intersection_update(self._queues)

    def run_once(self) -> Steps[Done]:
        queues = self._queues  # they may change while the reply is on its way
        (reply,) = yield [pause.paused_of(self._namespace, queues)]
        if isinstance(reply, BrokerError):
            # A key of the wrong type must not keep the daemon from starting; nobody can have paused with it.
            if reply.trouble is Trouble.OPERATOR:
                self.known.update(queues)
            return Done(errors={"": reply})
        self.known.update(queues)
        if reply != self.paused:
            for event, names in (
                ("queues paused", reply - self.paused),
                ("queues resumed", self.paused - reply),
            ):
                if names:
                    log.info(event, queues=sorted(names))
            self.paused = reply
            self._tell(reply)
        return Done({"asked": 1})
