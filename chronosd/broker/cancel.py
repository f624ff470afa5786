"""Cancelling: a task that waits is taken away, one that runs is marked and then ended by its worker.

The mark stands in the hash of the task and names the stream entry of its run. Whatever would run the
task again honours it in its own script: a retry, a hand-back, the settlement of a dead worker, a recovery.
So it holds also where the worker, its supervisor or its host dies before it could act. A second place, the
queue's ``cancelled`` set, is how a supervisor learns of marks without looking at every task.

What becomes of a cancelled task: one that waited is deleted, for nothing of it has happened; one that ran
has perhaps done half its work, so it is archived with the error ``cancelled`` (deleted if it asked for no
dead letter), and can be run again by an operator. A run that ends well before it could be stopped has
succeeded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from chronosd.broker.commands import BATCH, Command, Steps, call, plain, script, text
from chronosd.broker.inspect import is_name, queue_names
from chronosd.broker.keys import GROUP, Namespace, QueueKeys
from chronosd.errors import BrokerError, TaskNotFound

CANCELLED = "cancelled"
"""The error of a task that was cancelled while it ran."""

_DEPTH = 1000


class Cancellation(Enum):
    """What a cancellation found, and did."""

    REMOVED = "removed"
    """It waited; it is deleted and its lock released."""
    MARKED = "marked"
    """It runs; its worker is told within about a second, and it will not run again."""
    FOREIGN = "foreign"
    """It runs on a chronos-go server, which knows no cancellation; nothing was changed."""
    ENDED = "ended"
    """It has succeeded or failed for good; nothing was changed."""
    ABSENT = "absent"
    """There is no such task."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A running task that was cancelled."""

    entry: str
    consumer: str
    """Who has it."""
    force: bool
    """Its worker may be killed for it."""
    task_id: str


def cancel(queue: QueueKeys, task_id: str, *, force: bool = False) -> Command[Cancellation]:
    """Cancels one task. A repeat does no harm; one with ``force`` adds it to an earlier mark."""
    keys = (queue.stream, queue.scheduled, queue.retry, queue.task(task_id), queue.cancelled)
    args: list[Any] = [GROUP, task_id, "1" if force else "0", queue.task_prefix, _DEPTH]
    return call(script("cancel"), keys, args, lambda word: Cancellation(text(word)))


def cancel_anywhere(
    namespace: Namespace, task_id: str, queue: QueueKeys | None = None, *, force: bool = False
) -> Steps[tuple[str, Cancellation]]:
    """Cancels a task; without ``queue`` it is looked for in all of them. Returns its queue and what was done.

    Raises TaskNotFound, also if several queues have a task of that id; BrokerError.
    """
    if queue is None:
        queue = yield from holder(namespace, task_id)
    (done,) = yield [cancel(queue, task_id, force=force)]
    if isinstance(done, BrokerError):
        raise done
    if done is Cancellation.ABSENT:
        raise TaskNotFound(f"no task {task_id!r} in queue {queue.name!r}")
    return queue.name, done


def holder(namespace: Namespace, task_id: str) -> Steps[QueueKeys]:
    """The queue that has a task of that id. Raises TaskNotFound if there is none, or more than one."""
    names = yield from queue_names(namespace)
    queues = [namespace.queue(name) for name in names if is_name(namespace, name)]
    found: list[QueueKeys] = []
    for start in range(0, len(queues), BATCH):
        part = queues[start : start + BATCH]
        replies = yield [plain("EXISTS", queue.task(task_id)) for queue in part]
        for queue, reply in zip(part, replies, strict=True):
            if isinstance(reply, BrokerError):
                raise reply
            if reply:
                found.append(queue)
    if not found:
        raise TaskNotFound(f"no task {task_id!r} in any queue of namespace {namespace.prefix!r}")
    if len(found) > 1:
        names_ = ", ".join(repr(queue.name) for queue in found)
        raise TaskNotFound(f"task {task_id!r} is in several queues, say which: {names_}")
    return found[0]


def cancelled(queue: QueueKeys) -> Command[list[Mark]]:
    """The running tasks of a queue that were cancelled, up to a batch, and who has them."""

    def parse(rows: Sequence[Any]) -> list[Mark]:
        words = [text(word) for word in rows]
        return [
            Mark(words[i], words[i + 1], words[i + 2] == "1", words[i + 3]) for i in range(0, len(words), 4)
        ]

    return call(script("cancelled"), (queue.stream, queue.cancelled), [GROUP, BATCH], parse)
