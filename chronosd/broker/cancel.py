"""Cancelling: a task that waits is taken away, one that runs is marked and then ended by its worker.

The mark stands in the hash of the task and names the stream entry of its run. Whatever would run the
task again honours it in its own script: a retry, a hand-back, the settlement of a dead worker, a recovery.
So it holds also where the worker, its supervisor or its host dies before it could act. A second place, the
queue's ``cancelled`` set, is how a supervisor learns of marks without looking at every task.

:mod:`~chronosd.broker.cancelling` puts it together.

What becomes of a cancelled task: one that waited is deleted, for nothing of it has happened; one that ran has
perhaps done half its work, so it is archived with the error ``cancelled`` (deleted if it asked for no dead
letter), and can be run again by an operator. A run that ends well before it could be stopped has succeeded.

chronos-go knows no marks: a task of ours that one of its servers recovers runs again, on whichever worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from chronosd.broker.commands import BATCH, Command, call, script, text
from chronosd.broker.keys import GROUP, QueueKeys

CANCELLED = "cancelled"
"""The error of a task that was cancelled while it ran."""


class Cancellation(Enum):
    """What a cancellation found, and did."""

    REMOVED = "removed"
    """It waited; it is deleted, its lock released, and the group that it was a member of has ended."""
    MARKED = "marked"
    """It runs; its worker is told within about a second, and it will not run again."""
    FOREIGN = "foreign"
    """It runs on a chronos-go server, which knows no cancellation; nothing was changed."""
    ENDED = "ended"
    """It has succeeded or failed for good; nothing was changed."""
    ABSENT = "absent"
    """There is no such task."""
    RESTLESS = "restless"
    """It changed whenever it was to be deleted; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A running task that was cancelled."""

    entry: str
    consumer: str
    """Who has it."""
    force: bool
    """Its worker may be killed for it."""
    task_id: str


def mark(queue: QueueKeys, task_id: str, *, force: bool = False) -> Command[Cancellation | None]:
    """Marks the run of one task, if it runs. None if it waits: then nothing was changed.

    A repeat does no harm; one with ``force`` adds it to an earlier mark.
    """
    keys = (queue.stream, queue.task(task_id), queue.cancelled)
    args: list[Any] = [GROUP, task_id, "1" if force else "0"]

    def parse(reply: Any) -> Cancellation | None:
        word = text(reply)
        return None if word == "waiting" else Cancellation(word)

    return call(script("cancel"), keys, args, parse)


FIRST = "0"
"""The cursor of the first page, and of what follows the last one."""


@dataclass(frozen=True, slots=True)
class Marks:
    """A page of the running tasks of a queue that were cancelled."""

    marks: list[Mark]
    cursor: str
    """Where the next page begins; :data:`FIRST` if this was the last one."""


def cancelled(queue: QueueKeys, cursor: str = FIRST, count: int = BATCH) -> Command[Marks]:
    """The running tasks of a queue that were cancelled, and who has them: about ``count`` of them.

    All pages together have every mark that is there meanwhile, one or the other of them twice.
    """

    def parse(reply: Any) -> Marks:
        words = [text(word) for word in reply[1]]
        marks = [
            Mark(words[i], words[i + 1], words[i + 2] == "1", words[i + 3]) for i in range(0, len(words), 4)
        ]
        return Marks(marks, text(reply[0]))

    return call(script("cancelled"), (queue.stream, queue.cancelled), [GROUP, cursor, count], parse)
