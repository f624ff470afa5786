"""The handlers of ``chronosd bench``, and where they count: a file that every process maps.

One byte per task says how often its handler was entered, and eight hold when (monotonic nanoseconds). No two
tasks share a cell, so neither threads nor processes need a lock, and counting asks nothing of the queue that
is being measured.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import time
from pathlib import Path
from typing import Any

from chronosd.task import Task

VARIABLE = "CHRONOSD_BENCH_TALLY"
"""Names the file to the workers."""
CAPACITY = 1_000_000
"""The most tasks that one tally counts."""

KINDS = {
    "bench:async": "chronosd.bench_work:noop",
    "bench:sync": "chronosd.bench_work:noop_sync",
    "bench:stamp": "chronosd.bench_work:stamp",
    "bench:slow": "chronosd.bench_work:slow",
}

SLOW_S = 1.0


class Tally:
    """A mapped tally. Whoever writes marks single cells; whoever reads counts them all."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), CAPACITY * 9)
        self.starts = memoryview(self._map)[:CAPACITY]
        self.instants = memoryview(self._map)[CAPACITY:].cast("q")

    @classmethod
    def create(cls, path: Path) -> Tally:
        """Makes the file, with nothing counted."""
        with path.open("wb") as file:
            file.truncate(CAPACITY * 9)
        return cls(path)

    def clear(self, count: int) -> None:
        """Forgets the first ``count`` tasks."""
        self.starts[:count] = bytes(count)
        self.instants[:count] = memoryview(bytes(count * 8)).cast("q")

    def done(self, count: int) -> int:
        """How many of the first ``count`` tasks were started."""
        return count - bytes(self.starts[:count]).count(0)

    def repeated(self, count: int) -> int:
        """How many of the first ``count`` tasks were started more than once."""
        return self.done(count) - bytes(self.starts[:count]).count(1)

    def close(self) -> None:
        self.starts.release()
        self.instants.release()
        self._map.close()


_tally = Tally(Path(os.environ[VARIABLE])) if VARIABLE in os.environ else None


async def noop(task: Task[Any]) -> None:
    """Counts itself."""
    assert _tally is not None
    _tally.starts[task.args["i"]] += 1


def noop_sync(task: Task[Any]) -> None:
    """Counts itself, in a thread."""
    assert _tally is not None
    _tally.starts[task.args["i"]] += 1


async def stamp(task: Task[Any]) -> None:
    """Notes when it was started."""
    assert _tally is not None
    _tally.instants[task.args["i"]] = time.monotonic_ns()
    _tally.starts[task.args["i"]] += 1


async def slow(task: Task[Any]) -> None:
    """Holds its slot for a second."""
    await stamp(task)
    await asyncio.sleep(SLOW_S)
