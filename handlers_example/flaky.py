"""Asks a service that is not always there: a handler that fails and is retried.

An exception is a failure: the task waits, a random time up to ``base * 2**failures`` (see ``retry`` in the
configuration), and is tried again until ``max_retry`` is spent; then it is archived with its last error.
`RetryIn` chooses the wait instead; with ``charge=False`` it costs none of the retries.

Called twice for one task, it asks twice; asking changes nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from chronosd import RetryIn, Task


class ServiceDown(Exception):
    """The service did not answer."""


@dataclass
class Fetch:
    """What a producer enqueues; it also plays the service."""

    url: str = "https://prices.example/today"
    failures: int = 2
    """The service is down for so many attempts."""
    busy_until: float = 0.0
    """Until then (unix seconds) it says "come back in a quarter of a second"."""


async def fetch(task: Task[Fetch]) -> str:
    """Returns what the service said."""
    if time.time() < task.args.busy_until:
        raise RetryIn("250ms", f"{task.args.url} is busy", charge=False)
    if task.attempt <= task.args.failures:
        raise ServiceDown(f"{task.args.url} did not answer")
    return f"answered at attempt {task.attempt}"
