"""Looking without touching: what the queues hold, one page or one task at a time.

Nothing here asks for all keys or a whole set, so it may be used on a server with millions of tasks. A queue
that is not there, or half of it, is an empty one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from chronosd.broker.commands import BATCH, REPLY_BYTES, Command, Steps, call, plain, script, text
from chronosd.broker.consume import body
from chronosd.broker.facts import ListedTask, TaskDetails, described, number, seconds
from chronosd.broker.keys import GROUP, Namespace, QueueKeys
from chronosd.broker.server import ServerInfo
from chronosd.broker.server import info as server_info
from chronosd.broker.server import time as server_time
from chronosd.errors import BrokerError, TaskNotFound
from chronosd.states import SET_STATES, State

__all__ = [
    "ListedTask",
    "QueueStats",
    "ServerInfo",
    "TaskDetails",
    "TaskPage",
    "ambiguous",
    "list_tasks",
    "paused_names",
    "queue_having",
    "queue_names",
    "queue_stats",
    "server_info",
    "server_time",
    "show_task",
    "stats_of",
]


@dataclass(frozen=True, slots=True)
class QueueStats:
    """How many tasks of a queue are in each state."""

    queue: str
    pending: int
    """Ready, not yet delivered."""
    active: int
    """Delivered: running, or read ahead by a worker."""
    scheduled: int
    retry: int
    archived: int
    completed: int
    paused: bool
    oldest_pending_s: float | None
    """How long the oldest ready task has been waiting; None if none is."""
    consumers: int
    """Consumers that the group knows, dead ones included until they are dropped."""


@dataclass(frozen=True, slots=True)
class TaskPage:
    """A part of a listing."""

    tasks: tuple[ListedTask, ...]
    next: str
    """Give it as ``after`` for the part that follows; empty at the end."""


def queue_names(namespace: Namespace) -> Steps[tuple[str, ...]]:
    """Every queue name that was ever enqueued to, sorted; read in pages. Raises BrokerError."""
    return (yield from _names(namespace.queues))


def paused_names(namespace: Namespace) -> Steps[tuple[str, ...]]:
    """The names of all paused queues, sorted; some may be no queue's. Read in pages. Raises BrokerError."""
    return (yield from _names(namespace.paused))


def _names(key: str) -> Steps[tuple[str, ...]]:
    names: set[str] = set()
    cursor = "0"
    while True:
        (reply,) = yield [plain("SSCAN", key, cursor, "COUNT", BATCH)]
        if isinstance(reply, BrokerError):
            raise reply
        cursor = text(reply[0])
        names.update(map(text, reply[1]))
        if cursor == "0":
            return tuple(sorted(names))


def queue_stats(namespace: Namespace, queue: QueueKeys) -> Steps[QueueStats]:
    """Counts a queue's tasks by state, in one round trip. Raises BrokerError."""
    (stats,) = yield from stats_of(namespace, [queue])
    return stats


def stats_of(namespace: Namespace, queues: Sequence[QueueKeys]) -> Steps[list[QueueStats]]:
    """Counts the tasks of many queues, a batch of queues in a round trip. Raises BrokerError."""
    found: list[QueueStats] = []
    for start in range(0, len(queues), BATCH):
        part = queues[start : start + BATCH]
        commands: list[Command[Any]] = []
        for queue in part:
            commands.append(call(script("stats"), (queue.stream, *queue.sets), [GROUP]))
            commands.append(plain("SISMEMBER", namespace.paused, queue.name))
        replies = yield commands
        for reply in replies:
            if isinstance(reply, BrokerError):
                raise reply
        found += [
            _stats(queue, counts, paused)
            for queue, counts, paused in zip(part, replies[::2], replies[1::2], strict=True)
        ]
    return found


def _stats(queue: QueueKeys, counts: Sequence[Any], paused: int) -> QueueStats:
    *numbers, waited, consumers = counts
    pending, active, scheduled, retry, archived, completed = map(int, numbers)
    waited_s = int(waited) / 1000 if waited else None
    return QueueStats(
        *(queue.name, pending, active, scheduled, retry, archived, completed),
        *(bool(paused), waited_s, int(consumers)),
    )


def list_tasks(queue: QueueKeys, state: State, after: str = "", limit: int = 50) -> Steps[TaskPage]:
    """A page of the tasks in one state: the streams' by age, the sets' by score (due, died, expires).

    Args:
        after: ``TaskPage.next`` of the page before; empty for the first.
        limit: the most to list, up to 500.

    Raises ValueError for an ``after`` that no page has given, BrokerError.
    """
    limit = max(1, min(limit, BATCH))
    (rows,) = yield [_page(queue, state, after, limit)]
    if isinstance(rows, BrokerError):
        raise rows
    tasks: list[ListedTask] = []
    for row in rows:
        task, msg, size = row
        if msg is None and size:  # the reply was full; one at a time, each may be as large as Redis allows
            (msg,) = yield [body(queue, task.id)]
            if isinstance(msg, BrokerError):
                raise msg
        tasks.append(described(task, msg))
    if len(tasks) < limit:
        return TaskPage(tuple(tasks), "")
    if state in SET_STATES:
        return TaskPage(tuple(tasks), str(_offset(after) + len(tasks)))
    return TaskPage(tuple(tasks), tasks[-1].entry)


def show_task(queue: QueueKeys, task_id: str) -> Command[TaskDetails | None]:
    """All that is known of one task; None if there is no such task."""

    def parse(reply: Any) -> TaskDetails | None:
        flat, scores, owner = reply
        fields = {text(flat[i]): flat[i + 1] for i in range(0, len(flat), 2)}
        places = [state for state, score in zip(SET_STATES, scores, strict=True) if score]
        if not fields and not places:
            return None
        return _details(queue.name, task_id, fields, dict(zip(SET_STATES, scores, strict=True)), owner)

    keys = (queue.stream, *queue.sets, queue.task(task_id))
    return call(script("show"), keys, [GROUP, task_id], parse)


def queue_having(namespace: Namespace, task_id: str) -> Steps[QueueKeys]:
    """The queue that has a task of that id. Raises TaskNotFound if there is none, or more than one: ids are
    unique per queue only."""
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
        raise ambiguous(task_id, found)
    return found[0]


def ambiguous(task_id: str, queues: Sequence[QueueKeys]) -> TaskNotFound:
    """The error for an id that several queues have."""
    names = ", ".join(repr(queue.name) for queue in queues)
    return TaskNotFound(f"task {task_id!r} is in several queues, say which: {names}")


_Row = tuple[ListedTask, bytes | None, int]


def _page(queue: QueueKeys, state: State, after: str, limit: int) -> Command[list[_Row]]:
    prefix = queue.task_prefix
    if state is State.PENDING:
        args: list[Any] = [GROUP, _entry(after), limit, prefix, REPLY_BYTES]
        return call(
            script("list_ready"), (queue.stream,), args, lambda rows: [_ready(queue, r) for r in rows]
        )
    if state is State.ACTIVE:
        args = [GROUP, _entry(after), limit, prefix, REPLY_BYTES]
        return call(
            script("list_active"), (queue.stream,), args, lambda rows: [_active(queue, r) for r in rows]
        )
    args = [_offset(after), limit, prefix, REPLY_BYTES]
    return call(
        script("list_set"),
        (queue.set_of(state),),
        args,
        lambda rows: [_in_set(queue, state, r) for r in rows],
    )


def _ready(queue: QueueKeys, row: Sequence[Any]) -> _Row:
    entry, task_id, *stored = row
    task = ListedTask(queue.name, State.PENDING, text(task_id), entry=text(entry))
    return _with_facts(task, stored)


def _active(queue: QueueKeys, row: Sequence[Any]) -> _Row:
    entry, consumer, idle_ms, deliveries, task_id, *stored = row
    task = ListedTask(
        queue.name,
        State.ACTIVE,
        text(task_id),
        entry=text(entry),
        consumer=text(consumer),
        idle_s=int(idle_ms) / 1000,
        deliveries=int(deliveries),
        problem="its stream entry was deleted" if task_id is None else "",
    )
    return _with_facts(task, stored)


def _in_set(queue: QueueKeys, state: State, row: Sequence[Any]) -> _Row:
    task_id, score, *stored = row
    return _with_facts(ListedTask(queue.name, state, text(task_id), at=float(score)), stored)


def _with_facts(task: ListedTask, stored: Sequence[Any]) -> _Row:
    msg, size, _, crashes, enqueued_at, error, unknown_since = stored
    problem = task.problem
    if not problem and not task.id:
        problem = f"the entry names no task: {text(error)}"
    elif not problem and not size:
        problem = "its message is gone"
    task = replace(
        task,
        size=int(size),
        crashes=number(crashes),
        enqueued_at=seconds(enqueued_at, 1000),
        error=text(error) if task.id else "",
        unknown_since=seconds(unknown_since, 1),
        problem=problem,
    )
    return task, msg, int(size)


def _details(
    queue: str, task_id: str, fields: dict[str, Any], scores: dict[State, Any], owner: Sequence[Any]
) -> TaskDetails:
    return TaskDetails.of(
        queue,
        task_id,
        fields,
        {state: float(score) for state, score in scores.items() if score},
        (text(owner[0]), text(owner[1]), int(owner[2]) / 1000, int(owner[3])) if owner else None,
    )


def _entry(after: str) -> str:
    ms, _, count = after.partition("-")
    if after and not (ms.isdecimal() and (count or "0").isdecimal()):
        raise ValueError(f"after: {after!r} is no stream entry")
    return after


def _offset(after: str) -> int:
    if after and not after.isdecimal():
        raise ValueError(f"after: {after!r} is no offset")
    return int(after or 0)


def is_name(namespace: Namespace, name: str) -> bool:
    """Whether a registered name can stand in a key of ours."""
    try:
        namespace.queue(name)
    except ValueError:  # Go takes names that we do not; there is no key to look under
        return False
    return True
