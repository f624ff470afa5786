"""Storing new tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from chronosd.broker.commands import Command, call, plain, script, text
from chronosd.broker.keys import Namespace, QueueKeys
from chronosd.states import State


class NewTask(NamedTuple):
    """A task as it goes to the server. A tuple, as one is made for every task of an enqueue_many call."""

    id: str
    msg: bytes
    """The encoded message."""
    delay_ms: int = 0
    """How long it waits, by the server's clock; 0 for not at all."""
    at_ms: int | None = None
    """The instant it waits for instead, in unix milliseconds."""
    nonce: str = ""
    """Names this call where the id does not (a custom id), so that a resend is told from a conflict."""
    lock: str = ""
    """The key of its unique lock; empty for none."""
    lock_ms: int = 0
    """How long the lock lives once the task is due."""
    trace: str = ""
    """The trace context that it belongs to; empty for none."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Another task that holds the unique lock."""

    task_id: str
    """Empty if what is under the lock's key is no lock."""
    state: State | None


def enqueue(queue: QueueKeys, tasks: Sequence[NewTask]) -> Command[list[str]]:
    """Stores tasks. For each a word: ``pending``, ``scheduled``, ``repeat`` (this call had stored it
    before) or ``conflict`` (its id is in use by a task that has not ended; nothing was changed)."""
    args: list[Any] = [queue.task_prefix]
    for task in tasks:
        args += _words(task)
    return call(script("enqueue"), (queue.stream, *queue.sets), args, _words_of)


def _words_of(reply: Any) -> list[str]:
    try:
        return [_WORDS[word] for word in reply]
    except KeyError:
        return [text(word) for word in reply]


_WORDS = {word.encode(): word for word in ("pending", "scheduled", "repeat", "conflict")}


def enqueue_unique(queue: QueueKeys, tasks: Sequence[NewTask]) -> Command[list[str | Holder]]:
    """Stores tasks that have a unique lock: for each the word of :func:`enqueue`, or who holds its lock."""
    args: list[Any] = [queue.task_prefix]
    for task in tasks:
        args += (*_words(task), task.lock, task.lock_ms)

    def parse(reply: Any) -> list[str | Holder]:
        rows = [[text(word) for word in reply[i : i + 3]] for i in range(0, len(reply), 3)]
        return [
            Holder(holder, STATES.get(state)) if word == "duplicate" else word for word, holder, state in rows
        ]

    return call(script("enqueue_unique"), (queue.stream, *queue.sets), args, parse)


STATES = {str(int(state)): state for state in State}
"""By the text that stands in a task's hash."""


def _words(task: NewTask) -> tuple[Any, ...]:
    mode, ms = when(task)
    return task.id, task.nonce, task.msg, mode, ms


def when(task: NewTask) -> tuple[str, int]:
    """The mode that scripts know, with the trace context if there is one, and its milliseconds."""
    if task.at_ms is not None:
        mode, ms = "at", task.at_ms
    elif task.delay_ms > 0:
        mode, ms = "in", task.delay_ms
    else:
        mode, ms = "now", 0
    return f"{mode} {task.trace}" if task.trace else mode, ms


def register_queues(namespace: Namespace, names: Iterable[str]) -> Command[None]:
    """Notes queue names among all that were ever used. Another slot, hence a command of its own."""
    return plain("SADD", namespace.queues, *names, parse=lambda _: None)
