"""Clients that keep what is enqueued to themselves, for tests of code that enqueues."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from chronosd.broker.cancel import Cancellation
from chronosd.broker.enqueue import Holder
from chronosd.broker.follow import GroupBegins, MemberDone, NextTask
from chronosd.broker.message import Message, decode
from chronosd.broker.payload import decode_args
from chronosd.broker.workflow import follow_ups
from chronosd.delivery import accepted
from chronosd.earlier import Earlier
from chronosd.errors import ResultTimeout, TaskFailed, TaskNotFound
from chronosd.handlers import Handler, Middleware, make_handler
from chronosd.kinds import Kind, declared
from chronosd.outcome import Outcome, Succeeded
from chronosd.rehearsal import attempt, attempt_async
from chronosd.results import value_of
from chronosd.states import State
from chronosd.submission import (
    DEFAULT_MAX_PAYLOAD,
    NO_ARGS,
    Draft,
    Drafter,
    EnqueueOptions,
    TaskInfo,
)
from chronosd.workflow_plan import ChainPlan, GroupPlan
from chronosd.workflows import Chain, ChainInfo, Group, GroupInfo

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


class _Recorder:
    """What both clients share: the real ones' checks, then a list in the place of Redis."""

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


class RecordingClient(_Recorder):
    """A `chronosd.Client` for tests: refuses what that would refuse, and keeps the rest in ``enqueued``.

    Args:
        inline: also run each task, delayed ones too, before ``enqueue`` returns. It is one attempt, without
            retries; its outcome is in the record, and ``task.client`` is this client.
        handlers: kind to handler, for ``inline``; kinds that are not in it are looked up among the
            functions declared with ``@KIND.handler``. Without either, LookupError.
        middleware: wrapped around them.
        namespace, max_payload: as for `chronosd.Client`.
    """

    @overload
    def enqueue(self, kind: Kind[T], args: T = ..., **options: Unpack[EnqueueOptions]) -> TaskInfo: ...
    @overload
    def enqueue(self, kind: str, args: Any = ..., **options: Unpack[EnqueueOptions]) -> TaskInfo: ...

    def enqueue(self, kind: Any, args: Any = NO_ARGS, **options: Unpack[EnqueueOptions]) -> TaskInfo:
        """Records a task. Arguments and errors as for `chronosd.Client.enqueue`."""
        draft = self._drafter.draft(kind, args, **options)
        self._run(self._take(draft, args, options))
        return accepted(draft)

    def enqueue_many(self, tasks: Iterable[Sequence[Any]]) -> list[TaskInfo]:
        """Records many tasks. Arguments and errors as for `chronosd.Client.enqueue_many`."""
        drafts: list[Draft] = []
        for record in list(self._take_many(tasks, drafts)):
            self._run(record)
        return [accepted(draft) for draft in drafts]

    def enqueue_chain(self, chain: Chain) -> ChainInfo:
        """Records a chain's first task; with ``inline``, each following one once the one before succeeded."""
        plan = ChainPlan(self._drafter, chain)
        record = self._keep_written(plan.draft.new.msg, plan.draft.state)
        self._run(record)
        return plan.accepted(plan.draft.accepted(record.state.label))

    def enqueue_group(self, group: Group) -> GroupInfo:
        """Records a group's members; with ``inline``, also the callback, if all of them succeeded."""
        plan = GroupPlan(self._drafter, group)
        for record in self._keep_group(plan):
            self._run(record)
        return plan.accepted()

    def _run(self, record: Recorded | None) -> None:
        if self._inline and record is not None:
            waiting = deque([record])
            while waiting:
                one = waiting.popleft()
                one.outcome = attempt(self._handler(one.kind), one.payload, self._fields(one))
                waiting += self._following(one)

    def cancel(self, task_id: str, queue: str | None = None, *, force: bool = False) -> Cancellation:
        """Takes a task out of ``enqueued`` that was not run. Raises TaskNotFound."""
        return self._cancel(task_id, queue)

    def result(
        self, task: str | TaskInfo, queue: str | None = None, *, type: Any = None, timeout: Any = None
    ) -> Any:
        """What the handler of a task that was run inline returned; errors as for `chronosd.Client.result`."""
        return self._result(task, queue, type)

    def close(self) -> None:
        """Does nothing: there is no connection."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncRecordingClient(_Recorder):
    """`RecordingClient` for code that uses `chronosd.AsyncClient`."""

    @overload
    async def enqueue(self, kind: Kind[T], args: T = ..., **options: Unpack[EnqueueOptions]) -> TaskInfo: ...
    @overload
    async def enqueue(self, kind: str, args: Any = ..., **options: Unpack[EnqueueOptions]) -> TaskInfo: ...

    async def enqueue(self, kind: Any, args: Any = NO_ARGS, **options: Unpack[EnqueueOptions]) -> TaskInfo:
        """Records a task. Arguments and errors as for `chronosd.AsyncClient.enqueue`."""
        draft = self._drafter.draft(kind, args, **options)
        await self._run(self._take(draft, args, options))
        return accepted(draft)

    async def enqueue_many(self, tasks: Iterable[Sequence[Any]]) -> list[TaskInfo]:
        """Records many tasks. Arguments and errors as for `chronosd.AsyncClient.enqueue_many`."""
        drafts: list[Draft] = []
        for record in list(self._take_many(tasks, drafts)):
            await self._run(record)
        return [accepted(draft) for draft in drafts]

    async def enqueue_chain(self, chain: Chain) -> ChainInfo:
        """Records a chain; as `RecordingClient.enqueue_chain`."""
        plan = ChainPlan(self._drafter, chain)
        record = self._keep_written(plan.draft.new.msg, plan.draft.state)
        await self._run(record)
        return plan.accepted(plan.draft.accepted(record.state.label))

    async def enqueue_group(self, group: Group) -> GroupInfo:
        """Records a group; as `RecordingClient.enqueue_group`."""
        plan = GroupPlan(self._drafter, group)
        for record in self._keep_group(plan):
            await self._run(record)
        return plan.accepted()

    async def _run(self, record: Recorded | None) -> None:
        if self._inline and record is not None:
            waiting = deque([record])
            while waiting:
                one = waiting.popleft()
                one.outcome = await attempt_async(self._handler(one.kind), one.payload, self._fields(one))
                waiting += self._following(one)

    async def cancel(self, task_id: str, queue: str | None = None, *, force: bool = False) -> Cancellation:
        """Takes a task out of ``enqueued``; as `RecordingClient.cancel`."""
        return self._cancel(task_id, queue)

    async def result(
        self, task: str | TaskInfo, queue: str | None = None, *, type: Any = None, timeout: Any = None
    ) -> Any:
        """What a handler returned; as `RecordingClient.result`."""
        return self._result(task, queue, type)

    async def aclose(self) -> None:
        """Does nothing: there is no connection."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
