"""From the buffer to the executor, and from there to the outboxes."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from chronosd import log
from chronosd.board import Cell
from chronosd.broker.consume import Again, Dead, Done
from chronosd.metrics import End
from chronosd.outcome import Failed, Outcome, Succeeded
from chronosd.trace import trace_id
from chronosd.worker.complete import Move, conclude, counted_as
from chronosd.worker.execute import CANCELLED, Executor
from chronosd.worker.held import Held
from chronosd.worker.patience import Patience
from chronosd.worker.run import Cancelled, Run

_log = log.get_logger("chronosd.worker")
_SUCCEEDED = int(End.SUCCEEDED)


class Starter:
    """Starts what is buffered.

    Args:
        concurrency: the most runs at a time.
        alone_from: how many crashes a task must have behind it to run alone.
    """

    def __init__(self, held: Held, *, concurrency: int, alone_from: int) -> None:
        self._held = held
        self._namespace = held.queues[0].namespace
        self._concurrency = concurrency
        self._alone_from = alone_from
        self.executor: Executor
        """Set before the first start; it has what tasks are given."""
        self.active = 0
        """Runs whose handlers have not ended."""
        self._is_verbose = log.enabled("debug")
        self.solo: Run | None = None
        """The run that is, or is to be, alone."""
        self._solo_at = 0.0  # when it began to wait for that
        self._patience = Patience()
        self.is_doubtful = False
        """Leases have to be looked at before anything is started."""
        self.fresh: list[Run] = []
        """Started since the last cycle was sent."""
        self._ended = 0
        self._held_ns = 0
        self._starting = False

    @property
    def can_start(self) -> bool:
        """Whether :meth:`start` would start something."""
        ready = self._held.buffer and self.active < self._concurrency and not self.is_doubtful
        return bool(ready) and (self.solo is None or not self.active)

    def take_counts(self) -> tuple[int, int]:
        """How many runs ended since the last call, and how long (ns) those held their slots."""
        counts = self._ended, self._held_ns
        self._ended = self._held_ns = 0
        return counts

    def start(self) -> None:
        """Starts what is buffered, as far as there are free slots and no doubt about leases."""
        if self._starting:
            return  # a run that ends where it starts calls us: the loop below goes on by itself
        if self._held.paused:
            self.hand_back_paused()
        buffer = self._held.buffer
        self._starting = True
        try:
            while buffer and self.active < self._concurrency and not self.is_doubtful:
                if self.solo is not None:
                    if self.active:
                        return
                    now = time.monotonic()
                    self._patience.started(buffer[0].message.id, now - self._solo_at, now)
                elif buffer[0].crashes >= self._alone_from:
                    self._isolate(buffer[0])
                    continue
                run = buffer.popleft()
                self.active += 1
                self.fresh.append(run)
                self.executor.start(run)
        finally:
            self._starting = False

    def _isolate(self, run: Run) -> None:
        """A task that has taken workers down runs alone: nobody else shall pay for it again."""
        now = time.monotonic()
        rest_s = self._patience.rest_s(now) if self.active else 0.0
        if rest_s:
            self._put_off(run, rest_s)
            return
        self.solo, self._solo_at = run, now
        self.hand_back()

    def put_off_solo(self) -> None:
        """The run that is to be alone is put off if the others have not ended in time."""
        run, now = self.solo, time.monotonic()
        if run is None or run not in self._held.buffer or not self.active:
            return  # none, or it runs, or it starts as soon as its lease has been looked at
        waited_s = now - self._solo_at
        if waited_s >= self._patience.wait_s(run.message.id):
            self.solo = None
            self._put_off(run, self._patience.in_vain(run.message.id, now), waited_s)

    def _put_off(self, run: Run, delay_s: float, waited_s: float = 0.0) -> None:
        """Uncharged, and counted as nothing: it has not begun. Its crashes stay with it, in its hash."""
        held = self._held
        held.buffer.remove(run)
        held.outboxes[run.queue].add(Again(run.entry, run.message.id, run.message, delay_s))
        held.wake.set()
        say = _log.warning if waited_s else _log.debug
        facts = {"crashes": run.crashes, "running": self.active, "waited_s": round(waited_s, 3)}
        say("task put off, it is to run alone", **facts_of(run), delay_s=round(delay_s, 3), **facts)

    def hand_back(self) -> None:
        """What is buffered and not started goes back, uncharged; only a run that is to be alone stays."""
        held = self._held
        kept = self.solo if held.is_fetching and self.solo in held.buffer else None
        for run in held.buffer:
            if run is not kept:
                held.release((run.queue, run.entry), run.message.id)
        if kept is None and self.solo in held.buffer:
            self.solo = None
        held.buffer.clear()
        if kept is not None:
            held.buffer.append(kept)
        held.wake.set()

    def hand_back_paused(self) -> None:
        """What is buffered of paused queues goes back, uncharged."""
        held = self._held
        for run in [run for run in held.buffer if run.queue in held.paused]:
            held.buffer.remove(run)
            held.release((run.queue, run.entry), run.message.id)
            if run is self.solo:
                self.solo = None
            held.wake.set()

    def unstarted(self, run: Run) -> None:
        """A run whose handler was not entered after all: it may not be ours any more."""
        if run.cancelled is Cancelled.REQUEST and not run.dropped:
            self.finished(run, CANCELLED)
            return
        held = self._held
        self.active -= 1
        if run.timer is not None:
            run.timer.cancel()
            run.timer = None
        if run.dropped:
            self._forget(run)
        else:
            run.cancelled = None
            self.is_doubtful = True
            held.buffer.appendleft(run)
        if not held.is_fetching:
            self.hand_back()
        held.wake.set()

    def finished(self, run: Run, outcome: Outcome | None) -> None:
        """A run has ended; None: its lease was lost, or the drain cut it short."""
        held = self._held
        self.active -= 1
        self._ended += 1
        now_ns = time.monotonic_ns()
        self._held_ns += now_ns - (run.started_ns or run.claimed_ns)
        if run is self.solo:
            self.solo = None
        held.wake.set()
        if run.dropped:
            held.board.finish(run.slot, held.tally.counter(run.queue, run.message.kind, End.LOST))
            self._forget(run)
        elif outcome is None:
            held.release((run.queue, run.entry), run.message.id)
        else:
            handler = run.handler
            base_s, cap_s, namespace = handler.retry_base, handler.retry_cap, self._namespace
            move = conclude(run.entry, run.message, outcome, base_s, cap_s, run.free_starts, namespace)
            if run.crashes and isinstance(move, Dead):
                move = replace(move, crashes=run.crashes)
            held.outboxes[run.queue].add(move)
            self._report(run, outcome, move, now_ns)
        if held.buffer:
            self.start()

    def _report(self, run: Run, outcome: Outcome, move: Move, now_ns: int) -> None:
        board = self._held.board
        if isinstance(outcome, Succeeded):
            board.cells[Cell.SUCCEEDED] += 1
            tally, slot, kind = self._held.tally, run.slot, run.message.kind
            counter = tally.ended(run.queue, kind, _SUCCEEDED, slot, run.started_ns, now_ns)
            if isinstance(move, Done):
                board.succeed(slot, counter)
            elif isinstance(move, Dead):  # what follows it makes no sense
                board.cells[Cell.ARCHIVED] += 1
                board.finish(slot, tally.instead(counter, End.ARCHIVED))
                why = "" if move.message is None else move.message.last_err
                _log.error("task archived", **facts_of(run, now_ns), error=why)
                return
            else:
                board.finish(slot, counter)
            if self._is_verbose:
                _log.debug("task succeeded", **facts_of(run, now_ns))
            return
        board.finish(run.slot, self._tally(run, counted_as(outcome, move), now_ns))
        facts = {**facts_of(run, now_ns), "error": outcome.error}
        if isinstance(outcome, Failed) and outcome.stack:
            facts["stack"] = outcome.stack
        if isinstance(move, Again):
            board.cells[Cell.RETRIED] += 1
            _log.warning("task failed, will retry", delay_s=round(move.delay_s, 3), **facts)
        elif outcome is CANCELLED:
            _log.warning("task cancelled", **facts)
        elif isinstance(move, Dead):
            board.cells[Cell.ARCHIVED] += 1
            _log.error("task archived", **facts)
        else:
            _log.error("task discarded", **facts)

    def _tally(self, run: Run, end: int, now_ns: int) -> int:
        tally, kind = self._held.tally, run.message.kind
        if run.started_ns:
            return tally.ended(run.queue, kind, end, run.slot, run.started_ns, now_ns)
        return tally.counter(run.queue, kind, end)  # its handler was not called

    def cancel(self, run: Run) -> None:
        """Somebody has cancelled the task: its handler is cancelled, or not entered."""
        if run in self.executor.running:
            self.executor.cancel(run, Cancelled.REQUEST)
        elif run in self._held.buffer:
            self._held.buffer.remove(run)
            self.active += 1  # until it has ended, which is now
            self.finished(run, CANCELLED)

    def lose(self, run: Run) -> None:
        """A run is somebody else's: it is cancelled or not started, and its result dropped."""
        self._held.board.cells[Cell.LEASES_LOST] += 1
        _log.warning("lease lost", **facts_of(run))
        self._held.recount([(run.queue, run.entry)], End.LOST)  # if it has ended already
        if run in self.executor.running:
            self.executor.cancel(run, Cancelled.LOST)
            return
        run.dropped = True
        if run in self._held.buffer:
            self._held.buffer.remove(run)
        self._forget(run)

    def _forget(self, run: Run) -> None:
        if run is self.solo:
            self.solo = None
        self._held.forget(run)


def facts_of(run: Run, now_ns: int = 0) -> dict[str, Any]:
    """What a log line says of a run; with ``now_ns``, how long it took."""
    message = run.message
    facts: dict[str, Any] = {
        "task_id": message.id,
        "kind": message.kind,
        "queue": message.queue,
        "attempt": message.retried + run.free_starts + 1,
    }
    if now_ns and run.started_ns:
        facts["took_ms"] = round((now_ns - run.started_ns) / 1e6, 3)
    if run.trace:
        facts["trace_id"] = trace_id(run.trace)
    return facts
