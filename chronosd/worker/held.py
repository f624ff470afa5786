"""What a worker holds: its runs and their slots, what waits to be started, what waits to be told to Redis.

The parts of the worker share one of these. Everything here runs on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence

from chronosd.board import Board, Cell
from chronosd.broker.dead_letter import DeadLetters
from chronosd.broker.keys import QueueKeys
from chronosd.metrics import End
from chronosd.tally import Tally
from chronosd.worker.complete import Outbox, Sending
from chronosd.worker.run import Run

Key = tuple[int, bytes]
"""An entry: its queue's index, and its id."""


class Held:
    """Queues are known by their index, as on the board."""

    def __init__(
        self,
        board: Board,
        queues: Sequence[QueueKeys],
        tally: Tally,
        dead_letters: DeadLetters | None = None,
    ) -> None:
        self.board = board
        self.tally = tally
        self.queues = queues
        self.outboxes = [Outbox(i, queue, dead_letters) for i, queue in enumerate(queues)]
        self.unsent: list[Sending] = []
        """Commands that have to be sent again."""
        self.runs: dict[Key, Run] = {}
        """Every run with a slot, until the reply to its end has arrived."""
        self.buffer: deque[Run] = deque()
        """Runs that wait to be started."""
        self.unrun: dict[Key, int] = {}
        """Slots of entries that end here and never were runs, until the reply to their end has arrived."""
        self.slotless: dict[Key, int] = {}
        """Those without a slot: the cells of the tally in which their ends will be counted."""
        self.delivered: list[Key] = []
        """Entries that are ours, to be taken in by the next fetch."""
        self.newest = [b""] * len(queues)
        """The newest entry that has come here of each queue; empty for none."""
        self.free_slots = list(range(board.capacity - 1, -1, -1))
        self.is_fetching = True
        self.paused: frozenset[int] = frozenset()
        """Queues of which nothing is to be fetched or started."""
        self.wake = asyncio.Event()
        """Set with every change that the loop may have been waiting for."""

    def claim(self, key: Key, now_ns: int) -> int:
        """Puts an entry on the board; -1 if there is no slot: then it must not run."""
        if not self.free_slots:
            return -1
        slot = self.free_slots.pop()
        self.board.claim(slot, key[1], key[0], now_ns)
        return slot

    def free(self, slot: int) -> None:
        """Takes an entry off the board."""
        self.board.free(slot)
        self.free_slots.append(slot)

    def forget(self, run: Run) -> None:
        """Takes a run off the board: its end has been told, or it is somebody else's."""
        self.runs.pop((run.queue, run.entry), None)
        if run.slot >= 0:
            self.free(run.slot)
            run.slot = -1

    def release(self, key: Key, task_id: str) -> None:
        """Hands an entry back, uncharged, with the next cycle."""
        self.board.cells[Cell.RELEASED] += 1
        self.outboxes[key[0]].released.append((key[1], task_id))

    @property
    def unsettled(self) -> bool:
        """Whether anything that ended still waits for Redis."""
        return bool(self.unsent) or any(len(box) for box in self.outboxes)

    def sendable(self, resting: Collection[int]) -> bool:
        """Whether there is something for the next cycle beside a fetch."""
        if not resting:
            return self.unsettled or bool(self.delivered)
        return (
            any(sending.index not in resting for sending in self.unsent)
            or any(len(box) and box.index not in resting for box in self.outboxes)
            or any(index not in resting for index, _ in self.delivered)
        )

    def take(self, resting: Collection[int]) -> list[Sending]:
        """What is to be sent now; the rest stays."""
        sendings, self.unsent = self.unsent, []
        if resting:
            self.unsent = [sending for sending in sendings if sending.index in resting]
            sendings = [sending for sending in sendings if sending.index not in resting]
        for box in self.outboxes:
            if len(box) and box.index not in resting:
                sendings += box.take()
        return sendings

    def told(self, sending: Sending) -> None:
        """The reply to a command has arrived: its entries are counted, and off the board."""
        pop, index, free, free_slots = self.runs.pop, sending.index, self.board.free, self.free_slots
        for entry in sending.entries:
            run = pop((index, entry), None)
            if run is not None:
                free(run.slot)
                free_slots.append(run.slot)
                run.slot = -1
            elif self.unrun or self.slotless:
                self._told_unrun((index, entry))

    def _told_unrun(self, key: Key) -> None:
        slot = self.unrun.pop(key, None)
        if slot is not None:
            self.free(slot)
        elif key in self.slotless:
            self.tally.count(self.slotless.pop(key))

    def refused(self, sending: Sending) -> None:
        """A command has not been carried out: it is sent again.

        What ends by it and never was a run leaves its slot to what can run. Else a queue that takes no dead
        letters, and is full of what nobody can read, would fill the board and keep all others from running.
        """
        sending.resent = True
        self.unsent.append(sending)
        for key in [(sending.index, entry) for entry in sending.entries] if self.unrun else ():
            slot = self.unrun.pop(key, None)
            if slot is not None:
                self.slotless[key] = self.board.counter(slot)
                self.board.finish(slot)  # with no counter: to be freed and not counted
                self.free(slot)

    def recount(self, keys: Iterable[Key], end: End) -> None:
        """Something else has become of these than they were to be counted as."""
        for key in keys:
            if key in self.slotless:
                self.slotless[key] = self.tally.instead(self.slotless[key], end)
            elif self.holds(key):
                slot = self.unrun[key] if key in self.unrun else self.runs[key].slot
                counter = self.board.counter(slot)
                if counter:  # else it goes back, and counts as nothing
                    self.board.finish(slot, self.tally.instead(counter, end))

    def end_unrun(self, key: Key, kind: str, end: End) -> None:
        """An entry ends that never was a run here; counted when Redis has it.

        Until then it has a slot, as a run has, so that the supervisor can count it for a worker that dies.
        Where none is free it goes without one: such a death then leaves its end uncounted.
        """
        counter = self.tally.counter(key[0], kind, end)
        slot = self.claim(key, time.monotonic_ns())
        if slot < 0:
            self.slotless[key] = counter
        else:
            self.board.finish(slot, counter)
            self.unrun[key] = slot

    def holds(self, key: Key) -> bool:
        """Whether an entry is here already, as a run or on its way to its end."""
        return key in self.runs or key in self.unrun or key in self.slotless

    def ending(self) -> set[Key]:
        """Entries whose end is under way, or that are about to be taken in."""
        keys = {(sending.index, entry) for sending in self.unsent for entry in sending.entries}
        for box in self.outboxes:
            keys.update((box.index, entry) for entry in box.entries())
        keys.update(self.delivered)
        return keys
