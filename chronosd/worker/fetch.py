"""The cycle: everything that finished goes out and new tasks come in, in one round trip."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection
from typing import Any, NamedTuple

from chronosd import log
from chronosd.board import Board, Cell, WorkerState
from chronosd.broker import consume
from chronosd.broker.commands import BATCH, Command
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
from chronosd.worker.execute import GAP_S, Cancelled, Executor, Run, hide
from chronosd.worker.pick import Picker
from chronosd.worker.trouble import Troubles, pause_s

BLOCK_S = 1.0

BODY_S = 60.0
"""How long the reading of one long body may take; it has a connection of its own."""

POLL_S = 0.05
"""How often queues are asked while the blocking read cannot be had."""

AHEAD_S = 0.010
"""Reading ahead goes only as far as the worker can start within this time."""

HOARD_S = 0.020
"""A buffered task that has waited longer is handed back, with all behind it."""

_log = log.get_logger("chronosd.worker")


class _Reading(NamedTuple):
    """A long body that is being read."""

    slot: int
    task_id: str
    task: asyncio.Task[None]


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
        bodies: AsyncRunner,
    ) -> None:
        self._consumer = consumer
        self._board = board
        self._handlers = registry.handlers
        self._cycle = cycle
        self._blocking = blocking
        self._bodies = bodies
        # with max_crashes 1 there is no crash before the last: a task without one runs beside others
        self._alone_from = max(config.max_crashes - 1, 1)
        self._max_payload = config.max_payload
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
        self._reading: dict[tuple[int, bytes], _Reading] = {}
        self._body_turn = asyncio.Lock()
        self._active = 0
        self._solo: Run | None = None
        self._starting = False
        self._unsent: list[Sending] = []
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._block_task: asyncio.Task[None] | None = None
        self._block_at = 0.0
        self._block_failures = 0
        self._fetching = True
        self._draining = False
        self._doubtful = False
        self._astray: set[int] = set()  # queues with entries that a lost reply may have delivered
        self._missing_group = False
        self._reconnect = False
        self._troubles = Troubles(board.queues)
        self._failures = 0
        self.answered_at = 0.0
        """Monotonic instant of the last reply to a cycle."""
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
        self._hurry.set()

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
        self.executor.doubted_ns = time.monotonic_ns()

    def lost(self, entries: list[tuple[str, str]]) -> None:
        """The supervisor found leases lost: async handlers are cancelled, results dropped."""
        index = {queue.name: i for i, queue in enumerate(self._queues)}
        for name, entry in entries:
            key = (index.get(name, -1), entry.encode())
            run = self._runs.get(key)
            if run is not None and not run.dropped:
                self._lose(run)
            elif key in self._reading:
                self._stop_reading(key)
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
            if self._missing_group:
                await self._recreate()
            if self._astray and not await self._look_for_strays():
                await self._pause()
                continue
            commands, sendings, asks, marked = self._compose()
            if not commands:
                if self._doubtful and self._buffer:
                    await self._check_leases()
                    self._start_buffered()
                else:
                    await self._rest()
                continue
            began = time.monotonic()
            try:
                results = await self._cycle.run_many(commands)
            except BrokerError as error:
                await self._failed(error, sendings, asks, marked)
                continue
            now = time.monotonic()
            if now - began > GAP_S:
                self._doubtful = True
            self._recovered()
            self._settle(sendings, results[: len(sendings)])
            self._take_in(asks, results[len(results) - len(asks) :])
            self._measure(now)
            if self._doubtful and self._buffer:
                await self._check_leases()
            else:
                self._doubtful = False
            if not self._fetching:
                self._hand_back()
            self._start_buffered()
            if self._reconnect:  # the address leads to a demoted node: look it up again
                self._reconnect = False
                await self._cycle.aclose()
            await asyncio.sleep(0)

    def _idle(self) -> bool:
        return not (
            self._active
            or self.unsettled
            or self._delivered
            or self._reading
            or self._astray
            or self._block_task is not None
        )

    def _compose(
        self,
    ) -> tuple[list[Command[Any]], list[Sending], list[tuple[int, int, list[bytes]]], list[Run]]:
        """The next cycle: what ended, what outlived its cycle, what to fetch."""
        resting = self._troubles.resting()
        sendings, self._unsent = self._unsent, []
        if resting:
            self._unsent = [sending for sending in sendings if sending.index in resting]
            sendings = [sending for sending in sendings if sending.index not in resting]
        for box in self._outboxes:
            if len(box) and box.index not in resting:
                sendings += box.take()
        marks, marked = self._marks()
        asks = self._asks(resting)
        commands: list[Command[Any]] = [sending.command for sending in sendings]
        commands += marks
        for index, count, delivered in asks:
            commands.append(consume.fetch(self._queues[index], self._consumer, count, delivered))
        return commands, sendings, asks, marked

    def _marks(self) -> tuple[list[Command[Any]], list[Run]]:
        older, self._older, self._fresh = self._older, self._fresh, []
        if not older:
            return [], []
        by_queue: dict[int, list[tuple[bytes, str]]] = {}
        running = self.executor.running
        marked = [run for run in older if run in running]
        for run in marked:
            self.executor.outlived(run)
            by_queue.setdefault(run.queue, []).append((run.entry, run.message.id))
        marks: list[Command[Any]] = []
        for index, pairs in by_queue.items():
            for i in range(0, len(pairs), BATCH):
                marks.append(consume.mark_running(self._queues[index], pairs[i : i + BATCH]))
        return marks, marked

    @property
    def _room(self) -> int:
        """Tasks that could start at once if they were here."""
        return (
            self._concurrency - self._active - len(self._buffer) - len(self._delivered) - len(self._reading)
        )

    def _asks(self, resting: Collection[int]) -> list[tuple[int, int, list[bytes]]]:
        free = self._room
        delivered = self._to_take_in(resting) if self._delivered else {}
        shares: dict[int, int] = {}
        if self._fetching and self._solo is None and self._block_task is None:
            brief = self._full and self._held_s < AHEAD_S
            ahead = min(int(self._rate * AHEAD_S), READ_AHEAD) if brief else 0
            taken = sum(map(len, delivered.values())) + len(self._delivered)
            room = len(self._free_slots) - taken - len(self._queues)
            without = {*resting, *self._astray} if resting or self._astray else ()
            shares = dict(self._picker.share(min(free + ahead, room), time.monotonic(), without))
        return [(i, shares.get(i, 0), delivered.get(i, [])) for i in {**delivered, **shares}]

    def _to_take_in(self, resting: Collection[int]) -> dict[int, list[bytes]]:
        """What was delivered and is not here yet, each entry once: a blocking read's reply may tell of what
        a look for strays has found meanwhile."""
        found: dict[int, list[bytes]] = {}
        later: list[tuple[int, bytes]] = []
        for key in dict.fromkeys(self._delivered):
            if key in self._runs or key in self._reading:
                continue
            if key[0] in resting:
                later.append(key)
            else:
                found.setdefault(key[0], []).append(key[1])
        self._delivered = later
        return found

    async def _rest(self) -> None:
        """Nothing to send: waits for an end, an order, or work in any queue."""
        resting = self._troubles.resting()
        idle = self._fetching and self._solo is None and self._picker.all_empty and self._room > 0
        wait_s = min(BLOCK_S, self._troubles.rest_s())
        if idle and self._block_task is None and not self._astray and len(resting) < len(self._queues):
            if time.monotonic() >= self._block_at:
                queues = [i for i in range(len(self._queues)) if i not in resting]
                self._block_task = asyncio.get_running_loop().create_task(self._block(queues))
                hide(self._block_task)
            else:
                wait_s = min(wait_s, POLL_S)
        self._wake.clear()  # before the await: what happens during it has to wake us
        if self._draining and self._block_task is not None:
            await self._unblock()
        if self._sendable(resting) or (self._draining and self._idle()):
            return
        # The blocking read may not have reached the server when it was told to end: it is told again.
        if self._buffer or self._fresh or self._older or (self._draining and self._block_task is not None):
            wait_s = min(wait_s, HOARD_S)
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        if self._buffer and time.monotonic_ns() - self._buffer[0].claimed_ns > HOARD_S * 1e9:
            self._rate = 0.0
            self._hand_back()

    def _sendable(self, resting: Collection[int]) -> bool:
        """Whether there is something for the next cycle beside a fetch."""
        if not resting:
            return self.unsettled or bool(self._delivered)
        return (
            any(sending.index not in resting for sending in self._unsent)
            or any(len(box) and box.index not in resting for box in self._outboxes)
            or any(index not in resting for index, _ in self._delivered)
        )

    async def _block(self, queues: list[int]) -> None:
        """One blocking read over these queues, on a connection of its own; never cancelled."""
        try:
            command = consume.block([self._queues[i] for i in queues], self._consumer, int(BLOCK_S * 1000))
            found = await self._blocking.run(command, timeout_s=BLOCK_S + GAP_S)
        except BrokerError as error:
            self._cannot_block(error, queues)
        else:
            self._block_failures = 0
            self._troubles.over("blocking read")
            for place, entry in found:
                self._picker.stocked(queues[place])
                self._delivered.append((queues[place], entry))
        finally:
            self._block_task = None
            self._wake.set()

    def _cannot_block(self, error: BrokerError, queues: list[int]) -> None:
        """Asks with cycles for a while; if one of the queues is to blame, those will tell which."""
        self._doubtful = True
        self._block_failures += 1
        self._block_at = time.monotonic() + pause_s(self._block_failures)
        if error.trouble is Trouble.RECREATE:
            self._missing_group = True
            return
        if isinstance(error, BrokerUnavailable):
            self._astray.update(queues)
        self._troubles.note("blocking read", error)

    async def _unblock(self) -> None:
        """Has the server answer the blocking read now, so that a drain need not wait for it."""
        client = self._blocking.client_id
        if client:
            try:
                await self._cycle.run(consume.unblock(client), timeout_s=GAP_S)
            except BrokerError:
                pass  # it ends by itself within a second

    # -- replies ------------------------------------------------------------------------------

    def _settle(self, sendings: list[Sending], results: list[Any]) -> None:
        """Frees the slots of what has been carried out."""
        for sending, result in zip(sendings, results, strict=True):
            if isinstance(result, BrokerError):
                sending.resent = True
                self._unsent.append(sending)
                self._troubles.sick(sending.index, result)
                self._picker.report(sending.index, 1, 0)
                self._reconnect |= result.trouble is Trouble.RECONNECT
                continue
            self._troubles.well(sending.index)
            for entry in sending.entries:
                run = self._runs.pop((sending.index, entry), None)
                if run is not None:
                    self._free(run)
            missing = result if isinstance(result, list) else []
            if missing and not sending.resent:
                self._board.cells[Cell.LEASES_LOST] += len(missing)
                _log.warning("leases lost", queue=sending.queue, entries=len(missing))

    def _free(self, run: Run) -> None:
        if run.slot >= 0:
            self._board.free(run.slot)
            self._free_slots.append(run.slot)
            run.slot = -1

    def _take_in(self, asks: list[tuple[int, int, list[bytes]]], results: list[Any]) -> None:
        """Buffers what a cycle fetched."""
        full = asked = False
        for (index, count, delivered), result in zip(asks, results, strict=True):
            queue = self._queues[index]
            if isinstance(result, BrokerError):
                self._troubles.sick(index, result)
                self._picker.report(index, 1, 0)
                self._doubtful = True
                if result.trouble is Trouble.RECREATE:  # and with the group all that was delivered is gone
                    self._missing_group = True
                else:
                    self._delivered += [(index, entry) for entry in delivered]
                    self._reconnect |= result.trouble is Trouble.RECONNECT
                continue
            self._troubles.well(index)
            fetched: Delivery = result
            if fetched.gone:
                self._board.cells[Cell.DROPPED] += len(fetched.gone)
                _log.warning("tasks dropped: their bodies are gone", queue=queue.name, ids=fetched.gone[:10])
            if count:
                brought = len(fetched.tasks) + len(fetched.gone) - len(delivered)
                self._picker.report(index, count, brought)
                asked = True
                full |= brought >= count
            self._board.cells[Cell.FETCHED] += len(fetched.tasks)
            for item in fetched.tasks:
                self._admit(index, queue, item)
        if asked:
            self._full = full

    def _admit(self, index: int, queue: QueueKeys, item: Fetched) -> None:
        """A fetched task takes a slot and waits in the buffer, or ends at once if it cannot run here."""
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
            self._bury(index, item, f"undecodable message: {error}")
            return
        if len(message.payload) > self._max_payload:
            size = len(message.payload)
            self._bury(index, item, f"the payload is {size} bytes long, max_payload is {self._max_payload}")
            return
        # Redis knows the task by its key and acknowledges on the queue's stream, whatever the text says.
        message.id, message.queue = item.task_id, queue.name
        handler = self._handlers.get(message.kind)
        if handler is None or message.workflow:
            self._put_off(index, message, item, handler)
            return
        if not self._free_slots:  # unheard of; but what cannot be on the board must not run
            self._outboxes[index].released.append((item.entry, item.task_id))
            return
        slot = self._free_slots.pop()
        now_ns = time.monotonic_ns()
        self._board.claim(slot, item.entry, index, now_ns)
        # Go may have stored a new task under the old id: crashes that were never charged are not its own.
        crashes = item.crashes if item.crashes <= message.retried else 0
        run = Run(slot, item.entry, index, message, handler, crashes, now_ns, item.free_starts)
        self._runs[index, item.entry] = run
        self._buffer.append(run)

    def _bury(self, index: int, item: Fetched, why: str) -> None:
        """Dead-letters a task whose message is left as it is, for whoever wants to look at it."""
        self._outboxes[index].dead.append(Dead(item.entry, item.task_id, None, {Field.ERROR: why}))
        self._board.cells[Cell.ARCHIVED] += 1
        name = self._queues[index].name
        _log.error("task archived", task_id=item.task_id, queue=name, error=why)

    def _put_off(self, index: int, message: Message, item: Fetched, handler: Handler | None) -> None:
        why = (
            f"no handler for kind {message.kind[:200]!r}"
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
        """Reads a body that was too long for the common reply; meanwhile the cycles go on."""
        if not self._free_slots:
            self._outboxes[index].released.append((item.entry, item.task_id))
            return
        slot = self._free_slots.pop()
        self._board.claim(slot, item.entry, index, time.monotonic_ns())
        task = asyncio.get_running_loop().create_task(self._read_body(index, queue, item))
        hide(task)
        self._reading[index, item.entry] = _Reading(slot, item.task_id, task)

    async def _read_body(self, index: int, queue: QueueKeys, item: Fetched) -> None:
        key = (index, item.entry)
        try:
            async with self._body_turn:  # one at a time: each may be as large as Redis allows
                raw = await self._bodies.run(consume.body(queue, item.task_id))
        except BrokerError as error:
            self._troubles.note("long bodies", error)
            raw = None
        if key not in self._reading:
            return  # lost or handed back meanwhile
        self._stop_reading(key)
        if raw is None:
            self._outboxes[index].released.append((item.entry, item.task_id))
        else:
            self._troubles.over("long bodies")
            self._admit(index, queue, item._replace(msg=raw))
        if not self._reading:
            await self._bodies.aclose()
        if not self._fetching:
            self._hand_back()
        self._start_buffered()
        self._wake.set()

    def _stop_reading(self, key: tuple[int, bytes]) -> str:
        """Frees its slot; returns the task's id."""
        reading = self._reading.pop(key)
        if reading.task is not asyncio.current_task():
            reading.task.cancel()
        self._board.free(reading.slot)
        self._free_slots.append(reading.slot)
        return reading.task_id

    def _start_buffered(self) -> None:
        """Starts what is buffered, as far as there are free slots and no doubt about leases."""
        if self._starting:
            return  # a run that ends where it starts calls us: the loop below goes on by itself
        self._starting = True
        try:
            while self._buffer and self._active < self._concurrency and not self._doubtful:
                if self._solo is not None:
                    if self._active:
                        return
                elif self._buffer[0].crashes >= self._alone_from:
                    self._isolate(self._buffer[0])
                    continue
                run = self._buffer.popleft()
                if run.dropped:
                    continue
                self._active += 1
                self._fresh.append(run)
                self.executor.start(run)
        finally:
            self._starting = False

    def _isolate(self, run: Run) -> None:
        """A task that has taken workers down runs alone: nobody else shall pay for it again."""
        self._solo = run
        self._buffer.remove(run)
        self._hand_back()
        self._buffer.append(run)
        self._wake.set()

    def _hand_back(self) -> None:
        """What is buffered and not started goes back, uncharged."""
        kept = [run for run in self._buffer if run is self._solo and self._fetching]
        for run in self._buffer:
            if run in kept:
                continue
            if run is self._solo:
                self._solo = None
            self._board.cells[Cell.RELEASED] += 1
            self._outboxes[run.queue].released.append((run.entry, run.message.id))
        self._buffer = deque(kept)
        if not self._fetching:
            for key in list(self._reading):
                self._outboxes[key[0]].released.append((key[1], self._stop_reading(key)))
        self._wake.set()

    def unstarted(self, run: Run) -> None:
        """A run whose handler was not entered after all: it may not be ours any more."""
        self._active -= 1
        if run.timer is not None:
            run.timer.cancel()
            run.timer = None
        if run.dropped:
            if run is self._solo:
                self._solo = None
            self._runs.pop((run.queue, run.entry), None)
            self._free(run)
        else:
            run.cancelled = None
            self._doubtful = True
            self._buffer.appendleft(run)
        if not self._fetching:
            self._hand_back()
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
            move = conclude(
                run.entry,
                run.message,
                outcome,
                handler.retry_base,
                handler.retry_cap,
                run.free_starts,
            )
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
        message = run.message
        facts: dict[str, Any] = {
            "task_id": message.id,
            "kind": message.kind,
            "queue": message.queue,
            "attempt": message.retried + 1,
            "error": outcome.error,
        }
        if isinstance(move, Again):
            cells[Cell.RETRIED] += 1
            _log.warning("task failed, will retry", delay_s=round(move.delay_s, 3), **facts)
        elif isinstance(move, Dead):
            cells[Cell.ARCHIVED] += 1
            _log.error("task archived", **facts)
        else:
            _log.error("task discarded", **facts)

    # -- trouble ------------------------------------------------------------------------------

    async def _check_leases(self) -> None:
        """Drops what was taken over meanwhile, before any of it is started."""
        self._doubtful = False
        asked_ns = time.monotonic_ns()
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
        for (index, runs), result in zip(by_queue.items(), results, strict=True):
            if isinstance(result, BrokerError):
                self._hand_back()
                return
            for run in runs:
                run.checked_ns = asked_ns
            for entry in result:
                lost = self._runs.get((index, entry))
                if lost is not None and not lost.dropped:
                    self._lose(lost)

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

    async def _failed(
        self,
        error: BrokerError,
        sendings: list[Sending],
        asks: list[tuple[int, int, list[bytes]]],
        marked: list[Run],
    ) -> None:
        """A whole cycle without an answer: what ended is sent again, what was fetched is looked for."""
        self._doubtful = True
        for sending in sendings:
            sending.resent = True
        self._unsent = sendings + self._unsent
        self._older = marked + self._older
        self._astray.update(index for index, _, _ in asks)
        self._troubles.note("redis", error)
        await self._pause()

    async def _look_for_strays(self) -> bool:
        """Takes in what a lost reply had delivered: pending for this consumer and not known here.

        No more than can start at once; a queue with more is not asked for new tasks before all are taken in.
        False if Redis does not answer.
        """
        resting = self._troubles.resting()
        queues = sorted(self._astray.difference(resting))
        room = self._room if self._fetching else BATCH
        if not queues or room <= 0:
            return True
        most = self._board.capacity + BATCH
        try:
            results = await self._cycle.run_many(
                [consume.pending_for(self._queues[i], self._consumer, most) for i in queues]
            )
        except BrokerError as error:
            self._troubles.note("redis", error)
            return False
        self._recovered()
        known = {(s.index, entry) for s in self._unsent for entry in s.entries}
        for box in self._outboxes:
            known.update((box.index, entry) for entry in box.entries())
        known.update(self._delivered)
        for index, result in zip(queues, results, strict=True):
            if isinstance(result, BrokerError):
                if result.trouble is Trouble.RECREATE:
                    self._astray.discard(index)
                    self._missing_group = True
                else:
                    self._troubles.sick(index, result)
                continue
            found = [(index, entry) for entry in result]
            found = [k for k in found if not (k in self._runs or k in self._reading or k in known)]
            taken = found[: max(room, 0)]
            room -= len(taken)
            self._delivered += taken
            if len(taken) == len(found):
                self._astray.discard(index)
        return True

    def _recovered(self) -> None:
        self._failures = 0
        self.answered_at = time.monotonic()
        if self._troubles.over("redis"):
            _log.info("redis is back", server=self._cycle.target.label)

    async def _recreate(self) -> None:
        self._missing_group = False
        try:
            await self._cycle.run_many([consume.create_group(queue) for queue in self._queues])
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
