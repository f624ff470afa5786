"""Handlers that do what a test tells them in their arguments, and write it into the ledger.

The kinds (``tests.support.kinds.KINDS`` maps them for a chronos.yaml):

``count``  async; ``{"sleep": s}`` awaits that long; ``{"fail": n}`` raises in the first n attempts
``sync``   the same in a thread
``block``  async, but sleeps with the event loop held
``die``    sends its own process signal ``{"signal": n}`` (default 9) in the first ``{"times": n}`` attempts
``noop``   async, nothing, not even the ledger
``wrong``  raises SkipRetry
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

from chronosd import SkipRetry, Task
from tests.support.ledger import Ledger

ledger = Ledger.of_environment()


async def count(task: Task[dict[str, Any]]) -> None:
    with ledger.run(task.id, task.attempt):
        await asyncio.sleep(task.args.get("sleep", 0))
        _fail_if_told(task)


def sync(task: Task[dict[str, Any]]) -> None:
    with ledger.run(task.id, task.attempt):
        time.sleep(task.args.get("sleep", 0))
        _fail_if_told(task)


async def block(task: Task[dict[str, Any]]) -> None:
    with ledger.run(task.id, task.attempt):
        time.sleep(task.args["sleep"])  # noqa: ASYNC251 - the fault that the tests provoke


async def die(task: Task[dict[str, Any]]) -> None:
    with ledger.run(task.id, task.attempt):
        if task.attempt <= task.args.get("times", 1_000_000):
            os.kill(os.getpid(), task.args.get("signal", signal.SIGKILL))
            await asyncio.sleep(60)  # a signal that is ignored must not look like a success


async def noop(task: Task[dict[str, Any]]) -> None:
    pass


async def wrong(task: Task[dict[str, Any]]) -> None:
    with ledger.run(task.id, task.attempt):
        raise SkipRetry("permanently wrong")


def _fail_if_told(task: Task[dict[str, Any]]) -> None:
    if task.attempt <= task.args.get("fail", 0):
        raise RuntimeError(f"told to fail in attempt {task.attempt}")
