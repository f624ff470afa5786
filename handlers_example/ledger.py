"""Middleware: writes down, outside Redis, what handlers started and how it ended.

``chronosd demo`` configures both functions and then counts in the file, so that what it says about lost and
repeated tasks does not come from the queue it talks about. Without ``$EXAMPLE_LEDGER`` they only pass on.

A line is written with one O_APPEND write: it is whole, and stays when the process is killed right after.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

from chronosd import Task

VARIABLE = "EXAMPLE_LEDGER"

_fd = -1


async def record(task: Task[Any], call_next: Callable[[Task[Any]], Awaitable[Any]]) -> Any:
    """Around async handlers."""
    write("start", task)
    try:
        result = await call_next(task)
    except BaseException:
        write("fail", task)
        raise
    write("end", task)
    return result


def record_sync(task: Task[Any], call_next: Callable[[Task[Any]], Any]) -> Any:
    """Around sync handlers, in their thread."""
    write("start", task)
    try:
        result = call_next(task)
    except BaseException:
        write("fail", task)
        raise
    write("end", task)
    return result


def write(what: str, task: Task[Any]) -> None:
    """Appends ``what pid attempt monotonic_ns task_id``."""
    global _fd
    if _fd < 0:
        path = os.environ.get(VARIABLE)
        if not path:
            return
        _fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    line = f"{what} {os.getpid()} {task.attempt} {time.monotonic_ns()} {task.id}\n"
    os.write(_fd, line.encode("utf-8", "backslashreplace"))
