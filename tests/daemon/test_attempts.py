"""What a handler is told about its attempts."""

from __future__ import annotations

import re
from collections.abc import Callable

from chronosd import Client
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until

POSTPONING = """
import os
from chronosd import RetryIn

def note(task):
    with open(os.environ["ATTEMPTS"], "a") as file:
        print(task.attempt, task.retried, file=file, flush=True)

async def free(task):
    note(task)
    if task.attempt < 3:
        raise RetryIn("100ms", charge=False)
"""


def test_starts_that_cost_no_retry_are_counted_as_attempts(
    daemon: Callable[..., Daemon], tmp_path: object
) -> None:
    # `if task.attempt == 1: raise RetryIn(..., charge=False)` went round for ever.
    seen = f"{tmp_path}/attempts"
    config = {"handlers": {"free": "handlers:free"}}
    one = daemon(handlers=POSTPONING, env={"ATTEMPTS": seen}, config=config)
    one.start()
    with Client(one.redis_url, namespace=one.namespace) as client:
        client.enqueue("free", {})
    lines: list[str] = []

    def is_over() -> bool:
        try:
            with open(seen) as file:
                lines[:] = re.findall(r"\d+ \d+", file.read())
        except FileNotFoundError:
            return False
        return len(lines) >= 3

    wait_until(is_over, timeout_s=20)
    assert lines == ["1 0", "2 0", "3 0"]
