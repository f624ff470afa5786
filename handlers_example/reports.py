"""Builds a report: a sync handler that returns a result.

What a handler returns is the task's result. It is kept with the task for as long as the producer asked for::

    chronosd enqueue report:build '{"month": "2026-02"}' --retention 1h
    chronosd task show <id>

Called twice for one task, it computes the same figures twice; nothing outside changes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean, quantiles
from typing import TypedDict

from chronosd import SkipRetry, Task


@dataclass
class Report:
    """What a producer enqueues."""

    month: str
    """``2026-02``"""
    orders: int = 5_000


class Figures(TypedDict):
    month: str
    orders: int
    turnover: float
    mean: float
    p95: float


def build(task: Task[Report]) -> Figures:
    """Adds up a month of (invented) orders."""
    try:
        month = datetime.strptime(task.args.month, "%Y-%m")
    except ValueError as exc:
        raise SkipRetry(str(exc)) from exc
    if task.args.orders < 2:
        raise SkipRetry("a report needs at least two orders")
    amounts = orders_of(f"{month:%Y-%m}", task.args.orders)
    return Figures(
        month=task.args.month,
        orders=len(amounts),
        turnover=round(sum(amounts), 2),
        mean=round(fmean(amounts), 2),
        p95=round(quantiles(amounts, n=20)[-1], 2),
    )


def orders_of(month: str, count: int) -> list[float]:
    """The amounts of a month's orders: invented, but every time the same."""
    invented = random.Random(month)
    return [round(invented.lognormvariate(3.5, 0.8), 2) for _ in range(count)]
