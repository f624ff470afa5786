"""From what Redis delivered to runs that wait in the buffer, or to the end of what cannot run here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from chronosd import log
from chronosd.board import Cell
from chronosd.broker import consume
from chronosd.broker.consume import Dead, Done, Fetched
from chronosd.broker.keys import Field
from chronosd.broker.message import Message, decode
from chronosd.broker.runner import AsyncRunner
from chronosd.errors import BrokerError, MessageError
from chronosd.handlers import Handler
from chronosd.metrics import OTHER, End
from chronosd.outcome import Postponed
from chronosd.trace import trace_id
from chronosd.worker.complete import counted_as, put_off
from chronosd.worker.execute import hide
from chronosd.worker.held import Held, Key
from chronosd.worker.run import Run
from chronosd.worker.trouble import Troubles

BODY_S = 60.0
"""How long the reading of one long body may take; it has a connection of its own."""

LONG_PAUSE_S = 0.5
"""How long a task whose long body could not be read keeps its slot before it is handed back."""

_log = log.get_logger("chronosd.worker")


class _Reading(NamedTuple):
    """A long body that is being read."""

    slot: int
    task_id: str
    task: asyncio.Task[None]


class Intake:
    """Admits what was fetched.

    Args:
        bodies: the connection over which long bodies are read.
        max_payload: bytes; a longer payload is not run.
        admitted: called when something was admitted at another time than in :meth:`admit`'s caller.
    """

    def __init__(
        self,
        held: Held,
        handlers: Mapping[str, Handler],
        bodies: AsyncRunner,
        troubles: Troubles,
        *,
        max_payload: int,
        admitted: Callable[[], None],
    ) -> None:
        self._held = held
        self._handlers = handlers
        self._bodies = bodies
        self._troubles = troubles
        self._max_payload = max_payload
        self._admitted = admitted
        self._turn = asyncio.Lock()
        self._arrived: list[tuple[int, Sequence[Fetched], int]] = []
        self.waiting = 0
        """Tasks that have arrived and are not admitted yet."""
        self.reading: dict[Key, _Reading] = {}

    def receive(self, index: int, items: Sequence[Fetched]) -> None:
        """Tasks were fetched: :meth:`admit` is to be called soon."""
        self._arrived.append((index, items, time.monotonic_ns()))
        self.waiting += len(items)

    def admit(self) -> None:
        """Each task that has arrived takes a slot and waits in the buffer, or ends if it cannot run here."""
        arrived, self._arrived, self.waiting = self._arrived, [], 0
        for index, items, now_ns in arrived:
            for item in items:
                self._admit(index, item, now_ns)

    def _admit(self, index: int, item: Fetched, now_ns: int) -> None:
        held = self._held
        queue, key = held.queues[index], (index, item.entry)
        if held.holds(key) or key in self.reading:
            return  # delivered again, after somebody has set the group back or made it anew
        if not item.task_id:
            record = consume.undecodable(queue, item.entry, item.msg or b"")
            held.outboxes[index].buried.append((item.entry, record))
            held.end_unrun(key, record.kind, End.ARCHIVED)
            return
        if item.msg is None:
            self._read(key, item)
            return
        try:
            message = decode(item.msg)
        except MessageError as error:
            self._bury(index, item, f"undecodable message: {error}")
            return
        if len(message.payload) > self._max_payload:
            why = f"the payload is {len(message.payload)} bytes long, max_payload is {self._max_payload}"
            if message.no_archive:
                self._drop(index, item, why, message)
            else:
                self._bury(index, item, why, message.kind)
            return
        # Redis knows the task by its key and acknowledges on the queue's stream, whatever the text says.
        message.id, message.queue = item.task_id, queue.name
        handler = self._handlers.get(message.kind)
        if handler is None:
            self._put_off(index, message, item)
            return
        slot = held.claim(key, now_ns)
        if slot < 0:  # unheard of; but what cannot be on the board must not run
            held.release(key, item.task_id)
            return
        # Go may have stored a new task under the old id: crashes that were never charged are not its own.
        crashes = item.crashes if item.crashes <= message.retried else 0
        run = Run(slot, item.entry, index, message, handler, crashes, now_ns, item.free_starts, item.trace)
        held.runs[key] = run
        held.buffer.append(run)

    def _bury(self, index: int, item: Fetched, why: str, kind: str = "") -> None:
        """Dead-letters a task whose message is left as it is, for whoever wants to look at it."""
        held = self._held
        dead = Dead(item.entry, item.task_id, None, {Field.ERROR: why}, kind=kind, crashes=item.crashes)
        held.outboxes[index].dead.append(dead)
        held.end_unrun((index, item.entry), OTHER, End.ARCHIVED)
        held.board.cells[Cell.ARCHIVED] += 1
        facts = {"task_id": item.task_id, "kind": kind, "queue": held.queues[index].name, "error": why}
        _log.error("task archived", **facts, **_traced(item))

    def _drop(self, index: int, item: Fetched, why: str, message: Message) -> None:
        """Ends a task that asked for no dead letter."""
        held = self._held
        held.outboxes[index].done.append(Done(item.entry, item.task_id, message.unique_key))
        held.end_unrun((index, item.entry), message.kind, End.DISCARDED)
        queue = held.queues[index].name
        facts = {"task_id": item.task_id, "kind": message.kind, "queue": queue, "error": why}
        _log.error("task discarded", **facts, **_traced(item))

    def _put_off(self, index: int, message: Message, item: Fetched) -> None:
        why = f"no handler for kind {message.kind[:200]!r}"
        move = put_off(item.entry, message, why, item.unknown_since)
        self._held.outboxes[index].add(move)
        ended = counted_as(Postponed(0.0, False, why), move)
        self._held.end_unrun((index, item.entry), message.kind, ended)
        facts: dict[str, Any] = {"task_id": message.id, "kind": message.kind, "queue": message.queue}
        facts |= {"attempt": message.retried + item.free_starts + 1, "error": why, **_traced(item)}
        if isinstance(move, Dead):
            _log.error("task archived", **facts)
        elif not item.unknown_since:
            _log.warning("task put off", **facts)

    # -- bodies that were too long for the common reply -----------------------------------------

    def _read(self, key: Key, item: Fetched) -> None:
        slot = self._held.claim(key, time.monotonic_ns())
        if slot < 0:
            self._held.release(key, item.task_id)
            return
        task = asyncio.get_running_loop().create_task(self._read_body(key, item))
        hide(task)
        self.reading[key] = _Reading(slot, item.task_id, task)

    async def _read_body(self, key: Key, item: Fetched) -> None:
        """Reads one body; meanwhile the cycles go on."""
        try:
            async with self._turn:  # one at a time: each may be as large as Redis allows
                raw = await self._bodies.run(consume.body(self._held.queues[key[0]], item.task_id))
        except BrokerError as error:
            self._troubles.note("long bodies", error)
            await asyncio.sleep(LONG_PAUSE_S)  # handed back, it comes again at once
            raw = None
        if key not in self.reading:
            return  # lost or handed back meanwhile
        self.stop(key)
        if raw is None:
            self._held.release(key, item.task_id)
        else:
            self._troubles.over("long bodies")
            self._admit(key[0], item._replace(msg=raw), time.monotonic_ns())
        if not self.reading:
            await self._bodies.aclose()
        self._admitted()

    def stop(self, key: Key) -> str:
        """Ends the reading of a body and frees its slot; returns the task's id."""
        reading = self.reading.pop(key)
        if reading.task is not asyncio.current_task():
            reading.task.cancel()
        self._held.free(reading.slot)
        return reading.task_id

    def hand_back(self, queues: Collection[int] | None = None) -> None:
        """Hands back the tasks of these queues whose bodies are being read; by default of all."""
        for key in list(self.reading):
            if queues is None or key[0] in queues:
                self._held.release(key, self.stop(key))


def _traced(item: Fetched) -> dict[str, str]:
    return {"trace_id": trace_id(item.trace)} if item.trace else {}
