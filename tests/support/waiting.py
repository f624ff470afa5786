"""Waiting for conditions, the only way in which tests wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], *, timeout_s: float = 10.0, what: str = "") -> T:
    """Polls *condition* every 5 ms until it is truthy; returns its value, or fails after *timeout_s*."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what or condition}"
        time.sleep(0.005)
