"""Tries a changed configuration in a process that is thrown away.

The file is read, validated and compared, and everything it names is imported, in a forked child: a module
may hang, end its process or bring it down, and the supervisor itself never runs code of the users. The child
first sends the validated configuration, before any of their code has run, and then what came of the imports.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chronosd import handlers, log
from chronosd.config.diff import difference
from chronosd.config.load import parse
from chronosd.config.read import read
from chronosd.config.schema import Config
from chronosd.errors import ConfigError
from chronosd.handlers import HandlerImportError
from chronosd.page import web_problem
from chronosd.supervisor import process
from chronosd.supervisor.descriptors import Descriptors
from chronosd.supervisor.leftovers import left_behind
from chronosd.supervisor.stacks import Stacks, innermost
from chronosd.supervisor.worker import EXIT_BAD_CONFIG, EXIT_COULD_NOT_LOAD

_LENGTH = struct.Struct("!I")
_ASK_BEFORE_S = 0.2
"""So long before its time is up a child that hangs is asked for its stack."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What the child found."""

    config: Config | None = None
    changes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    code: int = 0
    """The exit code that stands for the problems."""


class Preflight:
    """One child and what it has said so far. Instants are monotonic.

    Raises:
        OSError: no process or descriptor to be had.
    """

    def __init__(
        self,
        running: Config,
        kinds: frozenset[str],
        redis_url: str,
        limit_at: float,
        *,
        abandon: Callable[[], None],
        descriptors: Descriptors,
    ) -> None:
        self.findings: Findings | None = None
        """Once it has ended: what came of it."""
        self._said = bytearray()
        self._config: Config | None = None
        self._limit_at = limit_at
        self._is_asked = False
        self._descriptors = descriptors
        self._stacks = Stacks.create("chronosd-preflight")
        try:
            reading, writing = os.pipe2(os.O_CLOEXEC)
        except OSError:
            self._stacks.close()
            raise
        os.set_blocking(reading, False)

        def leave() -> None:
            os.close(reading)
            abandon()

        try:
            self._child = process.fork(
                lambda: _examine(running, kinds, redis_url, writing),
                title="chronosd: preflight",
                abandon=leave,
                stack_fd=self._stacks.fd,
            )
        except OSError:
            os.close(reading)
            self._stacks.close()
            raise
        finally:
            os.close(writing)
        self._pipe = reading
        descriptors.watch(reading, self._handle_readable)
        descriptors.watch(self._child, self._handle_death)

    @property
    def due_at(self) -> float:
        """The next instant at which :meth:`tick` has something to do."""
        return self._limit_at if self._is_asked else self._limit_at - _ASK_BEFORE_S

    def tick(self, now: float) -> None:
        """Asks a child whose time is nearly up where it hangs; ends it when it is."""
        if self.findings is not None:
            return
        if now >= self._limit_at:
            self._end(self._problem(f"did not end in time{innermost(self._stacks.read())}"))
        elif now >= self._limit_at - _ASK_BEFORE_S and not self._is_asked:
            self._is_asked = True
            self._stacks.clear()
            self._stacks.ask(self._child)

    def _handle_readable(self) -> None:
        self._read()
        while self.findings is None and len(self._said) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._said)
            if len(self._said) < _LENGTH.size + length:
                return
            message = bytes(self._said[_LENGTH.size : _LENGTH.size + length])
            del self._said[: _LENGTH.size + length]
            if self._config is None and not message.startswith(b"{"):
                self._config = pickle.loads(message)  # ours: none of the users' code has run there yet
                continue
            try:
                self._end(_findings(message, self._config))
            except (ValueError, KeyError, TypeError, AttributeError):
                # Users' code has the pipe by now, and may have written into it.
                self._end(self._problem("gave an answer that is none"))

    def _read(self) -> None:
        while self._pipe >= 0:
            try:
                said = os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                return
            if not said:
                self._close_pipe()
                return
            self._said += said

    def _handle_death(self) -> None:
        self._descriptors.unwatch(self._child)
        self._child.kill_session()
        exit_ = self._child.reap()
        self._handle_readable()
        if self.findings is None:
            self._end(self._problem(f"ended the process: it {exit_}{innermost(self._stacks.read())}"))

    def _problem(self, text: str) -> Findings:
        if self._config is None:
            return Findings(problems=(f"reading the configuration {text}",), code=EXIT_COULD_NOT_LOAD)
        place = self._config.where("handlers")
        return Findings(problems=(f"{place}: handlers: importing {text}",), code=EXIT_COULD_NOT_LOAD)

    def _end(self, findings: Findings) -> None:
        self.findings = findings
        self.close()

    def close(self) -> None:
        """Kills the child and what it has started. It is a stranger from then on, reaped with SIGCHLD."""
        self._close_pipe()
        self._descriptors.unwatch(self._child)
        if self._child.pidfd >= 0:
            self._child.send(signal.SIGKILL)
            self._child.kill_session()
        self._child.close()
        self._stacks.close()

    def _close_pipe(self) -> None:
        if self._pipe >= 0:
            self._descriptors.unwatch(self._pipe)
            os.close(self._pipe)
            self._pipe = -1

    def is_child(self, pid: int) -> bool:
        """Whether a pid is its: its status is not for others to collect."""
        return self._child.pidfd >= 0 and self._child.pid == pid

    def abandon(self) -> None:
        """In another child: closes the supervisor's ends."""
        if self._pipe >= 0:
            os.close(self._pipe)
        self._child.close()
        self._stacks.close()


def _examine(running: Config, kinds: frozenset[str], redis_url: str, pipe: int) -> int:
    """In the child."""
    log.configure(running.log.level, running.log.format, role="preflight")
    sys.dont_write_bytecode = True  # a stale .pyc hides an edit of the same second
    try:
        config = parse(read(running.path), source=running.source, base=running.base)
        change = difference(running, config)
        if change.refused:
            raise ConfigError(change.refused)
        if problem := web_problem(config):
            raise ConfigError([problem])
        config.redis.password()
        _send(pipe, pickle.dumps(config))
        registry = handlers.load(config)
    except ConfigError as error:
        _tell(pipe, problems=error.problems, code=EXIT_BAD_CONFIG)
        return 0
    except HandlerImportError as error:
        _tell(pipe, problems=error.problems, code=EXIT_COULD_NOT_LOAD)
        return 0
    known = frozenset(registry.handlers)
    gone = sorted(kinds - known)
    warnings = left_behind(config, redis_url, change.queues_removed, gone)
    _tell(pipe, changes=change.lines, warnings=warnings)
    return 0


def _tell(pipe: int, **findings: Any) -> None:
    _send(pipe, json.dumps(findings).encode())


def _findings(message: bytes, config: Config | None) -> Findings:
    said = json.loads(message)
    return Findings(
        config=config,
        changes=tuple(said.get("changes", ())),
        warnings=tuple(said.get("warnings", ())),
        problems=tuple(said.get("problems", ())),
        code=said.get("code", 0),
    )


def _send(pipe: int, data: bytes) -> None:
    data = _LENGTH.pack(len(data)) + data
    while data:
        data = data[os.write(pipe, data) :]
