"""How long a worker waits until it can run a task alone.

It fetches nothing while it waits: beside a handler of many minutes it would stand idle for as long, and with
one such task per worker the whole daemon would. So it waits for a while, then puts the task off for as long,
and goes on. The next time it waits twice as long, in the end longer than any handler runs: no task starves.
And before it has rested for as long as it has waited it waits for no other task either: however many there
are, they cost it no more than half of its time.
"""

from __future__ import annotations

SOLO_WAIT_S = 5.0
"""How long the first time."""

REMEMBERED = 1000
"""For how many tasks it is known how long they were waited for; the one put off longest ago goes first."""


class Patience:
    """Follows how long was waited in vain for which task. Instants are monotonic seconds."""

    def __init__(self) -> None:
        self._waited: dict[str, float] = {}  # by task id, the latest last
        self._rested_at = 0.0

    def wait_s(self, task_id: str) -> float:
        """How long to wait for a task before it is put off."""
        waited_s = self._waited.get(task_id)
        return SOLO_WAIT_S if waited_s is None else 2 * waited_s

    def rest_s(self, now: float) -> float:
        """For how long to put off a task that would have to be waited for; 0 if it may be.

        No longer than a first wait, though the rest may be: another worker may have the time.
        """
        return max(0.0, min(self._rested_at - now, SOLO_WAIT_S))

    def in_vain(self, task_id: str, now: float) -> float:
        """It was waited for, for :meth:`wait_s`; returns for how long it is to be put off."""
        wait_s = self.wait_s(task_id)
        self._waited.pop(task_id, None)
        self._waited[task_id] = wait_s
        if len(self._waited) > REMEMBERED:
            del self._waited[next(iter(self._waited))]
        self._rested_at = now + wait_s
        return wait_s

    def started(self, task_id: str, waited_s: float, now: float) -> None:
        """It was waited for, and is alone: the next time it is like any other."""
        self._waited.pop(task_id, None)
        self._rested_at = max(self._rested_at, now + waited_s)
