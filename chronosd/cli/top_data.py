"""What `top` shows, taken at one moment, and what has happened between two of them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chronosd.cli.line import Line, NoDaemon
from chronosd.errors import BrokerError, ConfigError
from chronosd.metrics import BOUNDS_S, PROCESSED, RECOVERED, WORKER_EXITS

if TYPE_CHECKING:
    from chronosd.config.schema import Config
    from chronosd.inspector import Inspector, QueueStats, ScheduleInfo

_WINDOW_S = 10.0
"""Rates and waits are those of the last so many seconds."""
_ANSWER_S = 2.0
_MOST_NAMES = 2000
_MOST_QUEUES = 500

Entry = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Sample:
    """Everything at one moment."""

    at: float
    """Monotonic."""
    daemon: Mapping[str, Any] | None
    """Its measures; None if none answers, and then ``no_daemon`` says why."""
    no_daemon: str = ""
    queues: Sequence[QueueStats] = ()
    schedules: Sequence[ScheduleInfo] = ()
    redis_error: str = ""
    names: Mapping[Entry, tuple[str, str]] = field(default_factory=dict)
    """Id and kind of what the workers run, as far as that is known."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What has happened lately, per second."""

    ended: Mapping[tuple[str, str], float]
    """By queue and outcome."""
    by_worker: Mapping[int, float]
    """Tasks completed, by process id."""
    waits: Mapping[str, tuple[float, float]]
    """By queue: how long half, and all but a hundredth, of the tasks waited at most, in seconds."""

    def of(self, queue: str | None, *outcomes: str) -> float:
        """Of one queue, or of all; without ``outcomes``, all of them."""
        return sum(
            rate
            for (name, outcome), rate in self.ended.items()
            if queue in (None, name) and (not outcomes or outcome in outcomes)
        )


class Collector:
    """Takes samples: one request to the daemon, and a few round trips to Redis.

    Args:
        line: where the daemon is looked for.
        config: its queues are shown whether or not anything was ever enqueued to them.
    """

    def __init__(self, line: Line | None, inspector: Inspector, config: Config | None) -> None:
        self._line = line
        self._inspector = inspector
        self._config = config
        self._names: dict[Entry, tuple[str, str]] = {}

    def take(self) -> Sample:
        """A sample; what does not answer is missing from it, and said to be."""
        daemon, why = self._ask()
        try:
            served = set(self._config.queues) if self._config is not None else set()
            others = sorted({*self._inspector.queue_names()} - served)
            names = others[: max(_MOST_QUEUES - len(served), 0)]
            queues = self._inspector.stats_of({*names, *served})
            schedules = self._inspector.schedules(self._config)
            self._look_up(daemon)
        except BrokerError as error:
            return Sample(time.monotonic(), daemon, why, redis_error=str(error), names=dict(self._names))
        return Sample(time.monotonic(), daemon, why, queues, schedules, "", dict(self._names))

    def _ask(self) -> tuple[Mapping[str, Any] | None, str]:
        if self._line is None:
            return None, "not asked: no configuration"
        try:
            answer = self._line.ask("measures", timeout_s=_ANSWER_S)
        except (NoDaemon, ConfigError) as error:
            return None, str(error)
        return (answer, "") if answer.get("ok") else (None, str(answer.get("error")))

    def _look_up(self, daemon: Mapping[str, Any] | None) -> None:
        running = [] if daemon is None else daemon["running"].values()
        entries = [(task["queue"], task["entry"]) for one in running for task in one["tasks"][:1]]
        entries += [
            (one["stepping"]["queue"], one["stepping"]["entry"]) for one in running if one["stepping"]
        ]
        missing = [entry for entry in dict.fromkeys(entries) if entry not in self._names]
        if missing:
            self._names |= self._inspector.name_entries(missing)
        while len(self._names) > _MOST_NAMES:
            del self._names[next(iter(self._names))]


class History:
    """The samples of the last seconds."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()

    def add(self, sample: Sample) -> Pace:
        """Notes a sample; returns what has happened since the oldest that is kept."""
        if sample.daemon is None or (
            self._samples and _pid(self._samples[-1]) != sample.daemon["pid"]
        ):  # counters of another process begin at 0
            self._samples.clear()
        self._samples.append(sample)
        while len(self._samples) > 2 and sample.at - self._samples[0].at > _WINDOW_S:
            self._samples.popleft()
        return pace(self._samples[0], sample)


def _pid(sample: Sample) -> int | None:
    return None if sample.daemon is None else sample.daemon["pid"]


def pace(first: Sample, last: Sample) -> Pace:
    """What has happened between two samples."""
    if first.daemon is None or last.daemon is None:
        return Pace({}, {}, {})
    seconds = max(last.at - first.at, 1e-3)
    before, after = _ended(first.daemon), _ended(last.daemon)
    done = {worker["pid"]: worker["completed"] for worker in first.daemon["workers"]}
    return Pace(
        {key: max(count - before.get(key, 0), 0) / seconds for key, count in after.items()},
        {
            worker["pid"]: max(worker["completed"] - done.get(worker["pid"], 0), 0) / seconds
            for worker in last.daemon["workers"]
        },
        _waits(first.daemon["latencies"], last.daemon["latencies"]),
    )


def _ended(daemon: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for name, *labels, value in daemon["counters"]:
        if name == PROCESSED:
            queue, _, outcome = labels
            found[queue, outcome] = found.get((queue, outcome), 0) + value
    return found


def total(daemon: Mapping[str, Any], outcome: str = "") -> int:
    """Attempts that have ended since the daemon started, with one outcome or any."""
    return sum(count for (_, ended), count in _ended(daemon).items() if outcome in ("", ended))


def recovered(daemon: Mapping[str, Any]) -> int:
    """Tasks that were taken over from owners that were gone."""
    return sum(row[-1] for row in daemon["counters"] if row[0] == RECOVERED)


def deaths(daemon: Mapping[str, Any]) -> int:
    """Workers that have ended, whatever the reason."""
    return sum(row[-1] for row in daemon["counters"] if row[0] == WORKER_EXITS)


def _waits(
    before: Mapping[str, Sequence[Any]], after: Mapping[str, Sequence[Any]]
) -> dict[str, tuple[float, float]]:
    found = {}
    for queue, (buckets, _) in after.items():
        earlier = before[queue][0] if queue in before else [0] * len(buckets)
        lately = [max(new - old, 0) for new, old in zip(buckets, earlier, strict=True)]
        if any(lately):
            found[queue] = (quantile(lately, 0.5), quantile(lately, 0.99))
    return found


def quantile(buckets: Sequence[int], share: float) -> float:
    """The upper bound of the bucket in which that share of the observations is reached, in seconds."""
    wanted, seen = share * sum(buckets), 0
    for bound, count in zip((*BOUNDS_S, float("inf")), buckets, strict=True):
        seen += count
        if seen >= wanted:
            return bound
    return float("inf")
