"""The threads in which sync handlers run."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from chronosd.outcome import Outcome
from chronosd.worker.run import Run


class Threads:
    """Threads of the worker's own for sync handlers, made as they are needed, never more than ``limit``.

    Not the loop's default pool: that one is shared with name look-ups, and is smaller.
    """

    def __init__(self, limit: int, collect: Callable[[Run, Outcome | None], None]) -> None:
        self._limit = limit
        self._collect = collect
        self._loop = asyncio.get_running_loop()
        self._todo: SimpleQueue[Callable[[], tuple[Run, Outcome | None]]] = SimpleQueue()
        self._done: deque[tuple[Run, Outcome | None]] = deque()
        self._active = 0
        self._count = 0
        self._woken = False

    def submit(self, job: Callable[[], tuple[Run, Outcome | None]]) -> None:
        """Runs ``job`` in a thread; its result goes to ``collect`` on the loop.

        Raises RuntimeError if there is no thread and none can be made.
        """
        if self._active >= self._count and self._count < self._limit:
            name = f"handler-{self._count + 1}"
            try:
                threading.Thread(target=self._work, name=name, daemon=True).start()
                self._count += 1
            except RuntimeError:  # a limit of the system: fewer threads have to do
                if not self._count:
                    raise
        self._active += 1
        self._todo.put(job)

    def _work(self) -> None:
        while True:
            self._done.append(self._todo.get()())
            if not self._woken:
                self._woken = True
                try:
                    self._loop.call_soon_threadsafe(self._drain)
                except RuntimeError:  # the loop is closed: the process is ending
                    return

    def _drain(self) -> None:
        self._woken = False
        while self._done:
            self._active -= 1
            self._collect(*self._done.popleft())
