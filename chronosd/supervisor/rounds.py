"""All of the supervisor's work against Redis, and in which order it is done."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from chronosd.broker.dead_letter import DeadLetters
from chronosd.broker.keys import Namespace
from chronosd.broker.limit import Limit
from chronosd.broker.schedule import Schedule, schedules_of
from chronosd.broker.settle import Fate
from chronosd.config.schema import Config
from chronosd.errors import BrokerError
from chronosd.log import get_logger
from chronosd.metrics import WORKER_EXITS
from chronosd.supervisor.announcer import Announcer
from chronosd.supervisor.burst import Burst
from chronosd.supervisor.cancels import Cancels
from chronosd.supervisor.deaths import examine
from chronosd.supervisor.fleet import Fleet
from chronosd.supervisor.forwarder import Forwarder
from chronosd.supervisor.gauges import Gauges
from chronosd.supervisor.incarnation import Incarnation
from chronosd.supervisor.inheritance import Inheritance
from chronosd.supervisor.janitor import Janitor
from chronosd.supervisor.lease import Lease
from chronosd.supervisor.limits import Limits
from chronosd.supervisor.names import Names
from chronosd.supervisor.process import Exit
from chronosd.supervisor.recoverer import Grace, Recoverer
from chronosd.supervisor.recovery import Recovery, policy_of
from chronosd.supervisor.scheduler import Scheduler
from chronosd.supervisor.serving import Serving
from chronosd.supervisor.steps import Runner, Step, Work
from chronosd.supervisor.strays import Strays
from chronosd.supervisor.totals import Totals
from chronosd.supervisor.verdict import Verdict
from chronosd.supervisor.worker import Worker

log = get_logger("chronosd.supervisor")

_URGENT_S = 0.1


class Rounds:
    """The timed steps: what is due first is advanced by one round trip at a time."""

    def __init__(
        self,
        config: Config,
        fleet: Fleet,
        incarnation: Incarnation,
        runtime: Path,
        *,
        is_burst: bool,
    ) -> None:
        now = time.monotonic()
        self._incarnation = incarnation
        self._namespace = Namespace(config.namespace)
        self._fleet = fleet
        self._grace = Grace(config.recover_min_idle)
        self.totals = Totals(lambda: fleet.kinds)
        self._recovery = Recovery(
            self._namespace, config.recover_min_idle, policy_of(config), totals=self.totals
        )
        self._inheritance = Inheritance(runtime, self._recovery, now)
        self.serving = Serving(self._namespace, config.queues, fleet, self._grace, now)
        self._lease = Lease(self._namespace, lambda: fleet, config.heartbeat_interval, self._grace)
        self._burst: Burst | None = None
        self._is_burst = is_burst
        self._recovery_step = Step(self._recovery, now=now)
        self._lease_step = Step(self._lease, now=now)
        host = incarnation.name.rpartition("-")[0]
        self.scheduler = Scheduler(
            self._namespace, incarnation.name, f"{host}:{config.path}", self._schedules(config)
        )
        self._scheduler_step = Step(self.scheduler, now=now)
        self.names = Names(self._namespace)
        self._names_step = Step(self.names, now=float("inf"))
        self._names_step.returned_at = now
        self.names.on_asked = lambda: self._names_step.poke(time.monotonic())
        self._configured_steps = [Step(work, now=now) for work in self._configured(config)]
        # In the order in which they go where several are due: what a dead worker left comes first.
        self._steps = [
            self._recovery_step,
            self._lease_step,
            self.serving.groundwork_step,
            self.serving.pauses_step,
            self._names_step,
            self._scheduler_step,
            *self._configured_steps,
        ]
        self._stuck: frozenset[str] = frozenset()

    def _schedules(self, config: Config) -> tuple[Schedule, ...]:
        # A burst works off what is there; with a schedule there would be no end to it.
        return () if self._is_burst else schedules_of(config)

    def _configured(self, config: Config) -> list[Work]:
        """The work that is made anew for each configuration, always in the same order."""
        queues = self.serving.keys(config.queues)
        recoverer = Recoverer(
            queues,
            consumer=self._incarnation.recoverer,
            min_idle_s=config.recover_min_idle,
            interval_s=config.recover_interval,
            policy=policy_of(config),
            grace=self._grace,
            own_entries=self._own_entries,
            totals=self.totals,
        )
        limits = {queue: given for queue in queues if (given := Limit.of(config.queues[queue.name]))}
        self.gauges = Gauges(self._namespace, config.queues, is_wanted=config.http is not None)
        work: list[Work] = [
            Forwarder(queues, config.forward_interval),
            Limits(limits, lambda: self._fleet, lambda: self.serving.paused),
            Strays(self._namespace, lambda: self._fleet, config.heartbeat_interval, totals=self.totals),
            Cancels(self._namespace, lambda: self._fleet),
            recoverer,
            Janitor(queues, config.janitor, self.totals, DeadLetters.of(config)),
            Announcer(self._namespace, self._incarnation.name, config.recover_min_idle),
            self.gauges,
        ]
        if self._is_burst:
            self._burst = Burst(queues, lambda: self.serving.paused)
            work.append(self._burst)
        return work

    # -- configuration --------------------------------------------------------------------------------

    def apply(self, config: Config, now: float) -> None:
        """From now on this configuration is in effect: its queues, intervals and limits."""
        self.serving.apply(config.queues)
        self._grace.length_s = config.recover_min_idle
        self._recovery.tune(config.recover_min_idle, policy_of(config))
        self._lease.interval_s = config.heartbeat_interval
        self._lease_step.poke(now)
        self.scheduler.tune(self._schedules(config))
        self._scheduler_step.poke(now)
        for step, work in zip(self._configured_steps, self._configured(config), strict=True):
            step.take(work, now)

    # -- driving --------------------------------------------------------------------------------------

    @property
    def due_at(self) -> float:
        """When the next round trip is due; monotonic."""
        return min(step.due_at for step in self._steps)

    def is_urgent(self, now: float) -> bool:
        """Whether a first settlement is under way that is worth waiting for."""
        return self._recovery.newest_unsettled_at > now - _URGENT_S

    def advance(self, runner: Runner, now: float) -> BrokerError | None:
        """One round trip; the error if the connection was lost."""
        try:
            if self._inheritance.take_over(sorted(self.serving.ever), now):
                self._recovery_step.poke(now)
        except Exception:  # whatever an earlier run left, this one goes on; it looks again later
            log.exception("cannot take over what an earlier run left")
        step = min(self._steps, key=lambda s: s.due_at)
        error = step.advance(runner, now)
        if step is not self.serving.groundwork_step and step.lost_group:
            self.serving.groundwork_step.poke(now)
        return error

    def rest(self, now: float) -> None:
        """Redis is away."""
        for step in self._steps:
            step.rest(now)

    def handle_connection(self, now: float) -> None:
        """A new connection: the groups first, then the leases, and whatever was waiting."""
        self.serving.handle_connection()
        for step in self._steps:
            step.poke(now)
        self.serving.groundwork_step.poke(0.0)

    @property
    def is_connection_proved(self) -> bool:
        """Whether the server at the other end does what it is asked. One that has become a replica answers
        until something is to be written; the groundwork is, where it is still laid."""
        return not self.serving.is_connection_new or self.serving.groundwork_step not in self._steps

    def handle_outage(self, reason: str, now: float) -> None:
        """For a while no lease could be renewed, here or elsewhere."""
        if self.serving.is_laid:
            self._grace.begin(reason, now)
            self._lease_step.poke(now)

    def stuck(self, now: float) -> frozenset[str]:
        """Steps that have not come back within their deadline; logged when that changes."""
        stuck = frozenset(s.name for s in self._steps if now - s.returned_at > s.deadline_s)
        if stuck != self._stuck:
            log.error("steps make no progress" if stuck else "every step makes progress", steps=sorted(stuck))
        self._stuck = stuck
        return stuck

    def ages(self, now: float) -> dict[str, float]:
        """Seconds since each step last came back."""
        return {step.name: round(now - step.returned_at, 3) for step in self._steps}

    # -- the dead -------------------------------------------------------------------------------------

    def settle(self, worker: Worker, exit_: Exit, now: float) -> None:
        """A worker has died: what it held is judged, logged, and settled with the next round trips."""
        board = worker.board
        verdict, stack = examine(worker, exit_, now)
        reason = "died" if worker.reason is None else worker.reason.name.lower()
        self.totals.add(WORKER_EXITS, reason, "" if exit_.signal is None else str(exit_.signal))
        self.totals.fold(board)
        if not worker.has_begun:
            # It was never let through the gate: Redis has not heard of it.
            board.close()
            board.unlink()
            return
        self._recovery.add(
            consumer=worker.spec.consumer,
            queues=board.queues,
            verdict=verdict,
            stack=stack,
            board=board,
        )
        self._recovery_step.poke(now)

    def _own_entries(self) -> Mapping[str, Mapping[str, str]]:
        own: dict[str, dict[str, str]] = {}
        for worker in self._fleet:
            for slot in worker.board.read():
                own.setdefault(slot.queue, {})[slot.entry] = worker.spec.consumer
        # Nor those of our dead: their boards know what has succeeded, which the recoverer would run again.
        for consumer, queue, entry in self._recovery.held():
            own.setdefault(queue, {})[entry] = consumer
        return own

    # -- the end --------------------------------------------------------------------------------------

    @property
    def is_drained(self) -> bool:
        """For ``--burst``: nothing is ready, running, or due."""
        return self._burst is not None and self._burst.is_drained

    @property
    def settlement_hindrance(self) -> str:
        """Why what the dead left cannot be settled, if Redis says so."""
        return "; ".join(self._recovery_step.troubles.values())

    def begin_stop(self) -> None:
        """Only leases, settlements and schedules go on: whoever still runs keeps what it has.

        A time that comes during a long drain would else pass unseen.
        """
        self._steps = [self._recovery_step, self._lease_step, self._names_step, self._scheduler_step]

    def hasten(self) -> None:
        """Every worker is gone: the last settlements, and the recoverer's own consumer."""
        if self.serving.is_laid:
            self._recovery.add(
                consumer=self._incarnation.recoverer,
                queues=sorted(self.serving.ever),
                verdict=Verdict("supervisor stopped", {}, Fate.RESTORE, {}),
            )
        self._recovery.hasten()
        self._recovery_step.poke(time.monotonic())
        self.scheduler.leave()
        self._scheduler_step.poke(0.0)  # before the last settlements, whose end is the daemon's
        self._steps = [self._recovery_step, self._scheduler_step]

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to settle, or no worker has ever been able to fetch."""
        return self._recovery.open == 0 or not self.serving.is_laid

    def leave(self) -> None:
        """The daemon ends before everything is settled."""
        try:
            self._recovery.leave()
        except OSError as error:
            log.error("cannot keep who is to be charged: the boards alone decide", error=str(error))

    def abandon(self) -> None:
        """In a child: closes the boards and locks of the dead."""
        self._recovery.abandon()
        self._inheritance.abandon()
