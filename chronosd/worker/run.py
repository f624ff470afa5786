"""One delivered task on its way through a worker."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any

from chronosd.broker.message import Message
from chronosd.handlers import Handler
from chronosd.task import Task


class Cancelled(Enum):
    """Why the worker cancelled a run."""

    TIMEOUT = "timeout"
    DRAIN = "drain"
    LOST = "lost"
    REQUEST = "request"
    """Somebody has cancelled the task."""


class Run:
    """One delivered task on its way through this worker. A plain class with slots: one is made per task."""

    __slots__ = (
        "aio",
        "cancelled",
        "checked_ns",
        "claimed_ns",
        "crashes",
        "dropped",
        "entry",
        "free_starts",
        "handler",
        "marked",
        "message",
        "queue",
        "slot",
        "started_ns",
        "task",
        "timer",
        "trace",
    )

    def __init__(
        self,
        slot: int,
        entry: bytes,
        queue: int,
        message: Message,
        handler: Handler,
        crashes: int,
        now_ns: int,
        free_starts: int = 0,
        trace: str = "",
    ) -> None:
        self.slot = slot
        self.entry = entry
        self.queue = queue
        self.message = message
        self.handler = handler
        self.crashes = crashes
        self.free_starts = free_starts
        self.trace = trace
        self.claimed_ns = now_ns
        self.checked_ns = now_ns
        """When it was last known to be this worker's own."""
        self.started_ns = 0
        """When its handler was entered; 0 before."""
        self.task: Task[Any] | None = None
        self.aio: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.cancelled: Cancelled | None = None
        self.marked = False
        """Redis has been told that it outlived its cycle."""
        self.dropped = False
        """Its lease is lost: whatever it does now concerns nobody."""
