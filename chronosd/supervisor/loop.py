"""The supervisor's loop: signals, deaths, what workers say, timers, and one round trip to Redis at a time.

It reads from top to bottom: :meth:`Supervisor.run` is the loop, the ``handle_*`` methods are what can happen.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

from chronosd.config.schema import Config
from chronosd.log import configure, get_logger
from chronosd.supervisor import process, signals
from chronosd.supervisor.answers import Answers
from chronosd.supervisor.availability import Availability
from chronosd.supervisor.control import Control
from chronosd.supervisor.descriptors import Descriptors, Timed
from chronosd.supervisor.fleet import Fleet
from chronosd.supervisor.keeper import Keeper
from chronosd.supervisor.notify import Notifier
from chronosd.supervisor.orders import Orders
from chronosd.supervisor.overrun import Overruns
from chronosd.supervisor.process import Exit
from chronosd.supervisor.publisher import Publisher
from chronosd.supervisor.recycle import Recycler
from chronosd.supervisor.reload import Reload
from chronosd.supervisor.report import Report
from chronosd.supervisor.rounds import Rounds
from chronosd.supervisor.status import Status
from chronosd.supervisor.verdict import Reason
from chronosd.supervisor.web import Web
from chronosd.supervisor.worker import EXIT_COULD_NOT_LOAD, Worker

log = get_logger("chronosd.supervisor")

EXIT_OK = 0
EXIT_RUNTIME = 1
EXIT_UNREACHABLE = 3

_LONGEST_WAIT_S = 1.0
_GAP_S = 2.5
"""More than the loop's longest wait and a bounded round trip: the process was stopped, or starved."""
_LAST_SETTLEMENTS_S = 0.25
"""How long a stop waits for a Redis that is away: its successor finds the boards."""


class Supervisor:
    """One run of the daemon, from the first fork to the exit code."""

    def __init__(
        self,
        config: Config,
        *,
        notifier: Notifier,
        descriptors: Descriptors,
        is_burst: bool = False,
    ) -> None:
        self._config = config
        self._notifier = notifier
        self.is_burst = is_burst
        self._descriptors = descriptors
        descriptors.watch(signals.fileno(), signals.drain)
        self._started_at = time.monotonic()
        self._turned_at = self._started_at
        self._is_ready = False
        self._stop_by: float | None = None
        """When a stop under way gives up on Redis; None while nobody has asked for one."""
        self._emptied_at: float | None = None
        self._exit_code = EXIT_OK
        self._is_over = False
        self.fleet: Fleet
        self.redis: Availability
        self.rounds: Rounds
        self.overruns: Overruns
        self.report: Report
        self.reload: Reload
        self.recycler: Recycler
        self.orders: Orders
        self.status: Status
        self.answers: Answers
        self.control: Control
        self.keeper: Keeper | None = None
        self.web: Web | None = None
        self.publisher: Publisher | None = None

    # -- the loop -----------------------------------------------------------------------------------

    def run(self) -> int:
        """Runs until the daemon is to end; returns its exit code."""
        while not self._is_over:
            readable = self._descriptors.wait(self._wait_s())
            self.handle_gap()
            self._descriptors.dispatch(readable)
            self.handle_signals()
            self.handle_timers()
            self.handle_redis()
            self.handle_start()
            self.handle_stop()
        return self._exit_code

    def _wait_s(self) -> float:
        now = time.monotonic()
        due_at = min(timed.due_at for timed in self._timed())
        if self.redis.runner is not None:
            due_at = min(due_at, self.rounds.due_at)
        return min(max(due_at - now, 0.0), _LONGEST_WAIT_S)

    def _timed(self) -> Sequence[Timed]:
        timed: list[Timed] = [
            *(self.fleet, self.redis, self.overruns, self.reload, self.recycler),
            *(self.report, self.control, self.answers),
            *self._others,
        ]
        return timed if self.publisher is None else [*timed, self.publisher]

    @property
    def _others(self) -> list[Keeper | Web]:
        """The processes beside the workers, where there are any."""
        return [one for one in (self.keeper, self.web) if one is not None]

    def handle_gap(self) -> bool:
        """Whether the loop itself stood still: others may have taken our entries, and ours prove nothing."""
        now = time.monotonic()
        has_stood_still = now - self._turned_at > _GAP_S
        if has_stood_still:
            log.warning("supervisor stood still", seconds=round(now - self._turned_at, 1))
            self.rounds.handle_outage("the supervisor stood still", now)
        self._turned_at = now
        if self.web is not None:
            self.web.beat()
        return has_stood_still

    def handle_timers(self) -> None:
        """Forks, kills, probes and looks that are due."""
        for timed in self._timed():
            now = time.monotonic()
            if timed is self.fleet and self.redis.runner is not None and self.rounds.is_urgent(now):
                continue  # a fork takes longer than the settlement that somebody's task waits for
            if timed.due_at <= now:
                timed.tick(now)

    def handle_redis(self) -> None:
        """One round trip of whatever is due first."""
        now = time.monotonic()
        if self.redis.runner is None:
            self.rounds.rest(now)
            return
        if self.redis.is_new:
            self.redis.is_new = False
            self.rounds.handle_connection(now)
        if self.rounds.due_at > now:
            return
        error = self.rounds.advance(self.redis.runner, now)
        if error is None:
            if self.rounds.is_connection_proved:
                self.redis.proved(time.monotonic())
        else:
            now = time.monotonic()
            self.redis.lost(error, now)
            if not self.handle_gap():  # stopped in the middle of a round trip, it finds its deadline over
                self.rounds.handle_outage("redis was away", now)

    # -- start ----------------------------------------------------------------------------------------

    def handle_start(self) -> None:
        """Opens the gate when every worker is ready and the groups exist; gives up when time is up."""
        if self._is_ready or self._stop_by is not None:
            return
        if self.fleet.all_ready and self.rounds.serving.may_fetch:
            self._is_ready = True
            self.fleet.open_gate()
            self._notifier.ready(self.status.line())
            log.info("ready", workers=len(self.fleet.places), took_s=round(self._age_s(), 3))
        elif not self.rounds.serving.is_laid and self._age_s() > self._config.startup_timeout:
            why = self.redis.error or self.rounds.serving.hindrance or "no answer"
            log.error("redis unreachable, giving up", seconds=self._config.startup_timeout, error=why)
            self._give_up(EXIT_UNREACHABLE)
        elif self._age_s() > 2 * self._config.startup_timeout:
            # Each attempt has its own limit; somebody (the kernel, out of memory) kills one after the other.
            log.error("workers do not become ready, giving up")
            self._give_up(EXIT_COULD_NOT_LOAD)

    def _give_up(self, code: int) -> None:
        self._exit_code = code
        self._begin_stop()
        self.fleet.kill_all(Reason.STOP)

    def _age_s(self) -> float:
        return time.monotonic() - self._started_at

    @property
    def is_starting(self) -> bool:
        """Whether it is neither ready nor stopping."""
        return not self._is_ready and self._stop_by is None

    # -- workers --------------------------------------------------------------------------------------

    def handle_death(self, worker: Worker) -> None:
        """A worker's pidfd is readable."""
        self._descriptors.unwatch(worker.child)
        exit_ = worker.child.reap()
        assert exit_ is not None, "a readable pidfd is a dead process"
        now = time.monotonic()
        if exit_.signal is not None and not worker.killed:
            worker.reason = None  # told to stop, and killed by something else: that one is not on us
        self.fleet.handle_death(worker, exit_, now)
        self.rounds.settle(worker, exit_, now)
        if not self._is_ready and worker.reason in (None, Reason.BOOT) and self._stop_by is None:
            self.handle_failed_start(worker, exit_)
        self.handle_chld()

    def handle_failed_start(self, worker: Worker, exit_: Exit) -> None:
        """A worker could not load, and none has run yet: the daemon says so instead of trying for ever."""
        if worker.was_killed_by_others(exit_):
            return  # it did not fail by itself: it is replaced
        code, error = worker.why_not_ready(exit_)
        log.error("worker could not load", worker=worker.spec.index, error=error)
        self._give_up(code)

    # -- signals --------------------------------------------------------------------------------------

    def handle_signals(self) -> None:
        """Acts on what has come since the last turn, the most urgent first."""
        for signum, count in signals.take():
            match signum:
                case signal.SIGQUIT:
                    self.handle_quit("SIGQUIT")
                case signal.SIGINT:
                    self.handle_int()
                case signal.SIGTERM:
                    # Not twice: `timeout` and init programs send it to the process and again to its group.
                    self.handle_drain("SIGTERM")
                case signal.SIGCHLD:
                    self.handle_chld()
                case _:
                    self.orders.obey(signum, count)

    def handle_quit(self, why: str) -> None:
        """Hands everything back and ends now."""
        log.info("stopping at once", asked_by=why)
        self._begin_stop()
        self.fleet.kill_all(Reason.QUIT)

    def handle_int(self) -> None:
        """Drains; the second one ends the drain."""
        if self._stop_by is None:
            self.handle_drain("SIGINT")
        elif not self.fleet.is_empty:
            log.warning("stopping at once, tasks are interrupted", signal="SIGINT")
            self._exit_code = self._exit_code or EXIT_RUNTIME
            self.fleet.kill_all(Reason.QUIT)

    def handle_drain(self, why: str) -> None:
        """No task starts any more, those that run may finish, and then the daemon ends."""
        if self._stop_by is not None:
            return
        log.info("draining", asked_by=why, timeout_s=self._config.shutdown_timeout)
        self._begin_stop()
        self.fleet.drain(self._config.shutdown_timeout, self._config.kill_grace, time.monotonic())

    def handle_chld(self) -> None:
        """Orphans of the workers land here, and on pid 1 everybody's: they are reaped and forgotten."""
        process.reap_strangers(self._is_known)

    def _is_known(self, pid: int) -> bool:
        return (
            self.fleet.by_pid(pid) is not None
            or self.reload.is_child(pid)
            or any(one.is_child(pid) for one in self._others)
        )

    def apply(self, config: Config) -> None:
        """A reload has succeeded: the supervisor's own work goes by the new configuration too."""
        now = time.monotonic()
        self._config = config
        configure(config.log.level, config.log.format, role="supervisor")
        self.redis.password = config.redis.password
        self.rounds.apply(config, now)
        self.overruns.tune(kill_grace_s=config.kill_grace, stall_timeout_s=config.stall_timeout)
        self.recycler.tune(config.recycle)
        self.report.extend_s = config.startup_timeout
        if self.web is not None:
            self.web.apply(config)

    # -- stop -----------------------------------------------------------------------------------------

    def _begin_stop(self) -> None:
        if self._stop_by is None:
            self._stop_by = time.monotonic() + self._config.shutdown_timeout
            self._notifier.stopping()
            self.rounds.begin_stop()

    def handle_stop(self) -> None:
        """Over when every worker is gone and what they left is settled, or Redis gets no more time."""
        if self._stop_by is None:
            if self.is_burst and self._is_ready and self.rounds.is_drained:
                self.handle_drain("burst")
            return
        if not self.fleet.is_empty:
            return
        now = time.monotonic()
        if self._emptied_at is None:
            self._emptied_at = now
            self.rounds.hasten()
        if self.rounds.is_settled:
            self._is_over = True
        elif now > max(self._stop_by, self._emptied_at + _LAST_SETTLEMENTS_S) or (
            now > self._emptied_at + _LAST_SETTLEMENTS_S
            and (self.redis.runner is None or self.rounds.settlement_hindrance)
        ):
            why = self.redis.error or self.rounds.settlement_hindrance
            log.warning("tasks left for the next start to hand back", error=why)
            self._is_over = True

    def close(self) -> None:
        """Ends everything that is left, whatever ended the loop."""
        self.fleet.kill_all(Reason.QUIT)
        self.reload.tick(time.monotonic())  # whoever waits for it is told, and its child ended
        self.control.close()
        self.redis.close()
        self._descriptors.close()

    def abandon(self) -> None:
        """In a child: closes what is the supervisor's alone, through the objects that own it."""
        self._descriptors.close()
        self._notifier.close()
        self.fleet.abandon()
        self.control.abandon()
        self.reload.abandon()
        self.redis.abandon()
        self.rounds.abandon()
        for one in self._others:
            one.abandon()
