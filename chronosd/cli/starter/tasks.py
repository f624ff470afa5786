"""The handlers of this project; chronos.yaml says which kind of task each one runs."""

import logging
from dataclasses import dataclass

from chronosd import Task

log = logging.getLogger(__name__)


@dataclass
class Greeting:
    """The arguments of a task: checked before the handler is called."""

    name: str


async def greet(task: Task[Greeting]) -> str:
    """Return = success; an exception = again later; raise chronosd.SkipRetry = never again.

    It may be called twice for one task, after a crash: make effects idempotent by ``task.id``.
    """
    log.info("hello, %s", task.args.name)
    return f"hello, {task.args.name}"
