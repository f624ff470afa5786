"""What an operator does to a task: run it now, delete it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from chronosd.broker.commands import Command, Steps, call, plain, script, text
from chronosd.broker.enqueue import STATES, Holder
from chronosd.broker.follow import Follow, follow_words
from chronosd.broker.keys import GROUP, Namespace, QueueKeys
from chronosd.broker.message import Message, decode, encode
from chronosd.broker.workflow import Afterwards, end_group, nothing_more
from chronosd.errors import BrokerError, MessageError
from chronosd.states import FINAL_SETS, State

_TRIES = 5  # a task that changes between the look and the move is looked at again


class ToRun(NamedTuple):
    """A task that is to be run now."""

    task_id: str
    sha: str
    """Of the message as it was read: the move is made only if it still stands."""
    msg: bytes
    """As it is to be stored; empty leaves it as it is."""


class ToDelete(NamedTuple):
    """A task that is to be deleted."""

    task_id: str
    """Empty for an entry that names none."""
    entry: str = ""
    state: State | None = None
    """The state that it must still be in; None for any."""
    follow: Sequence[Follow] = ()


def run_task(queue: QueueKeys, task_id: str) -> Steps[str | Holder]:
    """Makes a task ready at once, whatever it waits for, or begins it anew if it has ended.

    Returns ``moved``; where it is already, ``pending`` or ``active``; ``absent``; ``changed`` if it would not
    keep still; or who holds its unique lock. Raises BrokerError.
    """
    word: str | Holder = "changed"
    for _ in range(_TRIES):
        (stored,) = yield [plain("HMGET", queue.task(task_id), "msg", "state")]
        if isinstance(stored, BrokerError):
            raise stored
        raw, state = stored
        if raw is None:
            return "absent"
        (words,) = yield [run_tasks(queue, [to_run(task_id, raw, STATES.get(text(state)))])]
        if isinstance(words, BrokerError):
            raise words
        (word,) = words
        if word != "changed":
            break
    return word


def run_tasks(queue: QueueKeys, tasks: Sequence[ToRun]) -> Command[list[str | Holder]]:
    """Makes tasks ready at once; for each a word as :func:`run_task` has them, or who holds its lock."""
    args: list[Any] = [queue.task_prefix]
    for task in tasks:
        args += task

    def parse(reply: Any) -> list[str | Holder]:
        rows = [[text(word) for word in reply[i : i + 3]] for i in range(0, len(reply), 3)]
        return [
            Holder(holder, STATES.get(state)) if word == "duplicate" else word for word, holder, state in rows
        ]

    return call(script("run_task"), (queue.stream, *queue.sets), args, parse)


def to_run(task_id: str, raw: bytes, state: State | None) -> ToRun:
    """A task as it is to be run; one that had ended has all its retries before it."""
    sha = hashlib.sha1(raw, usedforsecurity=False).hexdigest()
    if state not in FINAL_SETS:
        return ToRun(task_id, sha, b"")
    try:
        message = decode(raw)
    except MessageError:
        return ToRun(task_id, sha, b"")  # it ends among the dead letters again, with the reason
    fresh = replace(message, retried=0, completed_at=0, result=None)
    return ToRun(task_id, sha, encode(fresh, State.PENDING))


def delete_task(
    namespace: Namespace,
    queue: QueueKeys,
    task_id: str,
    *,
    force: bool = False,
    then: Afterwards = nothing_more,
) -> Steps[str]:
    """Deletes a task and its lock: ``deleted``, ``active`` (it runs, and was not forced) or ``absent``.

    A group that it was a member of ends, its callback is dead-lettered, and `then` says what follows that.

    Raises BrokerError.
    """
    (stored,) = yield [plain("HMGET", queue.task(task_id), "msg", "state")]
    if isinstance(stored, BrokerError):
        raise stored
    raw, state = stored
    follow = ended_groups(namespace, raw, STATES.get(text(state)), then)
    (words,) = yield [delete_tasks(queue, [ToDelete(task_id, follow=follow)], force=force)]
    if isinstance(words, BrokerError):
        raise words
    word: str = words[0]
    return word


def delete_tasks(queue: QueueKeys, tasks: Iterable[ToDelete], *, force: bool = False) -> Command[list[str]]:
    """Deletes tasks: for each ``deleted``, ``active``, ``absent`` or ``changed`` (in another state)."""
    args: list[Any] = [GROUP, queue.task_prefix, "1" if force else ""]
    for task in tasks:
        state = "" if task.state is None else int(task.state)
        args += (task.task_id, task.entry, state, *follow_words(task.follow))
    return call(script("delete"), (queue.stream, *queue.sets), args, lambda reply: [text(w) for w in reply])


def ended_groups(
    namespace: Namespace,
    raw: bytes | None,
    state: State | None,
    then: Afterwards,
    *,
    how: str = "was deleted by an operator",
) -> list[Follow]:
    """What follows a deletion: a member that has not succeeded takes its group with it. ``how`` it went is
    the reason that its callback is given."""
    if raw is None or state is State.COMPLETED or b'"group_id"' not in raw:
        return []
    try:
        message: Message = decode(raw)
    except MessageError:
        return []
    return end_group(namespace, message, f"group member {message.id} {how}", then)
