"""What a cycle asks of queues that are paused or have limits. What a worker holds is put together by hand."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chronosd.broker.keys import Namespace
from chronosd.broker.limit import Limit
from chronosd.worker.complete import Sending
from chronosd.worker.cycle import YIELD_S, Composer
from chronosd.worker.pick import Picker

FREE, CAPPED, RATED = 0, 1, 2


class Worker:
    """Eight slots, three queues: without limits, ten at a time, a hundred a second. There are two workers."""

    def __init__(self) -> None:
        self.picker = Picker([1, 1, 1], limited={CAPPED, RATED})
        self.sendings: list[Sending] = []
        self.held = SimpleNamespace(
            queues=[Namespace("n").queue(name) for name in ("free", "capped", "rated")],
            runs={},
            buffer=[],
            delivered=[],
            free_slots=list(range(400)),
            is_fetching=True,
            paused=frozenset(),
            take=lambda resting: self.sendings,
            holds=lambda key: key in self.held.runs,
        )
        self.starter = SimpleNamespace(solo=None, active=0, fresh=[], executor=SimpleNamespace(running=set()))
        self.block = SimpleNamespace(is_under_way=False)
        self.pace = SimpleNamespace(ahead=0)
        self.composer = Composer(
            *cast(
                Any,
                (
                    self.held,
                    self.starter,
                    SimpleNamespace(reading={}, waiting=0),
                    SimpleNamespace(astray=set()),
                    self.block,
                    self.picker,
                    self.pace,
                ),
            ),
            consumer="w",
            concurrency=8,
            lock_s=60.0,
            limits=[None, Limit(max_in_flight=10), Limit(interval_us=10_000.0)],
            workers=2,
        )

    def asks(self) -> dict[int, int]:
        """How many tasks the next cycle asks of which queue."""
        return {ask.queue: ask.most for ask in self.composer.compose(()).asks}

    def holds(self, capped: int) -> None:
        self.held.runs = {(CAPPED, b"%d-0" % i): None for i in range(capped)}

    def ends(self, count: int) -> None:
        """The next cycle tells of the ends of so many."""
        entries = [b"%d-0" % i for i in range(count)]
        self.sendings = [Sending(CAPPED, "capped", cast(Any, None), entries)]


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_what_ended_of_a_queue_at_its_limit_is_asked_for_again_up_to_the_workers_part(worker: Worker) -> None:
    worker.holds(5)
    worker.ends(3)
    assert worker.asks()[CAPPED] == 3, "two of five are left"
    worker.picker.report(CAPPED, 3, 3)
    worker.sendings = []
    assert CAPPED not in worker.asks(), "once, and not for more"


def test_a_worker_with_more_than_its_part_leaves_the_rest_to_others(worker: Worker) -> None:
    worker.holds(10)
    worker.ends(2)
    assert CAPPED not in worker.asks()
    worker.holds(6)
    assert worker.asks()[CAPPED] == 1


def test_now_and_then_a_place_is_left_to_whoever_comes_first(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic() + YIELD_S + 1
    monkeypatch.setattr("chronosd.worker.cycle.time", SimpleNamespace(monotonic=lambda: now))
    worker.holds(3)
    worker.ends(2)
    assert worker.asks()[CAPPED] == 1
    worker.picker.report(CAPPED, 1, 1)
    assert worker.asks()[CAPPED] == 2


def test_the_end_of_a_task_of_a_queue_with_a_rate_alone_lets_none_start(worker: Worker) -> None:
    worker.sendings = [Sending(RATED, "rated", cast(Any, None), [b"1-0"])]
    assert RATED not in worker.asks()


def test_nothing_is_read_ahead_while_a_queue_with_limits_is_to_be_asked(worker: Worker) -> None:
    worker.pace.ahead = 100
    assert worker.asks() == {FREE: 50}, "half of what may be read ahead"
    worker.picker.offer(RATED, 3)
    assert sum(worker.asks().values()) == 8
    worker.held.paused = frozenset({RATED})
    assert worker.asks() == {FREE: 50}


def test_beside_a_blocking_read_only_queues_are_asked_that_it_leaves_out(worker: Worker) -> None:
    worker.block.is_under_way = True
    assert worker.asks() == {}
    worker.picker.offer(RATED, 3)
    assert worker.asks() == {RATED: 3}


def test_a_paused_queue_is_not_asked_whatever_was_offered_of_it(worker: Worker) -> None:
    worker.picker.offer(RATED, 3)
    worker.held.paused = frozenset({FREE, RATED})
    assert worker.asks() == {}
    worker.held.paused = frozenset({FREE})
    assert worker.asks() == {RATED: 3}


def test_each_queue_is_fetched_from_by_the_script_for_it(worker: Worker) -> None:
    worker.picker.offer(CAPPED, 1)
    cycle = worker.composer.compose(())
    scripts = {ask.queue: fetch.script for ask, fetch in zip(cycle.asks, cycle.fetches, strict=True)}
    assert {queue: one.name for queue, one in scripts.items() if one} == {
        FREE: "fetch",
        CAPPED: "fetch_limited",
    }


def test_what_is_to_be_taken_in_has_its_place_and_what_is_here_already_takes_none(worker: Worker) -> None:
    """With one slot a queue that was known to have work was not asked for a whole second."""
    worker.held.runs = {(FREE, b"1-0"): None}
    worker.picker.stocked(FREE)
    worker.held.delivered = [(FREE, b"%d-0" % i) for i in range(1, 9)]
    (ask,) = (ask for ask in worker.composer.compose(()).asks if ask.queue == FREE)
    assert (ask.delivered, ask.most) == ([b"%d-0" % i for i in range(2, 9)], 1)
