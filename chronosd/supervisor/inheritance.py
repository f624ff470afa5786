"""What dead runs of this daemon left: found by their locks, settled like the death of a worker."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from chronosd.board import Board, WorkerState
from chronosd.broker.settle import Fate
from chronosd.log import get_logger
from chronosd.supervisor.incarnation import Incarnation, predecessors
from chronosd.supervisor.process import Exit
from chronosd.supervisor.recovery import Recovery
from chronosd.supervisor.verdict import Reason, Verdict, judge, left_beside

log = get_logger("chronosd.supervisor")

_WITH_SUPERVISOR = Exit(None, 9)
_LOOK_S = 10.0
_LOOK_AT_BOOT_S = 0.1
_PATIENCE = 0.2  # of the time since the start: what is not let go of by then may take longer still


class Inheritance:
    """Looks for dead runs under the runtime directory. Instants are monotonic."""

    def __init__(self, runtime: Path, recovery: Recovery, now: float) -> None:
        self._runtime = runtime
        self._recovery = recovery
        self._dead: list[Incarnation] = []
        self._look_at = now
        self._began_at = now

    def take_over(self, queues: Iterable[str], now: float) -> bool:
        """Gives what dead runs left to the recovery, once the last of their processes has let go.

        Looks only now and then. Returns whether there was anything.
        """
        if now < self._look_at:
            return False
        self._look_at = now + min(max((now - self._began_at) * _PATIENCE, _LOOK_AT_BOOT_S), _LOOK_S)
        found = predecessors(self._runtime)
        for dead in found:
            try:
                boards = dead.boards()
            except OSError as error:
                log.error("an earlier run cannot be read yet", incarnation=dead.name, error=str(error))
                dead.close()  # its lock is free again, so the next look finds it
                continue
            log.warning("an earlier run left tasks behind", incarnation=dead.name, workers=len(boards))
            self._dead.append(dead)
            waiting = {board.consumer for board in boards} | {dead.recoverer}
            for board in boards:
                self._adopt(dead, board, waiting)
            self._recovery.add(
                consumer=dead.recoverer,
                queues=queues,
                verdict=Verdict("supervisor died", {}, Fate.RETURN, {}),
                path="restart",
                on_closed=partial(self._close, dead, waiting, dead.recoverer),
            )
        return bool(found)

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
            path="restart",
            on_closed=partial(self._close, dead, waiting, board.consumer),
        )

    def _close(self, dead: Incarnation, waiting: set[str], consumer: str) -> None:
        waiting.discard(consumer)
        if not waiting:
            self._dead.remove(dead)
            dead.remove()

    def abandon(self) -> None:
        """In a child: closes the locks of the dead."""
        for dead in self._dead:
            dead.close()
