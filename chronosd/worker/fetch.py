"""The cycle: everything that finished goes out and new tasks come in, in one round trip."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from typing import Any

from chronosd import log
from chronosd.board import Board, Cell, WorkerState
from chronosd.broker import consume
from chronosd.broker.commands import Command
from chronosd.broker.consume import Again, Dead, Delivery, Done, Fetched, Kept
from chronosd.broker.keys import Field, Namespace, QueueKeys
from chronosd.broker.message import Message, decode
from chronosd.broker.runner import AsyncRunner
from chronosd.config.schema import Config
from chronosd.errors import BrokerError, BrokerUnavailable, MessageError, Trouble
from chronosd.handlers import Handler, Registry
from chronosd.link import READ_AHEAD
from chronosd.outcome import Outcome, Succeeded
from chronosd.worker.complete import Outbox, Sending, conclude, put_off
from chronosd.worker.execute import Cancelled, Executor, Run
from chronosd.worker.pick import Picker

BLOCK_S = 1.0
GAP_S = 1.0
"""A pause of the loop, or a reply later than this, and leases are looked at before anything starts."""

AHEAD_S = 0.010
"""Reading ahead goes only as far as the worker can start within this time."""

HOARD_S = 0.020
"""A buffered task that has waited longer is handed back, with all behind it."""

_log = log.get_logger("chronosd.worker")


class Fetcher:
    """The worker's state and its one loop. Everything here runs on the event loop's thread."""

    def __init__(
        self,
        config: Config,
        consumer: str,
        board: Board,
        registry: Registry,
        cycle: AsyncRunner,
        blocking: AsyncRunner,
    ) -> None:
        self._consumer = consumer
        self._board = board
        self._handlers = registry.handlers
        self._cycle = cycle
        self._blocking = blocking
        self._max_crashes = config.max_crashes
        self._concurrency = config.concurrency
        namespace = Namespace(config.namespace)
        self._queues: list[QueueKeys] = [namespace.queue(name) for name in board.queues]
        self._outboxes = [Outbox(i, queue) for i, queue in enumerate(self._queues)]
        weights = [config.queues[name].weight for name in board.queues]
        self._picker = Picker(weights, strict=config.strict_priority)
        self._free_slots = list(range(board.capacity - 1, -1, -1))
        self._runs: dict[tuple[int, bytes], Run] = {}
        self._buffer: deque[Run] = deque()
        self._fresh: list[Run] = []  # started since the last cycle was sent
        self._older: list[Run] = []  # started before that, not yet marked as running
        self._delivered: list[tuple[int, bytes]] = []  # by a blocking read, to be taken in
        self._active = 0
        self._solo: Run | None = None
        self._unsent: list[Sending] = []
        self._wake = asyncio.Event()
        self._block_task: asyncio.Task[None] | None = None
        self._fetching = True
        self._draining = False
        self._doubtful = False
        self._missing_group = False
        self._reconnect = False
        self._bodies: set[asyncio.Task[None]] = set()
        self._trouble: set[str] = set()
        self._failures = 0
        self._rate = 0.0  # tasks ended a second, lately
        self._held_s = 0.0  # how long a task held its slot, lately
        self._held_ns = 0
        self._full = False  # the last fetch brought all that was asked of some queue
        self._ended = 0
        self._measured_at = time.monotonic()
        self.executor: Executor  # set by main, which has what its tasks are given

    # -- what others tell ---------------------------------------------------------------------

    def quiet(self) -> None:
        """Stops fetching; what is buffered is handed back, what runs goes on."""
        self._fetching = False
        self._hand_back()
        self._wake.set()

    def resume(self) -> None:
        """Fetches again."""
        self._fetching = not self._draining
        self._wake.set()

    def drain(self) -> None:
        """Stops fetching for good; :meth:`run` returns once all is finished and sent."""
        self._draining = True
        self.quiet()

    def doubt(self) -> None:
        """Time has passed unnoticed: leases are checked before anything buffered is started."""
        self._doubtful = True

    def lost(self, entries: list[tuple[str, str]]) -> None:
        """The supervisor found leases lost: async handlers are cancelled, results dropped."""
        index = {queue.name: i for i, queue in enumerate(self._queues)}
        for name, entry in entries:
            run = self._runs.get((index.get(name, -1), entry.encode()))
            if run is not None and not run.dropped:
                self._lose(run)
        self._wake.set()

    @property
    def busy(self) -> int:
        """Runs whose handlers have not ended."""
        return self._active

    @property
    def unsettled(self) -> bool:
        """Whether anything that ended still waits for Redis."""
        return bool(self._unsent) or any(len(box) for box in self._outboxes)

    # -- the loop -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Cycles until a drain is complete."""
        while not (self._draining and self._idle()):
            commands, sendings, asks, marks = self._compose()
            if not commands:
                await self._rest()
                continue
            began = time.monotonic()
            try:
                results = await self._cycle.run_many(commands)
            except BrokerError as error:
                await self._failed(error, sendings, marks)
                continue
            now = time.monotonic()
            if now - began > GAP_S:
                self._doubtful = True
            self._recovered()
            troubled = self._settle(sendings, results[: len(sendings)])
            troubled |= self._take_in(asks, results[len(sendings) + len(marks) :])
            self._measure(now)
            if self._doubtful and self._buffer:
                await self._check_leases()
            self._doubtful = False
            if not self._fetching:
                self._hand_back()
            self._start_buffered()
            if troubled:
                await self._pause()
            else:
                await asyncio.sleep(0)

    def _idle(self) -> bool:
        return not (
            self._active or self.unsettled or self._delivered or self._bodies or self._block_task is not None
        )

    def _compose(
        self,
    ) -> tuple[list[Command[Any]], list[Sending], list[tuple[int, int, list[bytes]]], list[Command[Any]]]:
        """The next cycle: what ended, what outlived its cycle, what to fetch."""
        sendings, self._unsent = self._unsent, []
        for box in self._outboxes:
            if len(box):
                sendings += box.take()
        marks = self._marks()
        asks = self._asks()
        commands: list[Command[Any]] = [sending.command for sending in sendings]
        commands += marks
        for index, count, delivered in asks:
            commands.append(consume.fetch(self._queues[index], self._consumer, count, delivered))
        return commands, sendings, asks, marks

    def _marks(self) -> list[Command[Any]]:
        older, self._older, self._fresh = self._older, self._fresh, []
        if not older:
            return []
        by_queue: dict[int, list[tuple[bytes, str]]] = {}
        running = self.executor.running
        for run in older:
            if run in running:
                run.marked = True
                self.executor.outlived(run)
                by_queue.setdefault(run.queue, []).append((run.entry, run.message.id))
        return [consume.mark_running(self._queues[i], pairs) for i, pairs in by_queue.items()]

    def _asks(self) -> list[tuple[int, int, list[bytes]]]:
        delivered: dict[int, list[bytes]] = {}
        for index, entry in self._delivered:
            delivered.setdefault(index, []).append(entry)
        free = self._concurrency - self._active - len(self._buffer) - len(self._delivered)
        self._delivered = []
        shares: dict[int, int] = {}
        if self._fetching and self._solo is None and self._block_task is None:
            brief = self._full and self._held_s < AHEAD_S
            ahead = min(int(self._rate * AHEAD_S), READ_AHEAD) if brief else 0
            room = len(self._free_slots) - len(delivered) - len(self._queues)
            shares = dict(self._picker.share(min(free + ahead, room), time.monotonic()))
        return [(i, shares.get(i, 0), delivered.get(i, [])) for i in {**delivered, **shares}]

    async def _rest(self) -> None:
        """Nothing to send: waits for an end, an order, or work in any queue."""
        if (
            self._fetching
            and self._block_task is None
            and self._solo is None
            and self._picker.all_empty
            and self._active + len(self._buffer) < self._concurrency
        ):
            self._block_task = asyncio.get_running_loop().create_task(self._block())
        if self._draining and self._block_task is not None:
            await self._unblock()
        self._wake.clear()
        if self.unsettled or self._delivered or (self._draining and self._idle()):
            return
        # The blocking read may not have reached the server when it was told to end: it is told again.
        short = (
            self._buffer or self._fresh or self._older or (self._draining and self._block_task is not None)
        )
        timeout = HOARD_S if short else BLOCK_S
        try:
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        except TimeoutError:
            pass
        if self._buffer and time.monotonic_ns() - self._buffer[0].claimed_ns > HOARD_S * 1e9:
            self._rate = 0.0
            self._hand_back()

    async def _block(self) -> None:
        """One blocking read over all queues, on a connection of its own; never cancelled."""
        try:
            command = consume.block(self._queues, self._consumer, int(BLOCK_S * 1000))
            found = await self._blocking.run(command, timeout_s=BLOCK_S + GAP_S)
        except BrokerError as error:
            await self._cannot_block(error)
        else:
            self._trouble.discard("blocking read")
            for index, _ in found:
                self._picker.stocked(index)
            self._delivered += found
        finally:
            self._block_task = None
            self._wake.set()

    async def _cannot_block(self, error: BrokerError) -> None:
        self._doubtful = True
        if error.trouble is Trouble.RECREATE:
            await self._recreate()
        else:
            self._note("blocking read", error)
            await asyncio.sleep(random.uniform(0.1, 0.5))

    async def _unblock(self) -> None:
        """Has the server answer the blocking read now, so that a drain need not wait for it."""
        client = self._blocking.client_id
        if client:
            try:
                await self._cycle.run(consume.unblock(client), timeout_s=GAP_S)
            except BrokerError:
                pass  # it ends by itself within a second

    # -- replies ------------------------------------------------------------------------------

    def _settle(self, sendings: list[Sending], results: list[Any]) -> bool:
        """Frees the slots of what has been carried out. True if something could not be."""
        troubled = False
        for sending, result in zip(sendings, results, strict=True):
            if isinstance(result, BrokerError):
                sending.resent = True
                self._unsent.append(sending)
                self._note(f"queue {sending.queue}", result)
                self._reconnect |= result.trouble is Trouble.RECONNECT
                troubled = True
                continue
            self._trouble.discard(f"queue {sending.queue}")
            for entry in sending.entries:
                run = self._runs.pop((sending.index, entry), None)
                if run is not None:
                    self._free(run)
            missing = result if isinstance(result, list) else []
            if missing and not sending.resent:
                self._board.cells[Cell.LEASES_LOST] += len(missing)
                _log.warning("leases lost", queue=sending.queue, entries=len(missing))
        return troubled

    def _free(self, run: Run) -> None:
        if run.slot >= 0:
            self._board.free(run.slot)
            self._free_slots.append(run.slot)
            run.slot = -1

    def _take_in(self, asks: list[tuple[int, int, list[bytes]]], results: list[Any]) -> bool:
        """Buffers what a cycle fetched. True if something could not be fetched."""
        troubled = full = asked = False
        for (index, count, delivered), result in zip(asks, results, strict=True):
            queue = self._queues[index]
            if isinstance(result, BrokerError):
                self._note(f"queue {queue.name}", result)
                self._picker.report(index, count, 0)
                self._delivered += [(index, entry) for entry in delivered]
                self._doubtful = troubled = True
                self._reconnect |= result.trouble is Trouble.RECONNECT
                if result.trouble is Trouble.RECREATE:
                    self._delivered = [d for d in self._delivered if d[0] != index]
                    self._missing_group = True
                continue
            self._trouble.discard(f"queue {queue.name}")
            fetched: Delivery = result
            if fetched.gone:
                self._board.cells[Cell.DROPPED] += len(fetched.gone)
                _log.warning("tasks dropped: their bodies are gone", queue=queue.name, ids=fetched.gone[:10])
            if count:
                brought = len(fetched.tasks) + len(fetched.gone) - len(delivered)
                self._picker.report(index, count, brought)
                asked = True
                full |= brought >= count
            for item in fetched.tasks:
                self._admit(index, queue, item)
        if asked:
            self._full = full
        return troubled

    def _admit(self, index: int, queue: QueueKeys, item: Fetched) -> None:
        """A fetched task takes a slot and waits in the buffer, or ends at once if it cannot run here."""
        self._board.cells[Cell.FETCHED] += 1
        if not item.task_id:
            record = consume.undecodable(queue, item.entry, item.msg or b"")
            self._outboxes[index].buried.append((item.entry, record))
            return
        if item.msg is None:
            self._fetch_body(index, queue, item)
            return
        try:
            message = decode(item.msg)
        except MessageError as error:
            fields = {Field.ERROR: f"undecodable message: {error}"}
            self._outboxes[index].dead.append(Dead(item.entry, item.task_id, None, fields))
            self._board.cells[Cell.ARCHIVED] += 1
            _log.error(
                "task archived: undecodable message", task_id=item.task_id, queue=queue.name, error=str(error)
            )
            return
        # Redis knows the task by its key and acknowledges on the queue's stream, whatever the text says.
        message.id, message.queue = item.task_id, queue.name
        handler = self._handlers.get(message.kind)
        if handler is None or message.workflow:
            self._put_off(index, message, item, handler)
            return
        slot = self._free_slots.pop()
        now_ns = time.monotonic_ns()
        self._board.claim(slot, item.entry, index, now_ns)
        run = Run(slot, item.entry, index, message, handler, item.crashes, now_ns)
        self._runs[index, item.entry] = run
        self._buffer.append(run)

    def _put_off(self, index: int, message: Message, item: Fetched, handler: Handler | None) -> None:
        why = (
            f"no handler for kind {message.kind!r}"
            if handler is None
            else "chains and groups need a newer worker"
        )
        move = put_off(item.entry, message, why, item.unknown_since)
        self._outboxes[index].add(move)
        dead = isinstance(move, Dead)
        tell = _log.error if dead else _log.warning
        if dead or not item.unknown_since:
            tell(
                "task archived" if dead else "task put off",
                task_id=message.id,
                queue=message.queue,
                error=why,
            )

    def _fetch_body(self, index: int, queue: QueueKeys, item: Fetched) -> None:
        """Reads a body that was too long for the common reply; meanwhile the slots go on."""

        async def read() -> None:
            try:
                raw = await self._cycle.run(consume.body(queue, item.task_id))
            except BrokerError:
                raw = None
            if raw is None:
                self._outboxes[index].released.append((item.entry, item.task_id))
            else:
                self._admit(index, queue, item._replace(msg=raw))
            self._bodies.discard(task)
            self._start_buffered()
            self._wake.set()

        task = asyncio.get_running_loop().create_task(read())
        self._bodies.add(task)

    def _start_buffered(self) -> None:
        """Starts what is buffered, as far as there are free slots."""
        while self._buffer and self._active < self._concurrency:
            if self._solo is not None:
                if self._active:
                    return
            elif self._buffer[0].crashes >= self._max_crashes - 1:
                self._isolate(self._buffer[0])
                continue
            run = self._buffer.popleft()
            if run.dropped:
                continue
            self._active += 1
            self._fresh.append(run)
            self.executor.start(run)

    def _isolate(self, run: Run) -> None:
        """A task that has taken workers down runs alone: nobody else shall pay for it again."""
        self._solo = run
        self._buffer.remove(run)
        self._hand_back()
        self._buffer.append(run)
        self._wake.set()

    def _hand_back(self) -> None:
        """What is buffered and not started goes back, uncharged."""
        kept = [run for run in self._buffer if run is self._solo and not self._draining]
        for run in self._buffer:
            if run in kept:
                continue
            if run is self._solo:
                self._solo = None
            self._board.cells[Cell.RELEASED] += 1
            self._outboxes[run.queue].released.append((run.entry, run.message.id))
        self._buffer = deque(kept)
        self._wake.set()

    def finished(self, run: Run, outcome: Outcome | None) -> None:
        """A run has ended; None: its lease was lost, or the drain cut it short."""
        self._active -= 1
        self._ended += 1
        self._held_ns += time.monotonic_ns() - (run.started_ns or run.claimed_ns)
        if run is self._solo:
            self._solo = None
        self._wake.set()
        if run.dropped:
            self._runs.pop((run.queue, run.entry), None)
            self._free(run)
        elif outcome is None:
            self._outboxes[run.queue].released.append((run.entry, run.message.id))
        else:
            handler = run.handler
            move = conclude(run.entry, run.message, outcome, handler.retry_base, handler.retry_cap)
            self._outboxes[run.queue].add(move)
            self._report(run, outcome, move)
        if self._buffer:
            self._start_buffered()

    def _report(self, run: Run, outcome: Outcome, move: Done | Kept | Again | Dead) -> None:
        cells = self._board.cells
        if isinstance(outcome, Succeeded):
            cells[Cell.SUCCEEDED] += 1
            if isinstance(move, Done):
                self._board.succeed(run.slot)
            else:
                self._board.finish(run.slot)
            return
        self._board.finish(run.slot)
        log.bind_task(run.task)
        if isinstance(move, Again):
            cells[Cell.RETRIED] += 1
            _log.warning("task failed, will retry", error=outcome.error, delay_s=round(move.delay_s, 3))
        elif isinstance(move, Dead):
            cells[Cell.ARCHIVED] += 1
            _log.error("task archived", error=outcome.error)
        else:
            _log.error("task discarded", error=outcome.error)
        log.bind_task(None)

    # -- trouble ------------------------------------------------------------------------------

    async def _check_leases(self) -> None:
        """Drops what was taken over meanwhile, before any of it is started."""
        by_queue: dict[int, list[Run]] = {}
        for run in self._buffer:
            by_queue.setdefault(run.queue, []).append(run)
        commands = [
            consume.not_owned(self._queues[i], self._consumer, [run.entry for run in runs])
            for i, runs in by_queue.items()
        ]
        try:
            results = await self._cycle.run_many(commands)
        except BrokerError:
            self._hand_back()
            return
        for index, result in zip(by_queue, results, strict=True):
            if isinstance(result, BrokerError):
                self._hand_back()
                return
            for entry in result:
                self._lose(self._runs[index, entry])

    def _lose(self, run: Run) -> None:
        self._board.cells[Cell.LEASES_LOST] += 1
        _log.warning("lease lost", task_id=run.message.id, queue=run.message.queue)
        if run in self.executor.running:
            self.executor.cancel(run, Cancelled.LOST)
            return
        run.dropped = True
        if run is self._solo:
            self._solo = None
        if run in self._buffer:
            self._buffer.remove(run)
        self._runs.pop((run.queue, run.entry), None)
        self._free(run)

    async def _failed(self, error: BrokerError, sendings: list[Sending], marks: list[Command[Any]]) -> None:
        """A whole cycle without an answer: what ended is sent again, what was fetched is looked for."""
        self._doubtful = True
        for sending in sendings:
            sending.resent = True
        self._unsent = sendings + self._unsent
        self._note("redis", error)
        await self._pause()
        if self._draining and not self._active and not sendings:
            return
        await self._look_for_strays()

    async def _look_for_strays(self) -> None:
        """Takes in what a lost reply had delivered: pending for this consumer and not on the board."""
        try:
            results = await self._cycle.run_many(
                [consume.pending_for(queue, self._consumer) for queue in self._queues]
            )
        except BrokerError:
            return
        self._recovered()
        known = {(s.index, entry) for s in self._unsent for entry in s.entries}
        known.update(self._delivered)
        for index, result in enumerate(results):
            if isinstance(result, BrokerError):
                continue
            for entry in result:
                if (index, entry) not in self._runs and (index, entry) not in known:
                    self._delivered.append((index, entry))

    def _recovered(self) -> None:
        self._failures = 0
        if "redis" in self._trouble:
            self._trouble.discard("redis")
            _log.info("redis is back", server=self._cycle.target.label)

    async def _recreate(self) -> None:
        try:
            await self._cycle.run_many([consume.create_group(queue) for queue in self._queues])
        except BrokerUnavailable as error:
            self._note("redis", error)

    def _note(self, where: str, error: BrokerError) -> None:
        """Logs a trouble once; it is logged again only after it has ended."""
        if where not in self._trouble:
            self._trouble.add(where)
            _log.warning("redis trouble", where=where, error=str(error), trouble=error.trouble.value)

    async def _pause(self) -> None:
        """Backs off: 50 ms doubling to 2 s, jittered; an order to drain ends it early."""
        self._failures = min(self._failures + 1, 6)
        if self._reconnect:  # the address leads to a demoted node: look it up again
            self._reconnect = False
            await self._cycle.aclose()
        if self._missing_group:
            self._missing_group = False
            await self._recreate()
        self._wake.clear()
        try:
            async with asyncio.timeout(random.uniform(0.5, 1.0) * min(0.05 * 2**self._failures, 2.0)):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _measure(self, now: float) -> None:
        """Follows how many tasks this worker ends, and how long they take: so far ahead it may read."""
        seconds, finished = now - self._measured_at, self._ended
        self._measured_at, self._ended = now, 0
        if finished:
            self._rate += 0.3 * (finished / seconds - self._rate)
            self._held_s += 0.3 * (self._held_ns / finished / 1e9 - self._held_s)
            self._held_ns = 0
        self._board.cells[Cell.CYCLES] += 1

    def show_state(self) -> WorkerState:
        """What the board says of the worker as a whole."""
        if self._draining:
            return WorkerState.DRAINING
        return WorkerState.FETCHING if self._fetching else WorkerState.QUIET
