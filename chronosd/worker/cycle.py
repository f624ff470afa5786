"""What a cycle carries: the ends of runs, marks on those that go on, and what is asked of which queue."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from chronosd.broker import consume, sweep
from chronosd.broker.commands import BATCH, Command
from chronosd.broker.consume import Delivery
from chronosd.broker.limit import Limit, fetch_limited
from chronosd.worker.blocking import BlockingRead
from chronosd.worker.complete import Sending
from chronosd.worker.doubt import Doubt
from chronosd.worker.held import Held, Key
from chronosd.worker.intake import Intake
from chronosd.worker.pace import Pace
from chronosd.worker.pick import Picker
from chronosd.worker.run import Run
from chronosd.worker.starter import Starter

YIELD_S = 3.0
"""How often a worker leaves a place in a queue at its limit to whoever comes first: to another host, too."""


class Ask(NamedTuple):
    """A fetch of the cycle under way."""

    queue: int
    most: int
    delivered: list[bytes]


class Cycle(NamedTuple):
    """What one round trip carries, in this order."""

    sendings: list[Sending]
    marks: list[Command[Any]]
    marked: list[Run]
    asks: list[Ask]
    fetches: list[Command[Delivery]]

    @property
    def commands(self) -> list[Command[Any]]:
        return [*(sending.command for sending in self.sendings), *self.marks, *self.fetches]


class Composer:
    """Puts cycles together from what the parts of the worker hold.

    Args:
        limits: one per queue; None for a queue without.
        workers: how many of them share what a limit leaves, on this host.
    """

    def __init__(
        self,
        held: Held,
        starter: Starter,
        intake: Intake,
        doubt: Doubt,
        block: BlockingRead,
        picker: Picker,
        pace: Pace,
        *,
        consumer: str,
        concurrency: int,
        lock_s: float,
        limits: Sequence[Limit | None],
        workers: int,
    ) -> None:
        self._workers = workers
        self._yield_at = [time.monotonic() + YIELD_S] * len(limits)
        self._limits = limits
        self._unlimited = frozenset(i for i, limit in enumerate(limits) if limit is None)
        self._has_limits = len(self._unlimited) < len(limits)
        self._held = held
        self._starter = starter
        self._intake = intake
        self._doubt = doubt
        self._block = block
        self._picker = picker
        self._pace = pace
        self._consumer = consumer
        self._concurrency = concurrency
        self._lock_s = lock_s
        self._older: list[Run] = []  # started before the last cycle was sent, not yet marked as running

    def compose(self, resting: Collection[int]) -> Cycle:
        """The next cycle, without the queues that are left alone for now."""
        sendings = self._held.take(resting)
        marks, marked = self._marks()
        if self._has_limits:
            self._make_room(sendings)
        asks = self._asks(resting)
        return Cycle(sendings, marks, marked, asks, [self._fetch(ask) for ask in asks])

    def _make_room(self, sendings: Sequence[Sending]) -> None:
        """What has ended of a queue at its limit lets others start; nobody knows it sooner than we.

        But only what makes up our part: the rest, and now and then a place of our own, is left to whom a
        supervisor finds. Whoever came first would otherwise keep all places for as long as there is work.
        """
        for sending in sendings:
            index, limit = sending.index, self._limits[sending.index]
            if limit is None or not limit.max_in_flight:
                continue
            ended, now = len(sending.entries), time.monotonic()
            left = sum(1 for key in self._held.runs if key[0] == index) - ended
            count = min(ended, -(-limit.max_in_flight // self._workers) - left)
            if now >= self._yield_at[index]:
                self._yield_at[index] = now + YIELD_S
                count -= 1
            if count > 0:
                self._picker.offer(index, count, is_single=True)

    def _fetch(self, ask: Ask) -> Command[Delivery]:
        queue, limit = self._held.queues[ask.queue], self._limits[ask.queue]
        if limit is None:
            return consume.fetch(queue, self._consumer, ask.most, ask.delivered)
        return fetch_limited(queue, self._consumer, ask.most, ask.delivered, limit)

    def unsaid(self, cycle: Cycle) -> None:
        """No answer came: what the cycle was to tell is told by the next one."""
        for sending in cycle.sendings:
            sending.resent = True
        self._held.unsent = cycle.sendings + self._held.unsent
        self._older = cycle.marked + self._older

    @property
    def room(self) -> int:
        """Tasks that could start at once if they were here."""
        held = self._held
        waiting = len(held.buffer) + len(held.delivered) + len(self._intake.reading) + self._intake.waiting
        return self._concurrency - self._starter.active - waiting

    @property
    def is_mark_due(self) -> bool:
        """Whether there are runs that a cycle soon has to mark, if they go on."""
        return bool(self._starter.fresh or self._older)

    def _marks(self) -> tuple[list[Command[Any]], list[Run]]:
        older, self._older, self._starter.fresh = self._older, self._starter.fresh, []
        if not older:
            return [], []
        by_queue: dict[int, list[tuple[bytes, str]]] = {}
        locked: dict[int, list[str]] = {}
        executor = self._starter.executor
        marked = [run for run in older if run in executor.running]
        for run in marked:
            executor.outlived(run)
            by_queue.setdefault(run.queue, []).append((run.entry, run.message.id))
            # its lock may expire before the first heartbeat, or has while the task waited
            if run.message.unique_key:
                locked.setdefault(run.queue, []).append(run.entry.decode())
        marks: list[Command[Any]] = []
        for index, pairs in by_queue.items():
            for i in range(0, len(pairs), BATCH):
                marks.append(consume.mark_running(self._held.queues[index], pairs[i : i + BATCH]))
        for index, entries in locked.items():
            for i in range(0, len(entries), BATCH):
                some = entries[i : i + BATCH]
                marks.append(
                    sweep.extend(self._held.queues[index], self._consumer, some, lock_s=self._lock_s)
                )
        return marks, marked

    def _asks(self, resting: Collection[int]) -> list[Ask]:
        held = self._held
        delivered = self._to_take_in(resting) if held.delivered else {}
        taken = sum(map(len, delivered.values()))
        free = self.room - taken
        shares: dict[int, int] = {}
        # beside a blocking read only those are asked that it leaves out
        may_ask = self._has_limits or not self._block.is_under_way
        if held.is_fetching and self._starter.solo is None and may_ask:
            astray = self._doubt.astray
            without: Collection[int] = ()
            if resting or astray or held.paused:
                without = {*resting, *astray, *held.paused}
            if self._block.is_under_way:
                without = self._unlimited.union(without)
            # what may start is not to lie here: no reading ahead with it, nor before it
            ahead = 0 if self._has_limits and self._picker.has_offer(without) else self._pace.ahead
            taken += len(held.delivered) + self._intake.waiting
            # a blocking read may bring one more of every queue
            slots = len(held.free_slots) - taken - len(held.queues)
            # what one reply brings starts while the next is under way: half as much at a time, then
            most = max(self._concurrency, ahead // 2)
            shares = dict(self._picker.share(min(free + ahead, slots, most), time.monotonic(), without))
        return [Ask(i, shares.get(i, 0), delivered.get(i, [])) for i in {**delivered, **shares}]

    def _to_take_in(self, resting: Collection[int]) -> dict[int, list[bytes]]:
        """What was delivered and is not here yet, each entry once: a blocking read's reply may tell of what
        a look for strays has found meanwhile."""
        held = self._held
        found: dict[int, list[bytes]] = {}
        later: list[Key] = []
        for key in dict.fromkeys(held.delivered):
            if held.holds(key) or key in self._intake.reading:
                continue
            if key[0] in resting:
                later.append(key)
            else:
                found.setdefault(key[0], []).append(key[1])
        held.delivered = later
        return found
