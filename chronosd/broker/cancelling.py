"""The whole of a cancellation: find the task, mark its run, or delete it where it waits."""

from __future__ import annotations

from chronosd.broker.cancel import Cancellation, mark
from chronosd.broker.commands import Steps, plain, text
from chronosd.broker.enqueue import STATES
from chronosd.broker.inspect import queue_having
from chronosd.broker.keys import Namespace, QueueKeys
from chronosd.broker.operate import ToDelete, delete_tasks, ended_groups
from chronosd.broker.workflow import Afterwards, nothing_more
from chronosd.errors import BrokerError, TaskNotFound
from chronosd.states import FINAL_SETS

_TRIES = 5  # a task that moves between the look and the move is looked at again


def cancel_task(
    namespace: Namespace,
    queue: QueueKeys,
    task_id: str,
    *,
    force: bool = False,
    then: Afterwards = nothing_more,
) -> Steps[Cancellation]:
    """Cancels one task of a queue.

    One that waited takes its group with it: the others cannot make it whole any more. ``then`` says what
    follows the dead-lettering of its callback.

    Raises BrokerError.
    """
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
        if raw is None or state is None or state in FINAL_SETS:
            continue  # it has gone on
        follow = ended_groups(namespace, raw, state, then, how="was cancelled")
        doomed = ToDelete(task_id, state=state, follow=follow)
        (words,) = yield [delete_tasks(queue, [doomed])]
        if isinstance(words, BrokerError):
            raise words
        if words == ["deleted"]:
            return Cancellation.REMOVED
    return Cancellation.RESTLESS


def cancel_anywhere(
    namespace: Namespace,
    task_id: str,
    queue: QueueKeys | None = None,
    *,
    force: bool = False,
    then: Afterwards = nothing_more,
) -> Steps[tuple[str, Cancellation]]:
    """Cancels a task; without ``queue`` it is looked for in all of them. Returns its queue and what was done.

    ``then`` as for :func:`cancel_task`.

    Raises TaskNotFound, also if several queues have a task of that id; BrokerError.
    """
    if queue is None:
        queue = yield from queue_having(namespace, task_id)
    done = yield from cancel_task(namespace, queue, task_id, force=force, then=then)
    if done is Cancellation.ABSENT:
        raise TaskNotFound(f"no task {task_id!r} in queue {queue.name!r}")
    return queue.name, done
