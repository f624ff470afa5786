"""Clients that keep what is enqueued to themselves, for tests of code that enqueues."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from chronosd.broker.cancel import Cancellation
from chronosd.delivery import accepted
from chronosd.enqueue_options import EnqueueOptions
from chronosd.kinds import Kind
from chronosd.recorder import Recorded, Recorder
from chronosd.rehearsal import attempt, attempt_async
from chronosd.submission import (
    NO_ARGS,
    Draft,
    TaskInfo,
)
from chronosd.workflow_plan import ChainPlan, GroupPlan
from chronosd.workflows import Chain, ChainInfo, Group, GroupInfo

__all__ = ["AsyncRecordingClient", "Recorded", "RecordingClient"]

T = TypeVar("T")


class RecordingClient(Recorder):
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


class AsyncRecordingClient(Recorder):
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
