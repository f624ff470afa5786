"""Tasks past their deadline, and event loops that stand still.

Both are read off the boards, so a worker that holds the interpreter lock for ever, or was stopped, is seen
like any other. A live worker is judged only after two equal readings at least 50 ms apart: one reading may
have met it half-way through a change. At the first the loop is asked where the coroutines wait; with the
second the worker is condemned, and the stacks of all its threads are asked for; it is killed at the next
look, and what they have written is logged and kept with the task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from chronosd.board import Cell, SlotState
from chronosd.log import get_logger
from chronosd.supervisor.names import Names
from chronosd.supervisor.tenths import aligned
from chronosd.supervisor.verdict import Entry, Reason
from chronosd.supervisor.worker import Phase, Worker

log = get_logger("chronosd.supervisor")

_LOOK_S = 0.5
_SECOND_LOOK_S = 0.06
_APART_S = 0.05
_REPORT_AFTER_S = 5.0
_NAME_S = 1.0
"""How long a report waits for the name of its task, which only Redis knows."""

Finding = tuple[Reason, frozenset[Entry]]


@dataclass(slots=True)
class _Watch:
    """What is known of one worker from earlier looks."""

    finding: Finding | None = None
    found_at: float = 0.0
    asked_at: float | None = None
    """When its stack was asked for, to report a loop that stands still."""
    blocking: Entry | None = None
    """What its loop was in the middle of then."""
    is_reported: bool = False


class Overruns:
    """Looks at every worker's board in turn. Instants are monotonic seconds, the boards' nanoseconds."""

    def __init__(
        self,
        workers: Callable[[], Iterable[Worker]],
        names: Names,
        *,
        kill_grace_s: float,
        stall_timeout_s: float,
    ) -> None:
        self._workers = workers
        self._names = names
        self._kill_grace_s = kill_grace_s
        self._stall_timeout_s = stall_timeout_s
        self._watches: dict[int, _Watch] = {}
        self._described: list[Worker] = []
        """Workers whose stacks have been asked for, to be logged."""
        self._condemned: list[tuple[Worker, float, Finding]] = []
        """Workers that are killed once their stacks are written."""
        self.due_at = 0.0

    def tune(self, *, kill_grace_s: float, stall_timeout_s: float) -> None:
        """From now on these limits hold."""
        self._kill_grace_s = kill_grace_s
        self._stall_timeout_s = stall_timeout_s

    def tick(self, now: float) -> None:
        """One look at every worker."""
        self._show_stacks()
        is_open = self._execute(now)
        seen: dict[int, _Watch] = {}
        for worker in self._workers():
            if worker.phase in (Phase.STARTING, Phase.READY) or worker.killed:
                continue  # it has no task yet, or is being dealt with
            watch = seen[worker.child.pid] = self._watches.get(worker.child.pid) or _Watch()
            self._report_stall(worker, watch, now)
            is_open = self._judge(worker, watch, now) or is_open
        self._watches = seen
        self.due_at = now + _SECOND_LOOK_S if is_open else aligned(now + _LOOK_S, now)

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
                worker.stacks.clear()
                worker.stacks.ask(worker.child)
                worker.link.send({"t": "stacks", "entries": []})
                self._described.append(worker)
        self.due_at = now + _SECOND_LOOK_S

    def _show_stacks(self) -> None:
        for worker in self._described:
            if worker.exit is None:
                log.info("stack", worker=worker.spec.index, pid=worker.child.pid, stack=worker.stacks.read())
        self._described.clear()

    def _judge(self, worker: Worker, watch: _Watch, now: float) -> bool:
        """Condemns a worker that has been found guilty twice; True if it has been found so."""
        finding = self._find(worker, now)
        if finding is None:
            watch.finding = None
            return False
        if finding != watch.finding:
            watch.finding, watch.found_at = finding, now
            self._names.ask(finding[1])
            worker.stacks.clear()
            worker.link.send({"t": "stacks", "entries": sorted(finding[1])[:20]})
        elif now - watch.found_at >= _APART_S:
            # From here on its death is ours, also if it dies of the dump.
            worker.condemn(*finding)
            worker.stacks.ask_all(worker.child)
            self._condemned.append((worker, now, finding))
        return True

    def _execute(self, now: float) -> bool:
        """Kills the condemned whose stacks have had time to be written; True if there are others."""
        waiting = []
        for worker, since, (reason, guilty) in self._condemned:
            if now - since < _APART_S:
                waiting.append((worker, since, (reason, guilty)))
                continue
            if worker.exit is not None:
                continue
            log.error(
                "worker killed",
                worker=worker.spec.index,
                pid=worker.child.pid,
                reason=reason.value,
                tasks=self._names.describe(guilty)[:20],
                entries=[f"{queue}/{entry}" for queue, entry in sorted(guilty)][:20],
                stack=worker.stacks.read(),
            )
            worker.kill(reason, guilty)
        self._condemned = waiting
        return bool(waiting)

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
            worker.stacks.clear()
            worker.stacks.ask(worker.child)
            watch.asked_at = now
            current = worker.board.current
            watch.blocking = None if current is None else (current.queue, current.entry)
            if watch.blocking is not None:
                self._names.ask([watch.blocking])
        elif not watch.is_reported:
            name = None if watch.blocking is None else self._names.of(watch.blocking)
            if watch.blocking is not None and name is None and now - watch.asked_at < _NAME_S:
                return
            queue, entry = watch.blocking or (None, None)
            task_id, kind = name or (None, None)
            stack = worker.stacks.read()
            log.warning(
                "event loop blocked",
                worker=worker.spec.index,
                pid=worker.child.pid,
                seconds=round(age_s, 1),
                task_id=task_id,
                kind=kind,
                queue=queue,
                entry=entry,
                stack=stack,
            )
            watch.is_reported = True
            if watch.blocking is not None:
                facts = {"at": round(time.time(), 3), "seconds": round(age_s, 1)}
                self._names.note_blocked(
                    watch.blocking, {**facts, "worker": worker.spec.consumer, "stack": stack[:4000]}
                )


def beat_age_s(worker: Worker, now: float) -> float:
    """How long a worker's event loop has not turned; 0 if it has not begun to."""
    beat_ns = worker.board.cells[Cell.LOOP_BEAT]
    return now - beat_ns / 1e9 if beat_ns else 0.0
