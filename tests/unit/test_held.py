"""What a worker counts as it hears from Redis, and what its supervisor counts if it dies meanwhile.

Together that is every end, once, whatever store was the worker's last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chronosd.board import Board, SlotState
from chronosd.broker import consume
from chronosd.broker.fates import Settled
from chronosd.broker.keys import Namespace
from chronosd.broker.message import Message
from chronosd.handlers import make_handler
from chronosd.metrics import OTHER, PROCESSED, End
from chronosd.supervisor.totals import Totals, unheard_on
from chronosd.tally import Tally, cells_needed
from chronosd.worker.complete import Sending
from chronosd.worker.held import Held
from chronosd.worker.run import Run
from chronosd.worker.starter import Starter
from tests.support.dying import dies_in

KIND = "mail:send"
QUEUE = Namespace("n").queue("q")
SLOTS = 8


class Worker:
    """What one holds, without a loop or a Redis."""

    def __init__(self, path: Path) -> None:
        self.board = Board.create(path, SLOTS, consumer="w", queues=["q"], tally_cells=cells_needed(1))
        self.held = Held(self.board, [QUEUE], Tally(self.board, [KIND]))
        self.starter = Starter(self.held, concurrency=SLOTS, alone_from=99)
        self._made = 0

    def entry(self) -> bytes:
        self._made += 1
        return b"1-%d" % self._made

    def run(self) -> Run:
        """A task that is here and runs."""
        entry, now_ns = self.entry(), time.monotonic_ns()
        slot = self.held.claim((0, entry), now_ns)
        message = Message(entry.decode(), KIND, "q", b"{}", max_retry=5)
        run = Run(slot, entry, 0, message, make_handler(KIND, _handler, timeout=60), 0, now_ns)
        self.held.runs[0, entry] = run
        self.board.start(slot, now_ns, 0)
        run.started_ns = now_ns
        return run

    def ended(self, how: End = End.SUCCEEDED) -> bytes:
        """A run that has ended, which Redis has not said yet."""
        run = self.run()
        counter = self.held.tally.counter(0, KIND, how)
        if how is End.SUCCEEDED:
            self.board.succeed(run.slot, counter)
        else:
            self.board.finish(run.slot, counter)
        return run.entry

    def unrun(self, how: End = End.ARCHIVED) -> bytes:
        """The same of an entry that was none."""
        entry = self.entry()
        self.held.end_unrun((0, entry), OTHER, how)
        return entry

    def told(self, *entries: bytes) -> None:
        self.held.told(sending(*entries))

    def counted(self) -> dict[str, int]:
        """By outcome what the supervisor makes of its board, when all that had ended has been carried out."""
        totals = Totals()
        totals.fold(self.board)
        totals.resolve(unheard_on(self.board), Settled())
        found: dict[str, int] = {}
        for (name, labels), value in totals.values([]).counters.items():
            if name == PROCESSED and value:
                found[labels[2]] = found.get(labels[2], 0) + value
        return found


async def _handler(task: Any) -> None:
    pass


def sending(*entries: bytes) -> Sending:
    return Sending(0, "q", consume.complete(QUEUE, []), list(entries))


Make = Callable[[], Worker]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    workers: list[Worker] = []

    def one() -> Worker:
        workers.append(Worker(tmp_path / f"board{len(workers)}"))
        return workers[-1]

    yield one
    for worker in workers:
        worker.board.close()


@pytest.mark.parametrize("earlier", [0, 1], ids=["to an odd count", "to an even count"])
@pytest.mark.parametrize("how", [End.SUCCEEDED, End.RETRIED, End.ARCHIVED])
@pytest.mark.parametrize(
    ("stores", "is_counted"),
    [(0, False), (1, False), (2, True), (3, None)],
    ids=["before the word", "before the count", "before the slot is free", "after it"],
)
def test_an_end_counts_once_wherever_the_worker_dies_in_counting_it(
    make: Make, how: End, earlier: int, stores: int, is_counted: bool | None
) -> None:
    """Killed between the count and the freeing of the slot it left both, and the supervisor counted again."""
    worker = make()
    for _ in range(earlier):
        worker.told(worker.ended(how))
    entry = worker.ended(how)
    assert dies_in(worker.board, stores, lambda: worker.told(entry)) is (stores < 3)
    assert worker.counted() == {how.label: earlier + 1}
    found = {slot.entry: slot.is_counted for slot in worker.board.read()}
    assert found == ({} if is_counted is None else {entry.decode(): is_counted})


def test_of_many_ends_each_counts_once_wherever_the_worker_dies(make: Make) -> None:
    deaths = 0
    while True:
        worker = make()
        ends = (End.SUCCEEDED, End.RETRIED, End.SUCCEEDED, End.ARCHIVED, End.SUCCEEDED)
        entries = [*map(worker.ended, ends), worker.unrun(), worker.unrun(End.POSTPONED)]
        worker.run()  # goes on
        if not dies_in(worker.board, deaths, lambda w=worker, e=entries: w.told(*e)):  # type: ignore[misc]
            break
        assert worker.counted() == {"succeeded": 3, "retried": 1, "archived": 2, "postponed": 1}
        deaths += 1
    assert deaths == 3 * 7
    assert [slot.state for slot in worker.board.read()] == [SlotState.RUNNING]


@pytest.mark.parametrize("how", [End.ARCHIVED, End.POSTPONED, End.DISCARDED])
def test_what_ends_without_a_run_is_on_the_board_until_its_end_is_told(make: Make, how: End) -> None:
    """A worker killed between the end of such a task in Redis and the reply never counted it."""
    worker = make()
    entry = worker.unrun(how)
    (slot,) = worker.board.read()
    assert (slot.entry, slot.state, slot.started_ns) == (entry.decode(), SlotState.FINISHING, 0)
    assert worker.counted() == {how.label: 1}
    worker.told(entry)
    assert worker.board.read() == []
    assert worker.counted() == {how.label: 1}
    assert len(worker.held.free_slots) == SLOTS
    worker.told(entry)
    assert worker.counted() == {how.label: 1}


def test_what_finds_no_free_slot_ends_all_the_same_and_counts_when_it_is_told(make: Make) -> None:
    worker = make()
    entries = [worker.unrun() for _ in range(SLOTS + 2)]
    assert all(worker.held.holds((0, entry)) for entry in entries)
    assert worker.counted() == {"archived": SLOTS}
    worker.held.recount([(0, entries[-1])], End.LOST)
    worker.told(*entries)
    assert worker.counted() == {"archived": SLOTS + 1, "lost": 1}
    assert worker.board.read() == []
    assert not any(worker.held.holds((0, entry)) for entry in entries)


def test_what_is_refused_and_was_never_a_run_leaves_its_slot_to_others(make: Make) -> None:
    """A queue whose dead letters have no place must not keep all others from running."""
    worker = make()
    run, *entries = worker.ended(), worker.unrun(), worker.unrun()
    refused = sending(run, *entries)
    for _ in range(2):
        worker.held.refused(refused)
        assert [slot.entry for slot in worker.board.read()] == [run.decode()]
        assert worker.counted() == {"succeeded": 1}
    assert refused.resent
    assert worker.held.unsent == [refused, refused]
    worker.held.told(refused)
    assert worker.counted() == {"succeeded": 1, "archived": 2}
    assert len(worker.held.free_slots) == SLOTS


@pytest.mark.parametrize("stores", range(11))
def test_what_is_found_to_be_lost_counts_once_as_what_the_worker_came_to_know(
    make: Make, stores: int
) -> None:
    worker = make()
    lost, unrun, kept = worker.ended(), worker.unrun(), worker.ended()
    keys = [(0, lost), (0, unrun), (0, worker.run().entry), (0, b"9-9")]

    def settle() -> None:
        worker.held.recount(keys, End.LOST)
        worker.told(lost, unrun, kept)

    assert dies_in(worker.board, stores, settle)
    known = [{"succeeded": 2, "archived": 1}, {"succeeded": 1, "lost": 1, "archived": 1}]
    assert worker.counted() == (known[stores] if stores < 2 else {"succeeded": 1, "lost": 2})


@pytest.mark.parametrize("stores", range(6))
def test_a_lease_lost_after_the_end_of_its_run_counts_as_that_and_nothing_else(
    make: Make, stores: int
) -> None:
    """The count stood there and the slot still said how the run had ended: it counted twice."""
    worker = make()
    worker.starter.executor = SimpleNamespace(running=set())  # type: ignore[assignment]
    entry = worker.ended()
    is_dead = dies_in(worker.board, stores, lambda: worker.starter.lose(worker.held.runs[0, entry]))
    assert worker.counted() == ({"succeeded": 1} if stores < 2 else {"lost": 1})
    assert is_dead is (stores < 5)
    if not is_dead:
        worker.told(entry)  # the reply, to which nothing belongs any more
        assert worker.counted() == {"lost": 1}


@pytest.mark.parametrize("stores", range(5))
def test_a_run_that_ends_after_its_lease_was_lost_counts_once(make: Make, stores: int) -> None:
    worker = make()
    run = worker.run()
    run.dropped = True
    is_dead = dies_in(worker.board, stores, lambda: worker.starter.finished(run, None))
    assert worker.counted() == ({"lost": 1} if stores else {})  # before the first store it has not ended
    assert is_dead is (stores < 4)
