"""What a worker does while it asks whose its tasks are."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from chronosd.board import Board
from chronosd.broker.message import decode
from chronosd.broker.runner import AsyncRunner
from chronosd.handlers import make_handler
from chronosd.tally import Tally, cells_needed
from chronosd.worker.doubt import Doubt
from chronosd.worker.execute import Executor
from chronosd.worker.held import Held
from chronosd.worker.run import Run
from chronosd.worker.starter import Starter
from chronosd.worker.trouble import Troubles
from tests.support.bench import Bench


def test_nothing_is_started_while_leases_are_looked_at(bench: Bench, bench_url: str, tmp_path: Path) -> None:
    """The doubt counted as gone when the question was sent: a run that ended before the answer, or what a
    blocking read brought, started what had been taken over long ago."""
    board = Board.create(tmp_path / "board", 4, consumer="c1", queues=["q"], tally_cells=cells_needed(1))
    held = Held(board, [bench.queue], Tally(board, ["mail:send"]))
    starter = Starter(held, concurrency=4, alone_from=99)
    entered: list[str] = []

    async def note(task: Any) -> None:
        entered.append(task.id)

    handler = make_handler("mail:send", note, timeout=60)
    bench.group()
    bench.add("lost", "kept")
    for task in bench.fetch():
        key, now_ns = (0, task.entry), time.monotonic_ns()
        run = Run(held.claim(key, now_ns), task.entry, 0, decode(task.msg or b""), handler, 0, now_ns)
        held.runs[key] = run
        held.buffer.append(run)
    lost, _ = held.buffer
    bench.redis.xclaim(bench.queue.stream, "chronos", "another", 0, [lost.entry])

    async def main() -> None:
        starter.executor = Executor(board, 4, starter.finished, starter.unstarted)
        cycle = AsyncRunner(bench_url)
        doubt = Doubt(
            *(held, starter, None, "c1", cycle, Troubles(["q"])),  # type: ignore[arg-type] # no intake
            answered=lambda: None,
        )
        starter.is_doubtful = True
        look = asyncio.create_task(doubt.check_leases())
        await asyncio.sleep(0)
        starter.start()
        await look
        while starter.is_doubtful and held.buffer:  # as the worker's loop does
            await doubt.check_leases()
        starter.start()
        while starter.executor.running:
            await asyncio.wait({run.aio for run in starter.executor.running if run.aio is not None})
        await cycle.aclose()

    asyncio.run(main())
    board.close()
    assert entered == ["kept"]
