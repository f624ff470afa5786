"""What the supervisor does to Redis on its rounds: forward what is due, renew leases, tidy up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from chronosd.broker.commands import BATCH, Command, call, plain, script, text
from chronosd.broker.keys import GROUP, QueueKeys
from chronosd.states import State

LOCK_INTERVALS: Final = 6
"""A running task's unique lock lives at least this many heartbeats on; at the defaults, as long as Go's."""


@dataclass(frozen=True, slots=True)
class Forwarded:
    """What one forwarding step did."""

    moved: int
    dropped: int
    """Ids in the set whose message was gone."""
    next_due_s: float | None
    """Seconds until the next is due; 0 if more are due now; None if the set is empty."""


def forward(queue: QueueKeys, state: State, limit: int = BATCH) -> Command[Forwarded]:
    """Makes up to ``limit`` due tasks of a waiting set (SCHEDULED or RETRY) ready."""

    def parse(reply: Any) -> Forwarded:
        wait = text(reply[2])
        return Forwarded(int(reply[0]), int(reply[1]), int(wait) / 1000 if wait else None)

    return call(script("forward"), (queue.stream, queue.set_of(state)), [queue.task_prefix, limit], parse)


def extend(
    queue: QueueKeys, consumer: str, entries: Sequence[str], *, lock_s: float = 0.0
) -> Command[list[str]]:
    """Renews the leases of up to 500 entries; returns those that are not the consumer's any more.

    With ``lock_s``, the unique locks of their tasks live at least that long from now; one that has expired
    is taken again, unless another task has it.
    """
    args = [GROUP, consumer, queue.task_prefix, round(lock_s * 1000), *entries]
    return call(script("extend"), (queue.stream,), args, lambda reply: [text(e) for e in reply])


def jot(queue: QueueKeys, entry: str, task_id: str, field: str, value: bytes) -> Command[bool]:
    """Keeps in a field of a running task's hash what was found out about the run that owns ``entry``; False
    if that run does not own the task any more.
    """
    args = [queue.task(task_id), entry, field, value]
    return call(script("jot"), (queue.stream,), args, lambda reply: reply == 1)


def give_back(queue: QueueKeys, consumer: str, entries: Sequence[str]) -> Command[None]:
    """Makes entries pending for ``consumer`` again, after a recoverer claimed what was alive."""
    words = ("XCLAIM", queue.stream, GROUP, consumer, 0, *entries, "JUSTID")
    return plain(*words, parse=lambda _: None)


def drop_consumer(queue: QueueKeys, consumer: str) -> Command[str]:
    """Deletes a dead consumer if nothing is pending for it: ``deleted``, ``busy`` or ``absent``."""
    return call(script("drop_consumer"), (queue.stream,), [GROUP, consumer], text)


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What one trimming step deleted."""

    aged: int
    over: int
    """Deleted although their time had not come, because of ``keep``."""
    aged_members: tuple[str, ...] = ()
    """Dead letters that may be members of groups, not deleted: see :mod:`chronosd.broker.members`."""
    over_members: tuple[str, ...] = ()
    """As many more because of ``keep``."""


def surplus(queue: QueueKeys, state: State, age_s: float | None, keep: int) -> Command[int]:
    """How many archived or completed tasks :func:`trim` would delete in all."""
    age: Any = "" if age_s is None else round(age_s * 1000)
    return call(script("surplus"), (queue.set_of(state),), [age, keep], int)


def trim(
    queue: QueueKeys, state: State, age_s: float | None, keep: int, limit: int = BATCH
) -> Command[Trimmed]:
    """Deletes up to ``limit`` archived or completed tasks.

    First those whose score lies ``age_s`` seconds in the past (completed ones are scored by expiry: 0), then
    the oldest above ``keep`` (0: no limit).
    """
    age: Any = "" if age_s is None else round(age_s * 1000)
    args = [queue.task_prefix, int(state), age, keep, limit]

    def parse(reply: Any) -> Trimmed:
        old, many = (tuple(text(one) for one in ids) for ids in reply[2:])
        return Trimmed(int(reply[0]), int(reply[1]), old, many)

    return call(script("trim"), (queue.set_of(state),), args, parse)
