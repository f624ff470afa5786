"""One asynchronous connection to Redis: the hot path, hence not redis-py's."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import hiredis


class _Batch:
    """Replies that are awaited, in the order in which their commands were sent."""

    __slots__ = ("future", "missing", "replies")

    def __init__(self, count: int, future: asyncio.Future[list[Any]]) -> None:
        self.missing = count
        self.replies: list[Any] = []
        self.future = future


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
                    if not batch.future.done():
                        batch.future.set_result(batch.replies)
        except ConnectionError as error:
            self.fail(error)

    def send(self, packed: bytes, count: int) -> asyncio.Future[list[Any]]:
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        if self.lost is not None or self._transport is None:
            future.set_exception(self.lost or ConnectionError("not connected"))
            return future
        self._waiting.append(_Batch(count, future))
        self._transport.write(packed)
        return future

    def fail(self, error: BaseException) -> None:
        """Ends the connection; whoever waits is told."""
        if self.lost is None:
            self.lost = error
        if self._transport is not None:
            self._transport.abort()
        while self._waiting:
            future = self._waiting.popleft().future
            if not future.done():
                future.set_exception(error)
