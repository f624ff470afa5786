"""One asynchronous connection to Redis: the hot path, hence not redis-py's."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import hiredis

_GRACE_S = 0.05
"""A loop that was blocked past a deadline finds the timer and the reply at once; the reply counts."""


class _Batch:
    """Replies that are awaited, in the order in which their commands were sent."""

    __slots__ = ("future", "missing", "replies", "timer")

    def __init__(self, count: int, future: asyncio.Future[list[Any]]) -> None:
        self.missing = count
        self.replies: list[Any] = []
        self.future = future
        self.timer: asyncio.TimerHandle | None = None


class ReplyError(Exception):
    """An error reply of the server."""


class Wire(asyncio.Protocol):
    """Bytes out, replies in order. Batches may overlap; each has its own future."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader(replyError=ReplyError, protocolError=ConnectionError)
        self._waiting: deque[_Batch] = deque()
        self._transport: asyncio.Transport | None = None
        self.lost: BaseException | None = None
        self.client_id = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # a stream transport by construction

    def connection_lost(self, exc: BaseException | None) -> None:
        self.fail(exc or ConnectionError("connection closed by server"))

    def data_received(self, data: bytes) -> None:
        reader, waiting = self._reader, self._waiting
        try:
            reader.feed(data)
            while waiting:
                reply = reader.gets()
                if reply is False:
                    return
                batch = waiting[0]
                batch.replies.append(reply)
                batch.missing -= 1
                if not batch.missing:
                    waiting.popleft()
                    if batch.timer is not None:
                        batch.timer.cancel()
                    if not batch.future.done():
                        batch.future.set_result(batch.replies)
            if reader.has_data():
                raise ConnectionError("the server said more than it was asked")
        except ConnectionError as error:
            self.fail(error)

    def send(self, packed: bytes, count: int, at: float | None = None) -> asyncio.Future[list[Any]]:
        """Sends ``count`` commands. What is not answered at the loop's instant ``at`` ends the connection:
        all later replies would be as late."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Any]] = loop.create_future()
        if self.lost is not None or self._transport is None:
            future.set_exception(self.lost or ConnectionError("not connected"))
            return future
        batch = _Batch(count, future)
        if at is not None:
            batch.timer = loop.call_at(at, self._overdue, batch)
        self._waiting.append(batch)
        self._transport.write(packed)
        return future

    def fail(self, error: BaseException) -> None:
        """Ends the connection; whoever waits is told."""
        if self.lost is None:
            self.lost = error
        if self._transport is not None:
            self._transport.abort()
        while self._waiting:
            batch = self._waiting.popleft()
            if batch.timer is not None:
                batch.timer.cancel()
            if not batch.future.done():
                batch.future.set_exception(error)

    def _overdue(self, batch: _Batch) -> None:
        batch.timer = asyncio.get_running_loop().call_later(_GRACE_S, self._give_up, batch)

    def _give_up(self, batch: _Batch) -> None:
        if batch.missing:
            self.fail(TimeoutError("timed out"))
