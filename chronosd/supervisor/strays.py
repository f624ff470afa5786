"""Entries that a live worker has and will not start: handed back, uncharged.

Two kinds. Entries pending for a worker but not on its board are replies that it never got, and after 5 s it
never will. Entries it has claimed but not started while its loop stands still wait behind whatever blocks
the loop; others could run them. The worker asks what it still owns when its loop turns again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from chronosd.board import SlotState
from chronosd.broker import settle
from chronosd.broker.commands import BATCH, Command, Steps
from chronosd.broker.consume import Renewed, pending_for, release
from chronosd.broker.keys import Namespace
from chronosd.errors import BrokerError
from chronosd.log import get_logger
from chronosd.metrics import RECOVERED
from chronosd.supervisor.overrun import beat_age_s
from chronosd.supervisor.steps import Done
from chronosd.supervisor.totals import Totals
from chronosd.supervisor.worker import Phase, Worker

log = get_logger("chronosd.supervisor")

_STALE_S = 2.0
_STRAY_S = 5.0

Held = tuple[str, str, str]
"""Consumer, queue, entry."""


class Strays:
    """Looks at the boards every second and at the pending lists once in a heartbeat interval."""

    name = "strays"
    interval_s = 1.0

    def __init__(
        self,
        namespace: Namespace,
        workers: Callable[[], Iterable[Worker]],
        list_interval_s: float,
        clock: Callable[[], float] = time.monotonic,
        totals: Totals | None = None,
    ) -> None:
        self._totals = totals or Totals()
        self._namespace = namespace
        self._workers = workers
        self._list_interval_s = max(list_interval_s, 1.0)
        self._clock = clock
        self._list_at = 0.0
        self._seen: dict[Held, float] = {}
        """When an entry was first seen pending and not on the board."""
        self._done: set[Held] = set()
        """Claimed entries that have been handed back and are still on a board that stands still."""

    def run_once(self) -> Steps[Done]:
        now = self._clock()
        errors: dict[str, BrokerError] = {}
        stalled = self._stalled(now)
        found = stalled - self._done
        self._done &= stalled
        if now >= self._list_at:
            self._list_at = now + self._list_interval_s
            found |= yield from self._strays(now, errors)
        if not found:
            return Done({}, None, errors)
        batch = sorted(found)[:BATCH]
        returned = yield from self._hand_back(batch, errors)
        self._done |= stalled.intersection(batch)
        return Done({"handed_back": returned}, None, errors)

    def _fetching(self) -> list[Worker]:
        return [w for w in self._workers() if w.phase in (Phase.RUNNING, Phase.STOPPING) and not w.killed]

    def _stalled(self, now: float) -> set[Held]:
        return {
            (worker.spec.consumer, slot.queue, slot.entry)
            for worker in self._fetching()
            if beat_age_s(worker, now) > _STALE_S
            for slot in worker.board.read()
            if slot.state is SlotState.CLAIMED
        }

    def _on_boards(self) -> set[Held]:
        return {
            (worker.spec.consumer, slot.queue, slot.entry)
            for worker in self._fetching()
            for slot in worker.board.read()
        }

    def _strays(self, now: float, errors: dict[str, BrokerError]) -> Steps[set[Held]]:
        # All that a board can hold may stand before the stray, which is the newest.
        asked = [
            (w.spec.consumer, queue, w.board.capacity + BATCH)
            for w in self._fetching()
            for queue in w.board.queues
        ]
        if not asked:
            return set()
        before = self._on_boards()
        replies = yield [
            pending_for(self._namespace.queue(queue), consumer, most) for consumer, queue, most in asked
        ]
        known = before | self._on_boards()
        pending: set[Held] = set()
        for (consumer, queue, _), reply in zip(asked, replies, strict=True):
            if isinstance(reply, BrokerError):
                errors[queue] = reply
            else:
                pending.update((consumer, queue, entry.decode()) for entry in reply)
        self._seen = {held: self._seen.get(held, now) for held in pending - known}
        return {held for held, since in self._seen.items() if now - since >= _STRAY_S}

    def _hand_back(self, found: list[Held], errors: dict[str, BrokerError]) -> Steps[int]:
        by_queue: dict[str, list[bytes]] = {}
        for _, queue, entry in found:
            by_queue.setdefault(queue, []).append(entry.encode())
        names = list(by_queue)
        replies = yield [settle.look(self._namespace.queue(name), by_queue[name]) for name in names]
        commands: list[Command[Renewed]] = []
        sent: list[tuple[str, int]] = []
        returned = 0
        for name, rows in zip(names, replies, strict=True):
            if isinstance(rows, BrokerError):
                errors[name] = rows
                continue
            # An entry whose task cannot be told stays: its worker, or the settlement after it, buries it.
            pairs = [(row.entry, row.task_id) for row in rows if row.task_id]
            if pairs:
                commands.append(release(self._namespace.queue(name), pairs))
                sent.append((name, len(pairs)))
                returned += len(pairs)
        if not commands:
            return 0
        for (name, count), reply in zip(sent, (yield commands), strict=True):
            if isinstance(reply, BrokerError):
                errors[""] = reply
            else:
                others = len(reply) + len(reply.cancelled)
                returned -= others
                self._totals.add(RECOVERED, name, "stray", n=count - others)
        if returned:
            log.warning(
                "handed back what a worker would not have started", count=returned, entries=found[:20]
            )
        return returned
