"""The blocking read: how an idle worker waits for work in any of its queues."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from chronosd.broker import consume
from chronosd.broker.runner import AsyncRunner
from chronosd.errors import BrokerError
from chronosd.worker.execute import GAP_S, hide
from chronosd.worker.held import Held, Key
from chronosd.worker.trouble import Troubles, pause_s

BLOCK_S = 1.0


class BlockingRead:
    """One at a time, on a connection of its own, never cancelled: its reply may bring tasks.

    Args:
        delivered: told what it brought.
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
        delivered: Callable[[list[Key]], None],
        failed: Callable[[BrokerError, list[int]], None],
    ) -> None:
        self._held = held
        self._consumer = consumer
        self._blocking = blocking
        self._cycle = cycle
        self._troubles = troubles
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
        asked = [self._held.queues[i] for i in queues]
        try:
            command = consume.block(asked, self._consumer, int(BLOCK_S * 1000))
            found = await self._blocking.run(command, timeout_s=BLOCK_S + GAP_S)
        except BrokerError as error:
            self._failures += 1
            self._not_before = time.monotonic() + pause_s(self._failures)
            self._failed(error, queues)
        else:
            self._failures = 0
            self._troubles.over("blocking read")
            if found:
                self._delivered([(queues[place], entry) for place, entry in found])
        finally:
            self._task = None
            self._held.wake.set()

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
