"""A worker that is told to stop: nothing new starts, what runs ends, what was only fetched goes back free."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

import pytest

from chronosd.board import Cell, SlotState, WorkerState
from chronosd.states import State
from tests.support.processes import paused
from tests.support.waiting import at_most, wait_until
from tests.support.worker import WorkerProcess

Make = Callable[..., WorkerProcess]

HANDLERS = """
async def tick(task: Task[Any]) -> None:
    ledger.write("start", task.id, task.attempt)

async def sleeps(task: Task[dict[str, float]]) -> None:
    with ledger.run(task.id, task.attempt):
        await asyncio.sleep(task.args["s"])

def thread(task: Task[dict[str, float]]) -> None:
    with ledger.run(task.id, task.attempt):
        time.sleep(task.args["s"])

async def stubborn(task: Task[Any]) -> None:
    ledger.write("start", task.id, task.attempt)
    while True:
        try:
            await asyncio.sleep(60)
        except BaseException:
            pass

async def converts(task: Task[Any]) -> None:
    ledger.write("start", task.id, task.attempt)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        raise ConnectionError("the library's own words for cancelled") from None
"""


def ready(one: WorkerProcess, count: int) -> None:
    wait_until(lambda: len(one.ledger.entries("start")) >= count, what=one.log_tail())


def test_running_tasks_finish_and_nothing_starts_after_the_order(worker: Make) -> None:
    one = worker(HANDLERS, concurrency=4).start()
    one.enqueue_many("sleeps", 200, {"s": 0.3})
    ready(one, 4)
    assert one.drain() == 0
    assert one.ledger.starts() == one.ledger.ends()
    assert len(one.ledger.entries("start")) == 4
    assert one.pending() == 0
    assert one.redis.xlen(one.queue.stream) == 196
    assert one.slots() == []
    assert one.board.state is WorkerState.STOPPED


@pytest.mark.parametrize("kind", ["sleeps", "thread"])
def test_sigterm_drains_within_shutdown_timeout(worker: Make, kind: str) -> None:
    one = worker(HANDLERS, concurrency=2, shutdown_timeout="10s").start()
    one.enqueue_many(kind, 20, {"s": 0.2})
    ready(one, 2)
    os.kill(one.pid, signal.SIGTERM)
    assert one.wait() == 0
    assert len(one.ledger.entries("end")) == 2
    assert one.pending() == 0


def test_an_idle_worker_ends_at_once(worker: Make) -> None:
    one = worker(HANDLERS).start()
    one.wait_blocked()
    began = time.monotonic()
    assert one.drain() == 0
    assert time.monotonic() - began < at_most(0.8)  # less than the rest of a blocking read


def test_a_slow_handler_is_never_followed_by_a_hoard(worker: Make) -> None:
    """Quick tasks make the worker read ahead; what it has read when a slow one follows must go back, for
    others to run.
    """
    one = worker(HANDLERS, concurrency=1)
    one.enqueue_many("tick", 2000)
    slow = one.enqueue("sleeps", {"s": 1.5})
    rest = one.enqueue_many("tick", 300)
    one.start()
    wait_until(lambda: one.ledger.starts()[slow], what=one.log_tail())
    wait_until(lambda: one.pending() == 1 and one.redis.xlen(one.queue.stream) == 301, timeout_s=1)
    assert one.count(Cell.RELEASED) > 0, "it had not read ahead: this test shows nothing"
    for task_id in rest:
        found = one.hash(task_id)
        assert found["state"] == b"1"
        assert found.get("sid", b"") == b""
        assert not {"crashes", "returned", "run"} & set(found)
    one.wait_settled()
    assert set(one.ledger.starts().values()) == {1}


def test_a_drain_hands_back_what_was_fetched_and_never_started(worker: Make) -> None:
    one = worker(HANDLERS, concurrency=1)
    one.enqueue_many("tick", 2000)
    slow = one.enqueue("sleeps", {"s": 0.3})
    one.enqueue_many("tick", 300)
    one.start()
    wait_until(lambda: one.ledger.starts()[slow])
    assert one.drain() == 0
    assert one.ledger.ends()[slow] == 1
    assert len(one.ledger.entries("start")) == 2001
    assert one.pending() == 0
    assert one.redis.xlen(one.queue.stream) == 300


def test_a_quiet_worker_finishes_what_runs_and_resumes(worker: Make) -> None:
    one = worker(HANDLERS).start()
    task_id = one.enqueue("sleeps", {"s": 0.3})
    ready(one, 1)
    one.link.send({"t": "quiet"})
    wait_until(lambda: one.board.state is WorkerState.QUIET)
    one.wait_settled()
    assert one.ledger.ends() == {task_id: 1}
    one.enqueue("tick")
    cycles = one.count(Cell.CYCLES)
    time.sleep(0.3)  # nothing is to happen: there is no condition to wait for
    assert len(one.ledger.entries("start")) == 1
    assert one.count(Cell.CYCLES) - cycles < 5
    one.link.send({"t": "resume"})
    one.wait_settled()
    assert len(one.ledger.entries("start")) == 2


def test_a_worker_told_to_be_quiet_in_the_same_breath_as_go_fetches_nothing(worker: Make) -> None:
    """The supervisor of a quiet daemon sends both to a replacement; the second found nobody to obey it."""
    one = worker(HANDLERS).start(go=False)
    one.wait_message("ready")
    one.enqueue("tick")
    with paused(one.pid):
        one.link.send({"t": "go"})
        one.link.send({"t": "quiet"})
    wait_until(lambda: one.board.state is WorkerState.QUIET)
    time.sleep(0.2)
    assert one.ledger.entries() == []
    one.link.send({"t": "resume"})
    one.wait_settled()


def test_a_worker_at_the_gate_fetches_nothing_and_ends_when_told(worker: Make) -> None:
    one = worker(HANDLERS).start(go=False)
    one.wait_message("ready")
    one.enqueue("tick")
    time.sleep(0.1)
    assert one.board.state is WorkerState.READY
    assert one.drain() == 0
    assert one.ledger.entries() == []


def test_async_handlers_are_cancelled_when_the_time_is_over_and_go_back_uncharged(worker: Make) -> None:
    """A handler, or a library it uses, often makes another exception of the cancellation: that is no failure
    of its task either. chronos-go cancels at once and archives what has no retries left.
    """
    one = worker(HANDLERS).start()
    ids = [one.enqueue("sleeps", {"s": 60}, max_retry=0), one.enqueue("converts", max_retry=0)]
    ready(one, 2)
    assert one.drain(timeout=0.2) == 0
    assert one.pending() == 0
    for task_id in ids:
        assert one.hash(task_id)["state"] == b"1"
        assert one.message(task_id)["retried"] == 0
    assert one.redis.xlen(one.queue.stream) == 2


@pytest.mark.parametrize(("kind", "args"), [("stubborn", {}), ("thread", {"s": 60})])
def test_what_cannot_be_stopped_stays_on_the_board_and_the_process_ends(
    worker: Make, kind: str, args: dict[str, float]
) -> None:
    one = worker(HANDLERS).start()
    one.enqueue(kind, args)
    ready(one, 1)
    began = time.monotonic()
    assert one.drain(timeout=0.2) == 0
    assert time.monotonic() - began < at_most(5)
    assert [slot.state for slot in one.slots()] == [SlotState.RUNNING]
    assert one.pending() == 1


def test_other_tasks_that_end_in_the_last_moment_are_still_acknowledged(worker: Make) -> None:
    one = worker(HANDLERS).start()
    one.enqueue("stubborn")
    ids = [one.enqueue("sleeps", {"s": 0.3}) for _ in range(5)]
    ready(one, 6)
    assert one.drain(timeout=0.5) == 0
    assert set(one.ledger.ends()) == set(ids)
    assert one.pending() == 1


def test_a_drain_without_limit_waits_for_the_tasks(worker: Make) -> None:
    one = worker(HANDLERS, shutdown_timeout="1s").start()
    one.enqueue("sleeps", {"s": 1.6})
    ready(one, 1)
    assert one.drain() == 0
    assert len(one.ledger.entries("end")) == 1


def test_a_drain_at_any_moment_under_load_loses_and_repeats_nothing(worker: Make) -> None:
    """Entries delivered in the same millisecond as the stop were lost until a lease ran out (airflow,
    taskiq-redis), or cost a retry (chronos-go).
    """
    rng = random.Random(42)
    total = 0
    first = worker(HANDLERS, concurrency=16)
    book = first.ledger
    for round_ in range(20):
        one = first if round_ == 0 else worker(HANDLERS, concurrency=16)
        one.ledger = book
        total += len(one.enqueue_many("tick", 300, max_retry=0))
        one.start()
        before = total - 300
        wait_until(lambda before=before: len(book.entries("start")) > before)
        time.sleep(rng.random() * 0.02)
        assert one.drain() == 0, one.log_tail()
        assert one.pending() == 0, one.log_tail()
        assert one.slots() == []
    last = worker(HANDLERS, concurrency=16)
    last.ledger = book
    last.start().wait_settled(60)
    assert len(book.starts()) == total
    assert set(book.starts().values()) == {1}
    assert last.ids(State.ARCHIVED) == set()


def test_a_supervisor_that_is_gone_ends_the_worker(worker: Make) -> None:
    one = worker(HANDLERS).start()
    one.link.close()
    assert one.wait() == 1
