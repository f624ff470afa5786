"""The client for coroutines: concurrent calls share round trips."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from chronosd.broker.cancel import Cancellation
from chronosd.broker.cancelling import cancel_anywhere
from chronosd.client_settings import ClientSettings, settings, settings_of_file
from chronosd.delivery import Bulk, accepted
from chronosd.enqueue_options import EnqueueOptions, duration
from chronosd.errors import BrokerUnavailable
from chronosd.group_delivery import group_delivery
from chronosd.kinds import Kind
from chronosd.outbox import Outbox
from chronosd.results import awaited
from chronosd.submission import (
    DEFAULT_MAX_PAYLOAD,
    DEFAULT_TIMEOUT_S,
    NO_ARGS,
    Draft,
    TaskInfo,
)
from chronosd.workflow_plan import ChainPlan, GroupPlan
from chronosd.workflows import Chain, ChainInfo, Group, GroupInfo

T = TypeVar("T")

_AHEAD = 4  # batches of an enqueue_many call that are under way at a time


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
        self._outboxes: dict[asyncio.AbstractEventLoop, Outbox] = {}

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

    async def _outbox(self) -> Outbox:
        loop = asyncio.get_running_loop()
        outbox = self._outboxes.get(loop)
        if outbox is None or outbox.pid != os.getpid():
            for other in list(self._outboxes):  # a copy: other threads have loops of their own
                if other.is_closed():
                    self._outboxes.pop(other, None)
            outbox = self._outboxes[loop] = Outbox(self._settings)
            await outbox.open()
        return outbox
