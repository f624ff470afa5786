"""Storing new tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from chronosd.broker.commands import Command, call, plain, script, text
from chronosd.broker.keys import Namespace, QueueKeys


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task as it goes to the server."""

    id: str
    msg: bytes
    """The encoded message."""
    delay_ms: int = 0
    """How long it waits, by the server's clock; 0 for not at all."""
    at_ms: int | None = None
    """The instant it waits for instead, in unix milliseconds."""
    nonce: str = ""
    """Names this call where the id does not (a custom id), so that a resend is told from a conflict."""


def enqueue(queue: QueueKeys, tasks: Sequence[NewTask]) -> Command[list[str]]:
    """Stores tasks. For each a word: ``pending``, ``scheduled``, ``repeat`` (this call had stored it
    before) or ``conflict`` (its id is in use by a task that has not ended; nothing was changed)."""
    args: list[Any] = [queue.task_prefix]
    for task in tasks:
        if task.at_ms is not None:
            mode, ms = "at", task.at_ms
        elif task.delay_ms > 0:
            mode, ms = "in", task.delay_ms
        else:
            mode, ms = "now", 0
        args += (task.id, task.nonce, task.msg, mode, ms)
    return call(script("enqueue"), (queue.stream, *queue.sets), args, lambda reply: [text(w) for w in reply])


def register_queues(namespace: Namespace, names: Iterable[str]) -> Command[None]:
    """Notes queue names among all that were ever used. Another slot, hence a command of its own."""
    return plain("SADD", namespace.queues, *names, parse=lambda _: None)
