"""Can never succeed: what `SkipRetry` is for.

Retrying what is wrong for good only delays the moment at which somebody looks at it. `SkipRetry` archives
the task at once, with its error, whatever retries are left: ``chronosd task ls QUEUE archived``.
"""

from __future__ import annotations

from typing import Any

from chronosd import SkipRetry, Task


async def always_wrong(task: Task[dict[str, Any]]) -> None:
    """Refuses every task."""
    raise SkipRetry(f"account {task.args.get('account', 'nobody')!r} was closed")
