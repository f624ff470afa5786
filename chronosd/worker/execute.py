"""Running handlers: a delivered entry becomes a run, the run an outcome.

Whatever a handler raises, BaseExceptions included, is the outcome of its task and of nothing else. The
worker's own reasons to cancel are noted on the run first, so that a CancelledError of the handler's own
making is told from a timeout, a drain and a lost lease.

A run whose handler has not been entered may still be taken away: while the loop stands still the supervisor
hands such runs back for others to start. So the instant before a handler is entered is the last look: a run
that was claimed before the loop stood still does not start, it goes back to the buffer to be asked about.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import time
from collections.abc import Callable, Generator
from typing import Any, NoReturn

from chronosd import log, trace
from chronosd.board import Board, Cell
from chronosd.broker import cancel
from chronosd.durations import format_duration
from chronosd.earlier import Earlier
from chronosd.handlers import InvalidPayload
from chronosd.outcome import (
    Failed,
    Outcome,
    Postponed,
    Rejected,
    Succeeded,
    describe,
    from_exception,
    from_result,
    safe_str,
    stack_of,
)
from chronosd.task import Task
from chronosd.worker.run import Cancelled, Run
from chronosd.worker.threads import Threads

GAP_S = 1.0
"""A pause of the loop, or a reply later than this, and leases are looked at before anything starts."""

CANCELLED = Rejected(cancel.CANCELLED)
"""How a run ends that somebody has cancelled, unless it has succeeded by then."""

_log = log.get_logger("chronosd.worker")
_GAP_NS = int(GAP_S * 1e9)
_CURRENT = int(Cell.CURRENT)  # plain ints: indexing by an enum member costs four times as much
_LOOP_BEAT = int(Cell.LOOP_BEAT)


def hide(task: asyncio.Task[Any]) -> None:
    """Keeps one of the worker's own tasks out of ``asyncio.all_tasks()``.

    Shut-down code that people copy cancels everything there; in a handler it would be the end of the worker,
    and all that it runs would be charged with a crash.
    """
    asyncio.tasks._unregister_task(task)


class _Stepped:
    """Awaits a coroutine and notes on the board, around each of its steps, whose it is.

    That is how the supervisor knows which task blocks the loop, or took the process down.
    """

    __slots__ = ("_cells", "_mark", "coroutine")

    def __init__(self, coroutine: Any, cells: memoryview[int], mark: int) -> None:
        self.coroutine = coroutine
        self._cells = cells
        self._mark = mark

    def __await__(self) -> Generator[Any, Any, Any]:
        return self  # it has the methods that await uses

    def __iter__(self) -> _Stepped:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        cells = self._cells
        cells[_CURRENT] = self._mark
        try:
            return self.coroutine.send(value)
        finally:
            cells[_CURRENT] = 0

    def throw(self, *error: Any) -> Any:
        cells = self._cells
        cells[_CURRENT] = self._mark
        # await passes type, value and traceback; coroutines want the value alone since Python 3.12
        value = error[1] if len(error) > 1 and error[1] is not None else error[0]
        if len(error) > 2 and error[2] is not None and isinstance(value, BaseException):
            value = value.with_traceback(error[2])
        try:
            return self.coroutine.throw(value)
        finally:
            cells[_CURRENT] = 0

    def close(self) -> None:
        self.coroutine.close()


class Executor:
    """Starts runs and reports how they ended.

    Args:
        board: told of every start.
        limit: threads for sync handlers.
        finished: called on the loop with each run and its outcome; None for one whose lease was lost or
            that the drain cut short.
        unstarted: called on the loop with each run whose handler was not entered after all: it is not
            certain any more that it is this worker's own, or it was cancelled before.
    """

    def __init__(
        self,
        board: Board,
        limit: int,
        finished: Callable[[Run, Outcome | None], None],
        unstarted: Callable[[Run], None],
        *,
        state: Any = None,
        async_client: Any = None,
        sync_client: Any = None,
    ) -> None:
        self._board = board
        self._finished = finished
        self._unstarted = unstarted
        self._loop = asyncio.get_running_loop()
        self._threads = Threads(limit, self._sync_ended)
        self._state = state
        self._async_client = async_client
        self._sync_client = sync_client
        self._is_verbose = log.enabled("debug")
        self.running: set[Run] = set()
        self._forked = False
        os.register_at_fork(after_in_child=self._note_fork)
        self.doubted_ns = 0
        """What was last known to be this worker's own before that instant has to be asked about."""

    def start(self, run: Run) -> None:
        """Enters the run's handler; a payload that does not validate ends it at once."""
        message, handler = run.message, run.handler
        try:
            args = handler.validate(message.payload)
        except InvalidPayload as error:
            self._finished(run, Rejected(safe_str(error)))
            return
        except BaseException as error:  # a validator of the user's raises whatever it likes
            self._finished(run, Rejected(f"the payload could not be validated: {describe(error)}"))
            return
        run.task = Task(
            message.id,
            message.kind,
            message.queue,
            args,
            message.retried + 1 + run.free_starts,
            message.retried,
            message.max_retry,
            time.time() + handler.timeout,
            self._state,
            self._async_client if handler.is_async else self._sync_client,
            Earlier(message.workflow) if message.workflow else None,
            run.trace,
        )
        self.running.add(run)
        if handler.is_async:
            run.aio = self._loop.create_task(self._run_async(run))
            return
        context = contextvars.copy_context()
        try:
            self._threads.submit(lambda: context.run(self._run_sync, run))
        except RuntimeError as error:
            self.running.discard(run)
            self._finished(run, Postponed(1.0, False, describe(error)))

    def _note_fork(self) -> None:
        self._forked = True

    def _enter(self, run: Run) -> bool:
        """The last moment before the handler is called. False: it must not be."""
        now_ns = time.monotonic_ns()
        beat_ns = self._board.cells[_LOOP_BEAT]
        if now_ns - beat_ns > _GAP_NS and beat_ns:
            self.doubted_ns = now_ns
        if run.checked_ns < self.doubted_ns or run.cancelled is not None:
            return False
        run.started_ns = now_ns
        self._board.start(run.slot, now_ns, now_ns + int(run.handler.timeout * 1e9))
        if self._is_verbose:
            _log.debug("task started", entry=run.entry.decode(), crashes=run.crashes or None)
        return True

    async def _run_async(self, run: Run) -> None:
        task = run.task
        log.bind_task(task)
        if run.trace:
            trace.bind(run.trace)
        if not self._enter(run):
            self.running.discard(run)
            run.aio = None
            self._unstarted(run)
            return
        outcome: Outcome | None
        try:
            value = await _Stepped(run.handler.func(task), self._board.cells, run.slot + 1)  # type: ignore[arg-type]
            outcome = from_result(value)
        except BaseException as error:
            outcome = self._outcome_of(run, error)
        if self._forked:
            _end_fork(outcome)
        self.running.discard(run)
        run.aio = None
        if run.timer is not None:
            run.timer.cancel()
        self._finished(run, None if run.dropped else outcome)

    def _outcome_of(self, run: Run, error: BaseException) -> Outcome | None:
        """What an exception means. After a cancellation of ours it is our reason that counts, whatever the
        handler, or a library in between, has made of the CancelledError; a choice of the handler's stands.
        """
        if run.cancelled is None:
            return from_exception(error)
        if run.cancelled is Cancelled.REQUEST:
            return CANCELLED
        outcome = None if isinstance(error, asyncio.CancelledError) else from_exception(error)
        if outcome is not None and not isinstance(outcome, Failed):
            return outcome
        if run.cancelled is not Cancelled.TIMEOUT:
            return None
        text = f"TimeoutError: timed out after {format_duration(run.handler.timeout)}"
        text = text if outcome is None else safe_str(f"{text}; then {outcome.error}")
        return Failed(text, stack_of(error))

    def _run_sync(self, run: Run) -> tuple[Run, Outcome | None]:
        task = run.task
        try:
            log.bind_task(task)
            if run.trace:
                trace.bind(run.trace)
            if not self._enter(run):
                return run, None
            outcome = from_result(run.handler.func(task))  # type: ignore[arg-type] # set by start
        except BaseException as error:
            outcome = from_exception(error)
        if self._forked:
            _end_fork(outcome)
        return run, outcome

    def _sync_ended(self, run: Run, outcome: Outcome | None) -> None:
        self.running.discard(run)
        if outcome is None:
            self._unstarted(run)
            return
        if run.cancelled is Cancelled.REQUEST and not isinstance(outcome, Succeeded):
            outcome = CANCELLED  # also of one that wanted to be run again
        self._finished(run, None if run.dropped else outcome)

    def arm_timeouts(self) -> None:
        """Arms the timeout of every run that has none yet, also while Redis is away and no cycle ends."""
        for run in self.running:
            self.outlived(run)

    def outlived(self, run: Run) -> None:
        """Arms the timeout of a run that outlived the cycle it was fetched in; shorter ones need no timer."""
        if run.timer is not None or not run.started_ns or not run.handler.is_async:
            return  # a thread cannot be cancelled: past its deadline the supervisor ends the process
        left = run.started_ns / 1e9 + run.handler.timeout - time.monotonic()
        run.timer = self._loop.call_later(max(left, 0.0), self.cancel, run, Cancelled.TIMEOUT)

    def cancel(self, run: Run, why: Cancelled) -> None:
        """Cancels an async handler; a sync one runs on, but its result is dropped if its lease is lost.

        A handler that has not been entered will not be. After a request nothing but a success counts.
        """
        if why is Cancelled.LOST:
            run.dropped = True
        elif why is Cancelled.REQUEST:
            if run.cancelled is why:
                return  # told again, by a supervisor that has just reloaded: it may be tidying up
            run.cancelled = why
        if not run.started_ns:
            # Noted only: a task that is cancelled before its first step ends without having run any code.
            run.cancelled = run.cancelled or why
        elif run.aio is not None and not run.aio.done():
            run.cancelled = run.cancelled or why
            run.aio.cancel()


def _end_fork(outcome: Outcome | None) -> NoReturn:
    """Ends a process that a handler has forked and that came out of the handler: by ``sys.exit()``, say,
    which is caught here. It would go on as a second worker on the same board and the same connections.
    """
    os._exit(1 if isinstance(outcome, Failed) and outcome.error != "SystemExit: 0" else 0)
