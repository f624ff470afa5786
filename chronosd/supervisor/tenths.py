"""Instants that regular looks share: the supervisor has many to make, and wakes only ten times a second.

An idle daemon costs what its wake-ups cost, for each begins with cold caches. What is due at intervals is due
at tenths of a second, so that one wake-up serves all of it; what has an instant of its own keeps that.
"""

from __future__ import annotations

import math

PER_SECOND = 10


def aligned(at: float, now: float) -> float:
    """The last tenth before ``at``, if that is still to come, else ``at``. Monotonic seconds."""
    tenth = math.floor(at * PER_SECOND + 1e-6) / PER_SECOND  # a tenth has no exact float
    return tenth if tenth > now else at
