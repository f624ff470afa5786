"""The heartbeat: keeps the entries of every worker fresh, from the boards, whatever the workers are doing.

A handler that blocks its event loop, or holds the interpreter lock, loses nothing by it: the supervisor
vouches for it as long as its process lives. Only what is still the worker's own is renewed, checked in the
script; what somebody else has taken over is told to the worker, which drops the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from chronosd.board import SlotState
from chronosd.broker import sweep
from chronosd.broker.commands import BATCH, Steps
from chronosd.broker.keys import Namespace
from chronosd.errors import BrokerError
from chronosd.log import get_logger
from chronosd.supervisor.recoverer import Grace
from chronosd.supervisor.steps import Done
from chronosd.supervisor.worker import Worker

log = get_logger("chronosd.supervisor")

_SECOND_LOOK_S = 0.1
_LOSABLE = (SlotState.CLAIMED, SlotState.RUNNING)

Held = tuple[str, str, str]
"""Consumer, queue, entry."""


class Lease:
    """One pass renews every entry on every board, and its unique lock, at most a batch per round trip."""

    name = "heartbeat"

    def __init__(
        self,
        namespace: Namespace,
        workers: Callable[[], Iterable[Worker]],
        interval_s: float,
        grace: Grace,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval_s = interval_s
        self._namespace = namespace
        self._workers = workers
        self._grace = grace
        self._clock = clock
        self._suspected: set[Held] = set()

    def run_once(self) -> Steps[Done]:
        began_at = self._clock()
        errors: dict[str, BrokerError] = {}
        renewed = 0
        lost: set[Held] = set()
        for batch in _batches(self._held()):
            replies = yield [
                sweep.extend(
                    self._namespace.queue(queue),
                    consumer,
                    entries,
                    lock_s=sweep.LOCK_INTERVALS * self.interval_s,
                )
                for consumer, queue, entries in batch
            ]
            for (consumer, queue, entries), reply in zip(batch, replies, strict=True):
                if isinstance(reply, BrokerError):
                    errors[queue] = reply
                    continue
                renewed += len(entries) - len(reply)
                lost.update((consumer, queue, _text(entry)) for entry in reply)
        # One queue whose key has the wrong type must not end the recovery of all others.
        if renewed or not errors:
            self._grace.renewed(began_at)
        told = self._tell(lost)
        # An entry may have left because its completion has just been done, and its slot not yet freed: it
        # is lost only if it is still on the board at a second look.
        is_new = bool(self._suspected)
        counts = {"leases_renewed": renewed, "leases_lost": told}
        return Done(counts if renewed or not errors else {}, _SECOND_LOOK_S if is_new else None, errors)

    def _held(self) -> list[tuple[str, str, list[str]]]:
        held: dict[tuple[str, str], list[str]] = {}
        for worker in self._workers():
            for slot in worker.board.read():
                held.setdefault((worker.spec.consumer, slot.queue), []).append(slot.entry)
        return [(consumer, queue, entries) for (consumer, queue), entries in held.items()]

    def _tell(self, lost: set[Held]) -> int:
        """Tells workers of entries that were lost at two looks; keeps the others for the second one."""
        certain, self._suspected = lost & self._suspected, lost - self._suspected
        told = 0
        for worker in self._workers():
            on_board = {(s.queue, s.entry) for s in worker.board.read() if s.state in _LOSABLE}
            consumer = worker.spec.consumer
            entries = [[q, e] for c, q, e in certain if c == consumer and (q, e) in on_board]
            if entries:
                log.warning("leases lost", worker=worker.spec.index, entries=[e for _, e in entries[:20]])
                for i in range(0, len(entries), BATCH):  # a message has its limit
                    worker.link.send({"t": "lost", "entries": entries[i : i + BATCH]})
                told += len(entries)
        return told


def _batches(held: Iterable[tuple[str, str, list[str]]]) -> Iterable[list[tuple[str, str, list[str]]]]:
    """Cuts and packs so that each batch has at most a batch's worth of entries."""
    batch: list[tuple[str, str, list[str]]] = []
    room = BATCH
    for consumer, queue, entries in held:
        while entries:
            part, entries = entries[:room], entries[room:]
            batch.append((consumer, queue, part))
            room -= len(part)
            if room == 0:
                yield batch
                batch, room = [], BATCH
    if batch:
        yield batch


def _text(entry: bytes | str) -> str:
    return entry.decode() if isinstance(entry, bytes) else entry
