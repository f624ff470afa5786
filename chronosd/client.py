"""The client for synchronous callers; the asynchronous one is its twin in ``client_async``."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from chronosd.broker.cancel import Cancellation
from chronosd.broker.cancelling import cancel_anywhere
from chronosd.broker.commands import Command
from chronosd.broker.enqueue import register_queues
from chronosd.broker.runner import SyncRunner
from chronosd.client_async import AsyncClient
from chronosd.client_settings import ClientSettings, settings, settings_of_file
from chronosd.delivery import Attempt, Bulk, accepted, delivery, storing
from chronosd.enqueue_options import EnqueueOptions, duration
from chronosd.errors import BrokerError, BrokerUnavailable
from chronosd.group_delivery import group_delivery
from chronosd.kinds import Kind
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

__all__ = ["AsyncClient", "Cancellation", "Client", "TaskInfo"]

T = TypeVar("T")
R = TypeVar("R")


class Client:
    """Enqueues tasks. Usable from any thread and after a fork; connects when it is first used.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://`` or ``embedded://``; default: $CHRONOSD_REDIS_URL.
        namespace: the prefix of all keys; the same as the daemon's.
        password: used where the URL has none.
        timeout: the most that one call may take, connecting and resending included.
        max_payload: the most bytes of encoded arguments.

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
        self._drafter = given.drafter
        self._timeout_s = given.timeout_s
        self._runner = SyncRunner(
            given.url, given.password, timeout_s=given.timeout_s, client_name="chronosd-client"
        )

    @property
    def namespace(self) -> str:
        """The prefix of all keys."""
        return self._drafter.namespace.prefix

    @overload
    def enqueue(self, kind: Kind[T], args: T = ..., **options: Unpack[EnqueueOptions]) -> TaskInfo: ...
    @overload
    def enqueue(self, kind: str, args: Any = ..., **options: Unpack[EnqueueOptions]) -> TaskInfo: ...

    def enqueue(self, kind: Any, args: Any = NO_ARGS, **options: Unpack[EnqueueOptions]) -> TaskInfo:
        """Stores a task and returns once the server has it.

        Args:
            kind: what it is: a name, or a `Kind`.
            args: what its handler is given: anything pydantic can serialise; ``{}`` by default.
            **options: see `EnqueueOptions`.

        Raises:
            InvalidTask: something about it cannot be stored as it is; nothing was sent.
            PayloadTooLarge: the arguments are longer than ``max_payload``; nothing was sent.
            TaskIdConflict: ``task_id`` is in use; nothing was changed.
            DuplicateTask: ``unique`` was asked for and another such task has not ended; nothing was changed.
            BrokerUnavailable: no answer in time; ``maybe_enqueued`` says whether it may be stored anyway.
            BrokerRefused: the server refused it; an operator has to act.
        """
        draft = self._drafter.draft(kind, args, **options)
        self._deliver([[draft]])
        return accepted(draft)

    def enqueue_many(self, tasks: Iterable[Sequence[Any]]) -> list[TaskInfo]:
        """Stores many tasks in few round trips; ``timeout`` bounds each of them.

        Args:
            tasks: tuples ``(kind, args)`` or ``(kind, args, {option: value})``.

        Returns one `TaskInfo` per task, in order.

        Raises: as `enqueue`. The first 5000 tasks are checked before anything is sent, later ones while
        earlier ones are under way. It is not one transaction: the error's message says how many tasks were
        stored. A conflict or a duplicate does not keep the others out.
        """
        bulk = Bulk(self._drafter, tasks)
        batches = bulk.batches()
        for batch in batches:
            self._settle(bulk, batch)  # connects, and makes sure that the server has the script
            break
        unanswered: deque[list[Draft]] = deque()
        queues: set[str] = set()

        def requests() -> Iterator[Command[Any]]:
            for batch in batches:
                queue = batch[0].queue
                unanswered.append(batch)
                if queue.name not in queues:
                    self._runner.run(register_queues(self._drafter.namespace, [queue.name]))
                    queues.add(queue.name)
                yield storing(batch)

        while True:
            try:
                for result in self._runner.stream(requests()):
                    batch = unanswered.popleft()
                    if isinstance(result, BrokerError):
                        self._settle(bulk, batch)
                    else:
                        for draft, word in zip(batch, result, strict=True):
                            draft.reply = word
                        bulk.note(batch)
                break
            except BrokerError as exc:
                in_doubt = isinstance(exc, BrokerUnavailable) and exc.maybe_enqueued
                while unanswered and not bulk.failed:
                    self._settle(bulk, unanswered.popleft(), in_doubt=in_doubt)
                unanswered.clear()
        return bulk.result()

    def _settle(self, bulk: Bulk, batch: list[Draft], *, in_doubt: bool = False) -> None:
        try:
            self._deliver([batch], in_doubt=in_doubt or bulk.started)
        except BrokerUnavailable as exc:
            bulk.fail(exc)
        else:
            bulk.note(batch)

    def cancel(self, task_id: str, queue: str | None = None, *, force: bool = False) -> Cancellation:
        """Cancels a task: one that waits is deleted, one that runs is told to end and does not run again.

        An async handler is cancelled within about a second. A sync one cannot be: it runs on, and a success
        of it counts; with ``force`` its worker is killed, whose other tasks go back uncharged. A task that
        was cancelled while it ran is archived with the error ``cancelled``.

        Args:
            queue: where it is; without it, all queues are looked through.

        Returns what was found and done. Raises TaskNotFound, BrokerUnavailable, BrokerRefused.
        """
        namespace = self._drafter.namespace
        keys = None if queue is None else namespace.queue(queue)
        return self._runner.drive(cancel_anywhere(namespace, task_id, keys, force=force))[1]

    def enqueue_chain(self, chain: Chain) -> ChainInfo:
        """Stores a chain: its first task, which carries the others. Errors as `enqueue`."""
        plan = ChainPlan(self._drafter, chain)
        self._deliver([[plan.draft]])
        return plan.accepted(accepted(plan.draft))

    def enqueue_group(self, group: Group) -> GroupInfo:
        """Stores a group, all of its members at once or, if it fails, none. Errors as `enqueue`.

        A group of more than 500 members, or 4 MiB, takes several requests, and ``timeout`` bounds each.
        """
        return self._drive(group_delivery(GroupPlan(self._drafter, group), self._timeout_s))

    @overload
    def result(
        self,
        task: str | TaskInfo,
        queue: str | None = None,
        *,
        type: type[T],
        timeout: str | float | timedelta | None = None,
    ) -> T: ...
    @overload
    def result(
        self,
        task: str | TaskInfo,
        queue: str | None = None,
        *,
        type: None = None,
        timeout: str | float | timedelta | None = None,
    ) -> Any: ...

    def result(
        self,
        task: str | TaskInfo,
        queue: str | None = None,
        *,
        type: Any = None,
        timeout: str | float | timedelta | None = None,
    ) -> Any:
        """What a task's handler returned, once it has ended. It has to be enqueued with a ``retention``.

        Args:
            task: its id, or what ``enqueue`` returned.
            queue: where it is; without it, that of the `TaskInfo`, else all queues are looked through.
            type: what the result is validated as; by default it is the decoded JSON.
            timeout: how long to wait for the end; by default the client's own, 0 is one look.

        Raises:
            TaskNotFound: no such task, or it has ended and was not kept.
            TaskFailed: it is dead-lettered; ``error`` says why.
            ResultTimeout: it has not ended.
            MessageError: the result is none of that type.
            BrokerUnavailable, BrokerRefused: the server could not be asked.
        """
        timeout_s = self._timeout_s if timeout is None else duration("timeout", timeout)
        return self._drive(awaited(self._drafter.namespace, task, queue, timeout_s, type))

    def close(self) -> None:
        """Closes the connections; the client can be used again."""
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self._runner.target.label!r}, namespace={self.namespace!r})"

    def _deliver(self, batches: Sequence[Sequence[Draft]], *, in_doubt: bool = False) -> None:
        until = time.monotonic() + self._timeout_s
        self._drive(delivery(batches, self._drafter.namespace, until, in_doubt=in_doubt))

    def _drive(self, steps: Generator[Attempt, list[Any], R]) -> R:
        try:
            attempt = next(steps)
            while True:
                if attempt.pause_s:
                    time.sleep(attempt.pause_s)
                if attempt.reconnect:
                    self._runner.close()
                try:
                    results = self._runner.run_many(attempt.commands, timeout_s=attempt.timeout_s)
                except BrokerUnavailable as exc:
                    attempt = steps.throw(exc)
                else:
                    attempt = steps.send(results)
        except StopIteration as end:
            made: R = end.value
            return made
