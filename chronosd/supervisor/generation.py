"""The next generation of workers while it loads: forked one after the other, and waiting at the gate.

None of them fetches before all are ready, so that all of it can be taken back.
"""

from __future__ import annotations

from chronosd.config.schema import Config
from chronosd.supervisor.fleet import Fleet
from chronosd.supervisor.stacks import innermost
from chronosd.supervisor.verdict import Reason
from chronosd.supervisor.worker import EXIT_COULD_NOT_LOAD, Phase, Worker

_EXIT_RUNTIME = 1
_ASK_BEFORE_S = 0.2
"""So long before their time is up workers that hang are asked for their stacks."""


class Generation:
    """Workers of one configuration that have no place yet. Instants are monotonic."""

    def __init__(self, fleet: Fleet, config: Config, count: int, limit_at: float) -> None:
        self.config = config
        self.count = count
        self.workers: list[Worker] = []
        self.trouble: tuple[list[str], int] | None = None
        """Why it cannot take over, and the exit code that stands for it."""
        self._fleet = fleet
        self._limit_at = limit_at
        self._is_asked = False

    @property
    def is_ready(self) -> bool:
        """Whether it is complete and every worker has loaded its handlers."""
        are_ready = all(worker.phase is Phase.READY for worker in self.workers)
        return are_ready and len(self.workers) == self.count and self.trouble is None

    def tick(self, now: float) -> None:
        """Looks for deaths, and forks one worker if one is missing."""
        while len(self.workers) > self.count:
            self._fleet.discard(self.workers.pop(), Reason.SCALE)
        for worker in self.workers:
            if worker.exit is not None:
                code, why = worker.why_not_ready(worker.exit)
                self.trouble = why.splitlines(), code
                return
        if now >= self._limit_at:
            self._run_out()
        elif now >= self._limit_at - _ASK_BEFORE_S:
            self._ask()
        elif len(self.workers) < self.count:
            self._fork(now)

    def _fork(self, now: float) -> None:
        try:
            worker = self._fleet.fork(len(self.workers), now, self.config)
        except OSError as error:
            self.trouble = [f"cannot fork a worker: {error}"], _EXIT_RUNTIME
            return
        worker.kill_at = None  # the limit of the whole holds
        self.workers.append(worker)

    def _late(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.phase is Phase.STARTING]

    def _ask(self) -> None:
        if not self._is_asked:
            self._is_asked = True
            for worker in self._late():
                worker.stacks.clear()
                worker.stacks.ask(worker.child)

    def _run_out(self) -> None:
        if late := self._late():
            where = innermost(late[0].stacks.read())
            self.trouble = [f"{late[0].name} was not ready in time{where}"], EXIT_COULD_NOT_LOAD
        elif len(self.workers) < self.count:
            self.trouble = ["the new workers could not be forked in time"], _EXIT_RUNTIME
        else:
            self.trouble = ["redis did not take the new queues in time"], _EXIT_RUNTIME

    def discard(self, reason: Reason) -> None:
        """Kills them all: none has ever fetched."""
        for worker in self.workers:
            self._fleet.discard(worker, reason)
        self.workers = []
