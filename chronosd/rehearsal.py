"""One attempt at a task in the calling process, with the worker's validation and outcome mapping."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from chronosd.handlers import Handler
from chronosd.log import bind_task
from chronosd.outcome import Outcome, from_exception, from_result
from chronosd.task import Task

T = TypeVar("T")


def attempt(handler: Handler, payload: bytes, fields: Mapping[str, Any]) -> Outcome:
    """Runs ``handler`` on ``payload`` and says how it ended; blocks until it has.

    A sync handler runs in the calling thread, because a test's database transaction belongs to its thread.
    An async one gets an event loop of its own, in another thread if this one has a loop that is running.
    """
    if handler.is_async:
        return _blocking(attempt_async(handler, payload, fields))
    try:
        task = Task(args=handler.validate(payload), **fields)
        bind_task(task)
        return from_result(handler.func(task))
    except BaseException as exc:  # in a worker, too, all of them are outcomes of the task
        return from_exception(exc)
    finally:
        bind_task(None)


async def attempt_async(handler: Handler, payload: bytes, fields: Mapping[str, Any]) -> Outcome:
    """As `attempt`; a sync handler runs in a thread, as it does in a worker."""
    if not handler.is_async:
        return await asyncio.to_thread(attempt, handler, payload, fields)
    try:
        task = Task(args=handler.validate(payload), **fields)
        bind_task(task)
        return from_result(await handler.func(task))
    except asyncio.CancelledError as exc:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise  # it is the test that was cancelled
        return from_exception(exc)
    except BaseException as exc:
        return from_exception(exc)
    finally:
        bind_task(None)


def _blocking(coroutine: Coroutine[Any, Any, Outcome]) -> Outcome:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _in_new_loop(coroutine)
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(_in_new_loop(coroutine)))
    thread.start()
    thread.join()
    return outcomes[0]


def _in_new_loop(coroutine: Coroutine[Any, Any, Outcome]) -> Outcome:
    try:
        return asyncio.run(coroutine)
    except SystemExit as exc:  # raised by a task that the handler created: asyncio lets it through
        return from_exception(exc)
