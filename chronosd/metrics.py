"""What is measured: the names, types and labels of all metrics, in one table.

Workers count on their boards (:mod:`chronosd.tally`), the supervisor adds what it knows itself and fills a
page (:mod:`chronosd.page`), the web process serves that. All three go by the names here.

Labels are bounded: queues are those of the configuration, kinds those that have a handler, and a kind beyond
them (or beyond what a board has room for) counts as ``other``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

OTHER = "other"
"""The kind under which everything counts that has no place of its own."""


class End(IntEnum):
    """How an attempt ended, once Redis has it; the values are places on the board."""

    SUCCEEDED = 0
    RETRIED = 1
    """Failed, charged, runs again."""
    ARCHIVED = 2
    """Dead-lettered: retries spent, `SkipRetry`, a payload that does not validate, a message that cannot be
    read, or the last of its crashes."""
    DISCARDED = 3
    """As archived, but the task wanted no dead letter."""
    POSTPONED = 4
    """Runs again and was not charged: `RetryIn(charge=False)`, or no handler here for its kind."""
    CRASHED = 5
    """Its worker died while it ran; charged, runs again."""
    CANCELLED = 6
    """Ended by an operator."""
    LOST = 7
    """Ended after somebody else had taken the task over: the result was dropped."""

    @property
    def label(self) -> str:
        """As it stands in a label."""
        return self.name.lower()


OUTCOMES = len(End)

BOUNDS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the buckets of every histogram, in seconds; one more bucket has no bound."""

BUCKETS = len(BOUNDS_S) + 1


def bucket_of(seconds: float) -> int:
    """The bucket that a duration belongs to."""
    return bisect_left(BOUNDS_S, seconds)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric."""

    name: str
    """As it is exposed; a counter's ends with ``_total``."""
    type: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str


PROCESSED = "chronos_tasks_processed_total"
DURATION = "chronos_task_duration_seconds"
LATENCY = "chronos_task_latency_seconds"
RECOVERED = "chronos_tasks_recovered_total"
RECOVERY_LATENCY = "chronos_recovery_latency_seconds"
QUEUE_TASKS = "chronos_queue_tasks"
QUEUE_LATENCY = "chronos_queue_latency_seconds"
QUEUE_PAUSED = "chronos_queue_paused"
QUEUE_UNSERVED = "chronos_queue_unserved"
OLDEST_PENDING = "chronos_oldest_pending_idle_seconds"
WORKER_EXITS = "chronos_worker_exits_total"
WORKER_RSS = "chronos_worker_rss_bytes"
WORKER_LAG = "chronos_worker_loop_lag_seconds"
RECYCLES = "chronos_worker_recycles_total"
WORKERS = "chronos_workers"
RELOADS = "chronos_reloads_total"
LOOP_AGE = "chronos_loop_age_seconds"
LEASES_LOST = "chronos_leases_lost_total"
TRIMMED = "chronos_tasks_trimmed_total"
LEADER = "chronos_scheduler_leader"
LAST_FIRED = "chronos_schedule_last_fired_timestamp_seconds"
REDIS_UP = "chronos_redis_up"

FAMILIES: Sequence[Family] = (
    Family(PROCESSED, "counter", ("queue", "kind", "outcome"), "Attempts that have ended, by outcome."),
    Family(DURATION, "histogram", ("queue", "kind"), "From the call of a handler to its end."),
    Family(LATENCY, "histogram", ("queue",), "From the instant a task is ready to the call of its handler."),
    Family(
        RECOVERED,
        "counter",
        ("queue", "path"),
        "Tasks taken over from an owner that is gone: a worker here (worker), an earlier run of this daemon"
        " (restart), another host (host), or from a live worker that would not start them (stray).",
    ),
    Family(RECOVERY_LATENCY, "histogram", ("path",), "From the death of an owner to its settlement."),
    Family(QUEUE_TASKS, "gauge", ("queue", "state"), "Tasks by state, in the whole cluster."),
    Family(QUEUE_LATENCY, "gauge", ("queue",), "Age of the oldest task that is ready and not fetched yet."),
    Family(QUEUE_PAUSED, "gauge", ("queue",), "1 if the queue is paused."),
    Family(QUEUE_UNSERVED, "gauge", ("queue",), "1 for a queue with ready tasks that nobody fetches from."),
    Family(OLDEST_PENDING, "gauge", ("queue",), "Since the lease of the oldest running task was renewed."),
    Family(WORKER_EXITS, "counter", ("reason", "signal"), "Worker processes by what ended them."),
    Family(
        WORKER_RSS,
        "gauge",
        ("worker",),
        "Resident memory, what is shared included; leaving: of all that drain.",
    ),
    Family(WORKER_LAG, "gauge", ("worker",), "For how long its event loop has not turned."),
    Family(RECYCLES, "counter", ("reason",), "Workers replaced on purpose, one at a time."),
    Family(WORKERS, "gauge", ("state",), "Workers that fetch (ready), and that there are to be (target)."),
    Family(RELOADS, "counter", ("result",), "Reloads that have ended."),
    Family(LOOP_AGE, "gauge", ("loop",), "Since a timed step of the supervisor last came back."),
    Family(LEASES_LOST, "counter", (), "Tasks that somebody else took over while they were held here."),
    Family(TRIMMED, "counter", ("queue", "state"), "Ended tasks deleted to stay within a count limit."),
    Family(LEADER, "gauge", ("schedule",), "1 for a schedule that this daemon has the lease of."),
    Family(LAST_FIRED, "gauge", ("schedule",), "Unix time for which a schedule last fired."),
    Family(REDIS_UP, "gauge", (), "1 while Redis is there and takes writes."),
)
"""In the order in which they are served."""
