"""What `chronosd top` and `chronosd doctor` ask of the daemon: its status, and what it has counted.

Unlike the page of the web process this is made when it is asked for, so it costs nothing otherwise.
"""

from __future__ import annotations

import time
from typing import Any

import psutil

from chronosd.board import Board, SlotState
from chronosd.metrics import LATENCY, PROCESSED, RECOVERED, WORKER_EXITS
from chronosd.supervisor.fleet import Fleet
from chronosd.supervisor.rounds import Rounds
from chronosd.supervisor.status import Status
from chronosd.supervisor.worker import Worker

_COUNTERS = (PROCESSED, RECOVERED, WORKER_EXITS)
_MOST_KINDS = 5000
_SHOWN = 5
"""Tasks of a worker that are told one by one: those that have run longest."""


class Measures:
    """Looks at everything and changes nothing."""

    def __init__(self, fleet: Fleet, rounds: Rounds, status: Status) -> None:
        self._fleet = fleet
        self._rounds = rounds
        self._status = status

    def document(self) -> dict[str, Any]:
        """The status, with counters, latencies, what every worker runs, schedules and kinds.

        Counters grow as long as the daemon runs. Instants are unix seconds, durations seconds.
        """
        now = time.monotonic()
        values = self._rounds.totals.values(self._status.boards)
        return {
            **self._status.document(),
            "at": round(time.time(), 3),
            "counters": [
                [name, *labels, value]
                for (name, labels), value in values.counters.items()
                if name in _COUNTERS and value
            ],
            "latencies": {
                labels[0]: [one.buckets, round(one.sum_s, 6)]
                for (name, labels), one in values.histograms.items()
                if name == LATENCY
            },
            "running": {worker.child.pid: _running(worker, now) for worker in self._fleet},
            "stuck": sorted(self._rounds.stuck(now)),
            "kinds": sorted(self._fleet.kinds)[:_MOST_KINDS],
            "schedules": self._rounds.scheduler.document(),
        }


def _running(worker: Worker, now: float) -> dict[str, Any]:
    board = worker.board
    slots = [slot for slot in board.read() if slot.state is SlotState.RUNNING]
    oldest = sorted(slots, key=lambda slot: slot.started_ns)[:_SHOWN]
    return {
        "tasks": [
            {
                "queue": slot.queue,
                "entry": slot.entry,
                "seconds": round(now - slot.started_ns / 1e9, 3),
                "left_s": round(slot.deadline_ns / 1e9 - now, 3) if slot.deadline_ns else None,
            }
            for slot in oldest
        ],
        "stepping": _stepping(board),
        "stopped": _is_stopped(worker),
    }


def _is_stopped(worker: Worker) -> bool:
    """Whether somebody has sent it SIGSTOP."""
    try:
        return bool(psutil.Process(worker.child.pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def _stepping(board: Board) -> dict[str, str] | None:
    """The task whose coroutine is being stepped: the one that holds the event loop."""
    current = board.current
    return None if current is None else {"queue": current.queue, "entry": current.entry}
