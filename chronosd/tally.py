"""The tally: a worker's counters and histograms, on its board, where they outlive it.

A worker counts the end of a task when Redis has it, in the same breath in which it frees the task's slot: a
few stores into shared memory, and no message to anybody. The supervisor reads the tallies of the living
whenever it likes, adds those of the dead to its own totals, and counts in their place what they had no time
to count (:mod:`chronosd.supervisor.totals`). So no counter ever goes down while the daemon runs; and
as a board tells what was being counted when its worker died, no end is counted twice.

Layout of the board's tally, in 64-bit cells::

    names     NAMES_CELLS cells: length in bytes, then the JSON list of the kinds that are counted by name
    latency   for each queue a histogram
    rows      queue + 1 (0: not used yet), kind + 1 (0: other), outcomes, a histogram of durations

The first rows are the queues' rows for other kinds. Each further pair of queue and kind gets a row when it is
first met, as long as there are any; then it is counted among the others. A histogram is its buckets and the
sum of all that was observed, in microseconds: nanoseconds of some million tasks that waited an hour would not
fit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import orjson

from chronosd.board import SLOT_CELLS, Board, Cell
from chronosd.metrics import BOUNDS_S, BUCKETS, OTHER, OUTCOMES, End

_NAMES_CELLS = 1024
_HISTOGRAM = BUCKETS + 1
_COUNTS = 2
_DURATION = _COUNTS + OUTCOMES
_ROW = _DURATION + _HISTOGRAM
_MORE_ROWS = 192
_BOUNDS_NS = tuple(int(bound * 1e9) for bound in BOUNDS_S)
_FIRST_NS = _BOUNDS_NS[0]
_LONGEST_NS = 30 * 86400 * 10**9
"""Longer waits (entries added by hand, with an id of 1970) count as this one."""
_SERVER_CLOCK = int(Cell.SERVER_CLOCK)

Pair = tuple[str, str]
"""Queue and kind."""


def cells_needed(queues: int) -> int:
    """How many cells the tally of a board takes."""
    return _NAMES_CELLS + queues * _HISTOGRAM + (queues + _MORE_ROWS) * _ROW


class Tally:
    """The worker's side.

    Args:
        board: with room for a tally.
        kinds: those that have a handler.
    """

    __slots__ = ("_board", "_cells", "_kinds", "_latency_at", "_next", "_ready_at", "_rows", "_rows_end")

    def __init__(self, board: Board, kinds: Collection[str]) -> None:
        self._board = board
        self._cells = board.cells
        self._ready_at = board.entry_ms_at
        queues = len(board.queues)
        self._latency_at, rows_at = _places(board)
        self._rows_end = rows_at + (queues + _MORE_ROWS) * _ROW
        self._kinds = {kind: i + 1 for i, kind in enumerate(_write_names(board, kinds))}
        self._rows: list[dict[str, int]] = []
        for queue in range(queues):
            at = rows_at + queue * _ROW
            self._cells[at] = queue + 1
            self._rows.append({OTHER: at})
        self._next = rows_at + queues * _ROW

    def counter(self, queue: int, kind: str, outcome: int) -> int:
        """The cell in which such an end is counted."""
        row = self._rows[queue].get(kind) or self._find(queue, kind)
        return row + _COUNTS + outcome

    def ended(self, queue: int, kind: str, outcome: int, slot: int, started_ns: int, now_ns: int) -> int:
        """A handler has ended: observes how long it took and how long its task had waited.

        Returns the cell in which the end is to be counted once Redis has it. Instants are monotonic.
        """
        row = self._rows[queue].get(kind) or self._find(queue, kind)
        cells = self._cells
        ns = now_ns - started_ns
        at = row + _DURATION
        cells[at + BUCKETS] += ns // 1000
        if ns > _FIRST_NS:
            at += bisect_left(_BOUNDS_NS, ns)
        cells[at] += 1
        clock = cells[_SERVER_CLOCK]
        if clock:
            waited = started_ns + clock - cells[self._ready_at + slot * SLOT_CELLS] * 1_000_000
            at = self._latency_at + queue * _HISTOGRAM
            if waited > 0:  # else the clocks are not that exact
                if waited > _LONGEST_NS:
                    waited = _LONGEST_NS
                cells[at + BUCKETS] += waited // 1000
                if waited > _FIRST_NS:
                    at += bisect_left(_BOUNDS_NS, waited)
            cells[at] += 1
        return row + _COUNTS + outcome

    def count(self, counter: int) -> None:
        """Redis has the end of an entry that has no slot; where there is one, the board counts."""
        self._cells[counter] += 1

    def instead(self, counter: int, end: int) -> int:
        """The counter of the same queue and kind for another end."""
        _, rows_at = _places(self._board)
        return rows_at + (counter - rows_at) // _ROW * _ROW + _COUNTS + end

    def _find(self, queue: int, kind: str) -> int:
        rows, cells = self._rows[queue], self._cells
        index = self._kinds.get(kind)
        if index is None or self._next >= self._rows_end:
            # Not noted for an unknown kind: anybody may enqueue as many of those as they like.
            if index is not None:
                rows[kind] = rows[OTHER]
            return rows[OTHER]
        at, self._next = self._next, self._next + _ROW
        cells[at + 1] = index
        cells[at] = queue + 1  # last: a row is read once it has a queue
        rows[kind] = at
        return at


def _places(board: Board) -> tuple[int, int]:
    latency_at = board.tally_at + _NAMES_CELLS
    return latency_at, latency_at + len(board.queues) * _HISTOGRAM


def _write_names(board: Board, kinds: Collection[str]) -> list[str]:
    """Writes as many of the names as there is room for; returns those."""
    names = sorted(kinds)
    room = (_NAMES_CELLS - 1) * 8
    text = orjson.dumps(names)
    while len(text) > room:
        del names[len(names) * 3 // 4 :]
        text = orjson.dumps(names)
    cells, at = board.cells, board.tally_at
    padded = text.ljust(-(-len(text) // 8) * 8)
    cells[at + 1 : at + 1 + len(padded) // 8] = memoryview(padded).cast("q")
    cells[at] = len(text)
    return names


# -- the supervisor's side ------------------------------------------------------------------------------


@dataclass(slots=True)
class Histogram:
    """How often each bucket was hit, and the sum of all that was observed, in seconds."""

    buckets: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    sum_s: float = 0.0

    def add(self, buckets: Sequence[int], sum_s: float) -> None:
        """Adds other observations."""
        self.buckets = [mine + other for mine, other in zip(self.buckets, buckets, strict=True)]
        self.sum_s += sum_s


@dataclass(slots=True)
class Reading:
    """A tally at one moment."""

    outcomes: dict[Pair, list[int]] = field(default_factory=dict)
    """By `End`."""
    durations: dict[Pair, Histogram] = field(default_factory=dict)
    latencies: dict[str, Histogram] = field(default_factory=dict)
    """By queue."""


def read(board: Board) -> Reading:
    """What is on a board's tally. Any board may be read, one without a tally as well."""
    reading = Reading()
    if not _has_tally(board):
        return reading
    latency_at, rows_at = _places(board)
    for i, queue in enumerate(board.queues):
        histogram = _histogram(board, latency_at + i * _HISTOGRAM)
        if any(histogram.buckets):
            reading.latencies[queue] = histogram
    kinds = _read_names(board)
    for at in range(rows_at, _rows_end(board), _ROW):
        pair = _pair(board, at, kinds)
        if pair is None:
            continue
        counts = board.cells[at + _COUNTS : at + _DURATION].tolist()
        durations = _histogram(board, at + _DURATION)
        if any(counts) or any(durations.buckets):
            reading.outcomes[pair] = counts
            reading.durations[pair] = durations
    return reading


def end_of(board: Board, counter: int) -> tuple[str, End] | None:
    """The kind and the outcome that a counter is for; None if it is none."""
    if not _has_tally(board):
        return None
    _, rows_at = _places(board)
    row, column = divmod(counter - rows_at, _ROW)
    at = rows_at + row * _ROW
    if not (rows_at <= at < _rows_end(board) and _COUNTS <= column < _DURATION):
        return None
    pair = _pair(board, at, _read_names(board))
    return None if pair is None else (pair[1], End(column - _COUNTS))


def _has_tally(board: Board) -> bool:
    return board.tally_cells >= cells_needed(len(board.queues))


def _rows_end(board: Board) -> int:
    _, rows_at = _places(board)
    return rows_at + (len(board.queues) + _MORE_ROWS) * _ROW


def _pair(board: Board, at: int, kinds: Sequence[str]) -> Pair | None:
    queue, kind = board.cells[at], board.cells[at + 1]
    if not 0 < queue <= len(board.queues):
        return None
    return board.queues[queue - 1], kinds[kind - 1] if 0 < kind <= len(kinds) else OTHER


def _histogram(board: Board, at: int) -> Histogram:
    *buckets, sum_us = board.cells[at : at + _HISTOGRAM].tolist()
    return Histogram(buckets, sum_us / 1e6)


def _read_names(board: Board) -> list[str]:
    size = board.cells[board.tally_at]
    if not 0 < size <= (_NAMES_CELLS - 1) * 8:
        return []
    start = board.tally_at + 1
    text = board.cells[start : start + -(-size // 8)].tobytes()[:size]
    try:
        names = orjson.loads(text)
    except ValueError:
        return []
    return [str(name) for name in names] if isinstance(names, list) else []
