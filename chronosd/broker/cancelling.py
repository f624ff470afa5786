"""The whole of a cancellation: find the task, mark its run, or delete it where it waits."""

from __future__ import annotations

from chronosd.broker.cancel import Cancellation, mark
from chronosd.broker.commands import BATCH, Steps, plain, text
from chronosd.broker.enqueue import STATES
from chronosd.broker.follow import Follow
from chronosd.broker.inspect import is_name, queue_names
from chronosd.broker.keys import Namespace, QueueKeys
from chronosd.broker.message import decode
from chronosd.broker.operate import ToDelete, delete_tasks
from chronosd.broker.workflow import end_group
from chronosd.errors import BrokerError, MessageError, TaskNotFound

_TRIES = 5  # a task that moves between the look and the move is looked at again


def cancel_task(
    namespace: Namespace, queue: QueueKeys, task_id: str, *, force: bool = False
) -> Steps[Cancellation]:
    """Cancels one task of a queue. Raises BrokerError."""
    for _ in range(_TRIES):
        (found,) = yield [mark(queue, task_id, force=force)]
        if isinstance(found, BrokerError):
            raise found
        marked: Cancellation | None = found
        if marked is not None:
            return marked
        (stored,) = yield [plain("HMGET", queue.task(task_id), "msg", "state")]
        if isinstance(stored, BrokerError):
            raise stored
        raw, state = stored[0], STATES.get(text(stored[1]))
        if raw is None or state is None or state.name in ("COMPLETED", "ARCHIVED"):
            continue  # it has gone on
        doomed = ToDelete(task_id, state=state, follow=_following(namespace, raw))
        (words,) = yield [delete_tasks(queue, [doomed])]
        if isinstance(words, BrokerError):
            raise words
        if words == ["deleted"]:
            return Cancellation.REMOVED
    return Cancellation.RESTLESS


def _following(namespace: Namespace, raw: bytes) -> list[Follow]:
    """A member takes its group with it: the others cannot make it whole any more."""
    if b'"group_id"' not in raw:
        return []
    try:
        message = decode(raw)
    except MessageError:
        return []
    return end_group(namespace, message, f"group member {message.id} was cancelled")


def cancel_anywhere(
    namespace: Namespace, task_id: str, queue: QueueKeys | None = None, *, force: bool = False
) -> Steps[tuple[str, Cancellation]]:
    """Cancels a task; without ``queue`` it is looked for in all of them. Returns its queue and what was done.

    Raises TaskNotFound, also if several queues have a task of that id; BrokerError.
    """
    if queue is None:
        queue = yield from holder(namespace, task_id)
    done = yield from cancel_task(namespace, queue, task_id, force=force)
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
        several = ", ".join(repr(queue.name) for queue in found)
        raise TaskNotFound(f"task {task_id!r} is in several queues, say which: {several}")
    return found[0]
