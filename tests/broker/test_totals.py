"""What the supervisor counts in the place of the dead: each end once, whoever got to tell it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chronosd.board import Board, Cell
from chronosd.broker import consume
from chronosd.broker.consume import Again, Dead, Done, Fetched
from chronosd.broker.settle import Policy
from chronosd.metrics import LATENCY, LEASES_LOST, OTHER, PROCESSED, RECOVERED, RECOVERY_LATENCY, End
from chronosd.states import State
from chronosd.supervisor.process import Exit
from chronosd.supervisor.recovery import Recovery
from chronosd.supervisor.steps import Step
from chronosd.supervisor.totals import Totals
from chronosd.supervisor.verdict import judge
from chronosd.tally import Tally, cells_needed
from chronosd.worker.held import Held
from tests.support.bench import Bench
from tests.support.dying import dies_in

KIND = "mail:send"


class DeadWorker:
    """A worker's board, and the supervisor that settles it."""

    def __init__(self, bench: Bench, path: Path) -> None:
        self.bench = bench
        self.board = Board.create(path, 16, consumer="w", queues=["q"], tally_cells=cells_needed(1))
        self.tally = Tally(self.board, [KIND])
        self.runs: list[Fetched] = []
        self.totals = Totals(lambda: {KIND})
        self.now = time.monotonic()
        self.recovery = Recovery(
            bench.namespace, 30.0, Policy(3, lambda kind, retried: 1.0), lambda: self.now, self.totals
        )
        self.step = Step(self.recovery, now=self.now)

    def hold(self, count: int) -> None:
        self.bench.group()
        self.bench.add(*(f"t{i}" for i in range(count)))
        self.runs = self.bench.fetch("w", count)
        for slot, run in enumerate(self.runs):
            self.board.claim(slot, run.entry, 0, time.monotonic_ns())
            self.board.start(slot, time.monotonic_ns(), 0)

    def end(self, slot: int, how: End) -> None:
        """The handler has ended; Redis does not know yet."""
        counter = self.tally.counter(0, KIND, how)
        if how is End.SUCCEEDED:
            self.board.succeed(slot, counter)
        else:
            self.board.finish(slot, counter)

    def die(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """By SIGKILL; the supervisor settles it until nothing is left to do.

        ``meanwhile`` is called after each round trip.
        """
        self.totals.fold(self.board)
        verdict = judge(self.board.read(), Exit(None, 9), None, now_ns=time.monotonic_ns())
        self.recovery.add(consumer="w", queues=["q"], verdict=verdict, board=self.board)
        while self.recovery.open:
            self.step.advance(self.bench.runner, self.now)
            self.now += 1.0
            meanwhile()

    def counted(self) -> dict[str, int]:
        found = {}
        for (name, labels), value in self.totals.values([]).counters.items():
            if name == PROCESSED and value:
                queue, kind, outcome = labels
                assert (queue, kind) == ("q", KIND)
                found[outcome] = value
        return found


@pytest.fixture
def dead(bench: Bench, tmp_path: Path) -> DeadWorker:
    return DeadWorker(bench, tmp_path / "board")


def test_what_it_had_ended_and_redis_had_taken_is_counted_for_it(dead: DeadWorker) -> None:
    """It died between the execution of its last cycle and the reply."""
    dead.hold(3)
    for slot, how in enumerate((End.SUCCEEDED, End.RETRIED, End.ARCHIVED)):
        dead.end(slot, how)
    one, two, three = dead.runs
    queue, run = dead.bench.queue, dead.bench.run
    run(consume.complete(queue, [Done(one.entry, one.task_id)]))
    run(consume.retry(queue, [Again(two.entry, two.task_id, dead.bench.stored("t1"), 5.0)]))
    run(consume.archive(queue, [Dead(three.entry, three.task_id, dead.bench.stored("t2"))]))
    dead.die()
    assert dead.counted() == {"succeeded": 1, "retried": 1, "archived": 1}


def test_what_redis_had_not_taken_counts_as_what_becomes_of_it(dead: DeadWorker) -> None:
    """A success is acknowledged and counts, a running one has crashed, and what runs again for nothing that
    anybody is to blame for does not count: it will, when it has ended."""
    dead.hold(4)
    dead.end(0, End.SUCCEEDED)
    dead.end(1, End.RETRIED)
    dead.end(2, End.POSTPONED)
    dead.die()
    assert dead.counted() == {"succeeded": 1, "crashed": 1}
    values = dead.totals.values([])
    assert values.counters[RECOVERED, ("q", "worker")] == 4
    assert sum(values.histograms[RECOVERY_LATENCY, ("worker",)].buckets) == 1


def test_what_it_had_counted_itself_is_counted_once(dead: DeadWorker) -> None:
    dead.hold(2)
    dead.end(0, End.SUCCEEDED)
    one = dead.runs[0]
    dead.bench.run(consume.complete(dead.bench.queue, [Done(one.entry, one.task_id)]))
    dead.board.free(0)  # the reply has come
    dead.die()
    assert dead.counted() == {"succeeded": 1, "crashed": 1}


@pytest.mark.parametrize(
    "stores", [0, 1, 2], ids=["before the word", "before the count", "before the slot is free"]
)
def test_what_it_was_counting_when_it_died_is_counted_once(dead: DeadWorker, stores: int) -> None:
    dead.hold(3)
    for slot, how in enumerate((End.SUCCEEDED, End.RETRIED, End.SUCCEEDED)):
        dead.end(slot, how)
    one, two, _ = dead.runs
    dead.bench.run(consume.complete(dead.bench.queue, [Done(one.entry, one.task_id)]))
    dead.bench.run(
        consume.retry(dead.bench.queue, [Again(two.entry, two.task_id, dead.bench.stored("t1"), 5.0)])
    )
    dead.board.free(0)
    assert dies_in(dead.board, stores, lambda: dead.board.free(1))
    dead.die()
    assert dead.counted() == {"succeeded": 2, "retried": 1}


def test_what_ended_without_a_run_is_counted_if_redis_has_it_and_else_goes_back(dead: DeadWorker) -> None:
    """What goes back is not charged: its handler was never entered."""
    dead.hold(0)
    dead.bench.add("t0", "t1")
    held = Held(dead.board, [dead.bench.queue], dead.tally)
    one, two = dead.bench.fetch("w", 2)
    for run in (one, two):
        held.end_unrun((0, run.entry), KIND, End.POSTPONED)
    dead.bench.run(
        consume.retry(dead.bench.queue, [Again(one.entry, one.task_id, dead.bench.stored("t0"), 5.0)])
    )
    dead.die()
    assert dead.counted() == {"postponed": 1}
    look = dead.bench.look()
    assert (look.waiting, list(look.sets[State.RETRY])) == (["t1"], ["t0"])
    assert (dead.bench.stored("t1").retried, "crashes" in dead.bench.hash("t1")) == (0, False)
    assert dead.bench.hash("t1")["returned"] == "1"


def test_what_is_settled_while_something_else_is_refused_is_counted_by_what_became_of_it(
    dead: DeadWorker,
) -> None:
    """Dead letters had no place, and were settled when they had. What had been settled beside them was not
    pending any more by then: what had gone back to run again was taken for ended, and a crash not counted."""
    dead.hold(2)
    dead.bench.add("spent", max_retry=0)
    (spent,) = dead.bench.fetch("w", 1)
    dead.board.claim(2, spent.entry, 0, time.monotonic_ns())
    dead.board.start(2, time.monotonic_ns(), 0)
    dead.end(0, End.RETRIED)
    archived = dead.bench.queue.archived
    dead.bench.redis.set(archived, "no sorted set")
    dead.die(lambda: dead.bench.redis.delete(archived) if dead.step.troubles else None)
    assert dead.counted() == {"crashed": 1, "archived": 1}
    assert dead.bench.look().waiting == ["t0", "t1"]
    assert dead.totals.values([]).counters[RECOVERED, ("q", "worker")] == 3


def test_the_total_is_the_living_and_the_dead(tmp_path: Path) -> None:
    boards = [
        Board.create(tmp_path / f"{i}", 2, consumer="w", queues=["q"], tally_cells=cells_needed(1))
        for i in range(3)
    ]
    totals = Totals()
    for board in boards:
        one = Tally(board, [KIND])
        for _ in range(5):
            one.count(one.counter(0, KIND, End.SUCCEEDED))
        board.cells[Cell.LEASES_LOST] += 2
    seen = []
    while boards:
        values = totals.values(boards)
        seen.append((values.counters[PROCESSED, ("q", KIND, "succeeded")], values.counters[LEASES_LOST, ()]))
        totals.fold(boards.pop())
    assert seen == [(15, 6)] * 3
    assert totals.values([]).counters[PROCESSED, ("q", KIND, "succeeded")] == 15


def test_kinds_are_bounded_over_all_reloads(tmp_path: Path) -> None:
    totals = Totals()
    for n in range(20):
        kinds = [f"kind:{n}:{i}" for i in range(150)]
        board = Board.create(tmp_path / f"{n}", 1, consumer="w", queues=["q"], tally_cells=cells_needed(1))
        one = Tally(board, kinds)
        for kind in kinds:
            one.count(one.counter(0, kind, End.SUCCEEDED))
        totals.fold(board)
        board.close()
    ended = {
        labels[1]: value
        for (name, labels), value in totals.values([]).counters.items()
        if name == PROCESSED and labels[2] == "succeeded"
    }
    assert sum(ended.values()) == 3000
    assert len(ended) == 2001
    assert ended[OTHER] == 1000
    assert (LATENCY, ("q",)) not in totals.values([]).histograms
