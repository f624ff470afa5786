"""What the settings of a file mean when they act together, in sentences."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from chronosd.broker.message import DEFAULT_MAX_RETRY
from chronosd.config.schema import Config
from chronosd.durations import span
from chronosd.log import mask


def describe(config: Config, handlers: dict[str, Any]) -> list[tuple[str, str]]:
    """Pairs of a subject and a sentence."""
    sync = sum(not one["async"] for one in handlers.values())
    tasks = config.workers * config.concurrency
    threads = f"; sync kinds: up to {tasks} threads" if sync else ""
    return [
        ("server", f"{mask(config.redis.url)}, keys under {config.namespace}:"),
        (
            "at once",
            f"{_count(config.workers, 'worker')} with {_count(config.concurrency, 'task')} each:"
            f" up to {_count(tasks, 'task')}{threads}",
        ),
        ("order", _order(config)),
        *_limits(config),
        ("retries", _retries(config, handlers)),
        ("timeout", _timeout(config)),
        (
            "crashes",
            f"a task that has killed its worker {_times(config.max_crashes)} is archived,"
            " whatever retries it has left",
        ),
        (
            "lost hosts",
            f"tasks of a host that falls silent are taken over after {span(config.recover_min_idle)}"
            f" to {span(config.recover_min_idle + config.recover_interval)}",
        ),
        (
            "stopping",
            f"running tasks may finish for {span(config.shutdown_timeout)}; the rest starts again later",
        ),
        *_followed(config),
        ("deleting", _deleting(config)),
        *([("schedules", _SCHEDULES)] if config.schedules else []),
        *([("http", _http(config.http.listen))] if config.http is not None else []),
    ]


def _http(listen: str) -> str:
    return f"health, metrics and a dashboard at http://{listen}/, for whoever reaches it, without a password"


_SCHEDULES = (
    "each time fires once, however many daemons have it; one that passed while none ran is forgotten with"
    " skip, and the newest of those made up for with fire_once; up to 10 s late it fires all the same"
)


def warnings(config: Config, handlers: dict[str, Any]) -> list[str]:
    """What is no mistake, for another daemon may do it, but is one more often than not."""
    found = []
    asked = [(f"schedules.{name}", one.kind, one.queue) for name, one in config.schedules.items()]
    if config.on_dead_letter is not None:
        asked.append(("on_dead_letter", config.on_dead_letter.kind, config.on_dead_letter.queue))
    for path, kind, queue in asked:
        if kind not in handlers:
            place, hint = config.where(f"{path}.kind"), _near(kind, handlers)
            found.append(f"{place}: {path}.kind: no handler here for {kind}{hint}")
        if queue not in config.queues:
            place, hint = config.where(f"{path}.queue"), _near(queue, config.queues)
            found.append(f"{place}: {path}.queue: nobody here serves {queue}{hint}")
    return found


def _near(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def total_backoff_s(base_s: float, cap_s: float, retries: int) -> float:
    """The longest that all waits of a task together can be; on average it is half of that (full jitter)."""
    total = 0.0
    for retried in range(retries):
        total += min(base_s * 2.0 ** min(retried, 60), cap_s)
    return total


def _order(config: Config) -> str:
    if len(config.queues) == 1:
        return "one queue, first in, first out"
    by_weight = sorted(config.queues, key=lambda name: -config.queues[name].weight)
    if config.strict_priority:
        return f"strictly {' before '.join(by_weight)}: a later one waits while an earlier one has work"
    return "by weight while every queue has work; the share of an idle queue goes to the others"


def _limits(config: Config) -> list[tuple[str, str]]:
    said = []
    for name, queue in config.queues.items():
        parts = []
        if queue.max_in_flight is not None:
            parts.append(f"at most {_count(queue.max_in_flight, 'task')} in flight")
        if queue.rate_limit is not None:
            starts, _, unit = queue.rate_limit.partition("/")
            long = {"s": "second", "m": "minute", "h": "hour", "d": "day"}[unit]
            parts.append(f"{starts} started per {long}")
        if parts:
            said.append(f"{name}: {' and '.join(parts)}")
    return [("limits", f"{'; '.join(said)}; in the whole cluster, so the same on every host")] if said else []


def _followed(config: Config) -> list[tuple[str, str]]:
    then = config.on_dead_letter
    if then is None:
        return []
    return [("dead letters", f"each is followed by a task of kind {then.kind} in queue {then.queue}")]


def _retries(config: Config, handlers: dict[str, Any]) -> str:
    longest = total_backoff_s(config.retry.base, config.retry.cap, DEFAULT_MAX_RETRY)
    text = (
        f"the {DEFAULT_MAX_RETRY} a task has by default end after about {span_about(longest / 2)}"
        f" (at most {span_about(longest)} of waiting); then it is archived"
    )
    others = [
        f"{kind} after about {span_about(_longest_s(one) / 2)}"
        for kind, one in handlers.items()
        if (one["retry_base_s"], one["retry_cap_s"]) != (config.retry.base, config.retry.cap)
    ]
    return text + (f"; {', '.join(others)}" if others else "")


def _longest_s(handler: dict[str, Any]) -> float:
    return total_backoff_s(handler["retry_base_s"], handler["retry_cap_s"], DEFAULT_MAX_RETRY)


def _timeout(config: Config) -> str:
    return (
        f"an attempt may take {span(config.timeout)} unless its kind says otherwise;"
        f" a thread that goes on then is killed with its worker {span(config.kill_grace)} later"
    )


def _deleting(config: Config) -> str:
    janitor = config.janitor
    limits = []
    if janitor.archived_retention:
        limits.append(f"archived tasks after {span(janitor.archived_retention)}")
    if janitor.max_archived:
        limits.append(f"the oldest archived ones above {janitor.max_archived:,} per queue")
    limits.append("completed tasks after the retention they were enqueued with")
    if janitor.max_completed:
        limits.append(f"the oldest of those above {janitor.max_completed:,} per queue")
    return ", ".join(limits)


def span_about(seconds: float) -> str:
    """``2.3 h``: as precise as something random deserves."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size * 1.5:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
