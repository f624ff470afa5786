"""The blocking read: how an idle worker waits for work in any of its queues."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from chronosd.board import Cell
from chronosd.broker import consume
from chronosd.broker.commands import Command
from chronosd.broker.consume import Arrivals, Delivery, is_newer
from chronosd.broker.runner import AsyncRunner
from chronosd.errors import BrokerError
from chronosd.worker.execute import GAP_S, hide
from chronosd.worker.held import Held, Key
from chronosd.worker.trouble import Troubles, pause_s

BLOCK_S = 1.0

MANY = 32
"""So many queues are too many to ask for bodies with the blocking read."""


class BlockingRead:
    """One at a time, on a connection of its own, never cancelled: its reply may bring tasks.

    Their bodies come with it: the script that takes them in is sent behind the read, and runs when that
    returns. Not for many queues: it looks into each, and that takes longer than the round trip that it saves.

    Args:
        arrived: told what it brought, by queue.
        delivered: told of entries that it brought and that a fetch has to take in.
        failed: told of an error, and of the queues that were asked.
    """

    def __init__(
        self,
        held: Held,
        consumer: str,
        blocking: AsyncRunner,
        cycle: AsyncRunner,
        troubles: Troubles,
        *,
        arrived: Callable[[dict[int, Delivery]], None],
        delivered: Callable[[list[Key]], None],
        failed: Callable[[BrokerError, list[int]], None],
    ) -> None:
        self._held = held
        self._consumer = consumer
        self._blocking = blocking
        self._cycle = cycle
        self._troubles = troubles
        self._arrived = arrived
        self._delivered = delivered
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        self._failures = 0
        self._not_before = 0.0

    @property
    def is_under_way(self) -> bool:
        """Whether its reply has not arrived yet."""
        return self._task is not None

    def start(self, queues: list[int]) -> bool:
        """Begins to wait for work in these queues; False if it is too soon after a failure."""
        if time.monotonic() < self._not_before:
            return False
        self._task = asyncio.get_running_loop().create_task(self._read(queues))
        hide(self._task)
        return True

    async def _read(self, queues: list[int]) -> None:
        held = self._held
        asked = [held.queues[i] for i in queues]
        commands: list[Command[Any]] = [consume.block(asked, self._consumer, int(BLOCK_S * 1000))]
        if len(queues) < MANY:
            commands.append(consume.arrivals(asked, self._consumer, [held.newest[i] for i in queues]))
        try:
            found, *taken = await self._blocking.run_many(commands, timeout_s=BLOCK_S + GAP_S)
            if isinstance(found, BrokerError):
                raise found
        except BrokerError as error:
            self._failures += 1
            self._not_before = time.monotonic() + pause_s(self._failures)
            self._failed(error, queues)
        else:
            self._failures = 0
            self._troubles.over("blocking read")
            rest = dict.fromkeys((queues[place], entry) for place, entry in found)
            for arrivals in taken:
                if isinstance(arrivals, Arrivals) and arrivals.deliveries:
                    self._take(arrivals, queues, rest)
            if rest:
                self._delivered(list(rest))
        finally:
            self._task = None
            held.wake.set()

    def _take(self, arrivals: Arrivals, queues: list[int], rest: dict[Key, None]) -> None:
        """Passes on what is certain to be ours; what is not is left in the rest: a fetch finds out."""
        at_once, brought = self._came_at_once(arrivals), {}
        for place, delivery in arrivals.deliveries.items():
            index = queues[place]
            for task in delivery.tasks:
                # a look for strays may have found it meanwhile: then it may even have ended
                if at_once and is_newer(task.entry, self._held.newest[index]):
                    brought[index] = delivery
                    rest.pop((index, task.entry), None)
                else:
                    rest[index, task.entry] = None
            if delivery.gone:
                brought[index] = delivery
        self._arrived(brought)

    def _came_at_once(self, arrivals: Arrivals) -> bool:
        """Whether none of it can have been handed to others by now, as what lies about is."""
        clock_ns = self._held.board.cells[Cell.SERVER_CLOCK]
        late_ns = time.monotonic_ns() + clock_ns - arrivals.at_ms * 1_000_000
        return clock_ns != 0 and abs(late_ns) < GAP_S * 1e9

    async def end(self) -> None:
        """Has the server answer it now, so that a drain need not wait for it.

        It may not have reached the server yet: then this has to be done again.
        """
        client = self._blocking.client_id
        if client:
            try:
                await self._cycle.run(consume.unblock(client), timeout_s=GAP_S)
            except BrokerError:
                pass  # it ends by itself within a second
