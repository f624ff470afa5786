"""The runner for coroutines; see :mod:`chronosd.broker.runner`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

import hiredis
from redis.exceptions import RedisError

from chronosd.broker.addresses import resolve
from chronosd.broker.commands import Command, Steps
from chronosd.broker.connect import Target, parse, translate
from chronosd.broker.replies import classify, merge, missing_scripts, results_of, scripts_of, single
from chronosd.broker.wire import Wire

T = TypeVar("T")


class AsyncRunner:
    """Runs commands for coroutines of one event loop, over one connection that concurrent callers share.

    Args: as for :class:`~chronosd.broker.runner.SyncRunner`, and
        resend: send again what may be repeated if the connection was lost; False for a caller that has to
            know that something was sent twice.
    """

    def __init__(
        self,
        url: str,
        password: str | None = None,
        *,
        timeout_s: float = 5.0,
        client_name: str = "chronosd",
        resend: bool = True,
    ) -> None:
        self.target: Target = parse(url, password)
        self.timeout_s = timeout_s
        self._client_name = client_name
        self._resend = resend
        self._wire: Wire | None = None
        self._connecting: asyncio.Lock = asyncio.Lock()

    async def run(self, command: Command[T], *, timeout_s: float | None = None) -> T:
        """One command, its result. Raises BrokerError."""
        result: T = single(await self.run_many([command], timeout_s=timeout_s))
        return result

    async def run_many(
        self, commands: Sequence[Command[Any]], *, timeout_s: float | None = None
    ) -> list[Any]:
        """All commands in one round trip: for each its result, or the BrokerError it met.

        Raises BrokerUnavailable if there was no answer. A connection found closed is replaced, once, if
        every command may be repeated. A call that times out ends the connection; one that is cancelled
        does not, its replies are read and dropped.
        """
        if not commands:
            return []
        loop = asyncio.get_running_loop()
        at = loop.time() + (self.timeout_s if timeout_s is None else timeout_s)
        fresh = self._wire is None or self._wire.lost is not None
        sent = False
        try:
            wire = await self._connected(at)
            sent = True
            try:
                return await self._converse(wire, commands, at)
            except (OSError, EOFError):
                may = self._resend and all(c.repeatable for c in commands)
                if fresh or loop.time() >= at or not may:
                    raise
            wire = await self._connected(at)
            return await self._converse(wire, commands, at)
        except (RedisError, OSError, EOFError) as error:
            raise translate(error, self.target, in_doubt=sent) from error

    async def drive(self, steps: Steps[T]) -> T:
        """Runs a procedure to its end, one round trip per step.

        Errors of single commands go to the procedure like results. Raises BrokerUnavailable.
        """
        try:
            commands = next(steps)
            while True:
                commands = steps.send(await self.run_many(commands))
        except StopIteration as end:
            result_: T = end.value
            return result_

    @property
    def client_id(self) -> int:
        """The server's number for the connection; 0 if there is none, or the server does not tell."""
        return self._wire.client_id if self._wire is not None else 0

    async def aclose(self) -> None:
        """Closes the connection; the runner can be used again."""
        self._drop(ConnectionError("closed"))

    def _drop(self, reason: BaseException) -> None:
        if self._wire is not None:
            self._wire.fail(reason)
            self._wire = None

    async def _connected(self, at: float) -> Wire:
        wire = self._wire
        if wire is not None and wire.lost is None:
            return wire
        async with asyncio.timeout_at(at), self._connecting:
            if self._wire is not None and self._wire.lost is None:
                return self._wire
            wire = await self._connect()
            self._wire = wire
            return wire

    async def _connect(self) -> Wire:
        target, wire = self.target, Wire()
        try:
            if target.path:
                await asyncio.get_running_loop().create_unix_connection(lambda: wire, target.path)
            else:
                await self._connect_tcp(wire)
            for words in target.handshake(self._client_name):
                (reply,) = await wire.send(hiredis.pack_command(words), 1)
                if isinstance(reply, Exception) and words[0] != "CLIENT":
                    raise classify(str(reply))
            (reply,) = await wire.send(b"CLIENT ID\r\n", 1)
            wire.client_id = reply if isinstance(reply, int) else 0  # an ACL may refuse it
        except BaseException as error:
            wire.fail(error if isinstance(error, Exception) else ConnectionError("cancelled"))
            raise
        return wire

    async def _connect_tcp(self, wire: Wire) -> None:
        target = self.target
        tls = target.ssl_context() if target.scheme == "rediss" else None
        addresses = await resolve(target.host, target.port)
        for tried, address in enumerate(addresses, 1):
            try:
                await asyncio.get_running_loop().create_connection(
                    lambda: wire,
                    address,
                    target.port,
                    ssl=tls,
                    server_hostname=target.host if tls else None,
                )
                return
            except OSError:
                if tried == len(addresses):
                    raise

    @staticmethod
    async def _converse(wire: Wire, commands: Sequence[Command[Any]], at: float) -> list[Any]:
        pack = hiredis.pack_command
        replies = await wire.send(b"".join([pack(c.words) for c in commands]), len(commands), at)
        missing = missing_scripts(commands, replies)
        if missing:
            scripts = scripts_of(commands, missing)
            again = [pack(("SCRIPT", "LOAD", s.source)) for s in scripts]  # type: ignore[arg-type] # invariant stub
            again += [pack(commands[i].words) for i in missing]
            merge(commands, replies, missing, await wire.send(b"".join(again), len(again), at))
        return results_of(commands, replies)
