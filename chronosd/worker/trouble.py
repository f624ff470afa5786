"""What is wrong with Redis, as one worker sees it: said once, and asked about again after a while.

A connection that is lost concerns everything. An error of one queue (a key of the wrong type, a permission,
a group that is gone) concerns that queue: it is left alone for a moment and the others go on at full speed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Sequence

from chronosd import log
from chronosd.errors import BrokerError

FIRST_S = 0.02
MOST_S = 2.0

_log = log.get_logger("chronosd.worker")


def pause_s(failures: int) -> float:
    """How long to wait after so many failures in a row: 10 to 20 ms, doubled up to 2 s, with jitter."""
    bound: float = min(FIRST_S * 2.0 ** min(failures - 1, 10), MOST_S)
    return random.uniform(0.5, 1.0) * bound


class Troubles:
    """Queues are known by their index."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._noted: set[str] = set()
        self._retry_at: dict[int, float] = {}
        self._failures: dict[int, int] = {}

    def note(self, where: str, error: BrokerError) -> None:
        """Logs a trouble once; it is logged again only after it has ended."""
        if where not in self._noted:
            self._noted.add(where)
            _log.warning("redis trouble", where=where, error=str(error), trouble=error.trouble.value)

    def over(self, where: str) -> bool:
        """Notes that a trouble has ended; False if there was none."""
        if where not in self._noted:
            return False
        self._noted.discard(where)
        return True

    def sick(self, index: int, error: BrokerError) -> None:
        """A command of that queue was answered with an error."""
        self.note(f"queue {self._names[index]}", error)
        self._failures[index] = failures = self._failures.get(index, 0) + 1
        self._retry_at[index] = time.monotonic() + pause_s(failures)

    def well(self, index: int) -> None:
        """A command of that queue was answered as it should be."""
        if self._failures.pop(index, 0):
            self._retry_at.pop(index, None)
            if self.over(f"queue {self._names[index]}"):
                _log.info("queue is well again", queue=self._names[index])

    def resting(self) -> Collection[int]:
        """The queues that are left alone for now."""
        if not self._retry_at:
            return ()
        now = time.monotonic()
        return {index for index, at in self._retry_at.items() if at > now}

    def rest_s(self) -> float:
        """Seconds until one of them is asked again; infinite if none rests."""
        now = time.monotonic()
        return min((at - now for at in self._retry_at.values() if at > now), default=float("inf"))
