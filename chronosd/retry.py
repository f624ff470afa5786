"""How long a failed task waits for its next attempt."""

from __future__ import annotations

import random as _random
from collections.abc import Callable

FLOOR_S = 0.1
"""No retry comes sooner: full jitter may draw zero, and a tight loop of failures helps nobody."""

_MAX_EXPONENT = 60  # 2**60 of anything is past every cap, and 2.0**1100 would raise OverflowError


def backoff(retried: int, base_s: float, cap_s: float, random: Callable[[], float] = _random.random) -> float:
    """Seconds to wait after a failure: full jitter over ``min(base_s * 2**retried, cap_s)``.

    Args:
        retried: failures charged so far, this one included (so 1 after the first), as chronos-go counts.
        base_s: seconds; the bound that is doubled.
        cap_s: seconds; the longest wait.
        random: draws from [0, 1).

    "Full jitter" as in https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/: tasks that
    failed together because something was down do not come back together.
    """
    exponent = min(max(retried, 0), _MAX_EXPONENT)
    return max(FLOOR_S, random() * min(base_s * 2.0**exponent, cap_s))
