"""Which queue is asked for how many tasks.

Smooth weighted round-robin, as nginx has it: every queue gains credit by its weight, the richest is served
and pays. Asking for many at once does the same in one go. A queue that gave less than it was asked for is
taken to be empty; it loses its credit, its share falls to the others, and it is asked for a single task
every few milliseconds until it has one. (When all are empty the worker blocks on all of them instead.)
"""

from __future__ import annotations

from collections.abc import Sequence

PROBE_S = 0.002
"""How soon an empty queue is asked again while others have work, per queue there is: the cost is bounded."""


class Picker:
    """Shares out free slots. Queues are known by their index.

    Args:
        weights: one per queue, at least 1.
        strict: heavier queues are drained first (``strict_priority``).
    """

    def __init__(self, weights: Sequence[int], *, strict: bool = False) -> None:
        self._weights = list(weights)
        self._strict = strict
        self._credit = [0.0] * len(weights)
        self._empty = [False] * len(weights)
        self._asked_at = [0.0] * len(weights)
        self._order = sorted(range(len(weights)), key=lambda q: -weights[q])
        self._probe_s = 0.0 if strict else PROBE_S * len(weights)

    def share(self, free: int, now: float) -> list[tuple[int, int]]:
        """(queue, how many) for up to ``free`` slots; ``now`` is monotonic seconds."""
        if free <= 0:
            return []
        asks: list[tuple[int, int]] = []
        stocked = [q for q in self._order if not self._empty[q]]
        for queue in self._order:
            if not self._empty[queue] or not free:
                continue
            if self._strict and stocked and self._weights[queue] < self._weights[stocked[0]]:
                continue
            if now - self._asked_at[queue] >= self._probe_s:
                asks.append((queue, 1))
                self._asked_at[queue] = now
                free -= 1
        if not stocked or not free:
            return asks
        if self._strict:
            return [*asks, (stocked[0], free)]
        return asks + self._weighted(stocked, free)

    def _weighted(self, stocked: list[int], free: int) -> list[tuple[int, int]]:
        credit = self._credit
        total = sum(self._weights[q] for q in stocked)
        counts = dict.fromkeys(stocked, 0)
        left = free
        for queue in stocked:
            credit[queue] += free * self._weights[queue] / total
            counts[queue] = max(int(credit[queue]), 0)
        left -= sum(counts.values())
        while left:  # fractions: to the richest first
            step = 1 if left > 0 else -1
            pool = stocked if left > 0 else [q for q in stocked if counts[q]]
            queue = max(pool, key=lambda q: step * (credit[q] - counts[q]))
            counts[queue] += step
            left -= step
        for queue in stocked:
            credit[queue] -= counts[queue]
        return [(queue, count) for queue, count in counts.items() if count]

    def report(self, queue: int, asked: int, got: int) -> None:
        """How much a queue gave of what it was asked for."""
        self._empty[queue] = got < asked
        if got < asked:
            self._credit[queue] = 0.0

    def stocked(self, queue: int) -> None:
        """A queue is known to have work."""
        self._empty[queue] = False

    @property
    def all_empty(self) -> bool:
        """Whether no queue is known to have work: time to block."""
        return all(self._empty)
