"""Clients that keep what is enqueued to themselves, for tests of code that enqueues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from chronosd.broker.enqueue import Holder
from chronosd.broker.message import decode
from chronosd.delivery import accepted
from chronosd.handlers import Handler, Middleware, make_handler
from chronosd.kinds import Kind, declared
from chronosd.outcome import Outcome
from chronosd.rehearsal import attempt, attempt_async
from chronosd.states import State
from chronosd.submission import (
    DEFAULT_MAX_PAYLOAD,
    NO_ARGS,
    Draft,
    Drafter,
    EnqueueOptions,
    TaskInfo,
)

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
        record = Recorded(
            id=message.id,
            kind=message.kind,
            queue=message.queue,
            args={} if args is NO_ARGS else args,
            payload=message.payload,
            state=draft.state,
            max_retry=message.max_retry,
            retention=message.retention,
            delay=options.get("delay"),
            at=options.get("at"),
            discard=message.no_archive,
            unique_key=message.unique_key,
        )
        self.enqueued.append(record)
        return record

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

    def _fields(self, record: Recorded) -> dict[str, Any]:
        return {
            "id": record.id,
            "kind": record.kind,
            "queue": record.queue,
            "max_retry": record.max_retry,
            "client": self,
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

    def _run(self, record: Recorded | None) -> None:
        if self._inline and record is not None:
            handler = self._handler(record.kind)
            record.outcome = attempt(handler, record.payload, self._fields(record))

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

    async def _run(self, record: Recorded | None) -> None:
        if self._inline and record is not None:
            handler = self._handler(record.kind)
            record.outcome = await attempt_async(handler, record.payload, self._fields(record))

    async def aclose(self) -> None:
        """Does nothing: there is no connection."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
