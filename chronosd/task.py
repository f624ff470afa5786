"""What a handler is given: one delivered task."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Task(Generic[T]):
    """One task, as its handler sees it.

    ``T`` is the type of `args`; annotate the handler's parameter with it (``task: Task[Welcome]``) and the
    payload is validated before the handler is called. Delivery is at-least-once, so a handler may be called
    again for a task whose effect has already happened: use `id`, which never changes, to notice.

    A plain class with slots, because one is made for every task that runs.
    """

    __slots__ = (
        "args",
        "attempt",
        "client",
        "deadline_at",
        "id",
        "kind",
        "max_retry",
        "queue",
        "retried",
        "state",
    )

    def __init__(
        self,
        id: str,  # the field's name is contract
        kind: str,
        queue: str,
        args: T,
        attempt: int = 1,
        retried: int = 0,
        max_retry: int = 25,
        deadline_at: float | None = None,
        state: Any = None,
        client: Any = None,
    ) -> None:
        self.id = id
        """The same over all attempts: the idempotency key."""
        self.kind = kind
        self.queue = queue
        self.args = args
        self.attempt = attempt
        """Which start this is, from 1; starts that ended in a crash are counted."""
        self.retried = retried
        """How many attempts have been charged to the retry budget so far."""
        self.max_retry = max_retry
        self.deadline_at = deadline_at
        """When this attempt times out, in seconds since the epoch; None without a timeout."""
        self.state = state
        """The value of the worker's ``lifespan``; None without one."""
        self.client = client
        """The worker's own client: an AsyncClient in async handlers, a Client in sync ones."""

    @property
    def deadline(self) -> datetime | None:
        """When this attempt times out, as an aware datetime in UTC; None without a timeout."""
        return None if self.deadline_at is None else datetime.fromtimestamp(self.deadline_at, UTC)

    def __repr__(self) -> str:
        # no args: they may be private, and reprs end up in logs
        return f"Task(id={self.id!r}, kind={self.kind!r}, queue={self.queue!r}, attempt={self.attempt})"
