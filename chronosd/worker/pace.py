"""How far ahead of its handlers a worker may read: no further than it can start within a moment."""

from __future__ import annotations

from chronosd.link import READ_AHEAD

AHEAD_S = 0.010
"""Reading ahead goes only as far as the worker can start within this time."""

_WEIGHT = 0.3  # of the latest cycle, in what counts as lately


class Pace:
    """Follows how many tasks end and how long they take. Begins with nothing to read ahead.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, now: float) -> None:
        self._rate = 0.0  # tasks ended a second, lately
        self._held_s = 0.0  # how long a task held its slot, lately
        self._measured_at = now
        self.is_full = False
        """The last fetch brought all that was asked of some queue: more is waiting there."""

    def measure(self, now: float, ended: int, held_ns: int) -> None:
        """A cycle is over, in which so many runs ended, having held their slots for so long in all."""
        seconds, self._measured_at = now - self._measured_at, now
        if ended:
            self._rate += _WEIGHT * (ended / seconds - self._rate)
            self._held_s += _WEIGHT * (held_ns / ended / 1e9 - self._held_s)

    def falter(self) -> None:
        """What was read ahead waited too long: nothing more is, before the pace has been found again."""
        self._rate = 0.0

    @property
    def ahead(self) -> int:
        """How many tasks may be here beyond those that have a slot."""
        brief = self.is_full and self._held_s < AHEAD_S
        return min(int(self._rate * AHEAD_S), READ_AHEAD) if brief else 0
