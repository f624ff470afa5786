"""The client for coroutines: concurrent calls share round trips."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from chronosd.broker.cancel import Cancellation
from chronosd.broker.cancelling import cancel_anywhere
from chronosd.broker.commands import Steps
from chronosd.broker.runner import AsyncRunner
from chronosd.client_settings import ClientSettings, settings, settings_of_file
from chronosd.delivery import Attempt, Bulk, accepted, batched, delivery, retold
from chronosd.errors import BrokerUnavailable
from chronosd.group_delivery import group_delivery
from chronosd.kinds import Kind
from chronosd.results import awaited
from chronosd.submission import (
    DEFAULT_MAX_PAYLOAD,
    DEFAULT_TIMEOUT_S,
    NO_ARGS,
    Draft,
    EnqueueOptions,
    TaskInfo,
    duration,
)
from chronosd.workflow_plan import ChainPlan, GroupPlan
from chronosd.workflows import Chain, ChainInfo, Group, GroupInfo

T = TypeVar("T")
R = TypeVar("R")

_AHEAD = 4  # batches of an enqueue_many call that are under way at a time
_SHARED = 2000  # the most calls that share a round trip


class AsyncClient:
    """Enqueues tasks from coroutines. Calls that overlap share round trips.

    It may be made at import time and used in one event loop after another: every loop has its own
    connection, made when it is first used and closed with the client or with the loop.

    Args: as for `chronosd.Client`.

    Raises:
        ConfigError: no URL, or one of an unknown form.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = "chronos",
        password: str | None = None,
        timeout: str | float | timedelta = DEFAULT_TIMEOUT_S,
        max_payload: int | str = DEFAULT_MAX_PAYLOAD,
    ) -> None:
        self._use(
            settings(url, namespace=namespace, password=password, timeout=timeout, max_payload=max_payload)
        )

    @classmethod
    def from_config(cls, path: str | Path, *, timeout: str | float | timedelta = DEFAULT_TIMEOUT_S) -> Self:
        """A client for the server, namespace and ``max_payload`` of a chronos.yaml. Raises ConfigError."""
        client = cls.__new__(cls)
        client._use(settings_of_file(path, timeout))
        return client

    def _use(self, given: ClientSettings) -> None:
        self._settings = given
        self._drafter = given.drafter
        self._outboxes: dict[asyncio.AbstractEventLoop, _Outbox] = {}

    @property
    def namespace(self) -> str:
        """The prefix of all keys."""
        return self._drafter.namespace.prefix

    @overload
    async def enqueue(self, kind: Kind[T], args: T = ..., **options: Unpack[EnqueueOptions]) -> TaskInfo: ...
    @overload
    async def enqueue(self, kind: str, args: Any = ..., **options: Unpack[EnqueueOptions]) -> TaskInfo: ...

    async def enqueue(self, kind: Any, args: Any = NO_ARGS, **options: Unpack[EnqueueOptions]) -> TaskInfo:
        """Stores a task and returns once the server has it; arguments, errors as `chronosd.Client.enqueue`.

        A call that is cancelled may have stored its task.
        """
        draft = self._drafter.draft(kind, args, **options)
        await (await self._outbox()).send(draft)
        return accepted(draft)

    async def enqueue_many(self, tasks: Iterable[Sequence[Any]]) -> list[TaskInfo]:
        """Stores many tasks in few round trips; as `chronosd.Client.enqueue_many`."""
        bulk = Bulk(self._drafter, tasks)
        outbox = await self._outbox()
        under_way: set[asyncio.Task[None]] = set()

        async def deliver(batch: list[Draft]) -> None:
            try:
                await outbox.deliver([batch], in_doubt=bulk.started)
            except BrokerUnavailable as exc:
                bulk.fail(exc)
            else:
                bulk.note(batch)

        try:
            for batch in bulk.batches():
                task = asyncio.create_task(deliver(batch))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
                await asyncio.sleep(0)  # it is on its way while the next one is written
                while len(under_way) >= _AHEAD:
                    await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            if under_way:
                await asyncio.wait(under_way)
        finally:
            for task in under_way:
                task.cancel()
        return bulk.result()

    async def cancel(self, task_id: str, queue: str | None = None, *, force: bool = False) -> Cancellation:
        """Cancels a task; as `chronosd.Client.cancel`."""
        namespace = self._drafter.namespace
        keys = None if queue is None else namespace.queue(queue)
        outbox = await self._outbox()
        return (await outbox.drive(cancel_anywhere(namespace, task_id, keys, force=force)))[1]

    async def enqueue_chain(self, chain: Chain) -> ChainInfo:
        """Stores a chain; as `chronosd.Client.enqueue_chain`."""
        plan = ChainPlan(self._drafter, chain)
        await (await self._outbox()).send(plan.draft)
        return plan.accepted(accepted(plan.draft))

    async def enqueue_group(self, group: Group) -> GroupInfo:
        """Stores a group; as `chronosd.Client.enqueue_group`."""
        steps = group_delivery(GroupPlan(self._drafter, group), self._settings.timeout_s)
        return await (await self._outbox()).carry_out(steps)

    @overload
    async def result(
        self,
        task: str | TaskInfo,
        queue: str | None = None,
        *,
        type: type[T],
        timeout: str | float | timedelta | None = None,
    ) -> T: ...
    @overload
    async def result(
        self,
        task: str | TaskInfo,
        queue: str | None = None,
        *,
        type: None = None,
        timeout: str | float | timedelta | None = None,
    ) -> Any: ...

    async def result(
        self,
        task: str | TaskInfo,
        queue: str | None = None,
        *,
        type: Any = None,
        timeout: str | float | timedelta | None = None,
    ) -> Any:
        """What a task's handler returned; as `chronosd.Client.result`."""
        timeout_s = self._settings.timeout_s if timeout is None else duration("timeout", timeout)
        steps = awaited(self._drafter.namespace, task, queue, timeout_s, type)
        return await (await self._outbox()).carry_out(steps)

    async def aclose(self) -> None:
        """Waits for what is under way in this event loop and closes its connection; usable again after."""
        outbox = self._outboxes.pop(asyncio.get_running_loop(), None)
        if outbox is not None:
            await outbox.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"AsyncClient(namespace={self.namespace!r})"

    async def _outbox(self) -> _Outbox:
        loop = asyncio.get_running_loop()
        outbox = self._outboxes.get(loop)
        if outbox is None or outbox.pid != os.getpid():
            for other in list(self._outboxes):  # a copy: other threads have loops of their own
                if other.is_closed():
                    self._outboxes.pop(other, None)
            outbox = self._outboxes[loop] = _Outbox(self._settings)
            await outbox.open()
        return outbox


class _Waiting:
    """A call that waits for its draft's reply."""

    __slots__ = ("draft", "future", "patient_until", "sent")

    def __init__(self, draft: Draft, future: asyncio.Future[None], patient_until: float) -> None:
        self.draft = draft
        self.future = future
        self.patient_until = patient_until
        self.sent = False

    def fail(self, error: BrokerUnavailable) -> None:
        if not self.future.done():
            self.future.set_exception(retold(error))


class _Outbox:
    """One event loop's connection, and what waits to be sent over it.

    While a round trip is under way new calls gather; the next one takes all of them. No timer is needed,
    and a lone call waits for nobody.
    """

    def __init__(self, given: ClientSettings) -> None:
        self.pid = os.getpid()
        self._timeout_s = given.timeout_s
        self._namespace = given.drafter.namespace
        self._runner = AsyncRunner(
            given.url, given.password, timeout_s=given.timeout_s, client_name="chronosd-client"
        )
        self._waiting: list[_Waiting] = []
        self._line: deque[_Waiting] = deque()  # oldest first, for the timer
        self._timer: asyncio.Handle | None = None  # one for all: they time out as they came
        self._alive_at = float("-inf")
        self._flusher: asyncio.Task[None] | None = None
        self._lifetime = self._until_the_loop_ends()

    async def open(self) -> None:
        await anext(self._lifetime)

    async def aclose(self) -> None:
        if self._flusher is not None:
            await asyncio.wait([self._flusher])
        await self._lifetime.aclose()

    async def send(self, draft: Draft) -> None:
        """Returns once the draft has its reply. Raises BrokerUnavailable after the timeout."""
        loop, line = asyncio.get_running_loop(), self._line
        waiting = _Waiting(draft, loop.create_future(), loop.time() + self._timeout_s)
        self._waiting.append(waiting)
        if self._flusher is None:
            self._flusher = loop.create_task(self._flush())
        while line and line[0].future.done():
            line.popleft()
        line.append(waiting)
        if self._timer is None:
            self._timer = loop.call_at(waiting.patient_until, self._due)
        await waiting.future

    def _due(self) -> None:
        # in a loop that was blocked for longer, the flusher may be ready to run and have its turn behind us
        self._timer = asyncio.get_running_loop().call_soon(self._expire)

    def _expire(self) -> None:
        # Behind ten thousand others, or in a loop that was blocked, a call may wait longer with nothing
        # wrong: what ends it is a server that has answered nobody for as long as the timeout.
        loop, line = asyncio.get_running_loop(), self._line
        self._timer = None
        limit = self._alive_at + self._timeout_s
        while line:
            call = line[0]
            if not call.future.done():
                at = max(call.patient_until, limit)
                if loop.time() < at:
                    self._timer = loop.call_at(at, self._due)
                    return
                call.fail(BrokerUnavailable("timed out", maybe_enqueued=call.sent))
            line.popleft()

    async def drive(self, steps: Steps[T]) -> T:
        """Runs a procedure. Raises BrokerError."""
        return await self._runner.drive(steps)

    async def deliver(self, batches: Sequence[Sequence[Draft]], *, in_doubt: bool = False) -> None:
        """Sends batches; every draft has its reply afterwards. Raises BrokerUnavailable."""
        until = time.monotonic() + self._timeout_s
        await self.carry_out(delivery(batches, self._namespace, until, in_doubt=in_doubt))

    async def carry_out(self, steps: Generator[Attempt, list[Any], R]) -> R:
        """Makes the attempts of a delivery; returns what it returns."""
        try:
            attempt = next(steps)
            while True:
                if attempt.pause_s:
                    await asyncio.sleep(attempt.pause_s)
                if attempt.reconnect:
                    await self._runner.aclose()
                try:
                    results = await self._runner.run_many(attempt.commands, timeout_s=attempt.timeout_s)
                except BrokerUnavailable as exc:
                    attempt = steps.throw(exc)
                else:
                    attempt = steps.send(results)
        except StopIteration as end:
            made: R = end.value
            return made

    async def _flush(self) -> None:
        self._alive_at = asyncio.get_running_loop().time()
        try:
            while self._waiting:
                # who has given up meanwhile (cancelled, timed out) is not sent at all
                calls = [call for call in self._waiting if not call.future.done()]
                self._waiting.clear()
                for start in range(0, len(calls), _SHARED):
                    await self._flush_calls(calls[start : start + _SHARED])
        finally:
            self._flusher = None

    async def _flush_calls(self, calls: list[_Waiting]) -> None:
        for call in calls:
            call.sent = True
        try:
            await self.deliver(list(batched(call.draft for call in calls)))
        except BrokerUnavailable as exc:
            for call in calls:
                call.fail(exc)
        except BaseException as exc:
            # the loop ends, or a fault of ours: nobody may be left waiting
            for call in calls:
                if isinstance(exc, asyncio.CancelledError):
                    call.future.cancel()
                elif not call.future.done():
                    call.future.set_exception(exc)
            raise
        self._alive_at = asyncio.get_running_loop().time()
        for call in calls:
            if not call.future.done():
                call.future.set_result(None)

    async def _until_the_loop_ends(self) -> AsyncGenerator[None, None]:
        """Suspended until closed: by `aclose`, or by ``asyncio.run``, which ends with closing generators."""
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            await self._runner.aclose()
