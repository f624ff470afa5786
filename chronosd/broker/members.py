"""What the janitor does to dead letters that were members of a group: the group ends too, and says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chronosd.broker.commands import REPLY_BYTES, Steps, plain
from chronosd.broker.consume import body
from chronosd.broker.keys import Namespace, QueueKeys
from chronosd.broker.message import decode
from chronosd.broker.operate import ToDelete, delete_tasks
from chronosd.broker.workflow import Afterwards, end_group
from chronosd.errors import BrokerError, MessageError
from chronosd.states import State


def trim_members(queue: QueueKeys, ids: Sequence[str], then: Afterwards) -> Steps[int]:
    """Deletes dead letters whose ids are those of group members; returns how many it deleted.

    Args:
        ids: up to 500, as :func:`chronosd.broker.sweep.trim` returns them.
        then: what follows the dead-lettering of a callback.

    Raises BrokerError.
    """
    namespace = Namespace(queue.namespace)
    deleted = 0
    if not ids:
        return deleted
    sizes = yield [plain("HSTRLEN", queue.task(task_id), "msg") for task_id in ids]
    for lot in _lots(ids, [0 if isinstance(size, BrokerError) else int(size) for size in sizes]):
        stored = yield [body(queue, task_id) for task_id in lot]
        doomed = []
        for task_id, raw in zip(lot, stored, strict=True):
            try:
                message = None if raw is None or isinstance(raw, BrokerError) else decode(raw)
            except MessageError:
                message = None  # nobody can tell its group
            why = f"group member {task_id} was deleted after it had failed"
            follow = () if message is None else end_group(namespace, message, why, then)
            doomed.append(ToDelete(task_id, state=State.ARCHIVED, follow=follow))
        (words,) = yield [delete_tasks(queue, doomed)]
        if isinstance(words, BrokerError):
            raise words
        done = sum(word == "deleted" for word in words)
        deleted += done
        if done < len(lot):  # alive again, or not there: they only leave the set
            others = [task_id for task_id, word in zip(lot, words, strict=True) if word != "deleted"]
            yield [plain("ZREM", queue.archived, *others)]
    return deleted


def _lots(ids: Sequence[str], sizes: Sequence[int]) -> Iterator[list[str]]:
    """The ids in lots that one reply may carry."""
    lot: list[str] = []
    total = 0
    for task_id, size in zip(ids, sizes, strict=True):
        if lot and total + size > REPLY_BYTES:
            yield lot
            lot, total = [], 0
        lot.append(task_id)
        total += size
    if lot:
        yield lot
