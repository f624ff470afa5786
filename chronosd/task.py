"""What a handler is given: one delivered task."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar, overload

T = TypeVar("T")
R = TypeVar("R")


class EarlierResults(Protocol):
    """What went before a task in its chain or group."""

    def prev_result(self, wanted: Any) -> Any:
        """See `Task.prev_result`."""

    def group_results(self, wanted: Any) -> list[Any]:
        """See `Task.group_results`."""


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
        "earlier",
        "id",
        "kind",
        "max_retry",
        "queue",
        "retried",
        "state",
        "trace",
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
        earlier: EarlierResults | None = None,
        trace: str = "",
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
        self.earlier = earlier
        """What `prev_result` and `group_results` look at; None for a task of its own."""
        self.trace = trace
        """W3C trace context: a ``traceparent``, and after a space its ``tracestate`` if it has one; empty for
        none. What the handler enqueues belongs to the same trace (see :mod:`chronosd.trace`)."""

    @overload
    def prev_result(self) -> Any: ...
    @overload
    def prev_result(self, wanted: type[R]) -> R | None: ...

    def prev_result(self, wanted: Any = Any) -> Any:
        """What the step before returned, in a chain; None if that was nothing, or there is none before.

        Args:
            wanted: any type that pydantic validates; by default the decoded JSON is returned.

        Raises a `SkipRetry` if it is not of that type: it is dead-lettered, since no retry can mend it.
        """
        return None if self.earlier is None else self.earlier.prev_result(wanted)

    @overload
    def group_results(self) -> list[Any]: ...
    @overload
    def group_results(self, wanted: type[R]) -> list[R | None]: ...

    def group_results(self, wanted: Any = Any) -> list[Any]:
        """What the members of a group returned, for its callback: in their order, None for nothing.

        Empty if no member returned anything. Otherwise as `prev_result`.
        """
        return [] if self.earlier is None else self.earlier.group_results(wanted)

    @property
    def deadline(self) -> datetime | None:
        """When this attempt times out, as an aware datetime in UTC; None without a timeout."""
        return None if self.deadline_at is None else datetime.fromtimestamp(self.deadline_at, UTC)

    def __repr__(self) -> str:
        # no args: they may be private, and reprs end up in logs
        return f"Task(id={self.id!r}, kind={self.kind!r}, queue={self.queue!r}, attempt={self.attempt})"
