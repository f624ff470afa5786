"""Whether a queue's work is being done: paused, without a daemon, behind, or held by the dead."""

from __future__ import annotations

from chronosd.broker.commands import Steps
from chronosd.broker.consumers import SILENT_S, Consumer, queue_details
from chronosd.broker.finding import Expected, Finding, counted
from chronosd.broker.inspect import QueueStats
from chronosd.broker.keys import Namespace, QueueKeys
from chronosd.durations import format_duration, span

_UNSERVED_S = 3.0
"""A daemon that has just started, or has just created a queue's group, is given that long."""
BEHIND_S = 300.0
"""A ready task that has waited longer than this is told of."""


def attendance(namespace: Namespace, queue: QueueKeys, expected: Expected) -> Steps[list[Finding]]:
    """Looks at who works on a queue, and whether that is enough. Raises BrokerError."""
    silent_s = expected.recover_min_idle_s or SILENT_S
    found = yield from queue_details(namespace, queue, silent_s)
    stats = found.stats
    findings = _ageing(stats, found.consumers, expected)
    waiting = stats.pending + stats.scheduled + stats.retry
    if stats.paused:
        return findings + ([_paused(stats)] if waiting else [])
    waited_s = stats.oldest_pending_s or 0.0
    if not stats.pending or not found.has_group:
        return findings
    if all(one.is_stale for one in found.consumers):
        return findings + ([_unserved(stats, found.consumers)] if waited_s > _UNSERVED_S else [])
    return findings + ([_behind(stats)] if waited_s > BEHIND_S else [])


def _paused(stats: QueueStats) -> Finding:
    words = {"ready": stats.pending, "scheduled": stats.scheduled, "retrying": stats.retry}
    told = [counted(number, f"{word} task") for word, number in words.items() if number]
    since = ""
    if stats.oldest_pending_s is not None:
        since = f", the oldest for {span(stats.oldest_pending_s)}"
    verb = "waits" if sum(words.values()) == 1 else "wait"
    return Finding(
        "paused",
        f"it is paused: {' and '.join(told)} {verb}{since}",
        f"if that is not wanted any more: chronosd queue resume {stats.queue}",
        stats.queue,
        is_error=False,
    )


def _unserved(stats: QueueStats, consumers: tuple[Consumer, ...]) -> Finding:
    heard = min((one.idle_s for one in consumers), default=None)
    since = "" if heard is None else f"; the last was heard of {span(heard)} ago"
    return Finding(
        "unserved",
        f"{counted(stats.pending, 'task', 'is')} ready, the oldest for {span(stats.oldest_pending_s or 0)},"
        f" and no worker asks for any{since}",
        f"name {stats.queue} under `queues` and start a daemon (or: chronosd reload --wait); is one quiet?"
        " chronosd status",
        stats.queue,
    )


def _behind(stats: QueueStats) -> Finding:
    return Finding(
        "behind",
        f"{counted(stats.pending, 'task', 'is')} ready, the oldest for {span(stats.oldest_pending_s or 0)}",
        "see what the workers do: chronosd top; then more of them (chronosd scale N), a higher concurrency,"
        " or a higher weight or limit for this queue",
        stats.queue,
        is_error=False,
    )


def _ageing(stats: QueueStats, consumers: tuple[Consumer, ...], expected: Expected) -> list[Finding]:
    """Before they count as stuck."""
    return [
        Finding(
            "ageing",
            f"{one.name} has {counted(one.pending, 'task')} and was last heard of {span(one.idle_s)} ago:"
            " it, or its host, is dead",
            "nothing, if a daemon serves this queue: it takes them over within"
            f" {format_duration(expected.recover_interval_s)}",
            stats.queue,
            is_error=False,
        )
        for one in consumers
        if one.is_stale and one.pending and one.idle_s <= expected.stuck_s
    ]
