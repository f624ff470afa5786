"""The board: written by one process, read by another at any moment, and after its death."""

from __future__ import annotations

import os
import random
import resource
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chronosd.board import HEADER_CELLS, SLOT_CELLS, Board, Cell, Slot, SlotState, WorkerState
from tests.support.dying import DyingCells, dies_in
from tests.support.waiting import at_most

QUEUES = ("critical", "default", "löw")


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    one = Board.create(tmp_path / "board", 8, consumer="host-1-ü", queues=QUEUES)
    yield one
    one.close()


def in_child(do: Callable[[], Any]) -> int:
    """Runs ``do`` in a forked process; returns its exit status."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            do()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_new_board_has_only_free_slots(board: Board) -> None:
    assert board.read() == []
    assert board.state is WorkerState.BOOTING
    assert board.current is None
    assert (board.capacity, board.consumer, board.queues) == (8, "host-1-ü", QUEUES)


def test_a_slot_tells_the_whole_life_of_a_task(board: Board) -> None:
    board.claim(3, b"1700000000000-42", 2, 1000)
    claimed = Slot(3, SlotState.CLAIMED, "1700000000000-42", "löw", 1000, 0, 0)
    assert board.read() == [claimed]
    board.start(3, 2000, 5000)
    assert board.read() == [Slot(3, SlotState.RUNNING, claimed.entry, "löw", 1000, 2000, 5000)]
    board.succeed(3)
    assert board.read_slot(3) == Slot(3, SlotState.SUCCEEDED, claimed.entry, "löw", 1000, 2000, 5000)
    board.free(3)
    assert board.read() == []
    board.claim(3, b"1-0", 0, 7000)
    assert board.read() == [Slot(3, SlotState.CLAIMED, "1-0", "critical", 7000, 0, 0)]
    board.finish(3)
    assert board.read()[0].state is SlotState.FINISHING


def test_a_slot_tells_where_its_end_is_counted_and_whether_it_has_been(tmp_path: Path) -> None:
    """A reader may look between any two stores, at a worker that lives or at one that died there."""
    board = Board.create(tmp_path / "board", 2, consumer="c", queues=["q"], tally_cells=4)
    for counter in (board.tally_at, board.tally_at + 3, board.tally_at + 3):
        before = board.cells[counter]
        board.claim(1, b"1-1", 0, 1)
        assert board.counter(1) == 0
        board.succeed(1, counter)
        assert board.counter(1) == counter
        seen = []
        for stores in range(3):
            assert dies_in(board, stores, lambda: board.free(1))
            slot = board.read_slot(1)
            assert slot is not None
            assert (slot.state, slot.counter) == (SlotState.SUCCEEDED, counter)
            seen.append((slot.is_counted, board.cells[counter] - before))
            board.succeed(1, counter)
            board.cells[counter] = before
        assert seen == [(False, 0), (False, 0), (True, 1)]
        board.free(1)
        assert board.read() == []
        assert board.cells[counter] == before + 1
    board.close()


def test_the_largest_entry_id_of_a_stream_fits(board: Board) -> None:
    board.claim(0, b"9223372036854775807-9223372036854775807", 0, 2**62)
    assert board.read()[0].entry == "9223372036854775807-9223372036854775807"


def test_the_current_slot_is_the_one_whose_coroutine_is_stepped(board: Board) -> None:
    board.claim(5, b"1-1", 0, 1)
    board.cells[Cell.CURRENT] = 6
    assert board.current == board.read_slot(5)
    board.cells[Cell.CURRENT] = 1
    assert board.current is None
    for nonsense in (9, -1, 2**62):
        board.cells[Cell.CURRENT] = nonsense
        assert board.current is None


def test_another_process_reads_what_a_killed_one_wrote(board: Board) -> None:
    def write() -> None:
        board.cells[Cell.STATE] = WorkerState.FETCHING
        board.claim(0, b"1-1", 0, 1)
        board.claim(1, b"1-2", 1, 2)
        board.start(1, 3, 4)
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(write) == -signal.SIGKILL
    other = Board.open(board.path)
    assert other.state is WorkerState.FETCHING
    assert [(s.entry, s.state) for s in other.read()] == [
        ("1-1", SlotState.CLAIMED),
        ("1-2", SlotState.RUNNING),
    ]
    assert (other.consumer, other.queues, other.capacity) == (board.consumer, board.queues, 8)
    other.close()


def test_the_file_is_the_owners_alone_and_exactly_as_large_as_its_slots(tmp_path: Path) -> None:
    for capacity in (0, 1, 390, 20_000):
        path = tmp_path / f"board{capacity}"
        one = Board.create(path, capacity, consumer="c", queues=["q"])
        status = path.stat()
        assert stat.S_IMODE(status.st_mode) == 0o600
        meta_cells = one.cells[Cell.SLOTS_AT] - HEADER_CELLS
        assert status.st_size == (HEADER_CELLS + meta_cells + capacity * SLOT_CELLS) * 8
        assert status.st_blocks * 512 >= status.st_size, "a hole: a store into it can be SIGBUS"
        if capacity:
            one.claim(capacity - 1, b"1-1", 0, 1)
            assert one.read()[-1].index == capacity - 1
        one.close()


def test_a_board_is_made_once(board: Board) -> None:
    with pytest.raises(FileExistsError):
        Board.create(board.path, 1, consumer="c", queues=[])


def test_a_full_disk_is_an_error_where_the_board_is_made_and_leaves_no_file(tmp_path: Path) -> None:
    """Found out later it would be SIGBUS, in the middle of a task."""
    path = tmp_path / "board"

    def create() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            Board.create(path, 1000, consumer="c", queues=["q"])
        except OSError:
            os._exit(42)

    assert in_child(create) == 42
    assert not path.exists()


def test_an_unlinked_board_stays_readable(board: Board) -> None:
    board.claim(0, b"1-1", 0, 1)
    board.unlink()
    board.unlink()
    assert not board.path.exists()
    assert len(board.read()) == 1


def test_what_is_no_board_is_refused(tmp_path: Path, board: Board) -> None:
    """The next daemon reads what a killed one left: half a file must not stop it."""
    whole = board.path.read_bytes()
    cell = 8
    damaged = {
        "empty": b"",
        "short": whole[:100],
        "header only": whole[: HEADER_CELLS * 8],
        "odd size": whole + b"x",
        "truncated": whole[:-cell],
        "zeros": bytes(len(whole)),
        "random": random.Random(1).randbytes(len(whole)),
        "no magic": bytes(cell) + whole[cell:],
    }
    for number, name in ((Cell.CAPACITY, "capacity"), (Cell.SLOTS_AT, "slots"), (Cell.META_BYTES, "meta")):
        for value in (2**40, -1, -(2**40)):
            at = number * cell
            changed = value.to_bytes(8, "little", signed=True)
            damaged[f"{name} {value}"] = whole[:at] + changed + whole[at + cell :]
    for meta in (b"[1]", b"{}  ", b"nope", b'{"consumer": 1}'):
        at = HEADER_CELLS * cell
        size = board.cells[Cell.META_BYTES]
        damaged[f"meta {meta!r}"] = whole[:at] + meta.ljust(size) + whole[at + size :]
    for name, data in damaged.items():
        path = tmp_path / "damaged"
        path.write_bytes(data)
        try:
            Board.open(path).close()
        except ValueError as error:
            assert str(error) == f"{path}: not a board"  # noqa: PT017 - which one it was is to be told
        else:
            pytest.fail(f"{name} was taken for a board")
    with pytest.raises(FileNotFoundError):
        Board.open(tmp_path / "none")


def test_a_slot_with_what_no_worker_writes_counts_as_free(board: Board) -> None:
    first = board.cells[Cell.SLOTS_AT]
    board.claim(0, b"1-1", 0, 1)
    for offset, value in ((1, 5), (1, -1), (1, 2**40), (4, 3), (4, -1)):
        kept = board.cells[first + offset]
        board.cells[first + offset] = value
        assert board.read() == []
        board.cells[first + offset] = kept
    assert len(board.read()) == 1
    for word in (4 | 2**39, 3 | (2**32 - 1) << 8 | 3 << 40, 3 | 2**62, 4 - (1 << 40)):
        board.cells[first + 1] = word
        assert not board.read()[0].is_counted


def die() -> None:
    """A SIGKILL can come between any two stores."""
    os.kill(os.getpid(), signal.SIGKILL)


LIFE: tuple[Callable[[Board], None], ...] = (
    lambda b: b.claim(0, b"100-1", 0, 11),
    lambda b: b.start(0, 12, 13),
    lambda b: b.succeed(0),
    lambda b: b.free(0),
    lambda b: b.claim(0, b"200-2", 1, 21),
    lambda b: b.start(0, 22, 23),
    lambda b: b.finish(0),
    lambda b: b.free(0),
)


def test_a_state_that_no_worker_writes_is_none(board: Board) -> None:
    """A worker that scribbles over its memory before it dies must not take the supervisor along."""
    for garbage in (-1, 99, 1 << 62):
        board.cells[Cell.STATE] = garbage
        assert board.state is WorkerState.BOOTING


def test_whatever_store_a_writer_dies_at_the_slot_is_whole_or_free(tmp_path: Path) -> None:
    wholes = {
        ("100-1", "a"): {(11, 0, 0), (11, 12, 0), (11, 12, 13)},
        ("200-2", "b"): {(21, 0, 0), (21, 22, 0), (21, 22, 23)},
    }
    seen = set()
    stores = 0
    while True:
        path = tmp_path / f"board{stores}"
        board = Board.create(path, 1, consumer="c", queues=["a", "b"])

        def live(board: Board = board, stores: int = stores) -> None:
            board.cells = DyingCells(board.cells, stores, die)  # type: ignore[assignment]
            for step in LIFE:
                step(board)

        status = in_child(live)
        for slot in board.read():
            assert (slot.claimed_ns, slot.started_ns, slot.deadline_ns) in wholes[slot.entry, slot.queue]
            if slot.state is not SlotState.CLAIMED:
                assert slot.deadline_ns
            seen.add((slot.entry, slot.state))
        board.close()
        if status == 0:
            break
        stores += 1
    assert stores > 20
    assert seen == {
        ("100-1", SlotState.CLAIMED),
        ("100-1", SlotState.RUNNING),
        ("100-1", SlotState.SUCCEEDED),
        ("200-2", SlotState.CLAIMED),
        ("200-2", SlotState.RUNNING),
        ("200-2", SlotState.FINISHING),
    }


def test_a_live_writer_is_never_read_torn(tmp_path: Path) -> None:
    """Every value of a slot is made from one number, so that a mixture of two tasks shows."""
    board = Board.create(tmp_path / "board", 4, consumer="c", queues=[f"q{i}" for i in range(7)])
    pid = os.fork()
    if pid == 0:
        number = 1
        while True:
            slot = number % 4
            board.claim(slot, b"%d-%d" % (number, number), number % 7, number)
            board.start(slot, number, number)
            if number % 2:
                board.succeed(slot)
            else:
                board.finish(slot)
            if number % 3:
                board.free(slot)
            else:
                board.cells[Cell.CYCLES] = number
                board.free(slot)
            number += 1
    try:
        changed = 0
        began = time.monotonic()
        last = ""
        # on a busy machine the two have to share a processor, and take turns instead of meeting
        while changed < 100 or time.monotonic() - began < 1:
            assert time.monotonic() - began < at_most(60), f"{changed} tasks seen: the writer stands still"
            for slot in board.read():
                number = int(slot.entry.partition("-")[0])
                assert slot.entry == f"{number}-{number}"
                assert slot.index == number % 4
                assert slot.queue == f"q{number % 7}"
                assert slot.claimed_ns == number
                assert slot.started_ns in (0, number)
                assert slot.deadline_ns in (0, number)
                changed += slot.entry != last
                last = slot.entry
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        board.close()
