"""The task that follows a dead letter (``on_dead_letter``), enqueued by the script that archives.

Its arguments say what died::

    {"id": ..., "kind": ..., "queue": ..., "error": ..., "retried": ..., "crashes": ...,
     "died_at": unix seconds}

``kind`` is empty where the message could not be read. A task that was enqueued with ``discard`` leaves no
dead letter, and the dead letter of such a task itself is followed by nothing: it would follow itself for
ever. Nor is that of a task that somebody has cancelled: they know.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from chronosd.broker.cancel import CANCELLED
from chronosd.broker.consume import Dead
from chronosd.broker.follow import NextTask, Place
from chronosd.broker.keys import Field, Namespace, QueueKeys
from chronosd.broker.message import DEFAULT_MAX_RETRY, Message, encode_new
from chronosd.broker.payload import encode_args
from chronosd.config.schema import Config, DeadLetterConfig
from chronosd.states import State


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Which task follows every dead letter."""

    namespace: Namespace
    kind: str
    queue: QueueKeys

    @classmethod
    def of(cls, config: Config) -> DeadLetters | None:
        """As the configuration says; None if nothing follows."""
        return cls.following_in(Namespace(config.namespace), config.on_dead_letter)

    @classmethod
    def following_in(cls, namespace: Namespace, given: DeadLetterConfig | None) -> DeadLetters | None:
        """In a namespace, as ``on_dead_letter`` says; None if nothing follows."""
        return None if given is None else cls(namespace, given.kind, namespace.queue(given.queue))

    def followed(self, dead: Dead, queue: QueueKeys) -> Dead:
        """The same end, and the task that follows it."""
        message = dead.message
        kind, retried = (dead.kind, 0) if message is None else (message.kind, message.retried)
        error = str(dead.fields.get(Field.ERROR, "")) if message is None else message.last_err
        more = self._follow(dead.task_id, kind, queue, error, retried, dead.crashes)
        return replace(dead, follow=(*dead.follow, *more))

    def following(self, record: Message, queue: QueueKeys) -> Sequence[NextTask]:
        """What follows the record that is made of an entry which names no task."""
        return self._follow(record.id, record.kind, queue, record.last_err, 0, 0)

    def _follow(
        self, task_id: str, kind: str, queue: QueueKeys, error: str, retried: int, crashes: int
    ) -> Sequence[NextTask]:
        if kind == self.kind or error == CANCELLED:
            return ()
        args = {
            "id": _writable(task_id),
            "kind": _writable(kind),
            "queue": queue.name,
            "error": _writable(error),
            "retried": retried,
            "crashes": crashes,
            "died_at": round(time.time(), 3),
        }
        id_ = str(uuid.uuid4())
        msg = encode_new(
            id_, self.kind, self.queue.name, encode_args(args), DEFAULT_MAX_RETRY, False, 0, State.PENDING
        )
        return (NextTask(Place(self.namespace, self.queue, id_), msg),)


def _writable(text: str) -> str:
    """What others have written may be no Unicode; the end of a task must not fail for it."""
    return text.encode("utf-8", "backslashreplace").decode()
