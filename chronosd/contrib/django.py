"""Django: enqueue when the transaction has committed, and clean connections around handlers.

In chronos.yaml::

    setup: chronosd.contrib.django:setup  # django.setup
    middleware:
      - chronosd.contrib.django:close_connections  # around sync handlers
      - chronosd.contrib.django:close_connections_async  # around async ones

with DJANGO_SETTINGS_MODULE in the daemon's environment. In a view::

    with transaction.atomic():
        user = User.objects.create(...)
        enqueue_on_commit(client, "email:welcome", {"user_id": user.pk})

Enqueued inside the transaction instead, the task may start before the row can be seen, or although the
transaction was rolled back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar, Unpack, overload

from asgiref.sync import sync_to_async
from django import setup
from django.db import close_old_connections, transaction

from chronosd.broker.payload import encode_args
from chronosd.client import Client
from chronosd.enqueue_options import EnqueueOptions
from chronosd.kinds import Kind
from chronosd.recording import RecordingClient
from chronosd.submission import NO_ARGS
from chronosd.task import Task

__all__ = ["close_connections", "close_connections_async", "enqueue_on_commit", "setup"]

T = TypeVar("T")
R = TypeVar("R")


@overload
def enqueue_on_commit(
    client: Client | RecordingClient,
    kind: Kind[T],
    args: T = ...,
    *,
    using: str | None = None,
    **options: Unpack[EnqueueOptions],
) -> None: ...
@overload
def enqueue_on_commit(
    client: Client | RecordingClient,
    kind: str,
    args: Any = ...,
    *,
    using: str | None = None,
    **options: Unpack[EnqueueOptions],
) -> None: ...


def enqueue_on_commit(
    client: Client | RecordingClient,
    kind: Any,
    args: Any = NO_ARGS,
    *,
    using: str | None = None,
    **options: Unpack[EnqueueOptions],
) -> None:
    """Enqueues once the current transaction has committed; not at all if it is rolled back.

    Without a transaction it enqueues at once. There is a gap that only an outbox table closes: if the
    process dies or Redis is away just after the commit, the task is not enqueued.

    Args:
        client: a `chronosd.Client`.
        kind, args, options: as for its ``enqueue``. ``args`` are read when the transaction commits.
        using: the database alias whose transaction counts; the default one by default.

    Raises:
        InvalidTask: the arguments cannot be encoded; raised here, while there is something to roll back.
        BrokerError: from the commit, where Redis did not take the task; the transaction has committed.
    """
    if args is not NO_ARGS:
        encode_args(args)
    transaction.on_commit(partial(client.enqueue, kind, args, **options), using=using)


def close_connections(task: Task[Any], call_next: Callable[[Task[Any]], R]) -> R:
    """Middleware for sync handlers: does for each task what Django does for each request.

    A connection is opened per thread; one that the server has dropped in the meantime, or that is older than
    CONN_MAX_AGE, is closed before and after, so that no task meets it.
    """
    close_old_connections()
    try:
        return call_next(task)
    finally:
        close_old_connections()


async def close_connections_async(task: Task[Any], call_next: Callable[[Task[Any]], Awaitable[R]]) -> R:
    """The same for async handlers, whose queries run in one thread beside the event loop, Django's own.

    All async tasks of a worker share its connections; one that has a transaction open is left alone.
    """
    await _close_old()
    try:
        return await call_next(task)
    finally:
        await _close_old()


_close_old = sync_to_async(close_old_connections)
