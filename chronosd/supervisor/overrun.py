"""Tasks past their deadline, and event loops that stand still.

Both are read off the boards, so a worker that holds the interpreter lock for ever, or was stopped, is seen
like any other. A live worker is judged only after two equal readings at least 50 ms apart: one reading may
have met it half-way through a change. Its stack is asked for at the first and logged with the second, just
before the kill.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from chronosd.board import Cell, Slot, SlotState
from chronosd.log import get_logger
from chronosd.supervisor.verdict import Entry, Reason
from chronosd.supervisor.worker import Phase, Worker

log = get_logger("chronosd.supervisor")

_LOOK_S = 0.5
_SECOND_LOOK_S = 0.06
_REPORT_AFTER_S = 5.0

Finding = tuple[Reason, frozenset[Entry]]


@dataclass(slots=True)
class _Watch:
    """What is known of one worker from earlier looks."""

    finding: Finding | None = None
    found_at: float = 0.0
    asked_at: float | None = None
    """When its stack was asked for, to report a loop that stands still."""
    is_reported: bool = False


class Overruns:
    """Looks at every worker's board in turn. Instants are monotonic seconds, the boards' nanoseconds."""

    def __init__(
        self,
        workers: Callable[[], Iterable[Worker]],
        *,
        kill_grace_s: float,
        stall_timeout_s: float,
    ) -> None:
        self._workers = workers
        self._kill_grace_s = kill_grace_s
        self._stall_timeout_s = stall_timeout_s
        self._watches: dict[int, _Watch] = {}
        self._described: list[Worker] = []
        """Workers whose stacks have been asked for, to be logged."""
        self.due_at = 0.0

    def tick(self, now: float) -> None:
        """One look at every worker."""
        self._show_stacks()
        seen: dict[int, _Watch] = {}
        is_open = False
        for worker in self._workers():
            if worker.phase in (Phase.STARTING, Phase.READY) or worker.killed:
                continue  # it has no task yet, or is being dealt with
            watch = seen[worker.child.pid] = self._watches.get(worker.child.pid) or _Watch()
            self._report_stall(worker, watch, now)
            is_open = self._judge(worker, watch, now) or is_open
        self._watches = seen
        self.due_at = now + (_SECOND_LOOK_S if is_open else _LOOK_S)

    def describe(self) -> None:
        """Logs what every worker is doing; its stack follows at the next look."""
        now = time.monotonic()
        for worker in self._workers():
            slots = worker.board.read()
            log.info(
                "worker",
                worker=worker.spec.index,
                pid=worker.child.pid,
                phase=worker.phase.name.lower(),
                beat_age_s=round(beat_age_s(worker, now), 3),
                tasks=[f"{s.state.name.lower()} {s.queue}/{s.entry}" for s in slots[:100]],
                more=max(len(slots) - 100, 0),
            )
            if worker.ready_at is not None and not worker.killed:
                worker.stacks.ask(worker.child)
                self._described.append(worker)
        self.due_at = now + _SECOND_LOOK_S

    def _show_stacks(self) -> None:
        for worker in self._described:
            if worker.exit is None:
                log.info("stack", worker=worker.spec.index, pid=worker.child.pid, stack=worker.stacks.read())
        self._described.clear()

    def _judge(self, worker: Worker, watch: _Watch, now: float) -> bool:
        """Kills a worker that has been found guilty twice; True if it has been found so once."""
        finding = self._find(worker, now)
        if finding is None:
            watch.finding = None
            return False
        if finding != watch.finding:
            watch.finding, watch.found_at = finding, now
            worker.stacks.ask(worker.child)
            return True
        if now - watch.found_at < 0.05:
            return True
        reason, guilty = finding
        log.error(
            "worker killed",
            worker=worker.spec.index,
            pid=worker.child.pid,
            reason=reason.value,
            entries=[f"{queue}/{entry}" for queue, entry in sorted(guilty)][:20],
            stack=worker.stacks.read(),
        )
        worker.kill(reason, guilty)
        return False

    def _find(self, worker: Worker, now: float) -> Finding | None:
        running = [slot for slot in worker.board.read() if slot.state is SlotState.RUNNING]
        limit_ns = (now - self._kill_grace_s) * 1e9
        overdue = frozenset((s.queue, s.entry) for s in running if 0 < s.deadline_ns < limit_ns)
        if overdue:
            return Reason.OVERRUN, overdue
        if beat_age_s(worker, now) > self._stall_timeout_s:
            current = worker.board.current
            # Without a coroutine to blame, any of those that run may be what the loop waits for.
            blamed = running if current is None else [current]
            return Reason.STALL, frozenset((s.queue, s.entry) for s in blamed)
        return None

    def _report_stall(self, worker: Worker, watch: _Watch, now: float) -> None:
        """Logs, once, that a loop stands still: with the stack, and the task if it is known."""
        age_s = beat_age_s(worker, now)
        if age_s < _REPORT_AFTER_S:
            if watch.is_reported:
                log.warning("event loop turns again", worker=worker.spec.index)
            watch.is_reported, watch.asked_at = False, None
        elif watch.asked_at is None:
            worker.stacks.ask(worker.child)
            watch.asked_at = now
        elif not watch.is_reported:
            current: Slot | None = worker.board.current
            log.warning(
                "event loop blocked",
                worker=worker.spec.index,
                pid=worker.child.pid,
                seconds=round(age_s, 1),
                queue=current.queue if current else None,
                entry=current.entry if current else None,
                stack=worker.stacks.read(),
            )
            watch.is_reported = True


def beat_age_s(worker: Worker, now: float) -> float:
    """How long a worker's event loop has not turned; 0 if it has not begun to."""
    beat_ns = worker.board.cells[Cell.LOOP_BEAT]
    return now - beat_ns / 1e9 if beat_ns else 0.0
