"""Running handlers on a real loop with a real board, without Redis."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from chronosd import log
from chronosd.board import Board, Cell, SlotState
from chronosd.broker.message import Message
from chronosd.errors import RetryIn, SkipRetry
from chronosd.handlers import Handler, make_handler
from chronosd.outcome import Failed, Outcome, Postponed, Rejected, Succeeded
from chronosd.task import Task
from chronosd.worker.execute import Executor, _Stepped
from chronosd.worker.run import Cancelled, Run
from tests.support.waiting import at_most

SLOTS = 16


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    one = Board.create(tmp_path / "board", SLOTS, consumer="c", queues=["q"])
    yield one
    one.close()


class Rig:
    """An executor, and what it has said."""

    def __init__(self, board: Board, limit: int = 4) -> None:
        self.board = board
        self.ended: list[tuple[Run, Outcome | None]] = []
        self.back: list[Run] = []
        self.said = asyncio.Event()
        self.executor = Executor(board, limit, self._finished, self._unstarted, state="state")
        self._slots = 0

    def _finished(self, run: Run, outcome: Outcome | None) -> None:
        self.ended.append((run, outcome))
        self.said.set()

    def _unstarted(self, run: Run) -> None:
        self.back.append(run)
        self.said.set()

    def run(self, func: Any, *, timeout: float = 60.0, payload: bytes = b'{"a":1}', **fields: Any) -> Run:
        handler = func if isinstance(func, Handler) else make_handler("k", func, timeout=timeout)
        slot, self._slots = self._slots, self._slots + 1
        now_ns = time.monotonic_ns()
        self.board.claim(slot, b"1-%d" % slot, 0, now_ns)
        message = Message("id", "k", "q", payload, **fields)
        one = Run(slot, b"1-%d" % slot, 0, message, handler, 0, now_ns)
        self.executor.start(one)
        return one

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for something that the executor will say."""
        async with asyncio.timeout(20):
            while not condition():
                self.said.clear()
                await self.said.wait()

    async def outcome(self, one: Run) -> Outcome | None:
        await self.until(lambda: any(run is one for run, _ in self.ended))
        return next(outcome for run, outcome in self.ended if run is one)

    async def of(self, func: Any, **options: Any) -> Outcome | None:
        return await self.outcome(self.run(func, **options))


def on_a_loop(board: Board, test: Callable[[Rig], Awaitable[None]], limit: int = 4) -> None:
    async def main() -> None:
        await test(Rig(board, limit))

    asyncio.run(main())


def test_what_an_async_handler_returns_is_its_result(board: Board) -> None:
    async def nothing(task: Task[Any]) -> None: ...

    async def value(task: Task[Any]) -> Any:
        await asyncio.sleep(0)
        return {"b": 1}

    async def test(rig: Rig) -> None:
        assert await rig.of(nothing) == Succeeded(None)
        assert await rig.of(value) == Succeeded(b'{"b":1}')
        assert rig.executor.running == set()

    on_a_loop(board, test)


def test_a_sync_handler_runs_in_a_thread(board: Board) -> None:
    def where(task: Task[Any]) -> Any:
        return threading.current_thread() is not threading.main_thread()

    async def test(rig: Rig) -> None:
        assert await rig.of(where) == Succeeded(b"true")
        assert rig.executor.running == set()

    on_a_loop(board, test)


def test_the_handler_sees_its_task(board: Board) -> None:
    seen: list[Task[Any]] = []

    async def look(task: Task[Any]) -> None:
        seen.append(task)
        assert log.current_task() is task

    def thread(task: Task[Any]) -> None:
        seen.append(task)
        assert log.current_task() is task

    async def test(rig: Rig) -> None:
        for func in (look, thread):
            before = time.time()
            assert await rig.of(func, timeout=100.0, retried=2, max_retry=9) == Succeeded(None)
            task = seen[-1]
            assert (task.id, task.kind, task.queue, task.args) == ("id", "k", "q", {"a": 1})
            assert (task.attempt, task.retried, task.max_retry, task.state) == (3, 2, 9, "state")
            assert task.deadline_at is not None
            assert 99 <= task.deadline_at - before <= 102
        assert log.current_task() is None

    on_a_loop(board, test)


def test_the_board_follows_a_run(board: Board) -> None:
    async def test(rig: Rig) -> None:
        gate = asyncio.Event()

        async def wait(task: Task[Any]) -> None:
            await gate.wait()

        one = rig.run(wait, timeout=10.0)
        assert [s.state for s in board.read()] == [SlotState.CLAIMED]
        await asyncio.sleep(0)
        (slot,) = board.read()
        assert slot.state is SlotState.RUNNING
        assert slot.deadline_ns - slot.started_ns == 10 * 10**9
        gate.set()
        await rig.outcome(one)
        assert board.read()[0].state is SlotState.RUNNING  # what it ended in is for the fetcher to say

    on_a_loop(board, test)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError("x"), Failed("ValueError: x")),
        (SkipRetry("never"), Rejected("never")),
        (RetryIn(5, "later"), Postponed(5.0, True, "later")),
        (RetryIn("1m", "free", charge=False), Postponed(60.0, False, "free")),
        (SystemExit(3), Failed("SystemExit: 3")),
        (KeyboardInterrupt(), Failed("KeyboardInterrupt")),
        (GeneratorExit(), Failed("GeneratorExit")),
        (StopAsyncIteration(), Failed("StopAsyncIteration")),
        (
            BaseExceptionGroup("g", [SystemExit(1)]),
            Failed("BaseExceptionGroup: g (1 sub-exception): SystemExit: 1"),
        ),
    ],
    ids=lambda e: type(e).__name__,
)
def test_what_a_handler_raises_is_its_outcome(board: Board, error: BaseException, outcome: Outcome) -> None:
    async def at_once(task: Task[Any]) -> None:
        raise error

    async def later(task: Task[Any]) -> None:
        await asyncio.sleep(0)
        raise error

    def thread(task: Task[Any]) -> None:
        raise error

    async def test(rig: Rig) -> None:
        for func in (at_once, later, thread):
            assert await rig.of(func) == outcome
        assert board.cells[Cell.CURRENT] == 0

    on_a_loop(board, test)


def test_a_handlers_own_cancellation_is_a_failure_of_its_task(board: Board) -> None:
    async def raises(task: Task[Any]) -> None:
        raise asyncio.CancelledError("mine")

    async def cancels_itself(task: Task[Any]) -> None:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await asyncio.sleep(10)

    async def awaits_a_cancelled(task: Task[Any]) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    async def test(rig: Rig) -> None:
        for func in (raises, cancels_itself, awaits_a_cancelled):
            outcome = await rig.of(func)
            assert isinstance(outcome, Failed)
            assert "cancelled" in outcome.error

    on_a_loop(board, test)


def test_the_workers_cancellation_is_told_from_the_handlers(board: Board) -> None:
    async def sleeps(task: Task[Any]) -> None:
        await asyncio.sleep(10)

    async def converts(task: Task[Any]) -> None:
        try:
            await asyncio.sleep(10)
        except BaseException:
            raise OSError("connection lost") from None

    async def chooses(task: Task[Any]) -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            raise SkipRetry("no more") from None

    async def returns(task: Task[Any]) -> Any:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            return "done"

    timed_out = Failed("TimeoutError: timed out after 1m")
    converted = Failed("TimeoutError: timed out after 1m; then OSError: connection lost")
    table: dict[tuple[Any, Cancelled], Outcome | None] = {
        (sleeps, Cancelled.TIMEOUT): timed_out,
        (sleeps, Cancelled.DRAIN): None,
        (sleeps, Cancelled.LOST): None,
        (converts, Cancelled.TIMEOUT): converted,
        (converts, Cancelled.DRAIN): None,
        (converts, Cancelled.LOST): None,
        (chooses, Cancelled.TIMEOUT): Rejected("no more"),
        (chooses, Cancelled.DRAIN): Rejected("no more"),
        (chooses, Cancelled.LOST): None,
        (returns, Cancelled.TIMEOUT): Succeeded(b'"done"'),
        (returns, Cancelled.DRAIN): Succeeded(b'"done"'),
        (returns, Cancelled.LOST): None,
    }

    async def test(rig: Rig) -> None:
        for (func, why), outcome in table.items():
            one = rig.run(func)
            await asyncio.sleep(0)
            rig.executor.cancel(one, why)
            assert await rig.outcome(one) == outcome, (func, why)
            assert one.dropped is (why is Cancelled.LOST)

    on_a_loop(board, test)


@pytest.mark.parametrize("why", list(Cancelled))
@pytest.mark.parametrize("sync", [False, True])
def test_a_run_that_is_cancelled_before_its_handler_is_entered_does_not_vanish(
    board: Board, why: Cancelled, sync: bool
) -> None:
    """asyncio ends a task that is cancelled before its first step without running any of its code: nobody
    was told, the slot stayed taken, and a drain waited for ever.
    """
    entered: list[str] = []

    async def handler(task: Task[Any]) -> None:
        entered.append(task.id)

    def thread(task: Task[Any]) -> None:
        entered.append(task.id)

    async def test(rig: Rig) -> None:
        if sync:
            for _ in range(4):  # every thread is busy, so that the next one waits
                rig.run(lambda task: time.sleep(0.1))
        one = rig.run(thread if sync else handler)
        rig.executor.cancel(one, why)
        await rig.until(lambda: bool(rig.back))
        assert rig.back == [one]
        assert one not in [run for run, _ in rig.ended]
        assert entered == []
        assert one not in rig.executor.running
        assert board.read_slot(one.slot).state is SlotState.CLAIMED  # type: ignore[union-attr]

    on_a_loop(board, test)


def test_a_timeout_cancels_an_async_handler_however_it_was_armed(board: Board) -> None:
    async def sleeps(task: Task[Any]) -> None:
        await asyncio.sleep(10)

    async def test(rig: Rig) -> None:
        for arm in (rig.executor.outlived, lambda _: rig.executor.arm_timeouts()):
            began = time.monotonic()
            one = rig.run(sleeps, timeout=0.05)
            arm(one)
            assert one.timer is None, "its clock starts when its handler is entered"
            await asyncio.sleep(0.02)
            arm(one)
            arm(one)
            assert await rig.outcome(one) == Failed("TimeoutError: timed out after 50ms")
            assert time.monotonic() - began < at_most(2)

    on_a_loop(board, test)


def test_a_thread_has_no_timer(board: Board) -> None:
    async def test(rig: Rig) -> None:
        one = rig.run(lambda task: time.sleep(0.1), timeout=0.01)
        await asyncio.sleep(0.03)
        rig.executor.arm_timeouts()
        assert one.timer is None
        rig.executor.cancel(one, Cancelled.TIMEOUT)
        assert await rig.outcome(one) == Succeeded(None)

    on_a_loop(board, test)


def test_the_result_of_a_thread_is_dropped_where_its_lease_is_lost(board: Board) -> None:
    async def test(rig: Rig) -> None:
        one = rig.run(lambda task: time.sleep(0.1))
        await asyncio.sleep(0.03)
        rig.executor.cancel(one, Cancelled.LOST)
        assert await rig.outcome(one) is None
        assert one.dropped

    on_a_loop(board, test)


def test_no_handler_is_entered_after_a_standstill_of_the_loop(board: Board) -> None:
    """What was claimed before it may have been handed back by the supervisor meanwhile."""
    entered: list[str] = []

    async def handler(task: Task[Any]) -> None:
        entered.append(task.id)

    def thread(task: Task[Any]) -> None:
        entered.append(task.id)

    async def test(rig: Rig) -> None:
        board.cells[Cell.LOOP_BEAT] = time.monotonic_ns() - 2 * 10**9
        runs = [rig.run(handler), rig.run(thread)]
        await rig.until(lambda: len(rig.back) == 2)
        board.cells[Cell.LOOP_BEAT] = time.monotonic_ns()
        # the beat goes again: but these two are still older than the standstill
        rig.back.clear()
        for one in runs:
            rig.executor.start(one)
        await rig.until(lambda: len(rig.back) == 2)
        assert entered == []
        for one in runs:
            one.checked_ns = time.monotonic_ns()
            rig.executor.start(one)
            assert await rig.outcome(one) == Succeeded(None)

    on_a_loop(board, test)


def test_a_payload_that_does_not_validate_ends_the_run_where_it_starts(board: Board) -> None:
    async def typed(task: Task[dict[str, int]]) -> None: ...

    async def test(rig: Rig) -> None:
        for payload in (b"", b"{", b'{"a":"b"}', b"[" * 100_000):
            one = rig.run(typed, payload=payload)
            ((_, outcome),) = rig.ended
            assert isinstance(outcome, Rejected)
            assert 0 < len(outcome.error) <= 2000
            assert rig.executor.running == set()
            assert board.read_slot(one.slot).state is SlotState.CLAIMED  # type: ignore[union-attr]
            rig.ended.clear()

    on_a_loop(board, test)


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt(), RecursionError()])
def test_a_validator_may_raise_whatever_it_likes(board: Board, error: BaseException) -> None:
    def validate(payload: bytes) -> Any:
        raise error

    async def handler(task: Task[Any]) -> None: ...

    async def test(rig: Rig) -> None:
        made = make_handler("k", handler)
        broken = Handler("k", made.func, True, validate, 1.0, 1.0, 1.0)
        outcome = await rig.of(broken)
        assert isinstance(outcome, Rejected)
        assert type(error).__name__ in outcome.error

    on_a_loop(board, test)


def test_an_awaitable_that_nobody_awaited_is_no_success(board: Board) -> None:
    async def other() -> None: ...

    def forgot(task: Task[Any]) -> Any:
        return other()

    async def returns_one(task: Task[Any]) -> Any:
        return other()

    async def test(rig: Rig) -> None:
        for func in (forgot, returns_one):
            outcome = await rig.of(func)
            assert isinstance(outcome, Rejected)
            assert "await" in outcome.error

    on_a_loop(board, test)


def test_threads_are_made_as_needed_and_never_more_than_the_limit(board: Board) -> None:
    at_once: list[int] = []
    busy = 0
    lock = threading.Lock()

    def work(task: Task[Any]) -> None:
        nonlocal busy
        with lock:
            busy += 1
            at_once.append(busy)
        time.sleep(0.02)
        with lock:
            busy -= 1

    def threads() -> int:
        return sum(thread.name.startswith("handler-") for thread in threading.enumerate())

    async def test(rig: Rig) -> None:
        before = threads()
        for _ in range(3):
            await rig.of(lambda task: None)
        assert threads() - before == 1, "one was free each time"
        runs = [rig.run(work) for _ in range(10)]
        for one in runs:
            assert await rig.outcome(one) == Succeeded(None)
        assert max(at_once) == 3
        assert threads() - before == 3

    on_a_loop(board, test, limit=3)


def test_every_result_of_a_thread_arrives(board: Board) -> None:
    async def test(rig: Rig) -> None:
        handler = make_handler("k", lambda task: None)
        count = 2000
        for i in range(count):
            one = Run(0, b"1-%d" % i, 0, Message("id", "k", "q", b"1"), handler, 0, time.monotonic_ns())
            rig.executor.start(one)
        await rig.until(lambda: len(rig.ended) == count)
        assert rig.executor.running == set()

    on_a_loop(board, test)


# -- the trampoline ---------------------------------------------------------------------------------


@dataclass
class Cells:
    """What a board's cells were at each step."""

    seen: list[int]
    now: int = 0

    def __setitem__(self, index: int, value: int) -> None:
        assert index == Cell.CURRENT
        self.now = value
        self.seen.append(value)


def stepped(coroutine: Any, cells: Any = None) -> Any:
    async def outer() -> Any:
        return await _Stepped(coroutine, Cells([]) if cells is None else cells, 7)

    return outer()


def test_each_step_is_marked_and_nothing_in_between() -> None:
    cells = Cells([])
    inside: list[int] = []
    between: list[int] = []

    async def handler() -> str:
        for _ in range(3):
            inside.append(cells.now)
            await asyncio.sleep(0)
        return "value"

    async def main() -> None:
        made = asyncio.create_task(stepped(handler(), cells))
        while not made.done():
            between.append(cells.now)
            await asyncio.sleep(0)
        assert made.result() == "value"

    asyncio.run(main())
    assert set(inside) == {7}
    assert set(between) == {0}
    assert cells.seen == [7, 0] * 4


def test_exceptions_pass_in_and_out_with_their_traceback() -> None:
    async def handler() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError as error:
            raise KeyError("inner") from error

    async def main() -> None:
        made = asyncio.create_task(stepped(handler()))
        await asyncio.sleep(0)
        made.cancel("reason")
        with pytest.raises(KeyError) as caught:
            await made
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)
        assert caught.traceback[-1].name == "handler"

    asyncio.run(main())


@pytest.mark.parametrize(
    "thrown",
    [
        (ValueError("v"),),
        (ValueError, ValueError("v"), None),
        (ValueError, None, None),
    ],
    ids=["value", "three", "type and nothing"],
)
def test_throw_takes_every_form_that_callers_use(thrown: tuple[Any, ...]) -> None:
    """``await`` hands on what it was given: in Python 3.11 type, value and traceback, later the value."""

    class Pause:
        def __await__(self) -> Generator[str, None, None]:
            yield "paused"

    async def handler() -> str:
        try:
            await Pause()
        except ValueError:
            return "caught"
        return "not thrown"

    one = _Stepped(handler(), Cells([]), 7)  # type: ignore[arg-type]
    assert one.send(None) == "paused"
    with pytest.raises(StopIteration) as stop:
        one.throw(*thrown)
    assert stop.value.value == "caught"


def test_values_reach_a_coroutine_that_yields_by_hand() -> None:
    class Ask:
        def __await__(self) -> Generator[str, int, int]:
            answer: int = yield "question"
            return answer

    async def handler() -> int:
        return await Ask() + await Ask()

    one = stepped(handler())
    assert one.send(None) == "question"
    assert one.send(1) == "question"
    with pytest.raises(StopIteration) as stop:
        one.send(2)
    assert stop.value.value == 3


def test_closing_closes_the_coroutine() -> None:
    closed: list[str] = []

    class Pause:
        def __await__(self) -> Generator[None, None, None]:
            yield

    async def handler() -> None:
        try:
            await Pause()
        finally:
            closed.append("finally")

    one = stepped(handler())
    one.send(None)
    one.close()
    assert closed == ["finally"]


def test_async_generators_context_managers_and_task_groups_work_inside() -> None:
    async def numbers() -> AsyncGenerator[int, None]:
        for i in range(3):
            await asyncio.sleep(0)
            yield i

    async def handler() -> list[int]:
        found = [n async for n in numbers()]
        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            tasks = [group.create_task(asyncio.sleep(0, n)) for n in (10, 11)]
        found += [task.result() for task in tasks]
        found.append(await asyncio.wait_for(asyncio.shield(asyncio.sleep(0, 12)), 5))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(10)
        assert await anext(numbers()) == 0
        return found

    assert asyncio.run(stepped(handler())) == [0, 1, 2, 10, 11, 12]


def test_an_abandoned_async_generator_is_closed_with_its_loop() -> None:
    closed: list[str] = []

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            closed.append("closed")

    kept = []

    async def handler() -> None:
        one = numbers()
        kept.append(one)
        await anext(one)

    asyncio.run(stepped(handler()))
    assert closed == ["closed"]
