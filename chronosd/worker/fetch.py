"""The loop of cycles: everything that finished goes out and new tasks come in, in one round trip each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from chronosd import log
from chronosd.board import Board, Cell, WorkerState
from chronosd.broker import consume, sweep
from chronosd.broker.commands import BATCH, Command
from chronosd.broker.consume import Delivery
from chronosd.broker.dead_letter import DeadLetters
from chronosd.broker.keys import Namespace
from chronosd.broker.limit import Limit
from chronosd.broker.runner import AsyncRunner
from chronosd.config.schema import Config
from chronosd.errors import BrokerError, BrokerUnavailable, Trouble
from chronosd.handlers import Registry
from chronosd.tally import Tally
from chronosd.worker.blocking import BLOCK_S, BlockingRead
from chronosd.worker.cycle import Composer, Cycle
from chronosd.worker.doubt import Doubt
from chronosd.worker.execute import GAP_S, Executor, hide
from chronosd.worker.held import Held, Key
from chronosd.worker.intake import Intake
from chronosd.worker.pace import Pace
from chronosd.worker.pick import Picker
from chronosd.worker.replies import Replies
from chronosd.worker.run import Run
from chronosd.worker.starter import Starter
from chronosd.worker.trouble import Troubles, pause_s

POLL_S = 0.05
"""How often queues are asked while the blocking read cannot be had."""

HOARD_S = 0.020
"""A buffered task that has waited longer is handed back, with all behind it."""

FEW = 8
"""Fewer tasks than this start as soon as they are here. More of them are admitted and started when the next
cycle is on its way, so that worker and server work at the same time, instead of taking turns."""

_log = log.get_logger("chronosd.worker")


class Fetcher:
    """The worker's one loop, and the orders it obeys."""

    def __init__(
        self,
        config: Config,
        consumer: str,
        board: Board,
        registry: Registry,
        cycle: AsyncRunner,
        blocking: AsyncRunner,
        bodies: AsyncRunner,
    ) -> None:
        namespace = Namespace(config.namespace)
        self._cycle = cycle
        self._board = board
        queues = [namespace.queue(name) for name in board.queues]
        self._held = Held(board, queues, Tally(board, registry.handlers), DeadLetters.of(config))
        self._troubles = Troubles(board.queues)
        weights = [config.queues[name].weight for name in board.queues]
        limits = [Limit.of(config.queues[name]) for name in board.queues]
        self._unlimited = [index for index, limit in enumerate(limits) if limit is None]
        limited = set(range(len(limits))).difference(self._unlimited)
        self._picker = Picker(weights, strict=config.strict_priority, limited=limited)
        # with max_crashes 1 there is no crash before the last: a task without one runs beside others
        alone_from = max(config.max_crashes - 1, 1)
        self._starter = Starter(self._held, concurrency=config.concurrency, alone_from=alone_from)
        self._intake = Intake(
            self._held,
            registry.handlers,
            bodies,
            self._troubles,
            max_payload=config.max_payload,
            admitted=self._admitted,
        )
        self._doubt = Doubt(
            self._held, self._starter, self._intake, consumer, cycle, self._troubles, answered=self._answered
        )
        self._block = BlockingRead(
            self._held,
            consumer,
            blocking,
            cycle,
            self._troubles,
            arrived=self._receive_arrivals,
            delivered=self._take_delivered,
            failed=self._cannot_block,
        )
        self._pace = Pace(time.monotonic())
        self._composer = Composer(
            self._held,
            self._starter,
            self._intake,
            self._doubt,
            self._block,
            self._picker,
            self._pace,
            consumer=consumer,
            concurrency=config.concurrency,
            lock_s=sweep.LOCK_INTERVALS * config.heartbeat_interval,
            limits=limits,
            workers=config.workers,
        )
        self._replies = Replies(
            self._held,
            self._starter,
            self._intake,
            self._doubt,
            self._picker,
            self._pace,
            self._troubles,
        )
        self._hurry = asyncio.Event()
        self._draining = False
        self._failures = 0
        self.answered_at = 0.0
        """Monotonic instant of the last reply to a cycle."""
        self.finished = self._starter.finished
        self.unstarted = self._starter.unstarted

    @property
    def executor(self) -> Executor:
        """Set by main, which has what its tasks are given."""
        return self._starter.executor

    @executor.setter
    def executor(self, executor: Executor) -> None:
        self._starter.executor = executor

    # -- what others tell ---------------------------------------------------------------------

    def quiet(self) -> None:
        """Stops fetching; what is buffered is handed back, what runs goes on."""
        self._held.is_fetching = False
        self._hand_back()
        self._hurry.set()

    def resume(self) -> None:
        """Fetches again."""
        self._held.is_fetching = not self._draining
        self._held.wake.set()

    def pause(self, names: Collection[str]) -> None:
        """These queues are paused, and no others: what is buffered of them goes back, what runs goes on."""
        held, before = self._held, self._held.paused
        held.paused = frozenset(i for i, queue in enumerate(held.queues) if queue.name in names)
        for index in before - held.paused:
            self._picker.stocked(index)
        self._starter.hand_back_paused()
        self._intake.hand_back(held.paused)
        held.wake.set()

    def offer(self, counts: Mapping[str, int]) -> None:
        """So many tasks of these queues, which have limits, may start."""
        for index, queue in enumerate(self._held.queues):
            if queue.name in counts:
                self._picker.offer(index, counts[queue.name])
        self._held.wake.set()

    def drain(self) -> None:
        """Stops fetching for good; :meth:`run` returns once all is finished and sent."""
        self._draining = True
        self.quiet()

    def doubt(self) -> None:
        """Time has passed unnoticed: leases are checked before anything claimed before is started."""
        self._starter.is_doubtful = True
        self.executor.doubted_ns = time.monotonic_ns()

    def lost(self, entries: list[tuple[str, str]]) -> None:
        """The supervisor found leases lost: async handlers are cancelled, results dropped."""
        for key, run in self._still_here(entries):
            if run is not None:
                self._starter.lose(run)
            else:
                self._intake.stop(key)

    def cancel(self, entries: list[tuple[str, str]]) -> None:
        """Somebody has cancelled these tasks. Those that have ended meanwhile have ended."""
        for key, run in self._still_here(entries):
            if run is not None:
                self._starter.cancel(run)
            else:
                self._held.release(key, self._intake.stop(key))  # which finds the mark, and ends it

    def _still_here(self, entries: Iterable[tuple[str, str]]) -> Iterator[tuple[Key, Run | None]]:
        """Those of the entries that have not gone: with their runs, or None while their bodies are read."""
        self._intake.admit()
        index = {queue.name: i for i, queue in enumerate(self._held.queues)}
        for name, entry in entries:
            key = (index.get(name, -1), entry.encode())
            run = self._held.runs.get(key)
            if run is not None and not run.dropped:
                yield key, run
            elif key in self._intake.reading:
                yield key, None
        self._held.wake.set()

    @property
    def busy(self) -> int:
        """Runs whose handlers have not ended."""
        return self._starter.active

    def show_state(self) -> WorkerState:
        """What the board says of the worker as a whole."""
        if self._draining:
            return WorkerState.DRAINING
        return WorkerState.FETCHING if self._held.is_fetching else WorkerState.QUIET

    # -- the loop -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Cycles until a drain is complete."""
        starter = self._starter
        while not (self._draining and self._idle()):
            if self._doubt.is_group_missing:
                await self._recreate_groups()
            if self._doubt.astray and not await self._look_for_strays():
                await self._pause()
                continue
            cycle = self._composer.compose(self._troubles.resting())
            commands = cycle.commands
            if not commands:
                self._intake.admit()
                if starter.is_doubtful and self._held.buffer:
                    await self._doubt.check_leases()
                    starter.start()
                elif starter.can_start:
                    starter.start()
                    await asyncio.sleep(0)
                else:
                    await self._rest()
                continue
            began = time.monotonic()
            try:
                results = await self._exchange(commands)
            except BrokerError as error:
                await self._failed(error, cycle)
                continue
            now = time.monotonic()
            if now - began > GAP_S:
                starter.is_doubtful = True
            self._answered()
            self._replies.settle(cycle.sendings, results)
            self._replies.take_in(cycle.asks, results[len(commands) - len(cycle.asks) :])
            self._pace.measure(now, *starter.take_counts())
            self._board.cells[Cell.CYCLES] += 1
            if self._may_wait():
                continue
            self._intake.admit()
            if starter.is_doubtful and self._held.buffer:
                await self._doubt.check_leases()
            else:
                starter.is_doubtful = False
            if not self._held.is_fetching:
                self._hand_back()
            if len(self._held.buffer) < FEW:
                starter.start()
            if self._replies.reconnect:  # the address leads to a demoted node: look it up again
                self._replies.reconnect = False
                await self._cycle.aclose()
            await asyncio.sleep(0)

    def _may_wait(self) -> bool:
        """Whether what has just arrived is best admitted when the next cycle is on its way."""
        return (
            self._intake.waiting >= FEW
            and self._held.is_fetching
            and not self._held.delivered
            and not self._starter.is_doubtful
            and not self._doubt.astray
            and not self._doubt.is_group_missing
            and not self._replies.reconnect
        )

    async def _exchange(self, commands: list[Command[Any]]) -> list[Any]:
        """The round trip. While it is under way, what has arrived is admitted and started."""
        if not (self._intake.waiting or self._starter.can_start):
            return await self._cycle.run_many(commands)
        exchange = asyncio.get_running_loop().create_task(self._cycle.run_many(commands))
        hide(exchange)
        await asyncio.sleep(0)  # it is written,
        await asyncio.sleep(0)  # and sent: uvloop sends at the end of a turn
        self._intake.admit()
        self._starter.start()
        return await exchange

    def _idle(self) -> bool:
        return not (
            self._starter.active
            or self._held.unsettled
            or self._held.delivered
            or self._intake.waiting
            or self._intake.reading
            or self._doubt.astray
            or self._block.is_under_way
        )

    async def _rest(self) -> None:
        """Nothing to send: waits for an end, an order, or work in any queue."""
        held = self._held
        resting = self._troubles.resting()
        wait_s = min(BLOCK_S, self._troubles.rest_s())
        if self._may_block():
            open_ = [i for i in self._unlimited if i not in resting and i not in held.paused]
            if open_ and not self._block.start(open_):
                wait_s = min(wait_s, POLL_S)
        held.wake.clear()  # before the await: what happens during it has to wake us
        if self._draining and self._block.is_under_way:
            await self._block.end()
        if held.sendable(resting) or (self._draining and self._idle()):
            return
        ending = self._draining and self._block.is_under_way  # it may have to be told again
        if held.buffer or self._composer.is_mark_due or ending:
            wait_s = min(wait_s, HOARD_S)
        try:
            async with asyncio.timeout(wait_s):
                await held.wake.wait()
        except TimeoutError:
            pass
        if held.buffer and time.monotonic_ns() - held.buffer[0].claimed_ns > HOARD_S * 1e9:
            self._pace.falter()
            self._starter.hand_back()
            self._starter.put_off_solo()

    def _may_block(self) -> bool:
        return (
            self._held.is_fetching
            and self._picker.all_empty_but(self._held.paused)
            and self._composer.room > 0
            and self._starter.solo is None
            and not self._block.is_under_way
            and not self._doubt.astray
        )

    # -- what the parts tell --------------------------------------------------------------------

    def _receive_arrivals(self, found: dict[int, Delivery]) -> None:
        for index, delivery in found.items():
            self._replies.receive(index, delivery)
            if delivery.tasks:
                self._picker.stocked(index)
        self._intake.admit()
        self._admitted()

    def _take_delivered(self, keys: list[Key]) -> None:
        self._held.delivered += keys
        for index, _ in keys:
            self._picker.stocked(index)

    def _admitted(self) -> None:
        if not self._held.is_fetching:
            self._hand_back()
        self._starter.start()
        self._held.wake.set()

    def _hand_back(self) -> None:
        self._intake.admit()
        self._starter.hand_back()
        self._intake.hand_back()

    # -- trouble ------------------------------------------------------------------------------

    async def _failed(self, error: BrokerError, cycle: Cycle) -> None:
        """A whole cycle without an answer: what ended is sent again, what was fetched is looked for."""
        self._starter.is_doubtful = True
        self._composer.unsaid(cycle)
        self._doubt.astray.update(ask.queue for ask in cycle.asks)
        self._troubles.note("redis", error)
        await self._pause()

    def _cannot_block(self, error: BrokerError, queues: list[int]) -> None:
        """Asks with cycles for a while; if one of the queues is to blame, those will tell which."""
        self._starter.is_doubtful = True
        if error.trouble is Trouble.RECREATE:
            self._doubt.is_group_missing = True
            return
        if isinstance(error, BrokerUnavailable):
            self._doubt.astray.update(queues)
        self._troubles.note("blocking read", error)

    async def _look_for_strays(self) -> bool:
        # what is only to be handed back needs no room
        return await self._doubt.look_for_strays(self._composer.room if self._held.is_fetching else BATCH)

    def _answered(self) -> None:
        self._failures = 0
        self.answered_at = time.monotonic()
        if self._troubles.over("redis"):
            _log.info("redis is back", server=self._cycle.target.label)

    async def _recreate_groups(self) -> None:
        self._doubt.is_group_missing = False
        try:
            await self._cycle.run_many([consume.create_group(queue) for queue in self._held.queues])
        except BrokerUnavailable as error:
            self._troubles.note("redis", error)

    async def _pause(self) -> None:
        """Backs off from a Redis that does not answer; an order ends it early."""
        self._failures += 1
        self._hurry.clear()
        try:
            async with asyncio.timeout(pause_s(self._failures)):
                await self._hurry.wait()
        except TimeoutError:
            pass
