"""The supervisor's own totals: what the boards of the dead had counted, and what it has seen or done itself.

A metric's value is what stands here plus what stands on the boards of the living. A dead worker's board is
added in the turn in which its worker leaves the fleet, so no value is ever seen to go down. What a worker had
ended and not heard of, although Redis had taken it, it has not counted; the settlement counts it here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from chronosd import tally
from chronosd.board import Board, Cell
from chronosd.broker.fates import Ended, Settled
from chronosd.metrics import (
    DURATION,
    LATENCY,
    LEASES_LOST,
    OTHER,
    PROCESSED,
    RECOVERED,
    RECOVERY_LATENCY,
    End,
    bucket_of,
)
from chronosd.tally import Histogram

_MOST_PAIRS = 2000
"""Pairs of queue and kind that are told apart over all reloads; what comes later counts as other."""

_HOW = {
    "succeeded": End.SUCCEEDED,
    "crashed": End.CRASHED,
    "archived": End.ARCHIVED,
    "discarded": End.DISCARDED,
    "cancelled": End.CANCELLED,
}

Labels = tuple[str, ...]
Unheard = dict[tuple[str, str], tuple[str, End]]
"""By queue and entry: kind and end of what a dead worker had ended and not heard of."""


@dataclass(slots=True)
class Values:
    """Counters and histograms by name and labels."""

    counters: dict[tuple[str, Labels], int] = field(default_factory=dict)
    histograms: dict[tuple[str, Labels], Histogram] = field(default_factory=dict)

    def add(self, name: str, *labels: str, n: int = 1) -> None:
        """Counts."""
        key = name, labels
        self.counters[key] = self.counters.get(key, 0) + n

    def merge(self, name: str, *labels: str, other: Histogram) -> None:
        """Adds what was observed elsewhere."""
        self.histograms.setdefault((name, labels), Histogram()).add(other.buckets, other.sum_s)

    def copy(self) -> Values:
        """A copy that can be added to."""
        histograms = {key: Histogram(list(h.buckets), h.sum_s) for key, h in self.histograms.items()}
        return Values(dict(self.counters), histograms)


class Totals:
    """What is not on the board of any living worker.

    Args:
        kinds: asked for the kinds that have a handler.
    """

    def __init__(self, kinds: Callable[[], Collection[str]] = tuple) -> None:
        self._kinds = kinds
        self._values = Values()
        self._pairs: set[tuple[str, str]] = set()
        self.add = self._values.add

    def observe(self, name: str, *labels: str, seconds: float) -> None:
        """One observation."""
        buckets = Histogram().buckets
        buckets[bucket_of(seconds)] = 1
        self._values.merge(name, *labels, other=Histogram(buckets, max(seconds, 0.0)))

    def fold(self, board: Board) -> None:
        """Adds what a worker that is dead had counted."""
        self._count(board, self._values)

    def values(self, boards: Iterable[Board]) -> Values:
        """Everything, with what the living have counted so far."""
        values = self._values.copy()
        for board in boards:
            self._count(board, values)
        return values

    def _count(self, board: Board, values: Values) -> None:
        reading = tally.read(board)
        for (queue, kind), counts in reading.outcomes.items():
            known = self._bounded(queue, kind)
            for end in End:
                values.add(PROCESSED, queue, known, end.label, n=counts[end])
            values.merge(DURATION, queue, known, other=reading.durations[queue, kind])
        for queue, waits in reading.latencies.items():
            values.merge(LATENCY, queue, other=waits)
        values.add(LEASES_LOST, n=board.cells[Cell.LEASES_LOST])

    def _bounded(self, queue: str, kind: str) -> str:
        if (queue, kind) not in self._pairs and kind != OTHER:
            if len(self._pairs) >= _MOST_PAIRS:
                return OTHER
            self._pairs.add((queue, kind))
        return kind

    # -- settlements ------------------------------------------------------------------------------------

    def settled(self, path: str, settled: Settled) -> None:
        """Counts what a settlement has ended and taken over."""
        known = self._kinds() if settled.ends else ()
        for end in settled.ends:
            self._ended(end, known)
        for queue, count in settled.by_queue.items():
            self.add(RECOVERED, queue, path, n=count)

    def _ended(self, end: Ended, known: Collection[str]) -> None:
        kind = self._bounded(end.queue, end.kind) if end.kind in known else OTHER
        self.add(PROCESSED, end.queue, kind, _HOW[end.how].label)

    def recovered_after(self, path: str, seconds: float) -> None:
        """An owner's tasks are settled so long after its death."""
        self.observe(RECOVERY_LATENCY, path, seconds=seconds)

    def resolve(self, unheard: Unheard, settled: Settled) -> None:
        """Counts what had been carried out for a dead worker that never heard of it; forgets what is decided.

        An entry that is not pending for it any more, or that left while it was settled, had been carried out.
        """
        for key in list(unheard):
            is_moved = settled.moved.get(key)
            if is_moved is None and key[0] in settled.errors:
                continue  # not met, and perhaps not looked for
            kind, end = unheard.pop(key)
            if not is_moved:
                self.add(PROCESSED, key[0], self._bounded(key[0], kind), end.label)


def unheard_on(board: Board) -> Unheard:
    """What a dead worker had ended and not heard of, or heard of and not counted."""
    found: Unheard = {}
    for slot in board.read():
        end = tally.end_of(board, slot.counter) if slot.counter and not slot.is_counted else None
        if end is not None:
            found[slot.queue, slot.entry] = end
    return found
