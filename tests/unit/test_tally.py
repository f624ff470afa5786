"""The tally: counters and histograms that a worker writes and a supervisor reads, also after its death."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chronosd import tally
from chronosd.board import Board, Cell
from chronosd.metrics import BUCKETS, OTHER, End
from chronosd.tally import Tally, cells_needed

QUEUES = ("default", "löw")
KINDS = ("email:send", "bild:größe", "job")


def make(path: Path, queues: tuple[str, ...] = QUEUES) -> Board:
    return Board.create(path, 8, consumer="w", queues=queues, tally_cells=cells_needed(len(queues)))


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    one = make(tmp_path / "board")
    yield one
    one.close()


def end(one: Tally, queue: int, kind: str, how: End, *, slot: int = 0, took_s: float = 0.0) -> int:
    now = time.monotonic_ns()
    return one.ended(queue, kind, how, slot, now - int(took_s * 1e9), now)


def test_what_ended_is_counted_by_queue_kind_and_outcome(board: Board) -> None:
    one = Tally(board, KINDS)
    for kind, how, times in (
        ("job", End.SUCCEEDED, 3),
        ("job", End.RETRIED, 1),
        ("bild:größe", End.ARCHIVED, 2),
    ):
        for _ in range(times):
            one.count(end(one, 1, kind, how))
    one.count(one.counter(0, "job", End.DISCARDED))
    outcomes = tally.read(board).outcomes
    assert {pair: sum(counts) for pair, counts in outcomes.items()} == {
        ("löw", "job"): 4,
        ("löw", "bild:größe"): 2,
        ("default", "job"): 1,
    }
    assert outcomes["löw", "job"][End.SUCCEEDED] == 3
    assert outcomes["löw", "job"][End.RETRIED] == 1
    assert outcomes["default", "job"][End.DISCARDED] == 1


def test_an_end_that_redis_has_not_is_observed_and_not_counted(board: Board) -> None:
    one = Tally(board, KINDS)
    end(one, 0, "job", End.SUCCEEDED)
    reading = tally.read(board)
    assert sum(reading.outcomes["default", "job"]) == 0
    assert sum(reading.durations["default", "job"].buckets) == 1


def test_the_slot_of_an_ended_task_says_where_its_end_will_be_counted(board: Board) -> None:
    one = Tally(board, KINDS)
    board.claim(2, b"5-1", 1, 1)
    board.finish(2, end(one, 1, "email:send", End.RETRIED, slot=2))
    slot = board.read_slot(2)
    assert slot is not None
    assert tally.end_of(board, slot.counter) == ("email:send", End.RETRIED)
    assert tally.end_of(board, one.instead(slot.counter, End.LOST)) == ("email:send", End.LOST)
    board.claim(2, b"6-1", 1, 1)
    claimed = board.read_slot(2)
    assert claimed is not None
    assert tally.end_of(board, claimed.counter) is None


def test_kinds_that_nobody_handles_and_kinds_beyond_the_room_count_as_other(tmp_path: Path) -> None:
    kinds = [f"kind:{i:04}" for i in range(3000)]
    board = make(tmp_path / "board")
    one = Tally(board, kinds)
    for kind in ("nobody:knows", *kinds):
        one.count(end(one, 0, kind, End.SUCCEEDED))
    outcomes = tally.read(board).outcomes
    assert sum(map(sum, outcomes.values())) == 3001
    assert 100 < len(outcomes) < 250
    assert outcomes["default", OTHER][End.SUCCEEDED] == 3001 - (len(outcomes) - 1)
    assert ("default", "nobody:knows") not in outcomes
    board.close()


def test_durations_and_waits_fall_into_their_buckets(board: Board) -> None:
    one = Tally(board, KINDS)
    board.cells[Cell.SERVER_CLOCK] = time.time_ns() - time.monotonic_ns()
    for took_s in (0.0, 0.0009, 0.002, 0.04, 3, 4000):
        board.claim(0, b"%d-0" % (time.time() * 1000 - took_s * 1000 - 20_000), 0, 1)
        end(one, 0, "job", End.SUCCEEDED, took_s=took_s)
    reading = tally.read(board)
    durations = reading.durations["default", "job"]
    assert durations.buckets[:2] == [2, 1]
    assert (durations.buckets[4], durations.buckets[10], durations.buckets[BUCKETS - 1]) == (1, 1, 1)
    assert sum(durations.buckets) == 6
    assert durations.sum_s == pytest.approx(4003.0429, abs=0.001)
    waits = reading.latencies["default"]
    assert waits.buckets[12] == 6  # 20 s, each
    assert waits.sum_s == pytest.approx(120, abs=1)


def test_a_clock_that_is_behind_and_an_entry_of_1970_do_no_harm(board: Board) -> None:
    one = Tally(board, KINDS)
    board.cells[Cell.SERVER_CLOCK] = time.time_ns() - time.monotonic_ns()
    for entry in (b"1-0", b"9223372036854775-0"):
        board.claim(0, entry, 0, 1)
        for _ in range(1000):
            end(one, 0, "job", End.SUCCEEDED)
    waits = tally.read(board).latencies["default"]
    assert (waits.buckets[0], waits.buckets[BUCKETS - 1]) == (1000, 1000)


def test_without_the_servers_clock_no_wait_is_observed(board: Board) -> None:
    one = Tally(board, KINDS)
    board.claim(0, b"1-0", 0, 1)
    end(one, 0, "job", End.SUCCEEDED)
    assert tally.read(board).latencies == {}


def test_a_board_without_a_tally_and_one_full_of_nonsense_can_be_read(tmp_path: Path) -> None:
    plain = Board.create(tmp_path / "plain", 1, consumer="w", queues=["q"])
    assert tally.read(plain).outcomes == {}
    assert tally.end_of(plain, 5000) is None
    plain.close()
    spoilt = make(tmp_path / "spoilt")
    for at in range(spoilt.tally_at, spoilt.tally_at + spoilt.tally_cells):
        spoilt.cells[at] = -7 if at % 2 else 2**62
    tally.read(spoilt)
    for counter in (-1, 0, 2**54, spoilt.tally_at):
        assert tally.end_of(spoilt, counter) is None
    spoilt.close()


def test_the_tally_is_there_for_whoever_opens_the_board(board: Board) -> None:
    one = Tally(board, KINDS)
    one.count(end(one, 0, "job", End.SUCCEEDED))
    again = Board.open(board.path)
    assert tally.read(again) == tally.read(board)
    again.close()
