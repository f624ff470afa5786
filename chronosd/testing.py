"""For tests of applications: tasks without a queue, a client that only records, a server of one's own.

::

    from chronosd.testing import RecordingClient, Succeeded, run

    def test_welcome_mails_the_user():
        assert run(welcome, Welcome(user_id=1)) == Succeeded()

    def test_signing_up_enqueues_a_welcome():
        client = RecordingClient()
        sign_up("a@b.c", client)
        assert [task.kind for task in client.enqueued] == ["email:welcome"]

    def test_end_to_end(chronosd_server):  # a fixture that pytest finds by itself
        client = Client(chronosd_server.url)

Arguments go through the same encoding and validation as in a worker, and what a handler returns or raises
through the same mapping. Retries, timeouts and Redis are the daemon's own concern and not imitated here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import FrameType
from typing import Any, TypeVar
from uuid import uuid4

from chronosd.broker.payload import encode_args
from chronosd.earlier import earlier_of
from chronosd.handlers import Handler, Middleware, make_handler
from chronosd.outcome import Failed, Outcome, Postponed, Rejected, Succeeded
from chronosd.recording import AsyncRecordingClient, Recorded, RecordingClient
from chronosd.rehearsal import attempt, attempt_async
from chronosd.task import Task

__all__ = [
    "AsyncRecordingClient",
    "Failed",
    "Outcome",
    "Postponed",
    "Recorded",
    "RecordingClient",
    "Rejected",
    "Succeeded",
    "make_task",
    "run",
    "run_async",
]

T = TypeVar("T")


def make_task(
    args: T,
    *,
    id: str | None = None,
    kind: str = "test",
    queue: str = "default",
    attempt: int = 1,
    retried: int = 0,
    max_retry: int = 25,
    deadline: datetime | None = None,
    state: Any = None,
    client: Any = None,
    prev_result: Any = None,
    group_results: Sequence[Any] | None = None,
) -> Task[T]:
    """A task to call a handler with directly: ``args`` as they are, without encoding or validation.

    Args:
        args: what the handler finds in ``task.args``.
        id: a random one by default.
        deadline: an aware datetime.
        state: what the application's lifespan would yield.
        client: what ``task.client`` is, e.g. a `RecordingClient`.
        prev_result: what the step before it in a chain returned.
        group_results: what the members returned, for the callback of a group.

    The other fields are those of `chronosd.Task`.
    """
    deadline_at = None if deadline is None else deadline.timestamp()
    id = str(uuid4()) if id is None else id
    earlier = earlier_of(prev_result, group_results)
    return Task(id, kind, queue, args, attempt, retried, max_retry, deadline_at, state, client, earlier)


def run(
    handler: Callable[..., Any],
    args: Any = None,
    *,
    middleware: Sequence[Middleware] = (),
    **fields: Any,
) -> Outcome:
    """One attempt of ``handler`` as a worker would make it; returns how it ended, whatever it raises.

    Args:
        handler: sync or async. An async one runs in an event loop of its own.
        args: encoded, then validated against the handler's ``Task[T]``; None is no arguments, ``{}``.
        middleware: wrapped around it, the first one outermost; only that of its sort applies.
        fields: as for `make_task`; ``client`` is a recording client by default.

    Raises:
        HandlerError: it cannot be a handler; the worker would refuse to start.
        InvalidTask: ``args`` cannot be encoded; ``enqueue`` would refuse them.
    """
    built = make_handler("test", handler, middleware=middleware, local_names=_names_around(sys._getframe(1)))
    return attempt(built, _payload(args), _fields(built, fields))


async def run_async(
    handler: Callable[..., Any],
    args: Any = None,
    *,
    middleware: Sequence[Middleware] = (),
    **fields: Any,
) -> Outcome:
    """`run` within the running event loop; a sync handler runs in a thread."""
    built = make_handler("test", handler, middleware=middleware, local_names=_names_around(sys._getframe(1)))
    return await attempt_async(built, _payload(args), _fields(built, fields))


def _names_around(frame: FrameType | None) -> Mapping[str, Any]:
    """What the test functions around a call know.

    Tests define argument types in themselves, where a string annotation is not looked up.
    """
    names: dict[str, Any] = {}
    file = "" if frame is None else frame.f_code.co_filename
    while frame is not None:
        if frame.f_code.co_filename == file and frame.f_locals is not frame.f_globals:
            names = {**frame.f_locals, **names}
        frame = frame.f_back
    return names


def _payload(args: Any) -> bytes:
    return encode_args({} if args is None else args)


def _fields(handler: Handler, given: Mapping[str, Any]) -> dict[str, Any]:
    fields = dict(given)
    if fields.get("client") is None:
        fields["client"] = AsyncRecordingClient() if handler.is_async else RecordingClient()
    task = make_task(None, **fields)
    return {name: getattr(task, name) for name in Task.__slots__ if name != "args"}
