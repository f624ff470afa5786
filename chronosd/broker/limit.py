"""Limits of a queue that hold for the whole cluster: tasks in flight at once, and starts per time.

They are enforced by the script that fetches, before it claims anything, and only there: a queue without
limits pays nothing for them, and chronos-go's servers do not know them. Every host must have the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from chronosd.broker.commands import REPLY_BYTES, Command, call, script
from chronosd.broker.consume import Delivery, delivery
from chronosd.broker.keys import GROUP, QueueKeys
from chronosd.config.schema import QueueConfig

BURST_S = 0.25
"""How much earlier than an even spacing asks for a task may start. So at most one start, and as many as the
rate gives in this time, come at once; and in any ``t`` seconds at most one and ``rate * (t + BURST_S)``."""

_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Limit:
    """What one queue's configuration says."""

    max_in_flight: int = 0
    """0 is any number."""
    interval_us: float = 0.0
    """Microseconds between two starts; 0 is any rate."""

    @classmethod
    def of(cls, queue: QueueConfig) -> Self | None:
        """None for a queue without limits."""
        if queue.max_in_flight is None and queue.rate_limit is None:
            return None
        return cls(queue.max_in_flight or 0, _interval_us(queue.rate_limit))

    @property
    def words(self) -> list[Any]:
        """As the scripts take it."""
        return [self.max_in_flight, f"{self.interval_us:.6f}", round(BURST_S * 1e6)]


def _interval_us(rate: str | None) -> float:
    if rate is None:
        return 0.0
    starts, _, unit = rate.partition("/")
    return _UNIT_S[unit] * 1e6 / int(starts)


def fetch_limited(
    queue: QueueKeys, consumer: str, count: int, delivered: Sequence[bytes], limit: Limit
) -> Command[Delivery]:
    """As :func:`consume.fetch`, with no more than may start now."""
    return call(
        script("fetch_limited"),
        (queue.stream, *queue.sets, queue.rate),
        [GROUP, consumer, count, queue.task_prefix, REPLY_BYTES, *limit.words, *delivered],
        delivery,
        repeatable=False,
    )


def room(queue: QueueKeys, limit: Limit) -> Command[int]:
    """How many tasks wait and may start now; 0 also where there is no group yet."""
    return call(script("room"), (queue.stream, queue.rate), [GROUP, *limit.words], int)
