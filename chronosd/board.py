"""The board: what a worker is doing, in memory that outlives it.

Before it forks a worker the supervisor maps one file for it. The worker writes what it does there, a few
aligned 64-bit stores per task; the supervisor reads it at any time, also from a worker that hangs with the
interpreter lock held, and above all from one that is dead. That is how the supervisor knows, a millisecond
after a SIGKILL, which tasks were running (charged), which had only been fetched (handed back free) and which
had finished (acknowledged, not repeated). The file lives in the runtime directory, so that the next
incarnation of the daemon can read what a killed one left.

Layout, in native 64-bit cells (:class:`Cell` names the header's)::

    header    HEADER_CELLS cells
    meta      JSON: consumer and queue names, padded to a whole cell
    tally     counters and histograms (see :mod:`chronosd.tally`), as many cells as it asked for
    slots     capacity x SLOT_CELLS cells: sequence, state, entry ms, entry seq, queue, started,
              deadline, claimed

A slot's state is a word. Its low byte is the :class:`SlotState`. The 32 bits above that are, for a task that
has ended, the counter: the cell of the tally in which its end will be counted once Redis has it. Should the
worker die before it hears so, the supervisor counts in its place. It must know whether the worker has, and no
two cells change at once: so first the two bits above the counter say that the end is being counted, and
whether the counter will be odd then, next the counter changes, and last the slot is freed. Only one end is
counted at a time; whoever finds the two bits set sees by the counter on which side of its change they are.

The worker is the only writer (but of `Cell.SERVER_CLOCK`). Within a slot the ids are stored before the state
on a claim, and the state before anything else when the slot is freed, so every slot of a dead writer that is
not free is whole. A live one can reuse a slot while it is being read: its sequence is odd while the ids
change, and the reader tries again. Stores go through a memoryview cast to 64-bit cells because those are
single machine stores; ``struct.pack_into`` with standard sizes writes byte by byte and tears.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import orjson

MAGIC = 0x6368726F6E6F7331  # "chronos1"
HEADER_CELLS = 512
SLOT_CELLS = 8
_SEQUENCE, _STATE, _ENTRY_MS, _ENTRY_SEQ, _QUEUE, _STARTED, _DEADLINE, _CLAIMED = range(SLOT_CELLS)
_READ_RETRIES = 100
_COUNTER_BITS = (1 << 32) - 1
_COUNTING_AT = 40
_COUNTING = (2 << _COUNTING_AT, 3 << _COUNTING_AT)
"""What says that a slot's end is being counted, by the parity that its counter will have."""


class SlotState(IntEnum):
    """What a slot's task is doing."""

    FREE = 0
    CLAIMED = 1
    """Fetched, its handler not yet entered."""
    RUNNING = 2
    SUCCEEDED = 3
    """Finished; nothing follows but the acknowledgement, so the supervisor can do it."""
    FINISHING = 4
    """Ended, also without having been run, in a way that only the worker knows (a result, a retry, a dead
    letter)."""


class WorkerState(IntEnum):
    """What a worker as a whole is doing."""

    BOOTING = 0
    READY = 1
    """Handlers imported, waiting at the gate."""
    FETCHING = 2
    QUIET = 3
    """Told to stop fetching, may be told to resume."""
    DRAINING = 4
    STOPPED = 5


class Cell(IntEnum):
    """Header cells by index. Instants are monotonic nanoseconds, counters only grow."""

    MAGIC = 0
    CAPACITY = 1
    SLOTS_AT = 2
    """Index of the first slot's first cell."""
    META_BYTES = 3
    PID = 4
    STATE = 5
    LOOP_BEAT = 6
    """Last instant at which the event loop turned."""
    THREAD_BEAT = 7
    """Last instant at which a second thread got the interpreter lock."""
    CURRENT = 8
    """One more than the index of the slot whose coroutine is being stepped; 0 for none."""
    TALLY_AT = 9
    """Index of the first cell of the tally."""
    TALLY_CELLS = 10
    SERVER_CLOCK = 11
    """Nanoseconds that make a monotonic instant one of the server's wall clock. Written by the supervisor,
    which asks for it every second; 0 while nobody knows."""
    FETCHED = 16
    SUCCEEDED = 17
    RETRIED = 18
    ARCHIVED = 19
    RELEASED = 20
    LEASES_LOST = 21
    DROPPED = 22
    """Entries whose task was gone (deleted by an operator)."""
    CYCLES = 23


@dataclass(frozen=True, slots=True)
class Slot:
    """One task on the board, as read at one moment."""

    index: int
    state: SlotState
    entry: str
    """Stream entry id, ``<ms>-<seq>``."""
    queue: str
    claimed_ns: int
    started_ns: int
    """Monotonic; 0 if its handler was not entered."""
    deadline_ns: int
    """Monotonic instant at which its timeout ends; 0 for none."""
    counter: int = 0
    """Cell of the tally in which its end is counted; 0 for none."""
    is_counted: bool = False
    """Whether it has been, and only the slot is still to be freed."""


class Board:
    """A mapped board file; one object serves as writer (in the worker) and reader (in the supervisor)."""

    __slots__ = (
        "_map",
        "_slots_at",
        "capacity",
        "cells",
        "consumer",
        "entry_ms_at",
        "path",
        "queues",
        "tally_at",
        "tally_cells",
    )

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self.path = path
        self._map = mapped
        self.cells = memoryview(mapped).cast("q")
        try:
            self.capacity, self._slots_at, meta = _read_header(self.cells, mapped)
            self.consumer: str = meta["consumer"]
            self.queues: tuple[str, ...] = tuple(meta["queues"])
            self.tally_at: int = self.cells[Cell.TALLY_AT]
            self.tally_cells: int = self.cells[Cell.TALLY_CELLS]
            self.entry_ms_at = self._slots_at + _ENTRY_MS
            """Cell that says when the first slot's task became ready: unix ms by the server's clock."""
        except (ValueError, KeyError, TypeError):
            self.close()
            raise ValueError(f"{path}: not a board") from None

    @classmethod
    def create(
        cls, path: Path, capacity: int, *, consumer: str, queues: Sequence[str], tally_cells: int = 0
    ) -> Board:
        """Makes a new board file (mode 0600) with all slots free. Raises FileExistsError, OSError."""
        meta = orjson.dumps({"consumer": consumer, "queues": list(queues)})
        meta_cells = -(-len(meta) // 8)
        tally_at = HEADER_CELLS + meta_cells
        slots_at = tally_at + tally_cells
        size = (slots_at + capacity * SLOT_CELLS) * 8
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Allocated, not merely sized: on a full disk a store into a hole would be SIGBUS, mid-task.
            os.posix_fallocate(fd, 0, size)
            mapped = mmap.mmap(fd, size)
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(fd)
        mapped[HEADER_CELLS * 8 : HEADER_CELLS * 8 + len(meta)] = meta
        cells = memoryview(mapped).cast("q")
        cells[Cell.CAPACITY] = capacity
        cells[Cell.SLOTS_AT] = slots_at
        cells[Cell.META_BYTES] = len(meta)
        cells[Cell.TALLY_AT] = tally_at
        cells[Cell.TALLY_CELLS] = tally_cells
        cells[Cell.MAGIC] = MAGIC  # last: a half-made file is no board
        cells.release()
        return cls(path, mapped)

    @classmethod
    def open(cls, path: Path) -> Board:
        """Maps a board that somebody else made. Raises OSError; ValueError if it is none."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            if size < HEADER_CELLS * 8 or size % 8:
                raise ValueError(f"{path}: not a board")
            return cls(path, mmap.mmap(fd, size))
        finally:
            os.close(fd)

    def close(self) -> None:
        """Unmaps the file; the file itself stays."""
        self.cells.release()
        self._map.close()

    def unlink(self) -> None:
        """Removes the file; what is mapped stays readable."""
        self.path.unlink(missing_ok=True)

    # -- the writer's side: the worker ---------------------------------------------------------

    def claim(self, slot: int, entry: bytes, queue_index: int, now_ns: int) -> None:
        """A task was fetched into ``slot``."""
        cells, at = self.cells, self._slots_at + slot * SLOT_CELLS
        ms, _, seq = entry.partition(b"-")
        sequence = cells[at] + 1
        cells[at] = sequence
        cells[at + _ENTRY_MS] = int(ms)
        cells[at + _ENTRY_SEQ] = int(seq)
        cells[at + _QUEUE] = queue_index
        cells[at + _CLAIMED] = now_ns
        cells[at + _STARTED] = 0
        cells[at + _DEADLINE] = 0
        cells[at + _STATE] = 1
        cells[at] = sequence + 1

    def start(self, slot: int, now_ns: int, deadline_ns: int) -> None:
        """The handler of the task in ``slot`` is being entered."""
        cells, at = self.cells, self._slots_at + slot * SLOT_CELLS
        cells[at + _STARTED] = now_ns
        cells[at + _DEADLINE] = deadline_ns
        cells[at + _STATE] = 2

    def succeed(self, slot: int, counter: int = 0) -> None:
        """It returned, and nothing is left to do but the acknowledgement.

        ``counter`` is the cell in which that will be counted.
        """
        self.cells[self._slots_at + slot * SLOT_CELLS + _STATE] = 3 | counter << 8

    def finish(self, slot: int, counter: int = 0) -> None:
        """It ended with any other outcome."""
        self.cells[self._slots_at + slot * SLOT_CELLS + _STATE] = 4 | counter << 8

    def counter(self, slot: int) -> int:
        """The cell in which the end of the task in ``slot`` will be counted; 0 if it has not ended."""
        return self.cells[self._slots_at + slot * SLOT_CELLS + _STATE] >> 8

    def free(self, slot: int) -> None:
        """It is not this worker's any more; if it had ended, the reply has arrived, and the end is counted.

        Wherever in between the worker dies, it can be seen whether that was counted.
        """
        cells, at = self.cells, self._slots_at + slot * SLOT_CELLS + _STATE
        word = cells[at]
        counter = word >> 8
        if counter:
            count = cells[counter] + 1
            cells[at] = word | _COUNTING[count & 1]
            cells[counter] = count
        cells[at] = 0

    # -- the reader's side: the supervisor ------------------------------------------------------

    def read(self) -> list[Slot]:
        """Every slot that is not free. Slots that change too often to be read are left out."""
        first = self._slots_at + _STATE
        words = self.cells[first : first + self.capacity * SLOT_CELLS : SLOT_CELLS].tolist()
        taken = [index for index, word in enumerate(words) if word]  # most slots are free
        return [slot for index in taken if (slot := self.read_slot(index)) is not None]

    def read_slot(self, index: int) -> Slot | None:
        """One slot, or None if it is free (or was reused faster than it could be read)."""
        cells, at = self.cells, self._slots_at + index * SLOT_CELLS
        for _ in range(_READ_RETRIES):
            sequence = cells[at]
            word = cells[at + _STATE]
            state = word & 0xFF
            queue = cells[at + _QUEUE]
            if not (0 < state <= SlotState.FINISHING and 0 <= queue < len(self.queues)):
                return None  # free; or what no worker writes, and then its entry is only pending
            found = Slot(
                index=index,
                state=SlotState(state),
                entry=f"{cells[at + _ENTRY_MS]}-{cells[at + _ENTRY_SEQ]}",
                queue=self.queues[queue],
                claimed_ns=cells[at + _CLAIMED],
                started_ns=cells[at + _STARTED],
                deadline_ns=cells[at + _DEADLINE],
                counter=word >> 8 & _COUNTER_BITS,
                is_counted=self._is_counted(word),
            )
            # An odd sequence with a state is a writer that died after the state was stored: whole.
            if cells[at] == sequence and cells[at + _STATE] == word:
                return found
        return None

    def _is_counted(self, word: int) -> bool:
        counting, counter = word >> _COUNTING_AT, word >> 8 & _COUNTER_BITS
        # a counter stands before the slots; elsewhere it is what no worker writes
        return counting > 1 and counter < self._slots_at and self.cells[counter] & 1 == counting & 1

    @property
    def state(self) -> WorkerState:
        """What the worker says it is doing; BOOTING for what no worker writes."""
        state = self.cells[Cell.STATE]
        return WorkerState(state) if 0 <= state <= WorkerState.STOPPED else WorkerState.BOOTING

    @property
    def current(self) -> Slot | None:
        """The task whose coroutine is being stepped, if any: the one that blocks the loop."""
        index = self.cells[Cell.CURRENT]
        return self.read_slot(index - 1) if 0 < index <= self.capacity else None


def _read_header(cells: memoryview[int], mapped: mmap.mmap) -> tuple[int, int, dict[str, Any]]:
    """Capacity, index of the first slot's first cell, meta. Raises ValueError: a board that a killed daemon
    has left is read by the next one, which must not stumble over half a file.
    """
    capacity, slots_at, size = cells[Cell.CAPACITY], cells[Cell.SLOTS_AT], cells[Cell.META_BYTES]
    start = HEADER_CELLS * 8
    whole = (
        cells[Cell.MAGIC] == MAGIC
        and capacity >= 0
        and 0 < size <= (slots_at - HEADER_CELLS) * 8
        and slots_at + capacity * SLOT_CELLS <= len(cells)
        and 0 <= cells[Cell.TALLY_CELLS] <= slots_at - cells[Cell.TALLY_AT]
        and cells[Cell.TALLY_AT] >= HEADER_CELLS
    )
    if not whole:
        raise ValueError("not a board")
    meta = orjson.loads(mapped[start : start + size])
    if type(meta) is not dict:
        raise ValueError("not a board")
    return capacity, slots_at, meta
