"""Carries out what was cancelled: tells the worker that has the task, and kills it where that was asked for.

A mark in Redis says that a task was cancelled (see :mod:`chronosd.broker.cancel`). Once a second the marks of
the queues that workers here serve are read. The worker of a marked task is told once: it cancels an async
handler, and lets a sync one run on, whose failure then counts as the cancellation. With `force` a worker
whose task still runs a second later is killed; the other tasks that it had are handed back, uncharged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from chronosd.board import SlotState
from chronosd.broker.cancel import FIRST, Mark, cancelled
from chronosd.broker.commands import BATCH, Steps
from chronosd.broker.keys import Namespace
from chronosd.errors import BrokerError
from chronosd.log import get_logger
from chronosd.supervisor.steps import Done
from chronosd.supervisor.verdict import Reason
from chronosd.supervisor.worker import Worker

log = get_logger("chronosd.supervisor")

_FORCE_AFTER_S = 0.9
"""A little less than the interval, so that it is over at the next look."""

_ALIVE = (SlotState.CLAIMED, SlotState.RUNNING)

Held = tuple[str, str, str]
"""Consumer, queue, entry."""


class Cancels:
    """One pass reads the marks of every queue that is served, and acts on those of its own workers."""

    name = "cancels"
    interval_s = 1.0

    def __init__(
        self,
        namespace: Namespace,
        workers: Callable[[], Iterable[Worker]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._namespace = namespace
        self._workers = workers
        self._clock = clock
        self._told: dict[Held, float] = {}
        """When a worker was told; monotonic."""

    def run_once(self) -> Steps[Done]:
        names = sorted({queue for worker in self._workers() for queue in worker.board.queues})
        errors: dict[str, BrokerError] = {}
        marks: list[tuple[str, Mark]] = []
        cursors = dict.fromkeys(names, FIRST)
        while cursors:
            part = list(cursors)[:BATCH]
            # Shared out, so that the whole round trip stays a bounded one however many queues there are.
            count = max(1, BATCH // len(part))
            replies = yield [cancelled(self._namespace.queue(name), cursors[name], count) for name in part]
            for name, reply in zip(part, replies, strict=True):
                del cursors[name]
                if isinstance(reply, BrokerError):
                    errors[name] = reply
                    continue
                marks += [(name, mark) for mark in reply.marks]
                if reply.cursor != FIRST:
                    cursors[name] = reply.cursor
        told = self._act(marks) if marks else 0
        self._told = {
            held: at
            for queue, mark in marks
            if (at := self._told.get(held := (mark.consumer, queue, mark.entry))) is not None
        }
        return Done({"cancelled": told}, None, errors)

    def _act(self, marks: list[tuple[str, Mark]]) -> int:
        now = self._clock()
        workers = {worker.spec.consumer: worker for worker in self._workers()}
        boards: dict[str, dict[tuple[str, str], SlotState]] = {}
        tell: dict[str, list[list[str]]] = {}
        for queue, mark in marks:
            worker = workers.get(mark.consumer)
            if worker is None or worker.killed:
                continue
            if mark.consumer not in boards:
                boards[mark.consumer] = {(s.queue, s.entry): s.state for s in worker.board.read()}
            state = boards[mark.consumer].get((queue, mark.entry))
            told_at = self._told.get((mark.consumer, queue, mark.entry))
            if state not in _ALIVE:
                continue
            if told_at is None:
                self._told[mark.consumer, queue, mark.entry] = now
                tell.setdefault(mark.consumer, []).append([queue, mark.entry])
                log.info("cancelling", task_id=mark.task_id, queue=queue, worker=worker.spec.index)
            elif mark.force and state is SlotState.RUNNING and now - told_at >= _FORCE_AFTER_S:
                log.error(
                    "worker killed",
                    worker=worker.spec.index,
                    pid=worker.child.pid,
                    reason=Reason.CANCEL.value,
                    task_id=mark.task_id,
                    queue=queue,
                )
                worker.kill(Reason.CANCEL, frozenset({(queue, mark.entry)}))
        for consumer, entries in tell.items():
            for i in range(0, len(entries), BATCH):  # a message has its limit
                workers[consumer].tell({"t": "cancel", "entries": entries[i : i + BATCH]})
        return sum(map(len, tell.values()))
