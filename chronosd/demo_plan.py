"""What the demo enqueues: batches of tasks, each with the one outcome that it must have."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

HANDLERS = {
    "email:send": "handlers_example.email:send_email",
    "image:resize": "handlers_example.images:resize",
    "report:build": "handlers_example.reports:build",
    "flaky:fetch": "handlers_example.flaky:fetch",
    "always:wrong": "handlers_example.wrong:always_wrong",
    "payment:charge": "handlers_example.payments:charge",
}

CENTS = 100
"""What each payment of the demo charges."""


@dataclass(slots=True)
class Batch:
    """Tasks of one sort."""

    what: str
    kind: str
    share: float
    """Of all tasks."""
    expected: Literal["succeeded", "archived", "discarded"]
    args: Callable[[int], Any]
    options: Callable[[int], dict[str, Any]] = lambda _: {}
    count: int = 0
    ids: list[str] = field(default_factory=list)

    def tasks(self) -> Iterator[tuple[str, Any, dict[str, Any]]]:
        """As enqueue_many takes them."""
        for index in range(self.count):
            yield self.kind, self.args(index), self.options(index)


def plan(tasks: int, folder: Path) -> list[Batch]:
    """The batches, ``tasks`` in all. The slow ones come first, so that a worker can be killed in them."""
    picture = str(folder / "picture.ppm")
    now = time.time()
    batches = [
        Batch(
            "card charged (slow, must happen once)",
            "payment:charge",
            0.08,
            "succeeded",
            lambda i: {"account": f"a{i % 5}", "cents": CENTS, "receipt_s": 1.5},
            lambda _: {"queue": "critical"},
        ),
        Batch("e-mail", "email:send", 0.37, "succeeded", lambda i: {"to": f"user{i}@example.com"}),
        Batch(
            "e-mail, delayed 0.5 to 3 s",
            "email:send",
            0.15,
            "succeeded",
            lambda i: {"to": f"later{i}@example.com"},
            lambda i: {"delay": 0.5 + (i % 26) / 10},
        ),
        Batch(
            "picture scaled (CPU-bound, in a thread)",
            "image:resize",
            0.08,
            "succeeded",
            lambda i: {"source": picture, "target": str(folder / f"small{i}.ppm"), "width": 32},
        ),
        Batch(
            "report, result kept",
            "report:build",
            0.06,
            "succeeded",
            lambda i: {"month": f"{2000 + i // 12}-{i % 12 + 1:02}", "orders": 1000},
            lambda _: {"queue": "low", "retention": "1h"},
        ),
        Batch(
            "service down twice, then there",
            "flaky:fetch",
            0.08,
            "succeeded",
            lambda i: {"failures": 1 + i % 2, "busy_until": now + 1.0 if i % 5 == 0 else 0.0},
        ),
        Batch(
            "service down for good",
            "flaky:fetch",
            0.05,
            "archived",
            lambda _: {"failures": 99},
            lambda _: {"max_retry": 2},
        ),
        Batch("wrong for good (SkipRetry)", "always:wrong", 0.05, "archived", lambda i: {"account": str(i)}),
        Batch("arguments that do not fit", "image:resize", 0.04, "archived", lambda i: {"source": i}),
        Batch(
            "not worth keeping (discard)",
            "flaky:fetch",
            0.04,
            "discarded",
            lambda _: {"failures": 99},
            lambda _: {"max_retry": 1, "discard": True, "queue": "low"},
        ),
    ]
    for batch in batches:
        batch.count = max(round(tasks * batch.share), 1)
    batches[1].count += tasks - sum(batch.count for batch in batches)
    return batches


def prepare(folder: Path) -> None:
    """Makes what the tasks work on: a picture with colours in it."""
    width, height = 160, 100
    pixels = bytes(value for y in range(height) for x in range(width) for value in (x, y * 2, (x + y) % 256))
    (folder / "picture.ppm").write_bytes(b"P6 %d %d 255\n%s" % (width, height, pixels))
