"""Every key in Redis, its type and what its score means. Nothing else spells a key.

The layout is chronos-go v1's (P = namespace, Q = queue; the braces are literal, so that all keys of one
queue share a cluster slot):

==========================  ======  ============================================================
``P:queues``                set     every queue name ever enqueued to
``P:paused``                set     names of paused queues
``P:daemons``               zset    ``name recover_min_idle_ms``; score = last heard of, unix seconds
``P:schedules``             hash    schedule id -> JSON: kind, queue, spec, when it was last looked after
``P:sched:<id>:last``       string  newest trigger fired or passed over, or when it was first seen; only grows
``P:sched:<id>:fired``      string  newest trigger fired. Ours alone
``P:sched:<id>:lease``      string  name of the daemon that fires it, with a TTL. Ours alone
``P:{Q}:stream``            stream  ready tasks; each entry has one field, ``task_id``
``P:{Q}:t:<id>``            hash    ``msg`` (JSON), ``state`` (number), and :class:`Field`'s
``P:{Q}:scheduled``         zset    waiting for a first attempt; score = due, unix seconds
``P:{Q}:retry``             zset    waiting for another attempt; score = due, unix seconds
``P:{Q}:archived``          zset    dead letters; score = died at, unix seconds
``P:{Q}:completed``         zset    kept successes; score = expiry, unix seconds
``P:{Q}:cancelled``         zset    marks of cancelled runs, see lua/cancel.lua; score = unix seconds
``P:{Q}:unique:<k>:<sha>``  string  id of the task that holds the lock, with a TTL
``P:{Q}:pdedup:<id>``       string  ``1``: that trigger of a schedule has fired, with a TTL
``P:{Q}:group:<g>``         set     members of an open group that have not succeeded, with a TTL
``P:{Q}:groupresult:<g>``   hash    member's index -> base64 of its result, with a TTL
``P:{Q}:groupnew:<g>``      hash    messages of a large group that is being made, with a TTL; ours
``P:{Q}:rate``              string  when the next start is due, unix microseconds, with a TTL; ours alone
==========================  ======  ============================================================

Scores may carry fractions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from chronosd.errors import InvalidTask
from chronosd.states import State

GROUP = "chronos"
"""The consumer group on every stream; it does not follow the namespace."""

DEFAULT_NAMESPACE = "chronos"


class Field:
    """Fields of a task's hash. chronos-go knows the first two and leaves the others alone."""

    MSG = "msg"
    STATE = "state"
    SID = "sid"
    """Stream entry that the current run owns; empty between runs."""
    RUN = "run"
    """Equal to ``sid`` once a run has outlived the cycle it was fetched in."""
    CRASHES = "crashes"
    """How often a worker died while it ran this task."""
    EVIDENCE = "evidence"
    """JSON array of what is known of those deaths, newest last."""
    BLOCKED = "blocked"
    """JSON of the last report that it blocked its event loop: at, seconds, worker, stack."""
    RETURNED = "returned"
    """How often a settlement handed the task back uncharged."""
    FREE_STARTS = "free_starts"
    """Starts that cost no retry (`RetryIn` uncharged); the attempt number counts them too."""
    ENQUEUED_AT = "enqueued_at"
    """Unix milliseconds by the server's clock."""
    NONCE = "nonce"
    """Names the enqueue call, so that its resend is told from a second task with the same id."""
    TRACE = "traceparent"
    """W3C trace context that the task belongs to."""
    TRACE_STATE = "tracestate"
    ERROR = "error"
    """Why a task whose message cannot be decoded was dead-lettered."""
    CANCEL = "cancel"
    """Stream entry of the run that was cancelled: when it has ended the task does not run again."""
    UNIQUE_TTL = "unique_ttl"
    """Milliseconds for which its unique lock is to live on, whenever it has to wait again."""
    UNKNOWN_SINCE = "unknown_since"
    """Unix seconds at which a worker first had no handler for its kind."""


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The keys of one queue; all in one cluster slot."""

    name: str
    namespace: str
    stream: str
    task_prefix: str
    scheduled: str
    retry: str
    archived: str
    completed: str

    def _key(self, rest: str) -> str:
        return self.task_prefix[: -len("t:")] + rest

    def task(self, task_id: str) -> str:
        """The hash of one task."""
        return self.task_prefix + task_id

    def set_of(self, state: State) -> str:
        """The sorted set of a state that has one. Raises KeyError for PENDING and ACTIVE."""
        return {
            State.SCHEDULED: self.scheduled,
            State.RETRY: self.retry,
            State.ARCHIVED: self.archived,
            State.COMPLETED: self.completed,
        }[state]

    @property
    def unique_prefix(self) -> str:
        """What the keys of this queue's unique locks begin with."""
        return self._key("unique:")

    @property
    def rate(self) -> str:
        """What is kept for the rate limit."""
        return self._key("rate")

    @property
    def cancelled(self) -> str:
        """Marks of running tasks that were cancelled."""
        return self._key("cancelled")

    def unique(self, kind: str, payload_sha256: str) -> str:
        """The unique lock of a kind with these arguments, as chronos-go has it."""
        return f"{self.unique_prefix}{kind}:{payload_sha256}"

    def group(self, group_id: str) -> str:
        """The members of a group that are to succeed yet; it lives in the queue of the group's callback."""
        return self._key(f"group:{group_id}")

    def group_results(self, group_id: str) -> str:
        """What the members of a group that have succeeded returned."""
        return self._key(f"groupresult:{group_id}")

    def group_bodies(self, group_id: str) -> str:
        """The messages of a group that is being made, and cannot be stored in one request."""
        return self._key(f"groupnew:{group_id}")

    def trigger(self, task_id: str) -> str:
        """The mark that a trigger has fired, which chronos-go looks at too."""
        return self._key(f"pdedup:{task_id}")

    @property
    def sets(self) -> tuple[str, str, str, str]:
        """Scheduled, retry, archived, completed: the order in which scripts take them."""
        return (self.scheduled, self.retry, self.archived, self.completed)


@dataclass(frozen=True, slots=True)
class ScheduleKeys:
    """The keys of one schedule."""

    id: str
    last: str
    fired: str
    lease: str


def check_name(kind: str, name: str) -> str:
    """Returns ``name`` if it can stand inside a key. Raises InvalidTask naming ``kind`` ("queue", ...)."""
    if not name:
        raise InvalidTask(f"{kind}: must not be empty")
    if any(c in "{}*?[]" or c.isspace() or not c.isprintable() for c in name):
        raise InvalidTask(f"{kind}: {name!r} must not hold braces, *?[], white space or control characters")
    return name


@dataclass(frozen=True)
class Namespace:
    """All keys under one prefix. Raises InvalidTask if chronos-go would refuse it."""

    prefix: str = DEFAULT_NAMESPACE

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", check_name("namespace", self.prefix.strip(":")))

    @property
    def queues(self) -> str:
        """Set of queue names."""
        return f"{self.prefix}:queues"

    @property
    def paused(self) -> str:
        """Set of paused queue names."""
        return f"{self.prefix}:paused"

    @property
    def daemons(self) -> str:
        """Sorted set of the daemons that run, with what all of them must agree on. Ours alone."""
        return f"{self.prefix}:daemons"

    @property
    def schedules(self) -> str:
        """Hash of the schedules that somebody looks after, or did."""
        return f"{self.prefix}:schedules"

    def schedule(self, schedule_id: str) -> ScheduleKeys:
        """The keys of one schedule."""
        base = f"{self.prefix}:sched:{schedule_id}:"
        return ScheduleKeys(schedule_id, base + "last", base + "fired", base + "lease")

    def queue(self, name: str) -> QueueKeys:
        """The keys of queue ``name``. Raises InvalidTask for a name that cannot be one."""
        return _queue_keys(self.prefix, name)


@lru_cache(maxsize=4096)
def _queue_keys(prefix: str, name: str) -> QueueKeys:
    base = f"{prefix}:{{{check_name('queue', name)}}}:"
    return QueueKeys(
        name=name,
        namespace=prefix,
        stream=base + "stream",
        task_prefix=base + "t:",
        scheduled=base + "scheduled",
        retry=base + "retry",
        archived=base + "archived",
        completed=base + "completed",
    )
