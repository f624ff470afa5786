"""The two runners: they send commands and hand back results, and know nothing of what the commands mean.

Both send any number of commands in one round trip, load a script the server does not know, and answer per
command: its result, or the :class:`~chronosd.errors.BrokerError` that the server gave for it. What has no
answer at all raises :class:`~chronosd.errors.BrokerUnavailable`.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import hiredis
from redis.exceptions import RedisError

from chronosd.broker.addresses import remember
from chronosd.broker.commands import Command, Steps
from chronosd.broker.connect import Target, parse, translate
from chronosd.broker.line import Line
from chronosd.broker.replies import merge, missing_scripts, results_of, scripts_of, single
from chronosd.broker.runner_async import AsyncRunner
from chronosd.errors import BrokerUnavailable

__all__ = ["AsyncRunner", "SyncRunner"]

T = TypeVar("T")


class SyncRunner:
    """Runs commands for synchronous callers, from any thread, and after a fork.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        password: used where the URL has none.
        timeout_s: the most that one call may take, connecting included.
        address: a numeric address to use instead of looking the host up.
        client_name: what CLIENT LIST shows.
    """

    def __init__(
        self,
        url: str,
        password: str | None = None,
        *,
        timeout_s: float = 1.0,
        address: str = "",
        client_name: str = "chronosd",
    ) -> None:
        self.target: Target = parse(url, password)
        self.timeout_s = timeout_s
        self._address = address
        if address:
            remember(self.target.host, self.target.port, [address])
        self._client_name = client_name
        self._idle: deque[Line] = deque()  # its pop and append are atomic
        self._pid = os.getpid()

    def run(self, command: Command[T], *, timeout_s: float | None = None) -> T:
        """One command, its result. Raises BrokerError."""
        result: T = single(self.run_many([command], timeout_s=timeout_s))
        return result

    def run_many(self, commands: Sequence[Command[Any]], *, timeout_s: float | None = None) -> list[Any]:
        """All commands in one round trip: for each its result, or the BrokerError it met.

        Raises BrokerUnavailable if there was no answer; then ``maybe_enqueued`` tells whether anything was
        sent. A connection that the server had closed while it lay idle is replaced, once, if every command
        may be repeated.
        """
        if not commands:
            return []
        at = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        line, fresh = self._borrow()
        line.deadline.at = at
        try:
            return self._converse(line, commands)
        except BrokerUnavailable as error:
            if fresh or time.monotonic() >= at or not all(c.repeatable for c in commands):
                raise
            in_doubt = error.maybe_enqueued
        self.close()  # its siblings lay idle as long
        line, _ = self._borrow()
        line.deadline.at = at
        try:
            return self._converse(line, commands)
        except BrokerUnavailable as error:
            error.maybe_enqueued = error.maybe_enqueued or in_doubt
            raise

    def stream(self, commands: Iterable[Command[Any]], *, timeout_s: float | None = None) -> Iterator[Any]:
        """Results (or BrokerErrors) in order, while commands are still being made.

        A command is sent before the answer to the one before it is read, so that the server works on one
        while the caller makes the next. Each wait is bounded by the timeout. Scripts are not loaded: run one
        command first.

        Raises BrokerUnavailable; what has no result by then is in doubt.
        """
        timeout = self.timeout_s if timeout_s is None else timeout_s
        line, _ = self._borrow()
        waiting: deque[Command[Any]] = deque()
        try:
            for command in commands:
                line.deadline.at = time.monotonic() + timeout
                line.connect()
                line.send(hiredis.pack_command(command.words))
                waiting.append(command)
                if len(waiting) > 1:
                    yield from results_of([waiting.popleft()], [line.receive()])
            while waiting:
                line.deadline.at = time.monotonic() + timeout
                yield from results_of([waiting.popleft()], [line.receive()])
        except (RedisError, OSError) as error:
            line.close()
            raise translate(error, self.target, in_doubt=bool(waiting)) from error
        except BaseException:
            line.close()  # a reply may still be on its way: nobody else must read it
            raise
        self._idle.append(line)

    def drive(self, steps: Steps[T]) -> T:
        """Runs a procedure to its end, one round trip per step.

        Errors of single commands go to the procedure like results. Raises BrokerUnavailable.
        """
        try:
            commands = next(steps)
            while True:
                commands = steps.send(self.run_many(commands))
        except StopIteration as end:
            result_: T = end.value
            return result_

    def close(self) -> None:
        """Closes idle connections; the runner can be used again."""
        while self._idle:
            try:
                line = self._idle.pop()
            except IndexError:
                return
            line.close()

    def _borrow(self) -> tuple[Line, bool]:
        """A connection, and whether it is a new one."""
        if self._pid != os.getpid():
            # Forked: the sockets are the parent's too. redis-py closes them without a shutdown here.
            self.close()
            self._pid = os.getpid()
        while True:
            try:
                line = self._idle.pop()
            except IndexError:
                return Line(self.target, address=self._address, client_name=self._client_name), True
            if not line.is_closed():
                return line, False
            line.close()

    def _converse(self, line: Line, commands: Sequence[Command[Any]]) -> list[Any]:
        sent = False
        try:
            line.connect()
            sent = True
            replies = self._exchange(line, [c.words for c in commands])
            missing = missing_scripts(commands, replies)
            if missing:
                scripts = scripts_of(commands, missing)
                again = [("SCRIPT", "LOAD", s.source) for s in scripts]
                again += [commands[i].words for i in missing]
                merge(commands, replies, missing, self._exchange(line, again))
        except (RedisError, OSError) as error:
            line.close()
            raise translate(error, self.target, in_doubt=sent) from error
        except BaseException:
            line.close()  # a reply may still be on its way: nobody else must read it
            raise
        self._idle.append(line)
        return results_of(commands, replies)

    @staticmethod
    def _exchange(line: Line, batch: Sequence[tuple[Any, ...]]) -> list[Any]:
        line.send(b"".join([hiredis.pack_command(words) for words in batch]))
        return [line.receive() for _ in batch]
