"""What a worker asks Redis when it cannot be sure any more what it owns."""

from __future__ import annotations

import time
from collections.abc import Callable

from chronosd.broker import consume
from chronosd.broker.commands import BATCH
from chronosd.broker.runner import AsyncRunner
from chronosd.errors import BrokerError, Trouble
from chronosd.worker.held import Held
from chronosd.worker.intake import Intake
from chronosd.worker.run import Run
from chronosd.worker.starter import Starter
from chronosd.worker.trouble import Troubles


class Doubt:
    """Leases that may be lost, and strays: entries that a lost reply may have delivered.

    Args:
        answered: called when Redis has answered.
    """

    def __init__(
        self,
        held: Held,
        starter: Starter,
        intake: Intake,
        consumer: str,
        cycle: AsyncRunner,
        troubles: Troubles,
        *,
        answered: Callable[[], None],
    ) -> None:
        self._held = held
        self._starter = starter
        self._intake = intake
        self._consumer = consumer
        self._cycle = cycle
        self._troubles = troubles
        self._answered = answered
        self.astray: set[int] = set()
        """Queues that may have strays; nothing new is asked of them before those are taken in."""
        self.is_group_missing = False

    async def check_leases(self) -> None:
        """Drops what was taken over meanwhile, before any of it is started."""
        held, starter = self._held, self._starter
        starter.is_doubtful = False  # what comes from now on is none of this question's
        asked_ns = starter.executor.doubted_ns = time.monotonic_ns()  # what ends meanwhile starts others
        by_queue: dict[int, list[Run]] = {}
        for run in held.buffer:
            by_queue.setdefault(run.queue, []).append(run)
        try:
            results = await self._cycle.run_many(
                [
                    consume.not_owned(held.queues[i], self._consumer, [run.entry for run in runs])
                    for i, runs in by_queue.items()
                ]
            )
        except BrokerError:
            starter.hand_back()
            return
        for (index, runs), result in zip(by_queue.items(), results, strict=True):
            if isinstance(result, BrokerError):
                starter.hand_back()
                return
            for run in runs:
                run.checked_ns = asked_ns
            for entry in result:
                lost = held.runs.get((index, entry))
                if lost is not None and not lost.dropped:
                    starter.lose(lost)

    async def look_for_strays(self, room: int) -> bool:
        """Finds what is pending for this consumer and not known here, to be taken in.

        No more than ``room``, which is what can start at once. False if Redis does not answer.
        """
        held = self._held
        queues = sorted(self.astray.difference(self._troubles.resting()))
        if not queues or room <= 0:
            return True
        most = held.board.capacity + BATCH
        try:
            results = await self._cycle.run_many(
                [consume.pending_for(held.queues[i], self._consumer, most) for i in queues]
            )
        except BrokerError as error:
            self._troubles.note("redis", error)
            return False
        self._answered()
        known = held.ending() | held.runs.keys() | self._intake.reading.keys()
        for index, result in zip(queues, results, strict=True):
            if isinstance(result, BrokerError):
                self._cannot_look(index, result)
                continue
            found = [key for entry in result if (key := (index, entry)) not in known]
            taken = found[:room]
            room -= len(taken)
            held.delivered += taken
            if len(taken) == len(found):
                self.astray.discard(index)
        return True

    def _cannot_look(self, index: int, error: BrokerError) -> None:
        if error.trouble is Trouble.RECREATE:  # nothing is pending where there is no group
            self.astray.discard(index)
            self.is_group_missing = True
        else:
            self._troubles.sick(index, error)
