"""The handlers of the chaos test: every outcome, and every way to die in a handler.

Each run writes ``start`` into the ledger and then, unless it is cut short, ``end`` or ``fail``; ``crash``
where it is about to take its worker down.
"""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from chronosd import RetryIn, SkipRetry, Task
from tests.support.ledger import Ledger

ledger = Ledger.of_environment()

Args = dict[str, Any]


@contextmanager
def run(task: Task[Args]) -> Iterator[None]:
    ledger.write("start", task.id, task.attempt)
    try:
        yield
    except Exception:
        ledger.write("fail", task.id, task.attempt)
        raise
    ledger.write("end", task.id, task.attempt)


async def quick(task: Task[Args]) -> None:
    with run(task):
        pass


async def slow(task: Task[Args]) -> None:
    with run(task):
        await asyncio.sleep(task.args["s"])


def thread(task: Task[Args]) -> None:
    with run(task):
        time.sleep(task.args["s"])


async def value(task: Task[Args]) -> Args:
    with run(task):
        return task.args


async def keep(task: Task[Args]) -> Args:
    with run(task):
        return task.args


async def flaky(task: Task[Args]) -> None:
    with run(task):
        await asyncio.sleep(0)
        if task.attempt <= task.args["fails"]:
            raise RuntimeError("not yet")


def flaky_thread(task: Task[Args]) -> None:
    with run(task):
        if task.attempt <= task.args["fails"]:
            raise RuntimeError("not yet")


async def later(task: Task[Args]) -> None:
    with run(task):
        if task.attempt <= 1:
            raise RetryIn(0.05)


async def postponed(task: Task[Args]) -> None:
    with run(task):
        if time.time() < task.args["until"]:
            raise RetryIn(0.1, "too early", charge=False)


async def doomed(task: Task[Args]) -> None:
    with run(task):
        raise RuntimeError("always")


async def wrong(task: Task[Args]) -> None:
    with run(task):
        raise SkipRetry("permanently wrong")


async def discarded(task: Task[Args]) -> None:
    with run(task):
        raise RuntimeError("nobody will know")


async def segfault(task: Task[Args]) -> None:
    with run(task):
        _crash(task)


def segfault_thread(task: Task[Args]) -> None:
    with run(task):
        _crash(task)


async def block(task: Task[Args]) -> None:
    with run(task):
        time.sleep(task.args["s"])  # noqa: ASYNC251 - the fault that is provoked


def _crash(task: Task[Args]) -> None:
    if task.attempt <= task.args["times"]:
        ledger.write("crash", task.id, task.attempt)
        ctypes.string_at(0)
