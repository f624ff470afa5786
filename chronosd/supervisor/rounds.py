"""All of the supervisor's work against Redis, and in which order it is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from chronosd.board import Board, WorkerState
from chronosd.broker.keys import Namespace
from chronosd.broker.settle import Fate, Policy
from chronosd.config.schema import Config
from chronosd.errors import BrokerError
from chronosd.log import get_logger
from chronosd.retry import backoff
from chronosd.supervisor.announcer import Announcer
from chronosd.supervisor.burst import Burst
from chronosd.supervisor.fleet import Fleet
from chronosd.supervisor.forwarder import Forwarder
from chronosd.supervisor.groundwork import Groundwork
from chronosd.supervisor.incarnation import Incarnation, predecessors
from chronosd.supervisor.janitor import Janitor
from chronosd.supervisor.lease import Lease
from chronosd.supervisor.names import Names
from chronosd.supervisor.process import Exit
from chronosd.supervisor.recoverer import Grace, Recoverer
from chronosd.supervisor.recovery import Recovery
from chronosd.supervisor.stacks import is_in_handler_thread
from chronosd.supervisor.steps import Runner, Step
from chronosd.supervisor.strays import Strays
from chronosd.supervisor.verdict import Reason, Verdict, judge, left_beside
from chronosd.supervisor.worker import Worker

log = get_logger("chronosd.supervisor")

_WITH_SUPERVISOR = Exit(None, 9)
_URGENT_S = 0.1
_PREDECESSORS_S = 10.0
_PREDECESSORS_AT_BOOT_S = 0.1


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
        self._runtime = runtime
        self._queues = tuple(config.queues)
        namespace = Namespace(config.namespace)
        queues = [namespace.queue(name) for name in config.queues]
        policy = policy_of(config)
        self._fleet = fleet
        self._grace = Grace(config.recover_min_idle)
        self._recovery = Recovery(namespace, config.recover_min_idle, policy)
        self._groundwork = Groundwork(namespace, queues, self._grace)
        workers: Callable[[], Fleet] = lambda: fleet  # noqa: E731
        self._recovery_step = Step(self._recovery, now=now)
        self._groundwork_step = Step(self._groundwork, now=now)
        self._lease_step = Step(Lease(namespace, workers, config.heartbeat_interval, self._grace), now=now)
        self.names = Names(namespace)
        self._names_step = Step(self.names, now=float("inf"))
        self._names_step.returned_at = now
        self.names.on_asked = lambda: self._names_step.poke(time.monotonic())
        forwarder = Step(Forwarder(queues, config.forward_interval), now=now)
        recoverer = Recoverer(
            queues,
            consumer=incarnation.recoverer,
            min_idle_s=config.recover_min_idle,
            interval_s=config.recover_interval,
            policy=policy,
            grace=self._grace,
            own_entries=self._own_entries,
        )
        # In the order in which they go where several are due: what a dead worker left comes first.
        self._steps = [
            self._recovery_step,
            self._lease_step,
            self._groundwork_step,
            self._names_step,
            forwarder,
            Step(Strays(namespace, self._queues, workers, config.heartbeat_interval), now=now),
            Step(recoverer, now=now),
            Step(Janitor(queues, config.janitor), now=now),
            Step(Announcer(namespace, incarnation.name, config.recover_min_idle), now=now),
        ]
        self._burst = Burst(queues) if is_burst else None
        if self._burst is not None:
            self._steps.append(Step(self._burst, now=now))
        self._predecessors: list[Incarnation] = []
        self._predecessors_at = now
        self._began_at = now
        self._stuck: frozenset[str] = frozenset()

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
        self._adopt_predecessors(now)
        step = min(self._steps, key=lambda s: s.due_at)
        error = step.advance(runner, now)
        if step is not self._groundwork_step and step.lost_group:
            self._groundwork_step.poke(now)
        return error

    def rest(self, now: float) -> None:
        """Redis is away."""
        for step in self._steps:
            step.rest(now)

    def handle_connection(self, now: float) -> None:
        """A new connection: the groups first, then the leases, and whatever was waiting."""
        self._groundwork.is_connection_new = True
        for step in self._steps:
            step.poke(now)

    def handle_outage(self, reason: str, now: float) -> None:
        """For a while no lease could be renewed, here or elsewhere."""
        if self.is_laid:
            self._grace.begin(reason, now)
            self._lease_step.poke(now)

    def stuck(self, now: float) -> frozenset[str]:
        """Steps that have not come back within their deadline; logged when that changes."""
        stuck = frozenset(s.name for s in self._steps if now - s.returned_at > s.deadline_s)
        if stuck != self._stuck:
            log.error("steps make no progress" if stuck else "every step makes progress", steps=sorted(stuck))
        self._stuck = stuck
        return stuck

    @property
    def is_laid(self) -> bool:
        """Whether the queues have had their groups: Redis can be used."""
        return self._groundwork.is_laid

    @property
    def hindrance(self) -> str:
        """Why the groundwork is not laid, if Redis says so."""
        return "; ".join(self._groundwork_step.troubles.values())

    # -- the dead -------------------------------------------------------------------------------------

    def settle(self, worker: Worker, exit_: Exit, now: float) -> None:
        """A worker has died: what it held is judged, logged, and settled with the next round trips."""
        board = worker.board
        stack = worker.stacks.read() if exit_.is_fault or worker.guilty else ""
        worker.stacks.close()
        verdict = judge(
            board.read(),
            exit_,
            worker.reason,
            guilty=worker.guilty,
            # a coroutine that was interrupted half-way by a thread that took the process down did nothing
            current=None if is_in_handler_thread(stack) else board.current,
            now_ns=time.monotonic_ns(),
        )
        is_expected = worker.reason in (Reason.STOP, Reason.QUIT)
        say = log.info if is_expected else log.error
        say(
            "worker ended" if is_expected else "worker died",
            worker=worker.spec.index,
            pid=worker.child.pid,
            cause=verdict.cause,
            exit_code=exit_.code,
            signal=exit_.signal,
            uptime_s=round(now - worker.started_at, 3),
            max_rss_mb=round(exit_.max_rss_bytes / 2**20, 1),
            tasks=verdict.counts,
            **({"stack": stack} if stack else {}),
        )
        self._recovery.add(
            consumer=worker.spec.consumer,
            queues=board.queues,
            verdict=verdict,
            stack=stack,
            board=board,
        )
        self._recovery_step.poke(now)

    def _adopt_predecessors(self, now: float) -> None:
        """Settles what dead runs of this daemon left, once the last of their processes has let go."""
        if now < self._predecessors_at:
            return
        is_boot = now - self._began_at < _PREDECESSORS_S
        self._predecessors_at = now + (_PREDECESSORS_AT_BOOT_S if is_boot else _PREDECESSORS_S)
        for dead in predecessors(self._runtime):
            boards = dead.boards()
            log.warning("an earlier run left tasks behind", incarnation=dead.name, workers=len(boards))
            self._predecessors.append(dead)
            waiting = {board.consumer for board in boards} | {dead.recoverer}
            for board in boards:
                self._adopt(dead, board, waiting)
            self._recovery.add(
                consumer=dead.recoverer,
                queues=self._queues,
                verdict=Verdict("supervisor died", {}, Fate.RETURN, {}),
                on_closed=partial(self._close_predecessor, dead, waiting, dead.recoverer),
            )
            self._recovery_step.poke(now)

    def _adopt(self, dead: Incarnation, board: Board, waiting: set[str]) -> None:
        # One that had been told to stop was killed with its supervisor when that took too long.
        was_stopping = board.state in (WorkerState.DRAINING, WorkerState.STOPPED)
        verdict = left_beside(board.path) or judge(
            board.read(),
            _WITH_SUPERVISOR,
            Reason.STOP if was_stopping else None,
            now_ns=time.monotonic_ns(),
        )
        self._recovery.add(
            consumer=board.consumer,
            queues=board.queues,
            verdict=verdict,
            board=board,
            on_closed=partial(self._close_predecessor, dead, waiting, board.consumer),
        )

    def _close_predecessor(self, dead: Incarnation, waiting: set[str], consumer: str) -> None:
        waiting.discard(consumer)
        if not waiting:
            self._predecessors.remove(dead)
            dead.remove()

    def _own_entries(self) -> Mapping[str, Mapping[str, str]]:
        own: dict[str, dict[str, str]] = {}
        for worker in self._fleet:
            for slot in worker.board.read():
                own.setdefault(slot.queue, {})[slot.entry] = worker.spec.consumer
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
        """Only leases and settlements go on: whoever still runs keeps what it has."""
        self._steps = [self._recovery_step, self._lease_step, self._names_step]

    def hasten(self) -> None:
        """Every worker is gone: the last settlements, and the recoverer's own consumer."""
        if self.is_laid:
            self._recovery.add(
                consumer=self._incarnation.recoverer,
                queues=self._queues,
                verdict=Verdict("supervisor stopped", {}, Fate.RESTORE, {}),
            )
        self._recovery.hasten()
        self._recovery_step.poke(time.monotonic())
        self._steps = [self._recovery_step]

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to settle, or no worker has ever been able to fetch."""
        return self._recovery.open == 0 or not self.is_laid

    def leave(self) -> None:
        """The daemon ends before everything is settled."""
        try:
            self._recovery.leave()
        except OSError as error:
            log.error("cannot keep who is to be charged: the boards alone decide", error=str(error))

    def abandon(self) -> None:
        """In a child: closes the boards and locks of the dead."""
        self._recovery.abandon()
        for dead in self._predecessors:
            dead.close()


def policy_of(config: Config) -> Policy:
    """Crash limit and backoff by kind. Kinds of modules the supervisor does not import have the default."""

    def delay_s(kind: str, retried: int) -> float:
        handler = config.handlers.get(kind)
        retry = config.retry if handler is None else handler.retry
        return backoff(retried, retry.base, retry.cap)

    return Policy(config.max_crashes, delay_s)
