"""What follows the end of a task, in the same script as the end itself: another task, a report to a group.

Either all of it happens or nothing does, so a successor is never lost between two commands, and never sent by
a run that had lost its task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chronosd.broker.keys import Namespace, QueueKeys


@dataclass(frozen=True, slots=True)
class Place:
    """Where a following task goes."""

    namespace: Namespace
    queue: QueueKeys
    task_id: str
    delay_ms: int = 0

    @property
    def words(self) -> tuple[Any, ...]:
        """As follow.lua takes it."""
        queue = self.queue
        return (
            queue.stream,
            queue.scheduled,
            queue.task_prefix,
            self.task_id,
            self.delay_ms,
            self.namespace.queues,
            queue.name,
        )


@dataclass(frozen=True, slots=True)
class NextTask:
    """A task that is enqueued unless its id is in use."""

    place: Place
    msg: bytes
    """The encoded message."""

    @property
    def words(self) -> tuple[Any, ...]:
        """As follow.lua takes it."""
        return ("task", *self.place.words, self.msg)


@dataclass(frozen=True, slots=True)
class MemberDone:
    """A member of a group has succeeded; the last one enqueues the group's callback."""

    members: str
    """Key of the set of the members that have not."""
    results: str
    """Key of the hash of their results."""
    slot: str
    index: int
    size: int
    result: bytes
    """Base64 of the result's JSON; empty for a member that returned nothing."""
    callback: Place
    head: bytes
    """The callback's message up to where the results go in."""
    tail: bytes

    @property
    def words(self) -> tuple[Any, ...]:
        """As follow.lua takes it."""
        report = ("member", self.members, self.results, self.slot, self.index, self.size, self.result)
        return (*report, *self.callback.words, self.head, self.tail)


@dataclass(frozen=True, slots=True)
class GroupBegins:
    """A group stage of a chain: its members are enqueued, as far as they are not there."""

    members: str
    """As in `MemberDone`."""
    results: str
    callback: Place
    head: bytes
    tail: bytes
    tasks: Sequence[NextTask]
    """The members in order; each one's id is its slot."""

    @property
    def words(self) -> tuple[Any, ...]:
        """As follow.lua takes it."""
        begin = ("group", self.members, self.results, len(self.tasks), *self.callback.words)
        each = [word for task in self.tasks for word in (*task.place.words, task.msg)]
        return (*begin, self.head, self.tail, *each)


@dataclass(frozen=True, slots=True)
class GroupWaits:
    """A member of a group needs more time than its group has: the group waits for it."""

    members: str
    results: str
    seconds: int
    """From now; a group that waits for longer goes on to."""

    @property
    def words(self) -> tuple[Any, ...]:
        """As follow.lua takes it."""
        return ("hold", self.members, self.results, self.seconds)


@dataclass(frozen=True, slots=True)
class GroupEnds:
    """A group's member is gone for good: its callback is dead-lettered, with the results so far."""

    members: str
    """As in `MemberDone`."""
    results: str
    slot: str
    size: int
    archived: str
    """Key of the set of dead letters of the callback's queue."""
    callback: Place
    head: bytes
    tail: bytes
    then: Sequence[NextTask] = ()
    """What follows if this ended the group: it was open, and waited for this member."""

    @property
    def words(self) -> tuple[Any, ...]:
        """As follow.lua takes it."""
        end = ("end", self.members, self.results, self.slot, self.size, self.archived, *self.callback.words)
        return (*end, self.head, self.tail, *follow_words(self.then))


Follow = NextTask | MemberDone | GroupBegins | GroupWaits | GroupEnds


def follow_words(follow: Sequence[Follow]) -> list[Any]:
    """Their number, and all of them."""
    return [len(follow), *(word for one in follow for word in one.words)]
