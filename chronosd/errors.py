"""Everything chronosd raises on purpose.

::

    ChronosError
    ├── ConfigError               a file that cannot be run; carries every problem found (exit code 78)
    ├── BrokerError
    │   ├── BrokerUnavailable     no answer; `.maybe_enqueued` says whether a write is in doubt
    │   └── BrokerRefused         the server answered and an operator has to act (OOM, NOAUTH, NOPERM ...)
    ├── EnqueueError
    │   ├── InvalidTask           arguments that cannot be stored as they are (NaN, 2**64, bad names ...)
    │   ├── PayloadTooLarge
    │   ├── TaskIdConflict        the id is in use by a task that has not ended
    │   └── DuplicateTask         a unique lock is held by another task
    ├── MessageError              what stands in Redis is not a message
    ├── TaskActive                it runs, and what was asked for cannot be done meanwhile
    ├── TaskFailed                it is dead-lettered, and so has no result
    ├── ResultTimeout             it had not ended in time (also a TimeoutError)
    └── TaskNotFound

    SkipRetry, RetryIn            raised by handlers; outcomes rather than errors
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from enum import Enum

from chronosd.states import State


class Trouble(Enum):
    """What to do about an error of the broker; every loop decides by this and by nothing else."""

    RETRY = "retry"
    """The server asks for patience (LOADING, TRYAGAIN, BUSY): the same again, later."""
    RECONNECT = "reconnect"
    """The connection is lost, silent, or leads to a demoted node: a new one, addresses looked up again."""
    RECREATE = "recreate"
    """The consumer group is gone (FLUSHALL, an empty replica): make it again at id 0."""
    OPERATOR = "operator"
    """Only a person can mend it (OOM, NOAUTH, NOPERM, WRONGTYPE): back off, say so once, try again."""


class ChronosError(Exception):
    """The base of every error that chronosd raises on purpose."""


class ConfigError(ChronosError):
    """A configuration that cannot be run.

    ``problems`` holds one finished line per mistake, e.g.
    ``chronos.yaml:12:5: queues.low.weight: must be at least 1 (got -3)``.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems: tuple[str, ...] = tuple(problems)


class BrokerError(ChronosError):
    """Redis could not do what was asked; ``trouble`` says what to do about it."""

    trouble: Trouble = Trouble.OPERATOR


class BrokerUnavailable(BrokerError):
    """Redis did not answer: refused, reset, timed out, not found, or still loading.

    ``maybe_enqueued`` is true where a write may have been executed although its reply never arrived.
    """

    trouble = Trouble.RECONNECT

    def __init__(
        self, message: str, *, maybe_enqueued: bool = False, trouble: Trouble = Trouble.RECONNECT
    ) -> None:
        super().__init__(message)
        self.maybe_enqueued = maybe_enqueued
        self.trouble = trouble


class BrokerRefused(BrokerError):
    """Redis answered with an error: a lost group, or one that only an operator can mend (OOM, NOPERM ...)."""

    def __init__(self, message: str, *, trouble: Trouble = Trouble.OPERATOR) -> None:
        super().__init__(message)
        self.trouble = trouble


class EnqueueError(ChronosError):
    """A task that was not enqueued, for a reason that lies in the call."""


class InvalidTask(EnqueueError, ValueError):
    """Arguments, name or option that cannot be stored as they are."""


class PayloadTooLarge(EnqueueError):
    """The encoded arguments exceed ``max_payload``."""


class TaskIdConflict(EnqueueError):
    """The task id is in use by a task that has not ended; nothing was changed."""

    def __init__(self, message: str, *, task_id: str = "") -> None:
        super().__init__(message)
        self.task_id = task_id


class DuplicateTask(EnqueueError):
    """A task of the same kind and arguments is already there and has not ended; nothing was changed.

    ``task_id`` and ``state`` are that task's.
    """

    def __init__(self, message: str, *, task_id: str = "", state: State | None = None) -> None:
        super().__init__(message)
        self.task_id = task_id
        self.state = state


class MessageError(ChronosError):
    """What stands in Redis under a task's key is not a message."""


class TaskActive(ChronosError):
    """The task is running, and what was asked for cannot be done meanwhile; nothing was changed."""


class TaskFailed(ChronosError):
    """The task is dead-lettered, and so has no result. ``error`` is its last one."""

    def __init__(self, message: str, *, task_id: str = "", error: str = "") -> None:
        super().__init__(message)
        self.task_id = task_id
        self.error = error


class ResultTimeout(ChronosError, TimeoutError):
    """The task had not ended when the time was up. ``state`` is where it was."""

    def __init__(self, message: str, *, task_id: str = "", state: State | None = None) -> None:
        super().__init__(message)
        self.task_id = task_id
        self.state = state


class TaskNotFound(ChronosError):
    """No task with that id."""


class SkipRetry(Exception):
    """Raise it from a handler to dead-letter the task at once, whatever retries are left."""


class RetryIn(Exception):
    """Raise it from a handler to choose when the task runs again.

    Args:
        delay: a duration string (``"90s"``), seconds, or a timedelta.
        reason: kept as the task's last error.
        charge: ``False`` leaves the retry budget untouched.
    """

    def __init__(
        self,
        delay: str | float | timedelta,
        reason: str | BaseException | None = None,
        *,
        charge: bool = True,
    ) -> None:
        super().__init__(f"retry in {delay}" if reason is None else str(reason))
        self.delay = delay
        self.charge = charge
