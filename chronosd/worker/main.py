"""The worker process: what runs between the fork and the exit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from contextlib import AbstractAsyncContextManager
from typing import Any

import uvloop

from chronosd import handlers, log
from chronosd.board import Cell, WorkerState
from chronosd.broker.runner import AsyncRunner
from chronosd.client import AsyncClient, Client
from chronosd.errors import ConfigError
from chronosd.handlers import HandlerImportError, Registry
from chronosd.link import WorkerSpec
from chronosd.outcome import describe
from chronosd.worker import suspended
from chronosd.worker.execute import GAP_S, Executor, hide
from chronosd.worker.fetch import Fetcher
from chronosd.worker.intake import BODY_S
from chronosd.worker.run import Cancelled

EXIT_LOAD = 4
EXIT_CONFIG = 78
BEAT_S = 0.5
"""No longer than half of what counts as a gap; each beat wakes an idle worker."""
THREAD_BEAT_S = 1.0
CYCLE_TIMEOUT_S = 5.0

MOST_KINDS = 500
"""Told to the supervisor, which names those that a reload takes away; more would not fit in one message."""

LAST_WORDS_S = 1.0
"""How long what ends a worker (a cancelled handler, a lifespan on its way out) may take."""

UNSAID_S = 0.5
"""How long a draining worker whose handlers have all ended tries to reach Redis. What it could not say
stands on the board, and the supervisor, or its successor, settles it. With the supervisor's own last
attempts it has to stay below 2 s: no Redis may make a stop take longer than that."""

UNSAID_MOST_S = 1.5
"""As long if Redis answers: it may be slow, or not take it (a key of the wrong type)."""

_log = log.get_logger("chronosd.worker")


def run(spec: WorkerSpec) -> int:
    """Runs one worker until it has drained; returns the exit code. Called in a forked process."""
    config = spec.config
    log.configure(config.log.level, config.log.format, worker=spec.index)
    spec.board.cells[Cell.PID] = os.getpid()
    sys.dont_write_bytecode = True  # a stale .pyc hides an edit of the same second
    try:
        registry = handlers.load(config)
    except ConfigError as error:
        return _refuse(spec, EXIT_CONFIG, error.problems)
    except HandlerImportError as error:
        return _refuse(spec, EXIT_LOAD, error.problems)
    return _Process(spec, registry).run()


def _refuse(spec: WorkerSpec, code: int, problems: tuple[str, ...]) -> int:
    spec.link.send({"t": "failed", "code": code, "error": "\n".join(problems)[:30_000]})
    return code


class _Process:
    def __init__(self, spec: WorkerSpec, registry: Registry) -> None:
        self._spec = spec
        self._config = spec.config
        self._registry = registry
        self._cells = spec.board.cells
        self._gate = asyncio.Event()
        self._drain_by: float | None = None
        self._fetcher: Fetcher | None = None
        self._beat_at = time.monotonic()
        self._ordered = asyncio.Event()
        self._quiet = False
        self._paused: list[str] = []
        self._entering: asyncio.Task[Any] | None = None

    def run(self) -> int:
        loop = uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        threading.Thread(target=self._beat_in_thread, name="beat", daemon=True).start()
        main = loop.create_task(self._main())
        hide(main)
        while True:
            try:
                return loop.run_until_complete(main)
            except (SystemExit, KeyboardInterrupt, RuntimeError) as error:
                # Raised in a task that some handler created (or it stopped the loop): the loop is re-entered.
                if main.done() or loop.is_closed():
                    raise
                _log.error("a handler's code tried to end the event loop", error=describe(error))

    async def _main(self) -> int:
        spec, config, loop = self._spec, self._config, asyncio.get_running_loop()
        loop.set_exception_handler(_complain)
        loop.add_signal_handler(signal.SIGTERM, self._drain, config.shutdown_timeout)
        loop.add_reader(spec.link.fileno(), self._read_link)
        self._beat()
        stack = contextlib.AsyncExitStack()
        try:
            state = await self._enter_lifespan(stack)
        except BaseException as error:
            if self._ordered.is_set():
                return 0
            return _refuse(spec, EXIT_LOAD, (f"lifespan {config.lifespan}: {describe(error)}",))
        code = 1
        try:
            await self._serve(state)
            self._cells[Cell.STATE] = WorkerState.STOPPED
            spec.link.send({"t": "drained"})
            code = 0
        finally:
            await self._exit_lifespan(stack, code)
        return code

    async def _enter_lifespan(self, stack: contextlib.AsyncExitStack) -> Any:
        if self._registry.lifespan is None:
            return None
        manager: AbstractAsyncContextManager[Any] = self._registry.lifespan()
        self._entering = asyncio.current_task()
        try:
            return await stack.enter_async_context(manager)
        finally:
            self._entering = None

    async def _exit_lifespan(self, stack: contextlib.AsyncExitStack, code: int) -> None:
        """Every task is settled by now: what goes wrong here is told, and changes nothing."""
        # A lifespan that hangs on its way out must not hold the process.
        now = time.monotonic()
        by = self._drain_by if self._drain_by is not None else now + self._config.shutdown_timeout
        asyncio.get_running_loop().call_later(max(by - now, LAST_WORDS_S), os._exit, code)
        try:
            await stack.aclose()
        except BaseException as error:
            _log.error("lifespan failed at its end", lifespan=self._config.lifespan, error=describe(error))

    async def _serve(self, state: Any) -> None:
        self._cells[Cell.STATE] = WorkerState.READY
        declared = list(self._registry.handlers)[:MOST_KINDS] if self._config.handler_modules else []
        self._spec.link.send({"t": "ready", "kinds": declared})
        ordered = asyncio.ensure_future(self._ordered.wait())
        gate = asyncio.ensure_future(self._gate.wait())
        await asyncio.wait((ordered, gate), return_when=asyncio.FIRST_COMPLETED)
        ordered.cancel()
        gate.cancel()
        if self._gate.is_set():
            await self._work(state)

    async def _work(self, state: Any) -> None:
        spec, config = self._spec, self._config
        password = config.redis.password()
        name = f"chronosd:{spec.consumer}"
        cycle = AsyncRunner(
            spec.redis_url, password, timeout_s=CYCLE_TIMEOUT_S, client_name=name, resend=False
        )
        blocking = AsyncRunner(spec.redis_url, password, timeout_s=CYCLE_TIMEOUT_S, client_name=name)
        bodies = AsyncRunner(spec.redis_url, password, timeout_s=BODY_S, client_name=name)
        options: dict[str, Any] = {"namespace": config.namespace, "max_payload": config.max_payload}
        if password is not None:
            options["password"] = password
        fetcher = Fetcher(config, spec.consumer, spec.board, self._registry, cycle, blocking, bodies)
        fetcher.executor = Executor(
            spec.board,
            config.concurrency,
            fetcher.finished,
            fetcher.unstarted,
            state=state,
            async_client=AsyncClient(spec.redis_url, **options),
            sync_client=Client(spec.redis_url, **options),
        )
        self._fetcher = fetcher
        if self._ordered.is_set():
            fetcher.drain()
        elif self._quiet:
            fetcher.quiet()
        fetcher.pause(self._paused)
        self._cells[Cell.STATE] = fetcher.show_state()
        cycles = asyncio.get_running_loop().create_task(fetcher.run())
        hide(cycles)
        cycles.add_done_callback(lambda _: self._ordered.set())
        await self._ordered.wait()
        await self._finish(fetcher, cycles)
        for runner in (cycle, blocking, bodies):
            await runner.aclose()

    async def _finish(self, fetcher: Fetcher, cycles: asyncio.Future[None]) -> None:
        """Waits for the drain, within its limit, and no longer than useful for a Redis that is away."""
        silent_since: float | None = None
        cut_at: float | None = None
        while not cycles.done():
            await asyncio.wait((cycles,), timeout=0.05)
            now = time.monotonic()
            silent_since = None if fetcher.busy else silent_since or now
            if silent_since is not None and (
                now - max(silent_since, fetcher.answered_at) > UNSAID_S or now - silent_since > UNSAID_MOST_S
            ):
                _log.warning("redis does not take it: what is unsaid is left to the supervisor")
                break
            if self._drain_by is not None and now >= self._drain_by:
                if cut_at is None:
                    cut_at = now
                    for run in list(fetcher.executor.running):
                        fetcher.executor.cancel(run, Cancelled.DRAIN)
                elif now - cut_at > LAST_WORDS_S / 2:
                    _log.warning("shutdown_timeout is over", running=fetcher.busy)
                    self._cells[Cell.STATE] = WorkerState.STOPPED
                    os._exit(0)
        if cycles.done():
            cycles.result()

    def _drain(self, timeout_s: float | None) -> None:
        if timeout_s is not None:
            by = time.monotonic() + timeout_s
            self._drain_by = by if self._drain_by is None else min(by, self._drain_by)
        self._cells[Cell.STATE] = WorkerState.DRAINING
        if self._fetcher is not None:
            self._fetcher.drain()
        self._ordered.set()
        if self._entering is not None:  # nothing was fetched yet: there is nothing to wait for
            self._entering.cancel()
            asyncio.get_running_loop().call_later(LAST_WORDS_S, os._exit, 0)

    def _read_link(self) -> None:
        messages = self._spec.link.receive()
        if messages is None:
            os._exit(1)  # no supervisor, no leases
        for message in messages:
            self._obey(message)

    def _obey(self, message: dict[str, Any]) -> None:
        fetcher = self._fetcher
        match message["t"]:
            case "go":
                self._gate.set()
            case "drain":
                self._drain(message.get("timeout"))
            case "quiet" | "resume" as order:
                self._quiet = order == "quiet"  # it may follow "go" so closely that nothing is there yet
                if fetcher is not None:
                    (fetcher.quiet if self._quiet else fetcher.resume)()
                    self._cells[Cell.STATE] = fetcher.show_state()
            case "paused":
                self._paused = message["queues"]
                if fetcher is not None:
                    fetcher.pause(self._paused)
            case "offer" if fetcher is not None:
                fetcher.offer(message["queues"])
            case "stacks" if fetcher is not None and self._spec.stack_fd is not None:
                named = {(queue, entry) for queue, entry in message["entries"]}
                text = suspended.stacks(fetcher.executor.running, named)
                # the signal's dump of the main thread is there by now, and ends without a blank line
                os.write(self._spec.stack_fd, b"\n" + text.encode("utf-8", "backslashreplace"))
            case "lost" if fetcher is not None:
                fetcher.lost([(queue, entry) for queue, entry in message["entries"]])
            case "cancel" if fetcher is not None:
                fetcher.cancel([(queue, entry) for queue, entry in message["entries"]])

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self._beat_at > GAP_S and self._fetcher is not None:
            self._fetcher.doubt()
        self._beat_at = now
        self._cells[Cell.LOOP_BEAT] = time.monotonic_ns()
        if self._fetcher is not None:
            self._fetcher.executor.arm_timeouts()
        asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def _beat_in_thread(self) -> None:
        cells = self._cells
        while True:
            cells[Cell.THREAD_BEAT] = time.monotonic_ns()
            time.sleep(THREAD_BEAT_S)


def _complain(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An exception that nobody awaited, from a task that a handler created: logged, never more."""
    error = context.get("exception")
    text = describe(error) if isinstance(error, BaseException) else ""
    _log.error("unhandled in event loop", message=str(context.get("message", ""))[:500], error=text)
