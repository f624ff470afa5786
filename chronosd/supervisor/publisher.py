"""Fills the page that the web process serves: once a second, and only while there is a web process."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from chronosd.log import get_logger
from chronosd.metrics import (
    LAST_FIRED,
    LEADER,
    LOOP_AGE,
    OLDEST_PENDING,
    QUEUE_LATENCY,
    QUEUE_PAUSED,
    QUEUE_TASKS,
    QUEUE_UNSERVED,
    RECYCLES,
    REDIS_UP,
    RELOADS,
    WORKER_LAG,
    WORKER_RSS,
    WORKERS,
)
from chronosd.states import State
from chronosd.supervisor.gauges import EVERY_S, Gauge
from chronosd.supervisor.rounds import Rounds
from chronosd.supervisor.status import Status
from chronosd.supervisor.tenths import aligned
from chronosd.supervisor.web import Web

log = get_logger("chronosd.supervisor")

_EVERY_S = 1.0
_STALE_S = 3 * EVERY_S
"""What was read of the queues longer ago is not shown: a gauge that stands still is worse than none."""

_LEAVING = "leaving"
_OF_QUEUES = (QUEUE_TASKS, QUEUE_LATENCY, QUEUE_PAUSED, QUEUE_UNSERVED, OLDEST_PENDING)
_COUNTED = (State.PENDING, State.ACTIVE, State.SCHEDULED, State.RETRY, State.ARCHIVED, State.COMPLETED)

Rows = dict[str, list[list[Any]]]
"""By metric: label values, and then the value."""


class Publisher:
    """Instants are monotonic."""

    def __init__(self, web: Web, rounds: Rounds, status: Status) -> None:
        self._web = web
        self._rounds = rounds
        self._status = status
        self._fill_at = 0.0
        self._is_too_long = False

    @property
    def due_at(self) -> float:
        """When the page is to be filled next."""
        return self._fill_at if self._web.page is not None else float("inf")

    def tick(self, now: float) -> None:
        """Fills it."""
        self._fill_at = aligned(now + _EVERY_S, now)
        if self._web.page is None:
            return
        is_too_long = not self._web.page.write(self.document(now))
        if is_too_long and not self._is_too_long:
            log.error("metrics are too long for their page: they stand still")
        self._is_too_long = is_too_long

    def document(self, now: float) -> dict[str, Any]:
        """Everything that the web process shows."""
        status = self._status.document()
        values = self._rounds.totals.values(self._status.boards)
        for reason, count in status["recycled"].items():
            values.add(RECYCLES, reason, n=count)
        for result, count in self._status.reloads.items():
            values.add(RELOADS, result, n=count)
        gauges = self._fresh(now)
        return {
            "at": round(time.time(), 3),
            "status": status,
            "counters": [[name, labels, value] for (name, labels), value in values.counters.items()],
            "histograms": [
                [name, labels, one.buckets, round(one.sum_s, 6)]
                for (name, labels), one in values.histograms.items()
            ],
            "gauges": [
                [name, labels, value]
                for name, rows in (_of_status(status) | self._of_schedules() | _of_queues(gauges)).items()
                for *labels, value in rows
            ],
            "queues": [_of_queue(gauge) for gauge in gauges],
            "schedules": self._rounds.scheduler.document(),
        }

    def _of_schedules(self) -> Rows:
        facts = self._rounds.scheduler.facts
        fired = [[one.name, one.fired] for one in facts if one.fired is not None]
        return {LEADER: [[one.name, int(one.is_leader)] for one in facts], LAST_FIRED: fired}

    def _fresh(self, now: float) -> Sequence[Gauge]:
        gauges = self._rounds.gauges
        if gauges.read_at is None or now - gauges.read_at > _STALE_S:
            return ()
        return gauges.queues


def _of_status(status: dict[str, Any]) -> Rows:
    # Those that drain share one label: their places have other workers, and their pids would be new series
    # with every reload.
    rss = {str(one["index"]): one["rss_bytes"] for one in status["workers"]}
    lag = {str(one["index"]): one["beat_age_s"] for one in status["workers"]}
    if leaving := status["leaving"]:
        rss[_LEAVING] = sum(one["rss_bytes"] for one in leaving)
        lag[_LEAVING] = max(one["beat_age_s"] for one in leaving)
    return {
        REDIS_UP: [[int(status["redis"]["reached"] and not status["redis"]["error"])]],
        WORKERS: [["ready", status["ready"]], ["target", status["target"]]],
        WORKER_RSS: [[worker, value] for worker, value in rss.items()],
        WORKER_LAG: [[worker, value] for worker, value in lag.items()],
        LOOP_AGE: [[loop, age_s] for loop, age_s in status["steps"].items()],
    }


def _of_queues(gauges: Iterable[Gauge]) -> Rows:
    rows: Rows = {name: [] for name in _OF_QUEUES}
    for gauge in gauges:
        stats = gauge.stats
        for state in _COUNTED:
            rows[QUEUE_TASKS].append([stats.queue, state.label, getattr(stats, state.label)])
        rows[QUEUE_LATENCY].append([stats.queue, stats.oldest_pending_s or 0.0])
        rows[QUEUE_PAUSED].append([stats.queue, int(stats.paused)])
        rows[QUEUE_UNSERVED].append([stats.queue, int(gauge.is_unserved)])
        rows[OLDEST_PENDING].append([stats.queue, gauge.oldest_pending_idle_s or 0.0])
    return rows


def _of_queue(gauge: Gauge) -> dict[str, Any]:
    stats = gauge.stats
    counts = {state.label: getattr(stats, state.label) for state in _COUNTED}
    return {
        "name": stats.queue,
        **counts,
        "paused": stats.paused,
        "oldest_pending_s": stats.oldest_pending_s,
        "oldest_pending_idle_s": gauge.oldest_pending_idle_s,
        "served": gauge.is_served_here,
        "unserved": gauge.is_unserved,
    }
