"""What is wrong with a queue as it stands in Redis, one finding at a time, each with the way to mend it.

This module looks at the whole: the keys' types, the group, who is late or silent. It costs a few round trips
however many tasks there are. :mod:`~chronosd.broker.health` looks at the server,
:mod:`~chronosd.broker.service` at whether the work is done,
:mod:`~chronosd.broker.symptoms` at the next tasks, :mod:`~chronosd.broker.census` at every single one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chronosd.broker import server
from chronosd.broker.commands import BATCH, Command, Steps, plain, text
from chronosd.broker.consumers import maps
from chronosd.broker.finding import Expected, Finding, counted, redis_cli
from chronosd.broker.keys import GROUP, Namespace, QueueKeys
from chronosd.broker.shared import wrong_type, wrong_types
from chronosd.durations import format_duration
from chronosd.errors import BrokerError
from chronosd.states import SET_STATES, WAITING_SETS, State

_LATE_S = 10.0
"""More than a busy forwarder is ever late."""
_EXPIRED_S = 3600.0
"""More than any janitor's interval that makes sense."""
_LEFT_S = 900.0
"""A living worker asks for work, or is asked about, far more often."""
_LAST_ID = f"{2**64 - 1}-{2**64 - 1}"
_OF_ONE, _SILENT = 100, 50
"""Entries of one silent consumer, and such consumers, that are looked at."""
_NAMED = 20
"""Findings of one sort that are told one by one; the rest are counted."""


def checkup(namespace: Namespace, queue: QueueKeys, expected: Expected) -> Steps[list[Finding]]:
    """Looks at one queue as a whole. Raises BrokerError."""
    keys = (queue.stream, *queue.sets)
    *types, is_registered, is_paused, now = _checked(
        (
            yield [
                *(plain("TYPE", key, parse=text) for key in keys),
                plain("SISMEMBER", namespace.queues, queue.name),
                plain("SISMEMBER", namespace.paused, queue.name),
                server.time(),
            ]
        )
    )
    found = [
        wrong_type(key, kind, queue.name)
        for key, kind, right in zip(keys, types, ("stream", *("zset",) * 4), strict=True)
        if kind not in (right, "none")
    ]
    found += yield from wrong_types({queue.rate: "string", queue.cancelled: "zset"}, queue.name)
    if "none" not in types[:1] and not is_registered:
        found.append(
            Finding(
                "unregistered",
                f"it has tasks and is not in {namespace.queues}, so that no listing shows it",
                redis_cli("SADD", namespace.queues, queue.name),
                queue.name,
            )
        )
    if types[0] == "stream":
        found += yield from _stream(queue, bool(is_paused), expected)
    sound = [
        state for state, kind in zip(SET_STATES, types[1:], strict=True) if kind == "zset"
    ]  # in the order of `sets`
    found += yield from _sets(queue, sound, now)
    return found


def _stream(queue: QueueKeys, is_paused: bool, expected: Expected) -> Steps[list[Finding]]:
    (groups, length) = _checked(
        (yield [plain("XINFO", "GROUPS", queue.stream, parse=maps), plain("XLEN", queue.stream)])
    )
    if not any(text(group["name"]) == GROUP for group in groups):
        if not length:
            return []
        return [
            Finding(
                "no-group",
                f"its stream has {counted(length, 'entry')} and no consumer group {GROUP!r}:"
                " nothing can be fetched",
                "start a daemon that serves it, or add it to queues and chronosd reload --wait; if its name"
                f" is a typo: chronosd queue purge {queue.name},"
                f" or {redis_cli('XGROUP', 'CREATE', queue.stream, GROUP, 0)}",
                queue.name,
            )
        ]
    exhausted = _exhausted(queue, [text(g["last-delivered-id"]) for g in groups if text(g["name"]) == GROUP])
    (consumers,) = _checked((yield [plain("XINFO", "CONSUMERS", queue.stream, GROUP, parse=maps)]))
    found = exhausted + (yield from _stuck(queue, consumers, round(expected.stuck_s * 1000)))
    left = [
        consumer for consumer in consumers if not consumer["pending"] and consumer["idle"] > _LEFT_S * 1000
    ]
    if left and not is_paused:  # of a paused queue nobody asks for anything
        names = [text(consumer["name"]) for consumer in left]
        words = [redis_cli("XGROUP", "DELCONSUMER", queue.stream, GROUP, name) for name in names[:3]]
        found.append(
            Finding(
                "consumers-left",
                f"{counted(len(left), 'consumer', 'has')} nothing pending and not been heard of for "
                f"{format_duration(_LEFT_S)}",
                f"once it is certain that they are dead: {' && '.join(words)}{' ...' if names[3:] else ''}",
                queue.name,
                is_error=False,
            )
        )
    return found


def _stuck(queue: QueueKeys, consumers: Sequence[Mapping[str, Any]], stuck_ms: int) -> Steps[list[Finding]]:
    """Entries that nobody has renewed for so long: among the oldest, and of consumers that are silent.

    Not asked for by IDLE: a server that looks for few such entries among a hundred thousand goes through all
    of them, which takes it longer than it may.
    """
    silent = [one["name"] for one in consumers if one["pending"] and one["idle"] > stuck_ms]
    pages = _checked(
        (
            yield [
                plain("XPENDING", queue.stream, GROUP, "-", "+", BATCH),
                *(
                    plain("XPENDING", queue.stream, GROUP, "-", "+", _OF_ONE, name)
                    for name in silent[:_SILENT]
                ),
            ]
        )
    )
    stuck = {row[0]: row for page in pages for row in page if row[2] > stuck_ms}
    found = [
        Finding(
            "stuck",
            f"entry {text(entry)} is pending for {text(owner)}, which has been silent for "
            f"{format_duration(idle_ms // 1000)}, and nobody takes it over",
            "start a daemon that serves this queue: it recovers the task",
            queue.name,
        )
        for entry, owner, idle_ms, _ in sorted(stuck.values(), key=lambda row: -row[2])
    ]
    if len(found) > _NAMED:
        is_more = len(pages[0]) == BATCH or any(len(page) == _OF_ONE for page in pages[1:])
        rest = f"{len(found) - _NAMED} more{' or many more' if is_more else ''}"
        found[_NAMED:] = [Finding("stuck", f"{rest} are pending for silent owners", "as above", queue.name)]
    return found


def _sets(queue: QueueKeys, sound: Sequence[State], now: float) -> Steps[list[Finding]]:
    if not sound:
        return []
    commands: list[Command[Any]] = []
    for state in sound:
        late_s = {State.SCHEDULED: _LATE_S, State.RETRY: _LATE_S, State.COMPLETED: _EXPIRED_S}.get(state)
        until = "-inf" if late_s is None else f"({now - late_s:.6f}"
        commands.append(plain("ZCOUNT", queue.set_of(state), "-inf", until))
        # twenty years ahead is nobody's delay; milliseconds where seconds belong are fifty thousand
        commands.append(plain("ZCOUNT", queue.set_of(state), f"({now + 20 * 365 * 86400:.0f}", "+inf"))
    counts = _checked((yield commands))
    found = []
    for i, state in enumerate(sound):
        late, far = counts[2 * i], counts[2 * i + 1]
        if late and state in WAITING_SETS:
            found.append(
                Finding(
                    "late",
                    f"{counted(late, state.label + ' task', 'is')} overdue by more than "
                    f"{format_duration(_LATE_S)}",
                    "start a daemon that serves this queue: it forwards what is due",
                    queue.name,
                )
            )
        elif late and state is State.COMPLETED:
            found.append(
                Finding(
                    "expired",
                    f"{counted(late, 'completed task', 'is')} past their retention by more than "
                    f"{format_duration(_EXPIRED_S)}",
                    "start a daemon that serves this queue: its janitor deletes them",
                    queue.name,
                    is_error=False,
                )
            )
        if far:
            since = redis_cli("ZRANGE", queue.set_of(state), -far, -1, "WITHSCORES")
            found.append(
                Finding(
                    "far-future",
                    f"{counted(far, state.label + ' task', 'has')} scores more than 20 years ahead; scores"
                    " are seconds",
                    f"look at them: {since}",
                    queue.name,
                    is_error=False,
                )
            )
    return found


def _exhausted(queue: QueueKeys, delivered: Sequence[str]) -> list[Finding]:
    """Whether somebody has given an entry the last id that there is: the stream takes nothing more."""
    if _LAST_ID not in delivered:
        return []
    problem = f"an entry of {queue.stream} had the last id that there is: it takes nothing more"
    remedy = f"once nothing waits or runs in it (chronosd queue show {queue.name}): "
    return [Finding("stream-exhausted", problem, remedy + redis_cli("DEL", queue.stream), queue.name)]


def _checked(replies: Sequence[Any]) -> list[Any]:
    for reply in replies:
        if isinstance(reply, BrokerError):
            raise reply
    return list(replies)
