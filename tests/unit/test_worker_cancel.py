"""A task is cancelled while a worker has it: buffered, about to begin, running; without Redis."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chronosd.board import Board, SlotState
from chronosd.broker.consume import Dead, Done
from chronosd.broker.keys import Namespace
from chronosd.broker.message import Message
from chronosd.errors import RetryIn
from chronosd.handlers import make_handler
from chronosd.tally import Tally, cells_needed
from chronosd.task import Task
from chronosd.worker.execute import Executor
from chronosd.worker.held import Held
from chronosd.worker.run import Run
from chronosd.worker.starter import Starter

SLOTS = 8


class Rig:
    """Starter and executor with everything between them, and an outbox that nobody empties."""

    def __init__(self, board: Board, concurrency: int) -> None:
        self.held = Held(board, [Namespace("n").queue("q")], Tally(board, ["k"]))
        self.starter = Starter(self.held, concurrency=concurrency, alone_from=99)
        self.starter.executor = Executor(board, concurrency, self.starter.finished, self.starter.unstarted)
        self._made = 0

    def add(self, func: Any, **fields: Any) -> Run:
        """Takes a task in, as a fetch does, and starts what can be."""
        number, self._made = self._made, self._made + 1
        entry, now_ns = b"1-%d" % number, time.monotonic_ns()
        slot = self.held.claim((0, entry), now_ns)
        message = Message(f"t{number}", "k", "q", b"{}", max_retry=5, **fields)
        run = Run(slot, entry, 0, message, make_handler("k", func, timeout=60), 0, now_ns)
        self.held.runs[0, entry] = run
        self.held.buffer.append(run)
        self.starter.start()
        return run

    @property
    def dead(self) -> dict[str, str]:
        """Dead letters that wait to be sent: their last errors."""
        moves: list[Dead] = self.held.outboxes[0].dead
        return {move.task_id: move.message.last_err for move in moves if move.message is not None}

    @property
    def done(self) -> list[Done]:
        return self.held.outboxes[0].done

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.001)


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    path = tmp_path / "board"
    one = Board.create(path, SLOTS, consumer="c", queues=["q"], tally_cells=cells_needed(1))
    yield one
    one.close()


def on_a_loop(board: Board, test: Callable[[Rig], Awaitable[None]], concurrency: int = 1) -> None:
    async def main() -> None:
        await test(Rig(board, concurrency))

    asyncio.run(main())


async def waits(task: Task[Any]) -> None:
    await asyncio.sleep(60)


def test_what_is_buffered_ends_without_being_begun_and_the_next_one_starts(board: Board) -> None:
    async def test(rig: Rig) -> None:
        first, second, third = rig.add(waits), rig.add(waits), rig.add(waits)
        await rig.until(lambda: first.started_ns)
        rig.starter.cancel(second)
        assert rig.dead == {"t1": "cancelled"}
        assert (rig.starter.active, list(rig.held.buffer)) == (1, [third])
        rig.starter.cancel(first)
        await rig.until(lambda: third.started_ns)
        assert rig.dead == {"t0": "cancelled", "t1": "cancelled"}
        assert not second.started_ns
        states = {slot.entry: slot.state for slot in board.read()}
        assert states == {
            "1-0": SlotState.FINISHING,
            "1-1": SlotState.FINISHING,
            "1-2": SlotState.RUNNING,
        }

    on_a_loop(board, test)


def test_what_is_about_to_begin_does_not(board: Board) -> None:
    async def test(rig: Rig) -> None:
        run = rig.add(waits)
        assert not run.started_ns, "its coroutine has not had its first step"
        rig.starter.cancel(run)
        await rig.until(lambda: rig.dead)
        assert (run.started_ns, rig.starter.active) == (0, 0)

    on_a_loop(board, test)


def test_a_thread_that_has_not_begun_does_not_and_one_that_has_goes_on(board: Board) -> None:
    release = threading.Event()

    def holds(task: Task[Any]) -> None:
        release.wait(20)

    def fails(task: Task[Any]) -> None:
        release.wait(20)
        raise RetryIn("1h")

    async def test(rig: Rig) -> None:
        good, bad = rig.add(holds), rig.add(fails)
        await rig.until(lambda: good.started_ns and bad.started_ns)
        for run in (good, bad):
            rig.starter.cancel(run)
        assert rig.starter.active == 2, "nobody can interrupt a thread"
        release.set()
        await rig.until(lambda: rig.starter.active == 0)
        assert [move.task_id for move in rig.done] == ["t0"], "it has succeeded"
        assert rig.dead == {"t1": "cancelled"}, "whatever it wanted, it does not run again"

    on_a_loop(board, test, concurrency=2)


def test_one_that_wants_no_dead_letter_leaves_none(board: Board) -> None:
    async def test(rig: Rig) -> None:
        run = rig.add(waits, no_archive=True)
        await rig.until(lambda: run.started_ns)
        rig.starter.cancel(run)
        await rig.until(lambda: rig.done)
        assert not rig.dead

    on_a_loop(board, test)


def test_what_has_ended_has_ended(board: Board) -> None:
    async def returns(task: Task[Any]) -> None: ...

    async def test(rig: Rig) -> None:
        run = rig.add(returns)
        await rig.until(lambda: rig.done)
        rig.starter.cancel(run)
        assert (len(rig.done), rig.dead) == (1, {})

    on_a_loop(board, test)


def test_one_that_is_told_again_may_go_on_tidying_up(board: Board) -> None:
    """A supervisor that has reloaded has forgotten whom it told."""
    tidied = []

    async def tidies_up(task: Task[Any]) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            tidied.append("begun")
            await asyncio.sleep(0.05)
            tidied.append("done")

    async def test(rig: Rig) -> None:
        run = rig.add(tidies_up)
        await rig.until(lambda: run.started_ns)
        rig.starter.cancel(run)
        await rig.until(lambda: tidied)
        rig.starter.cancel(run)
        await rig.until(lambda: rig.dead)
        assert tidied == ["begun", "done"]

    on_a_loop(board, test)
