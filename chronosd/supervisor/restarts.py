"""How long to wait before a dead worker is replaced.

A worker that dies while it does its work is replaced at once: that is what crash recovery is measured by. One
that dies before it was ready, or right after it with nothing done, will most likely do so again: without a
growing delay such a worker is a fork loop that fills the disk with tracebacks.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

FIRST_S = 0.1
CAP_S = 30.0
SETTLED_S = 1.0
"""A worker that lived this long after it was ready has begun well."""


@dataclass(slots=True)
class Restarts:
    """The restart delay of one worker's place. Durations are seconds."""

    failures: int = 0
    random: Callable[[], float] = random.random

    def after(self, *, lived_ready_s: float | None, completed: int) -> float:
        """The delay after a death.

        Args:
            lived_ready_s: how long it lived after it was ready; None if it never was.
            completed: how many tasks it completed.
        """
        if lived_ready_s is not None and (lived_ready_s >= SETTLED_S or completed > 0):
            self.failures = 0
            return 0.0
        # The exponent is capped before the power is taken, and the jitter is half of the delay: many
        # workers that fail together must not come back together.
        delay = min(FIRST_S * 2.0 ** min(self.failures, 16), CAP_S)
        self.failures += 1
        return delay * (0.5 + 0.5 * self.random())
