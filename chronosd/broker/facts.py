"""A task as it is shown: the values that inspection returns, made of what Redis holds, however broken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import orjson

from chronosd.broker.commands import text
from chronosd.broker.keys import Field
from chronosd.broker.message import Message, decode
from chronosd.broker.payload import decode_args
from chronosd.errors import MessageError
from chronosd.states import State


@dataclass(frozen=True, slots=True)
class ListedTask:
    """A task in a listing. What its message cannot tell is left empty, and ``problem`` says why."""

    queue: str
    state: State
    """The state whose listing this is."""
    id: str
    """Empty for a stream entry that names no task."""
    kind: str = ""
    args: Any = None
    """The decoded arguments; None where they cannot be decoded."""
    retried: int = 0
    max_retry: int = 0
    last_err: str = ""
    at: float | None = None
    """Unix seconds: when it is due (scheduled, retry), died (archived) or expires (completed)."""
    entry: str = ""
    """Its stream entry (pending, active)."""
    consumer: str = ""
    """Its owner (active)."""
    idle_s: float | None = None
    """Since its lease was last renewed (active)."""
    deliveries: int = 0
    crashes: int = 0
    enqueued_at: float | None = None
    """Unix seconds by the server's clock; None for a task that chronos-go enqueued."""
    unknown_since: float | None = None
    """Unix seconds at which a worker first knew no handler for its kind."""
    error: str = ""
    """Why a task whose message cannot be decoded was dead-lettered."""
    size: int = 0
    """Bytes of its message."""
    problem: str = ""
    """Why it cannot be shown in full, or cannot run; empty for a sound task."""


@dataclass(frozen=True, slots=True)
class TaskDetails:
    """All that is stored of one task."""

    queue: str
    id: str
    state: State | None
    """As its hash says; None if it says nothing that is a state."""
    places: Mapping[State, float | None]
    """Where it was found: sets with its score (due, died or expires, unix seconds), ACTIVE if it is pending
    for a consumer. A waiting stream entry is not looked for: that would mean to read the stream."""
    message: Message | None
    """None where it is gone or cannot be decoded; ``problem`` says so."""
    args: Any = None
    result: Any = None
    """The decoded result of a completed task."""
    entry: str = ""
    """The stream entry that its current run owns."""
    consumer: str = ""
    idle_s: float | None = None
    deliveries: int = 0
    crashes: int = 0
    evidence: tuple[Mapping[str, Any], ...] = ()
    """What is known of the deaths of the workers that ran it: cause, worker, at, signal, exit_code, stack."""
    blocked: Mapping[str, Any] = field(default_factory=dict)
    """The last report that it blocked its event loop: at, seconds, worker, stack; empty if there is none."""
    returned: int = 0
    """How often it was handed back unstarted after a death."""
    enqueued_at: float | None = None
    unknown_since: float | None = None
    error: str = ""
    raw: bytes = b""
    """The message as it stands in Redis."""
    problem: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Every other field of the hash, as text."""

    @classmethod
    def of(
        cls,
        queue: str,
        task_id: str,
        fields: Mapping[str, Any],
        scores: Mapping[State, float],
        owner: tuple[str, str, float, int] | None,
    ) -> Self:
        """Reads a task's hash, with its scores in the sets and (entry, consumer, idle s, deliveries)."""
        raw = fields.get(Field.MSG)
        stored = number(fields.get(Field.STATE))
        state = State(stored) if stored in set(State) else None
        places: dict[State, float | None] = dict(scores)
        if owner:
            places[State.ACTIVE] = None
        message, problem = None, "its message is gone"
        args = result = None
        if raw is not None:
            message, args, problem = _read(raw)
        if message is not None and message.result:
            result, _ = _decoded(message.result)
        entry, consumer, idle_s, deliveries = owner or ("", "", None, 0)
        shown = {Field.MSG, Field.STATE}
        return cls(
            queue,
            task_id,
            state,
            places,
            message,
            args,
            result,
            entry=entry,
            consumer=consumer,
            idle_s=idle_s,
            deliveries=deliveries,
            crashes=number(fields.get(Field.CRASHES)),
            evidence=_evidence(fields.get(Field.EVIDENCE)),
            blocked=json_object(fields.get(Field.BLOCKED)),
            returned=number(fields.get(Field.RETURNED)),
            enqueued_at=seconds(fields.get(Field.ENQUEUED_AT), 1000),
            unknown_since=seconds(fields.get(Field.UNKNOWN_SINCE), 1),
            error=text(fields.get(Field.ERROR)),
            raw=raw or b"",
            problem=problem,
            fields={name: text(value) for name, value in fields.items() if name not in shown},
        )


def described(task: ListedTask, msg: bytes | None) -> ListedTask:
    """The task with what its message says."""
    if msg is None:
        return task if task.problem else replace(task, problem="its message is gone")
    message, args, problem = _read(msg)
    if message is None:
        return replace(task, problem=problem)
    return replace(
        task,
        kind=message.kind,
        args=args,
        retried=message.retried,
        max_retry=message.max_retry,
        last_err=message.last_err,
        problem=problem,
    )


def number(value: Any) -> int:
    """A number that Redis holds as text; 0 for what is none."""
    try:
        return int(value) if value else 0
    except ValueError:
        return 0


def seconds(value: Any, per_second: int) -> float | None:
    """An instant that Redis holds as text, in unix seconds; None for what is none."""
    try:
        return float(value) / per_second if value else None
    except ValueError:
        return None


def _read(raw: bytes) -> tuple[Message | None, Any, str]:
    try:
        message = decode(raw)
    except MessageError as error:
        return None, None, f"undecodable message: {error}"
    args, problem = _decoded(message.payload)
    return message, args, problem


def _decoded(payload: bytes) -> tuple[Any, str]:
    try:
        return decode_args(payload), ""
    except MessageError as error:
        return None, f"undecodable arguments: {error}"


def json_object(stored: Any) -> Mapping[str, Any]:
    """The JSON object that a field holds; empty for what is none."""
    try:
        known = orjson.loads(stored) if stored else {}
    except ValueError:
        return {}
    return known if isinstance(known, dict) else {}


def _evidence(stored: Any) -> tuple[Mapping[str, Any], ...]:
    try:
        known = orjson.loads(stored) if stored else []
    except ValueError:
        return ()
    return tuple(one for one in known if isinstance(one, dict)) if isinstance(known, list) else ()
