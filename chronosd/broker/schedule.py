"""Schedules in Redis: who looks after them, up to which trigger they have fired, and what consoles show.

A schedule has no name there but its id, chronos-go's: ``<kind>:<spec>#<hash of queue and arguments>``. The
name in chronos.yaml is a label, shown in listings. So renaming a schedule changes nothing, and changing its
times, kind, queue or arguments makes it another one, which begins when it is first seen: an edit never fires
by itself.

Every daemon that has a schedule may fire it; the firing script lets each trigger through once. The lease only
says who goes first, so that in general nobody else has to ask.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import orjson

from chronosd.broker.commands import Command, call, script, text
from chronosd.broker.keys import Namespace
from chronosd.broker.message import DEFAULT_MAX_RETRY, encode_new
from chronosd.broker.payload import encode_args, go_escapes
from chronosd.config.schema import Config
from chronosd.cron import Rule
from chronosd.states import State

LEASE_S = 5.0
"""As long as chronos-go's leader has."""

_GO_MARK_MS = 50_000


@dataclass(frozen=True)
class Schedule:
    """One schedule of a chronos.yaml."""

    name: str
    kind: str
    queue: str
    rule: Rule
    payload: bytes
    misfire: Literal["skip", "fire_once"]

    @cached_property
    def id(self) -> str:
        """What it is called in Redis."""
        return schedule_id(self.kind, self.rule.spec, self.queue, self.payload)

    def task_id(self, trigger: int) -> str:
        """The id of the task of one trigger."""
        return f"{self.id}:{trigger}"


def schedules_of(config: Config) -> tuple[Schedule, ...]:
    """Those of a configuration. Raises InvalidTask for arguments that cannot be sent."""
    return tuple(
        Schedule(name, one.kind, one.queue, one.rule, encode_args(one.args), one.misfire)
        for name, one in config.schedules.items()
    )


def schedule_id(kind: str, spec: str, queue: str, payload: bytes) -> str:
    """chronos-go's id of a schedule (1.2)."""
    digest = hashlib.sha256(queue.encode() + b"\0" + payload).hexdigest()
    return f"{kind}:{spec}#{digest[:16]}"


# ---- looking after them ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attended:
    """What one look told."""

    now_ms: int
    """The server's clock."""
    seen: tuple[tuple[int, str] | str, ...]
    """Of each schedule: newest trigger and holder of its lease, or what is wrong with it."""


def attend(
    namespace: Namespace,
    owner: str,
    schedules: Sequence[tuple[Schedule, int | None]],
    *,
    by: str,
    refresh: bool,
    lease_s: float = LEASE_S,
) -> Command[Attended]:
    """Looks at schedules, each with the newest trigger known, and takes or renews their leases.

    ``by`` says in the registry whose file they stand in; ``refresh`` renews their entries there.
    """
    args: list[Any] = [owner, round(lease_s * 1000), "1" if refresh else ""]
    for one, known in schedules:
        keys = namespace.schedule(one.id)
        head, tail = _entry(one, by)
        args += (one.id, keys.last, keys.lease, "" if known is None else known, head, tail)

    def parse(reply: Any) -> Attended:
        seen = tuple(
            (int(text(row[0])), text(row[1])) if len(row) == 2 else text(row[0]) for row in reply[1:]
        )
        return Attended(int(text(reply[0])), seen)

    return call(script("attend"), (namespace.schedules,), args, parse)


def _entry(one: Schedule, by: str) -> tuple[bytes, bytes]:
    """The registry's JSON up to the times and behind them: Go's fields in its order, then ours."""
    head = _json({"kind": one.kind, "queue": one.queue, "spec": one.rule.spec})
    tail = _json({"name": one.name, "misfire": one.misfire, "by": by})
    return head[:-1] + b',"registered_at":', b"," + tail[1:]


def _json(fields: dict[str, Any]) -> bytes:
    return go_escapes(orjson.dumps(fields))


@dataclass(frozen=True, slots=True)
class Fired:
    """What became of one trigger."""

    now_ms: int
    mark: int
    """The newest trigger, fired or passed over."""
    word: str
    """``fired``, ``passed``, ``early``, ``old`` or ``taken``: see fire.lua."""


def fire(
    namespace: Namespace, schedule: Schedule, trigger: int, known: int, *, passing: bool = False
) -> Command[Fired]:
    """Enqueues the task of one trigger, unless it is not later than the newest; ``passing`` only moves that.

    On one server the task and the mark are one script. ``known`` is the newest trigger the caller knows of.
    """
    one, task_id, msg = schedule, schedule.task_id(trigger), b""
    queue, keys = namespace.queue(one.queue), namespace.schedule(one.id)
    if not passing:
        # with the ordinary options: chronos.yaml has no keys for others
        options = (DEFAULT_MAX_RETRY, False, 0)
        msg = encode_new(task_id, one.kind, one.queue, one.payload, *options, State.PENDING)
    return call(
        script("fire"),
        (
            *(keys.last, keys.fired, queue.stream, queue.task(task_id)),
            *(queue.trigger(task_id), namespace.queues, *queue.sets),
        ),
        [trigger, known, task_id, msg, one.queue, _GO_MARK_MS],
        lambda reply: Fired(int(text(reply[0])), int(text(reply[1])), text(reply[2])),
    )


def retire(namespace: Namespace, owner: str, ids: Iterable[str], *, forget: bool) -> Command[int]:
    """Gives leases back; with ``forget`` nothing is left of schedules whose lease nobody else has."""
    args: list[Any] = [owner]
    for one in ids:
        keys = namespace.schedule(one)
        args += (one, keys.last, keys.fired, keys.lease, "1" if forget else "")
    return call(script("retire"), (namespace.schedules,), args, int)
