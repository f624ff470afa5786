"""What an `AsyncClient` has in each event loop: one connection, and calls that share its round trips."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Any, TypeVar

from chronosd.broker.commands import Steps
from chronosd.broker.runner import AsyncRunner
from chronosd.client_settings import ClientSettings
from chronosd.delivery import Attempt, batched, delivery, retold
from chronosd.errors import BrokerUnavailable
from chronosd.submission import Draft

T = TypeVar("T")
R = TypeVar("R")

_SHARED = 2000  # the most calls that share a round trip


class _Waiting:
    """A call that waits for its draft's reply."""

    __slots__ = ("draft", "future", "patient_until", "sent")

    def __init__(self, draft: Draft, future: asyncio.Future[None], patient_until: float) -> None:
        self.draft = draft
        self.future = future
        self.patient_until = patient_until
        self.sent = False

    def fail(self, error: BrokerUnavailable) -> None:
        if not self.future.done():
            self.future.set_exception(retold(error))


class Outbox:
    """One event loop's connection, and what waits to be sent over it.

    While a round trip is under way new calls gather; the next one takes all of them. No timer is needed,
    and a lone call waits for nobody.
    """

    def __init__(self, given: ClientSettings) -> None:
        self.pid = os.getpid()
        self._timeout_s = given.timeout_s
        self._namespace = given.drafter.namespace
        self._runner = AsyncRunner(
            given.url, given.password, timeout_s=given.timeout_s, client_name="chronosd-client"
        )
        self._waiting: list[_Waiting] = []
        self._line: deque[_Waiting] = deque()  # oldest first, for the timer
        self._timer: asyncio.Handle | None = None  # one for all: they time out as they came
        self._alive_at = float("-inf")
        self._flusher: asyncio.Task[None] | None = None
        self._lifetime = self._until_the_loop_ends()

    async def open(self) -> None:
        """Has it closed when the loop ends."""
        await anext(self._lifetime)

    async def aclose(self) -> None:
        """Waits for what is under way, and closes the connection."""
        if self._flusher is not None:
            await asyncio.wait([self._flusher])
        await self._lifetime.aclose()

    async def send(self, draft: Draft) -> None:
        """Returns once the draft has its reply. Raises BrokerUnavailable after the timeout."""
        loop, line = asyncio.get_running_loop(), self._line
        waiting = _Waiting(draft, loop.create_future(), loop.time() + self._timeout_s)
        self._waiting.append(waiting)
        if self._flusher is None:
            self._flusher = loop.create_task(self._flush())
        while line and line[0].future.done():
            line.popleft()
        line.append(waiting)
        if self._timer is None:
            self._timer = loop.call_at(waiting.patient_until, self._due)
        await waiting.future

    def _due(self) -> None:
        # in a loop that was blocked for longer, the flusher may be ready to run and have its turn behind us
        self._timer = asyncio.get_running_loop().call_soon(self._expire)

    def _expire(self) -> None:
        # Behind ten thousand others, or in a loop that was blocked, a call may wait longer with nothing
        # wrong: what ends it is a server that has answered nobody for as long as the timeout.
        loop, line = asyncio.get_running_loop(), self._line
        self._timer = None
        limit = self._alive_at + self._timeout_s
        while line:
            call = line[0]
            if not call.future.done():
                at = max(call.patient_until, limit)
                if loop.time() < at:
                    self._timer = loop.call_at(at, self._due)
                    return
                call.fail(BrokerUnavailable("timed out", maybe_enqueued=call.sent))
            line.popleft()

    async def drive(self, steps: Steps[T]) -> T:
        """Runs a procedure. Raises BrokerError."""
        return await self._runner.drive(steps)

    async def deliver(self, batches: Sequence[Sequence[Draft]], *, in_doubt: bool = False) -> None:
        """Sends batches; every draft has its reply afterwards. Raises BrokerUnavailable."""
        until = time.monotonic() + self._timeout_s
        await self.carry_out(delivery(batches, self._namespace, until, in_doubt=in_doubt))

    async def carry_out(self, steps: Generator[Attempt, list[Any], R]) -> R:
        """Makes the attempts of a delivery; returns what it returns."""
        try:
            attempt = next(steps)
            while True:
                if attempt.pause_s:
                    await asyncio.sleep(attempt.pause_s)
                if attempt.reconnect:
                    await self._runner.aclose()
                try:
                    results = await self._runner.run_many(attempt.commands, timeout_s=attempt.timeout_s)
                except BrokerUnavailable as exc:
                    attempt = steps.throw(exc)
                else:
                    attempt = steps.send(results)
        except StopIteration as end:
            made: R = end.value
            return made

    async def _flush(self) -> None:
        self._alive_at = asyncio.get_running_loop().time()
        try:
            while self._waiting:
                # who has given up meanwhile (cancelled, timed out) is not sent at all
                calls = [call for call in self._waiting if not call.future.done()]
                self._waiting.clear()
                for start in range(0, len(calls), _SHARED):
                    await self._flush_calls(calls[start : start + _SHARED])
        finally:
            self._flusher = None

    async def _flush_calls(self, calls: list[_Waiting]) -> None:
        for call in calls:
            call.sent = True
        try:
            await self.deliver(list(batched(call.draft for call in calls)))
        except BrokerUnavailable as exc:
            for call in calls:
                call.fail(exc)
        except BaseException as exc:
            # the loop ends, or a fault of ours: nobody may be left waiting
            for call in calls:
                if isinstance(exc, asyncio.CancelledError):
                    call.future.cancel()
                elif not call.future.done():
                    call.future.set_exception(exc)
            raise
        self._alive_at = asyncio.get_running_loop().time()
        for call in calls:
            if not call.future.done():
                call.future.set_result(None)

    async def _until_the_loop_ends(self) -> AsyncGenerator[None, None]:
        """Suspended until closed: by `aclose`, or by ``asyncio.run``, which ends with closing generators."""
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            await self._runner.aclose()
