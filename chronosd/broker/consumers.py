"""Who works on a queue, and on what: its consumer group as the server sees it.

A consumer is one worker process. Its age is the time since it last asked for work or its supervisor last
renewed its leases; of a worker that lives that is seconds. One that is older than `recover_min_idle` and has
entries is dead, or its host is: what it has awaits recovery.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from chronosd.broker.commands import BATCH, Command, Steps, plain, text
from chronosd.broker.inspect import QueueStats, queue_stats
from chronosd.broker.keys import GROUP, Namespace, QueueKeys
from chronosd.broker.message import decode
from chronosd.broker.settle import look
from chronosd.errors import BrokerError, BrokerRefused, MessageError

SILENT_S = 30.0
"""The default of `recover_min_idle`: after this others take over what a consumer has not renewed."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """One consumer of a queue's group."""

    name: str
    pending: int
    """Entries that it has: running, or read ahead."""
    idle_s: float
    """Since it was last heard of."""
    is_stale: bool
    """It has been silent for so long that it is dead; what it has, if anything, awaits recovery."""


@dataclass(frozen=True, slots=True)
class QueueDetails:
    """A queue, its group and the group's consumers."""

    stats: QueueStats
    has_group: bool
    """Without it nothing can be fetched; a daemon that serves the queue creates it."""
    length: int
    """Entries in the stream."""
    lag: int | None
    """Entries that the group has not been given yet, as the server counts; None if it cannot tell."""
    last_delivered: str
    """The newest entry that was."""
    oldest_active: str
    """The oldest entry that somebody has; empty if nobody has any."""
    consumers: tuple[Consumer, ...]
    """Those with the most entries first."""


def maps(reply: Any) -> list[dict[str, Any]]:
    """What XINFO lists, under either protocol."""
    found = []
    for one in reply:
        pairs = one.items() if isinstance(one, dict) else zip(one[::2], one[1::2], strict=True)
        found.append({text(name): value for name, value in pairs})
    return found


def consumers(queue: QueueKeys, silent_s: float = SILENT_S) -> Command[list[Consumer]]:
    """The consumers of a queue's group, those with the most entries first."""

    def parse(reply: Any) -> list[Consumer]:
        found = [
            Consumer(
                text(one["name"]), int(one["pending"]), int(one["idle"]) / 1000, one["idle"] > silent_s * 1000
            )
            for one in maps(reply)
        ]
        return sorted(found, key=lambda one: (-one.pending, one.idle_s))

    return plain("XINFO", "CONSUMERS", queue.stream, GROUP, parse=parse)


def queue_details(namespace: Namespace, queue: QueueKeys, silent_s: float = SILENT_S) -> Steps[QueueDetails]:
    """All that is known of a queue as a whole, in two round trips. Raises BrokerError."""
    stats = yield from queue_stats(namespace, queue)
    length, groups, known, oldest = yield [
        plain("XLEN", queue.stream),
        plain("XINFO", "GROUPS", queue.stream, parse=maps),
        consumers(queue, silent_s),
        plain("XPENDING", queue.stream, GROUP, "-", "+", 1),
    ]
    for reply in (length, groups, known, oldest):
        if isinstance(reply, BrokerError) and not isinstance(reply, BrokerRefused):
            raise reply
    # Refused is what is not there: no stream, no group, a key of another type.
    group = next((g for g in groups if text(g["name"]) == GROUP), None) if isinstance(groups, list) else None
    lag = group.get("lag") if group else None
    return QueueDetails(
        stats,
        group is not None,
        length if isinstance(length, int) else 0,
        lag if isinstance(lag, int) else None,
        text(group["last-delivered-id"]) if group else "",
        text(oldest[0][0]) if isinstance(oldest, list) and oldest else "",
        tuple(known) if isinstance(known, list) else (),
    )


def name_entries(
    namespace: Namespace, entries: Iterable[tuple[str, str]]
) -> Steps[dict[tuple[str, str], tuple[str, str]]]:
    """Id and kind of the tasks that stream entries name, by (queue, entry); unknown ones are left out.

    The kind is empty where the message cannot be read. Raises BrokerError.
    """
    by_queue: dict[str, list[bytes]] = {}
    for queue, entry in entries:
        by_queue.setdefault(queue, []).append(entry.encode())
    found: dict[tuple[str, str], tuple[str, str]] = {}
    if not by_queue:
        return found
    replies = yield [look(namespace.queue(name), some[:BATCH]) for name, some in by_queue.items()]
    for name, rows in zip(by_queue, replies, strict=True):
        if isinstance(rows, BrokerError):
            raise rows
        for row in rows:
            if row.task_id:
                found[name, text(row.entry)] = (row.task_id, _kind(row.msg))
    return found


def _kind(msg: bytes | int | None) -> str:
    try:
        return decode(msg).kind if isinstance(msg, bytes) else ""
    except MessageError:
        return ""
