"""What Redis shows of schedules, those of chronos.yaml and of chronos-go: how far they are, what is next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from chronosd import cron
from chronosd.broker.commands import Command, Steps, plain, text
from chronosd.broker.keys import Namespace, ScheduleKeys
from chronosd.broker.schedule import Schedule
from chronosd.broker.server import time as server_time
from chronosd.errors import BrokerError

UPCOMING = 5


@dataclass(frozen=True, slots=True)
class Registered:
    """A schedule as the registry shows it, of whatever program. Instants are unix seconds."""

    id: str
    kind: str
    queue: str
    spec: str
    registered_at: int
    last_seen: int
    """When a program that has it was last heard of."""
    name: str
    """Its name in chronos.yaml; empty for chronos-go's."""
    misfire: str
    by: str
    """Host and file of the daemon that was last heard of."""


def registry(namespace: Namespace) -> Command[tuple[Registered, ...]]:
    """Every schedule that was ever registered and not forgotten, by id."""

    def parse(reply: Any) -> tuple[Registered, ...]:
        pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
        return tuple(sorted((_registered(text(k), v) for k, v in pairs), key=lambda one: one.id))

    return plain("HGETALL", namespace.schedules, parse=parse)


def _registered(schedule_id: str, raw: bytes) -> Registered:
    """An entry; what is not as it should be is empty, for it is anybody's."""
    try:
        fields = orjson.loads(raw)
    except ValueError:
        fields = {}
    fields = fields if isinstance(fields, dict) else {}

    def word(name: str) -> str:
        value = fields.get(name)
        return value if isinstance(value, str) else ""

    def instant(name: str) -> int:
        value = fields.get(name)
        return value if isinstance(value, int) else 0

    return Registered(
        schedule_id,
        *(word("kind"), word("queue"), word("spec")),
        *(instant("registered_at"), instant("last_seen")),
        *(word("name"), word("misfire"), word("by")),
    )


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule, and how far it has come. Instants are unix seconds."""

    id: str
    name: str
    """Its name in chronos.yaml; empty for chronos-go's."""
    kind: str
    queue: str
    spec: str
    """The fields of its cron, or ``@every 1m30s``."""
    timezone: str
    """Empty for UTC, and for intervals."""
    misfire: str
    next_times: tuple[int, ...]
    """The next five; none where they are not known."""
    last_fired: int | None
    """The newest of its times that fired. chronos-go does not tell that from when it first saw it."""
    leader: str
    """The daemon that fires it; empty if none does."""
    registered_at: int | None
    last_seen: int | None
    """When a program that has it was last heard of; None if it is only in a file."""


def timetable(namespace: Namespace, configured: Iterable[Schedule] = ()) -> Steps[list[ScheduleInfo]]:
    """Every registered schedule and those of a configuration, by name. Raises BrokerError."""
    (registered,) = yield [registry(namespace)]
    if isinstance(registered, BrokerError):
        raise registered
    known = {one.id: one for one in registered}
    own = {one.id: one for one in configured}
    ids = [*own, *(id_ for id_ in known if id_ not in own)]
    replies = yield [server_time(), *(_marks(namespace.schedule(id_)) for id_ in ids)]
    for reply in replies:
        if isinstance(reply, BrokerError):
            raise reply
    now, *marks = replies
    found = [
        _info(id_, own.get(id_), known.get(id_), mark, now) for id_, mark in zip(ids, marks, strict=True)
    ]
    return sorted(found, key=lambda one: (not one.name, one.name, one.id))


def from_file(schedule: Schedule, now: float) -> ScheduleInfo:
    """What a configuration alone tells of a schedule."""
    return _info(schedule.id, schedule, None, (None, None, ""), now)


_Marks = tuple[int | None, int | None, str]


def _marks(keys: ScheduleKeys) -> Command[_Marks]:
    """Newest trigger, newest fired, holder of the lease."""
    return plain(
        *("MGET", keys.last, keys.fired, keys.lease),
        parse=lambda reply: (_whole(text(reply[0])), _whole(text(reply[1])), text(reply[2])),
    )


def _whole(value: str) -> int | None:
    return int(value) if value.isascii() and value.isdigit() else None


def _info(
    id_: str, schedule: Schedule | None, entry: Registered | None, marks: _Marks, now: float
) -> ScheduleInfo:
    last, fired, leader = marks
    rule = schedule.rule if schedule is not None else _rule(entry.spec if entry is not None else "")
    is_ours = schedule is not None or bool(entry and entry.name)
    shown = schedule or entry
    assert shown is not None, "it is in one of them"
    spec = rule.spec if isinstance(rule, cron.Every) else rule.fields if rule else entry.spec if entry else ""
    return ScheduleInfo(
        id=id_,
        name=shown.name,
        kind=shown.kind,
        queue=shown.queue,
        spec=spec,
        timezone=rule.timezone if rule is not None else "",
        misfire=shown.misfire,
        next_times=tuple(cron.upcoming(rule, last, now, UPCOMING)) if rule is not None else (),
        last_fired=fired if is_ours else last,
        leader=leader,
        registered_at=entry.registered_at if entry is not None else None,
        last_seen=entry.last_seen if entry is not None else None,
    )


def _rule(spec: str) -> cron.Rule | None:
    try:
        return cron.parse(spec)
    except ValueError:
        return None
