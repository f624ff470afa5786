"""Looking on while everything dies: what must hold at every instant, and not only in the end."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis as redis_py

from chronosd.board import SLOT_CELLS, Board
from chronosd.broker.keys import Namespace
from tests.support.chaos import QUEUES


class Often(threading.Thread):
    """Calls a function over and over, with a pause, until told to stop."""

    def __init__(self, call: Callable[[], object], pause_s: float) -> None:
        super().__init__(name="often")
        self._call = call
        self._pause_s = pause_s
        self._over = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._over.wait(self._pause_s):
                self._call()
        except BaseException as error:
            self._error = error

    def finish(self) -> None:
        """Stops, and raises what went wrong, if anything did."""
        self._over.set()
        self.join(20)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error


class Boards:
    """Reads the boards of living workers, slowly, and keeps what it has read."""

    def __init__(self, runtime: Path) -> None:
        self.seen: set[tuple[str, str, int]] = set()
        """Entry, queue and instant of claim of every slot."""
        self.reads = 0
        self._runtime = runtime

    def look(self) -> None:
        try:
            paths = list(self._runtime.glob("run-*/*.board"))
        except FileNotFoundError:  # a directory went away while it was listed
            return
        for path in paths:
            try:
                board: Any = Board.open(path)
            except (OSError, ValueError):
                continue  # not made yet, or gone by now
            cells = board.cells
            board.cells = _Slow(cells, board._slots_at)
            for slot in board.read():
                self.reads += 1
                self.seen.add((slot.entry, slot.queue, slot.claimed_ns))
            board.cells = cells
            board.close()


class _Slow:
    """Cells read so slowly, between the two halves of an entry, that a slot is often used again meanwhile."""

    def __init__(self, cells: memoryview, slots_at: int) -> None:
        self._cells = cells
        self._second_half = (slots_at + 3) % SLOT_CELLS

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, int) and index % SLOT_CELLS == self._second_half and random.random() < 0.3:
            time.sleep(0.003)
        return self._cells[index]


_TWICE = """
local seen, twice = {}, {}
for _, item in ipairs(redis.call('XRANGE', KEYS[1], '-', '+')) do
  local id = item[2][2]
  if seen[id] then twice[#twice + 1] = id end
  seen[id] = true
end
return twice
"""


def named_twice(redis: redis_py.Redis, namespace: str) -> list[str]:
    """Ids that two entries name at this instant; there must never be any. Empty while there is no server."""
    twice: list[str] = []
    try:
        for name in QUEUES:
            found: Any = redis.eval(_TWICE, 1, Namespace(namespace).queue(name).stream)
            twice += [f"{task_id.decode()} has two entries in {name}" for task_id in found]
    except redis_py.RedisError:
        return []
    return twice
