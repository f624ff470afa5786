"""Waiting for a task's result, without I/O: a client makes the attempts that this asks for.

A result is kept with the task, and a task is kept once it has succeeded only if it was enqueued with a
``retention``. So there is nothing to subscribe to: one field of its hash is read, again and again, ever less
often.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import lru_cache
from time import monotonic
from typing import Any

from pydantic import TypeAdapter, ValidationError

from chronosd.broker.commands import Command, plain, text
from chronosd.broker.enqueue import STATES
from chronosd.broker.inspect import ambiguous, is_name, queue_names
from chronosd.broker.keys import Field, Namespace, QueueKeys
from chronosd.broker.message import Message, decode
from chronosd.broker.payload import decode_args
from chronosd.delivery import Attempt
from chronosd.errors import (
    BrokerError,
    BrokerUnavailable,
    InvalidTask,
    MessageError,
    ResultTimeout,
    TaskFailed,
    TaskNotFound,
    Trouble,
)
from chronosd.states import State
from chronosd.submission import TaskInfo

_FIRST_S, _MOST_S, _GROWTH = 0.005, 0.25, 1.5
"""Between two looks."""

_ONE_LOOK_S = 2.0
"""What a look may take where the time is up already."""

Awaiting = Generator[Attempt, list[Any], Any]


def awaited(
    namespace: Namespace,
    task: str | TaskInfo,
    queue: str | None,
    timeout_s: float,
    type_: Any = None,
) -> Awaiting:
    """The attempts to get a task's result; returns it.

    Args:
        task: its id, or what ``enqueue`` returned.
        queue: where it is; without it, that of the `TaskInfo`, else all queues are looked through.
        timeout_s: how long to wait for it to end; 0 is one look.
        type_: what the result is validated as; None is plain JSON.

    Raises:
        TaskNotFound: there is no such task, or it has ended and was not kept.
        TaskFailed: it is dead-lettered.
        ResultTimeout: it has not ended.
        MessageError: the result is none of that type.
        BrokerUnavailable, BrokerRefused: the server could not be asked.
    """
    task_id = task.id if isinstance(task, TaskInfo) else task
    if not isinstance(task_id, str):
        raise InvalidTask(f"task: must be an id, or what enqueue returned (got {ascii(task_id)[:60]})")
    name = task.queue if queue is None and isinstance(task, TaskInfo) else queue
    until = monotonic() + timeout_s
    keys = [namespace.queue(name)] if name is not None else (yield from _queues(namespace, until))
    state: State | None = None
    pause_s = _FIRST_S
    pause = 0.0
    while True:
        states = yield from _ask([_state(one, task_id) for one in keys], until, pause)
        pause = min(pause_s, max(until - monotonic(), 0.0))
        found = [(one, known) for one, known in zip(keys, states, strict=True) if known is not None]
        if not found:
            raise _gone(task_id, name, was_there=state is not None)
        if len(found) > 1:
            raise ambiguous(task_id, [one for one, _ in found])
        ((where, state),) = found
        keys, name = [where], where.name
        if state in (State.COMPLETED, State.ARCHIVED):
            kept = yield from _ask([_kept(where, task_id)], until, 0.0)
            ended = _ended(task_id, where.name, *kept[0], type_=type_)
            if ended is not None:
                return ended.value
        if monotonic() >= until:
            raise ResultTimeout(
                f"task {task_id!r} in queue {name!r} had not ended after {timeout_s:g} s: {state.label}",
                task_id=task_id,
                state=state,
            )
        pause_s = min(pause_s * _GROWTH, _MOST_S)


class _Value:
    """A result; None is one, too."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _ended(
    task_id: str, queue: str, state: State | None, raw: bytes | None, error: str, *, type_: Any
) -> _Value | None:
    """What a task has come to; None if it has been run again meanwhile."""
    if raw is None:
        raise _gone(task_id, queue, was_there=True)
    if state not in (State.COMPLETED, State.ARCHIVED):
        return None
    message: Message | None
    try:
        message = decode(raw)
    except MessageError:
        message = None
    if state is State.ARCHIVED:
        why = error or (message.last_err if message is not None else "")
        raise TaskFailed(f"task {task_id!r} in queue {queue!r} failed: {why}", task_id=task_id, error=why)
    if message is None:
        raise MessageError(f"task {task_id!r} in queue {queue!r}: its message cannot be read")
    return _Value(value_of(task_id, message.result, type_))


def value_of(task_id: str, result: bytes | None, type_: Any) -> Any:
    """A result as the caller wants it; `result` is its JSON. Raises MessageError."""
    raw = result or b"null"
    if type_ is None:
        return decode_args(raw)
    try:
        return _adapter(type_).validate_json(raw)
    except ValidationError as exc:
        problem = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'result'}: {e['msg']}" for e in exc.errors()[:3]
        )
        name = getattr(type_, "__name__", str(type_))
        raise MessageError(f"the result of task {task_id!r} is no {name}: {problem}") from None


@lru_cache(maxsize=256)
def _cached_adapter(type_: Any) -> TypeAdapter[Any]:
    return TypeAdapter(type_)


def _adapter(type_: Any) -> TypeAdapter[Any]:
    try:
        return _cached_adapter(type_)
    except TypeError:  # not hashable
        return TypeAdapter(type_)


def _gone(task_id: str, queue: str | None, *, was_there: bool) -> TaskNotFound:
    where = f"queue {queue!r}" if queue is not None else "any queue"
    if was_there:
        return TaskNotFound(
            f"task {task_id!r} has left {where} without a result: enqueue it with a retention to keep one"
        )
    return TaskNotFound(f"no task {task_id!r} in {where}: it is not known, or has ended and was not kept")


def _state(queue: QueueKeys, task_id: str) -> Command[State | None]:
    return plain("HGET", queue.task(task_id), Field.STATE, parse=lambda word: STATES.get(text(word)))


def _kept(queue: QueueKeys, task_id: str) -> Command[tuple[State | None, bytes | None, str]]:
    words = ("HMGET", queue.task(task_id), Field.STATE, Field.MSG, Field.ERROR)
    return plain(*words, parse=lambda found: (STATES.get(text(found[0])), found[1], text(found[2])))


def _queues(namespace: Namespace, until: float) -> Generator[Attempt, list[Any], list[QueueKeys]]:
    steps = queue_names(namespace)
    commands = next(steps)
    while True:
        try:
            commands = steps.send((yield from _ask(commands, until, 0.0)))
        except StopIteration as end:
            return [namespace.queue(name) for name in end.value if is_name(namespace, name)]


def _ask(commands: Sequence[Command[Any]], until: float, pause_s: float) -> Awaiting:
    """The results of commands; as long as there is time, they are asked for again where no answer came."""
    reconnect = False
    while True:
        left_s = until - monotonic()
        try:
            results = yield Attempt(
                list(commands), left_s if left_s > 0.1 else _ONE_LOOK_S, pause_s=pause_s, reconnect=reconnect
            )
            error = next((one for one in results if isinstance(one, BrokerError)), None)
            if error is None:
                return results
            raise error
        except BrokerUnavailable as exc:
            exc.maybe_enqueued = False
            pause_s, reconnect = _MOST_S, exc.trouble is Trouble.RECONNECT
            if monotonic() + pause_s >= until:
                raise
