"""Waiting for conditions, the only way in which tests wait, and bounds for what must not take long."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_MOST = 6.0


def wait_until(condition: Callable[[], T], *, timeout_s: float = 10.0, what: str = "") -> T:
    """Polls *condition* every 5 ms until it is truthy; returns its value, or fails.

    It fails after *timeout_s*, on an overloaded machine later.
    """
    began = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        waited_s = time.monotonic() - began
        assert waited_s < timeout_s or waited_s < at_most(timeout_s), (
            f"not within {waited_s:.1f} s: {what or condition}"
        )
        time.sleep(0.005)


def at_most(bound: float) -> float:
    """*bound*, made larger as far as this machine has more to do than its processors can."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return bound * min(max(load, 1.0), _MOST)
