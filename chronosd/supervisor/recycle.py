"""Workers replaced one at a time: grown too large, too old, or all of them in a rolling restart.

The successor has loaded its handlers before the worker it replaces stops fetching, and the next one's turn
comes when that worker has ended: there is never a worker too few, nor more than one too many, and no task is
cut. A successor that cannot load leaves the old worker where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import psutil

from chronosd.config.schema import RecycleConfig
from chronosd.log import get_logger
from chronosd.supervisor.fleet import Fleet, Place
from chronosd.supervisor.restarts import Restarts
from chronosd.supervisor.tenths import aligned
from chronosd.supervisor.verdict import Reason
from chronosd.supervisor.worker import Phase, Worker

log = get_logger("chronosd.supervisor")

_LOOK_S = 1.0
_TURN_S = 0.01
_FUTILE_S = 60.0

Reply = Callable[[tuple[int, str]], None]
"""Called at the end of a rolling restart with an exit code and, if it is not 0, why."""


def rss_bytes(worker: Worker) -> int:
    """Its resident memory, what it shares with the supervisor included; 0 if it has ended."""
    try:
        rss: int = psutil.Process(worker.child.pid).memory_info().rss
    except psutil.Error:
        return 0
    return rss


@dataclass(slots=True)
class _Succession:
    """One replacement under way."""

    place: Place
    old: Worker
    new: Worker
    reason: Reason
    is_installed: bool = False


class Recycler:
    """Finds workers that are due and replaces them in turn. Instants are monotonic."""

    def __init__(
        self,
        fleet: Fleet,
        limits: RecycleConfig,
        *,
        is_held: Callable[[], bool],
        rss: Callable[[Worker], int] = rss_bytes,
    ) -> None:
        self._fleet = fleet
        self._limits = limits
        self._is_held = is_held
        self._rss = rss
        self._succession: _Succession | None = None
        self._failures = Restarts()
        self._restarting: list[Worker] = []
        """Those that a rolling restart has still to replace."""
        self._is_restarting = False
        self._replies: list[Reply] = []
        self.totals: dict[str, int] = {}
        """Workers recycled, by reason."""
        self._rest_until = 0.0
        self.due_at = 0.0

    def tune(self, limits: RecycleConfig) -> None:
        """From now on these limits hold."""
        self._limits = limits
        self._rest_until = self.due_at = 0.0

    def restart(self, reply: Reply | None = None) -> None:
        """Replaces every worker that there is now, one after the other, once the daemon has started."""
        self._restarting = [place.worker for place in self._fleet.places if place.worker is not None]
        self._is_restarting = True
        if reply is not None:
            self._replies.append(reply)
        self.due_at = 0.0

    @property
    def is_restarting(self) -> bool:
        return self._is_restarting

    def tick(self, now: float) -> None:
        """One turn: begins a replacement, or goes on with the one under way."""
        self.due_at = aligned(now + _LOOK_S, now)
        if self._fleet.stopping:
            self._succession = None
            self._end_restart(1, "the daemon is stopping")
            return
        if not self._fleet.gate_open:
            return
        if self._succession is not None:
            self.due_at = now + _TURN_S
            self._go_on(self._succession, now)
            return
        if self._is_held():
            return
        if (next_ := self._next(now)) is not None:
            self._begin(*next_, now)

    # -- who is next ----------------------------------------------------------------------------------

    def _next(self, now: float) -> tuple[Place, Reason] | None:
        running = [p for p in self._fleet.places if p.worker and p.worker.phase is Phase.RUNNING]
        if self._is_restarting:
            for place in running:
                if place.worker in self._restarting:
                    return place, Reason.RESTART
            there = {place.worker for place in self._fleet.places}
            self._restarting = [worker for worker in self._restarting if worker in there]
            if self._restarting:
                self.due_at = now + _TURN_S  # one that has not begun: it is waited for
                return None
            self._end_restart(0, "")
        if now < self._rest_until:
            return None
        due = [place for place in running if self._why(place.worker)]
        if not due:
            return None
        # The one with the most tasks behind it first, so that each gets its turn.
        return max(due, key=lambda place: place.worker.completed if place.worker else 0), Reason.RECYCLE

    def _why(self, worker: Worker | None) -> str:
        """Which limit a worker has reached, for people; empty for none."""
        if worker is None:
            return ""
        if 0 < self._limits.max_tasks <= worker.completed:
            return f"{worker.completed} tasks"
        if self._limits.max_memory and (rss := self._rss(worker)) >= self._limits.max_memory:
            return f"{rss / 2**20:.0f} MiB"
        return ""

    # -- a replacement --------------------------------------------------------------------------------

    def _begin(self, place: Place, reason: Reason, now: float) -> None:
        assert place.worker is not None
        old = place.worker
        why = self._why(old) if reason is Reason.RECYCLE else "rolling restart"
        try:
            new = self._fleet.fork(place.index, now)
        except OSError as error:
            self._failed(f"cannot fork a worker: {error}", 1, now)
            return
        log.info("worker is replaced", worker=place.index, pid=old.child.pid, why=why)
        self._succession = _Succession(place, old, new, reason)
        self.due_at = now + _TURN_S

    def _go_on(self, one: _Succession, now: float) -> None:
        if one.is_installed:
            if one.old.exit is not None:
                self._succession = None
                self.due_at = now
        elif one.new.exit is not None:
            self._succession = None
            code, why = one.new.why_not_ready(one.new.exit)
            self._failed(why, code, now)
        elif self._is_held() or one.place not in self._fleet.places or one.place.worker is not one.old:
            # A reload replaces them all, its place is gone, or it has died: then it is replaced anyway.
            self._fleet.discard(one.new, Reason.ROLLBACK)
            self._succession = None
        elif one.new.phase is Phase.READY:
            self._fleet.succeed(one.place, one.new, one.reason)
            one.is_installed = True
            reason = one.reason.name.lower()
            self.totals[reason] = self.totals.get(reason, 0) + 1
            self._failures = Restarts()
            if one.old in self._restarting:
                self._restarting.remove(one.old)
            if one.reason is Reason.RECYCLE and (why := self._why(one.new)):
                # Then its successor would be too: that would be nothing but forks, one after the other.
                log.error("recycle limit is below what a fresh worker has", fresh=why, pause_s=_FUTILE_S)
                self._rest_until = now + _FUTILE_S

    def _failed(self, why: str, code: int, now: float) -> None:
        delay = self._failures.after(lived_ready_s=None, completed=0)
        log.error("worker is not replaced, it goes on", error=why, retry_in_s=round(delay, 2))
        self.due_at = now + max(delay, _LOOK_S)
        self._end_restart(code, why)

    def _end_restart(self, code: int, why: str) -> None:
        if self._is_restarting:
            log.info("rolling restart is over", error=why or None)
        self._is_restarting, self._restarting = False, []
        replies, self._replies = self._replies, []
        for reply in replies:
            reply((code, why))
