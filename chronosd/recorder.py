"""What recording clients keep: the tasks that were enqueued, and what follows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from chronosd.broker.cancel import Cancellation
from chronosd.broker.enqueue import Holder
from chronosd.broker.follow import GroupBegins, MemberDone, NextTask
from chronosd.broker.message import Message, decode
from chronosd.broker.payload import decode_args
from chronosd.broker.workflow import follow_ups
from chronosd.earlier import Earlier
from chronosd.errors import ResultTimeout, TaskFailed, TaskNotFound
from chronosd.handlers import Handler, Middleware, make_handler
from chronosd.kinds import declared
from chronosd.outcome import Outcome, Succeeded
from chronosd.results import value_of
from chronosd.states import State
from chronosd.submission import (
    DEFAULT_MAX_PAYLOAD,
    NO_ARGS,
    Draft,
    Drafter,
    TaskInfo,
)
from chronosd.workflow_plan import GroupPlan

T = TypeVar("T")


@dataclass(slots=True)
class Recorded:
    """One enqueued task."""

    id: str
    kind: str
    queue: str
    args: Any
    """As they were given."""
    payload: bytes
    """As they would have been stored."""
    state: State
    """PENDING, or SCHEDULED where it was given a delay or a time."""
    max_retry: int
    retention: int
    """Seconds."""
    delay: str | float | timedelta | None
    at: datetime | float | None
    discard: bool
    unique_key: str = ""
    """The key of its unique lock; empty for none."""
    outcome: Outcome | None = None
    """How its one attempt ended, where the client runs tasks inline."""


class Members:
    """The open members of one group and their results, as Redis keeps them."""

    def __init__(self, slots: Sequence[str]) -> None:
        self._open = set(slots)
        self._results: dict[int, bytes] = {}

    def report(self, done: MemberDone) -> list[NextTask]:
        """A member has succeeded; returns the callback if it was the last one."""
        if done.slot not in self._open:
            return []
        self._open.remove(done.slot)
        if done.result:
            self._results[done.index] = done.result
        if self._open:
            return []
        msg = done.head
        if self._results:
            each = [self._results.get(index) for index in range(done.size)]
            texts = [b"null" if one is None else b'"' + one + b'"' for one in each]
            msg += b'"group_results":[' + b",".join(texts) + b"],"
        return [NextTask(done.callback, msg + done.tail)]


class Recorder:
    """What both recording clients share: the real ones' checks, then a list in the place of Redis."""

    def __init__(
        self,
        *,
        inline: bool = False,
        handlers: Mapping[str, Callable[..., Any]] | None = None,
        middleware: Sequence[Middleware] = (),
        namespace: str = "chronos",
        max_payload: int | str = DEFAULT_MAX_PAYLOAD,
    ) -> None:
        self.enqueued: list[Recorded] = []
        """Every task so far, oldest first."""
        self._inline = inline
        self._handlers = dict(handlers or {})
        self._middleware = middleware
        self._drafter = Drafter(namespace, max_payload)
        self._in_workflows: dict[tuple[str, str], Message] = {}
        self._open: dict[str, Members] = {}

    @property
    def namespace(self) -> str:
        """The prefix that the keys would have."""
        return self._drafter.namespace.prefix

    def _take(self, draft: Draft, args: Any, options: Mapping[str, Any]) -> Recorded | None:
        """Keeps a task; None where its id is taken, and then the draft says so."""
        message = decode(draft.new.msg)
        taken = (
            one.outcome is None and one.id == message.id and one.queue == message.queue
            for one in self.enqueued
        )
        if any(taken):
            draft.reply = "conflict"
            return None
        if message.unique_key:
            for one in self.enqueued:
                if one.outcome is None and one.unique_key == message.unique_key:
                    draft.reply = Holder(one.id, one.state)
                    return None
        draft.reply = draft.state.label
        return self._keep(message, draft.state, {} if args is NO_ARGS else args, options)

    def _keep(self, message: Message, state: State, args: Any, options: Mapping[str, Any]) -> Recorded:
        record = Recorded(
            id=message.id,
            kind=message.kind,
            queue=message.queue,
            args=args,
            payload=message.payload,
            state=state,
            max_retry=message.max_retry,
            retention=message.retention,
            delay=options.get("delay"),
            at=options.get("at"),
            discard=message.no_archive,
            unique_key=message.unique_key,
        )
        self.enqueued.append(record)
        if message.workflow:
            self._in_workflows[message.queue, message.id] = message
        return record

    def _keep_written(self, msg: bytes, state: State, delay_s: float | None = None) -> Recorded:
        """Keeps a task of a chain or group; its arguments are what is left of them in writing."""
        message = decode(msg)
        return self._keep(message, state, decode_args(message.payload), {"delay": delay_s})

    def _keep_group(self, plan: GroupPlan) -> list[Recorded]:
        self._open[plan.members_key] = Members([member.slot for member in plan.members])
        return [self._keep_written(draft.new.msg, draft.state) for draft in plan.drafts]

    def _following(self, record: Recorded) -> list[Recorded]:
        """What follows a task of a chain or group that has run, kept."""
        message = self._in_workflows.get((record.queue, record.id))
        if message is None or not isinstance(record.outcome, Succeeded):
            return []
        found: list[NextTask] = []
        for follow in follow_ups(self._drafter.namespace, message, record.outcome.result):
            if isinstance(follow, NextTask):
                found.append(follow)
            elif isinstance(follow, GroupBegins):
                self._open[follow.members] = Members([task.place.task_id for task in follow.tasks])
                found += follow.tasks
            elif isinstance(follow, MemberDone):
                found += self._open[follow.members].report(follow)
        return [
            self._keep_written(task.msg, State.SCHEDULED if delay_s else State.PENDING, delay_s)
            for task in found
            for delay_s in [task.place.delay_ms / 1000 or None]
        ]

    def _take_many(self, tasks: Iterable[Sequence[Any]], drafts: list[Draft]) -> Iterator[Recorded]:
        given = list(tasks)
        drafts += self._drafter.drafts(given)
        for draft, task in zip(drafts, given, strict=True):
            args = task[1] if len(task) > 1 else NO_ARGS
            record = self._take(draft, args, task[2] if len(task) > 2 else {})
            if record is not None:
                yield record

    def _handler(self, kind: str) -> Handler:
        func, declared_type = self._handlers.get(kind), Any
        if func is None:
            declaration = declared(kind)
            if declaration is None:
                raise LookupError(f"no handler for kind {kind!r}: pass handlers={{{kind!r}: ...}}")
            func, declared_type = declaration.func, declaration.kind.args_type
        return make_handler(kind, func, middleware=self._middleware, declared_type=declared_type)

    def _find(self, task_id: str, queue: str | None) -> Recorded:
        for one in reversed(self.enqueued):
            if one.id == task_id and queue in (None, one.queue):
                return one
        raise TaskNotFound(f"no task {task_id!r} was enqueued")

    def _cancel(self, task_id: str, queue: str | None) -> Cancellation:
        found = self._find(task_id, queue)
        if found.outcome is not None:
            return Cancellation.ENDED
        self.enqueued.remove(found)
        return Cancellation.REMOVED

    def _result(self, task: str | TaskInfo, queue: str | None, type_: Any) -> Any:
        task_id = task.id if isinstance(task, TaskInfo) else task
        one = self._find(task_id, queue)
        match one.outcome:
            case None:
                raise ResultTimeout(f"task {task_id!r} was not run", task_id=task_id, state=one.state)
            case Succeeded(result) if one.retention:
                return value_of(task_id, result, type_)
            case Succeeded():
                raise TaskNotFound(f"task {task_id!r} was not kept: enqueue it with a retention")
            case failure:
                error = failure.error
                raise TaskFailed(f"task {task_id!r} failed: {error}", task_id=task_id, error=error)

    def _fields(self, record: Recorded) -> dict[str, Any]:
        message = self._in_workflows.get((record.queue, record.id))
        return {
            "id": record.id,
            "kind": record.kind,
            "queue": record.queue,
            "max_retry": record.max_retry,
            "client": self,
            "earlier": Earlier(message.workflow) if message else None,
        }
