"""What is wrong with the keys that are no one queue's: of another type, or marks that hold schedules up."""

from __future__ import annotations

from chronosd.broker import server
from chronosd.broker.commands import BATCH, Command, Steps, plain, text
from chronosd.broker.finding import Finding, redis_cli
from chronosd.broker.keys import Namespace, ScheduleKeys
from chronosd.broker.timetable import Registered, registry
from chronosd.durations import format_duration
from chronosd.errors import BrokerError

_AHEAD_S = 60.0
"""Nothing fires before its time, but the server's clock may be set back a little now and then."""


def wrong_type(key: str, kind: str, queue: str = "") -> Finding:
    """A key that is not what it should be: whoever uses it is answered with an error."""
    remedy = f"look at what it is, then delete or rename it: {redis_cli('RENAME', key, key + '.foreign')}"
    return Finding("wrong-type", f"{key} is a {kind}", remedy, queue)


def wrong_types(types: dict[str, str], queue: str = "") -> Steps[list[Finding]]:
    """Those of the keys that are there and not of the type that each should have. Raises BrokerError."""
    kinds = yield [_type(key) for key in types]
    found = []
    for (key, right), kind in zip(types.items(), kinds, strict=True):
        if isinstance(kind, BrokerError):
            raise kind
        if kind not in (right, "none"):
            found.append(wrong_type(key, kind, queue))
    return found


def shared_keys(namespace: Namespace) -> dict[str, str]:
    """The keys without which little else can be looked at, and their types."""
    return {
        namespace.queues: "set",
        namespace.paused: "set",
        namespace.daemons: "zset",
        namespace.schedules: "hash",
    }


def held_up(namespace: Namespace) -> Steps[list[Finding]]:
    """Schedules of which nothing fires because of what stands in Redis. Raises BrokerError."""
    registered, now = yield [registry(namespace), server.time()]
    for reply in (registered, now):
        if isinstance(reply, BrokerError):
            raise reply
    found: list[Finding] = []
    for start in range(0, len(registered), BATCH):
        part = registered[start : start + BATCH]
        keys = [namespace.schedule(one.id) for one in part]
        found += yield from wrong_types({key: "string" for one in keys for key in (one.last, one.lease)})
        marks = yield [plain("GET", one.last) for one in keys]
        for one, key, mark in zip(part, keys, marks, strict=True):
            if mark is not None and not isinstance(mark, BrokerError):
                found += _mark(one, key, text(mark), now)
    return found


def _mark(one: Registered, keys: ScheduleKeys, mark: str, now: float) -> list[Finding]:
    name = f"schedule {one.name or one.id}"
    if not mark.isascii() or not mark.isdigit() or len(mark) > 15:
        problem = f"{name}: {keys.last} holds no instant, so that it does not fire"
        return [Finding("schedule-mark", problem, redis_cli("SET", keys.last, round(now)))]
    ahead_s = int(mark) - now
    if ahead_s <= _AHEAD_S:
        return []
    return [
        Finding(
            "schedule-mark",
            f"{name}: it has fired for a time that is {format_duration(round(ahead_s))} ahead of the server's"
            " clock, which was set back, and does not fire before that",
            "set the clock right; or stop every daemon that has it, then "
            + redis_cli("SET", keys.last, round(now))
            + ", and start them: times that have fired already may then fire again",
        )
    ]


def _type(key: str) -> Command[str]:
    return plain("TYPE", key, parse=text)
