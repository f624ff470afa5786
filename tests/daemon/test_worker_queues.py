"""A worker's own share of pauses and limits: what it is told, what it asks for, what it gives back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from chronosd.board import Cell
from chronosd.broker.limit import BURST_S
from tests.support.limits import most_at_once
from tests.support.waiting import at_most, wait_until
from tests.support.worker import WorkerProcess

MakeWorker = Callable[..., WorkerProcess]
COUNT = """
async def count(task: Task[dict[str, Any]]) -> None:
    with ledger.run(task.id, task.attempt):
        await asyncio.sleep(task.args.get("sleep", 0))
"""
TWO = {"default": 1, "mail": 3}


def heard(worker: WorkerProcess) -> None:
    """Waits until its loop has turned, and so read what it was sent."""
    for _ in range(2):
        beat = worker.board.cells[Cell.LOOP_BEAT]
        wait_until(lambda: worker.board.cells[Cell.LOOP_BEAT] != beat, what="a turn of its loop")  # noqa: B023


def test_what_a_blocking_read_brings_of_a_queue_just_paused_goes_back(worker: MakeWorker) -> None:
    one = worker(COUNT, queues=TWO, concurrency=4).start()
    one.wait_blocked()
    assert one.link.send({"t": "paused", "queues": ["mail", "of another daemon"]})
    ids = one.enqueue_many("count", 5, queue="mail")
    other = one.enqueue("count")
    wait_until(lambda: one.ledger.ends()[other], what="a task of the other queue")
    one.wait_blocked()
    wait_until(lambda: one.pending("mail") == 0 and not one.slots(), what="all of it back")
    assert one.redis.xlen(one.queues["mail"].stream) == 5
    assert set(one.ledger.starts()) == {other}
    fetched = one.count(Cell.FETCHED)
    for _ in range(3):  # blocks and cycles come and go, and nobody asks
        again = one.enqueue("count")
        wait_until(lambda: one.ledger.ends()[again], what="a task of the other queue")  # noqa: B023
    assert one.count(Cell.FETCHED) == fetched + 3
    assert one.link.send({"t": "paused", "queues": []})
    one.wait_settled()
    assert set(ids) <= set(one.ledger.ends())
    assert one.drain() == 0


def test_what_is_buffered_of_a_paused_queue_goes_back_and_what_runs_finishes(worker: MakeWorker) -> None:
    brief = "async def brief(task):\n    ledger.write('start', task.id)\n    await asyncio.sleep(0.001)\n"
    one = worker(brief, concurrency=4, queues={"mail": 1}).start(go=False)
    ids = one.enqueue_many("brief", 2000)
    one.wait_message("ready")
    one.link.send({"t": "go"})
    wait_until(lambda: one.count(Cell.SUCCEEDED) > 200, what="it in full flow")
    assert one.link.send({"t": "paused", "queues": ["mail"]})
    wait_until(lambda: one.pending() == 0 and not one.slots(), what="nothing held")
    heard(one)
    started = one.ledger.starts()
    assert 200 < len(started) < 2000
    assert one.redis.xlen(one.queue.stream) == 2000 - len(started)
    assert one.link.send({"t": "paused", "queues": []})
    one.wait_settled()
    assert one.ledger.starts() == Counter(ids), "each once, those that had been handed back as well"
    assert one.drain() == 0


def test_a_fresh_worker_is_told_before_it_may_fetch(worker: MakeWorker) -> None:
    one = worker(COUNT, queues=TWO).start(go=False)
    waiting = one.enqueue("count", queue="mail")
    other = one.enqueue("count")
    one.wait_message("ready")
    one.link.send({"t": "paused", "queues": ["mail"]})
    one.link.send({"t": "go"})
    wait_until(lambda: one.ledger.ends()[other], what="the other queue's task")
    one.wait_blocked()
    assert waiting not in one.ledger.starts()
    assert one.count(Cell.FETCHED) == 1
    assert one.drain() == 0


def test_a_queue_with_limits_is_not_asked_before_an_offer_and_in_no_blocking_read(worker: MakeWorker) -> None:
    one = worker(COUNT, queues={"default": 1, "low": {"max_in_flight": 2}}, concurrency=8, workers=1).start()
    ids = one.enqueue_many("count", 30, {"sleep": 0.02}, queue="low")
    one.wait_blocked()
    heard(one)
    assert one.pending("low") == 0
    one.link.send({"t": "offer", "queues": {"low": 2, "default": 5, "none": 7}})
    # who ends a task of a queue at its limit asks again by itself
    wait_until(lambda: len(one.ledger.ends()) > 2, what="more than was offered")
    while not one.settled():
        one.link.send({"t": "offer", "queues": {"low": 2}})
        time.sleep(0.02)
    one.wait_settled()
    assert one.ledger.ends() == Counter(ids)
    assert most_at_once([one.ledger]) == 2
    assert one.drain() == 0


def test_an_offer_is_taken_up_beside_a_blocking_read_and_at_once(worker: MakeWorker) -> None:
    one = worker(COUNT, queues={"default": 1, "low": {"rate_limit": "100/s"}}).start()
    took = []
    for _ in range(10):
        one.wait_blocked()
        task_id = one.enqueue("count", queue="low")
        began = time.monotonic()
        # as often as a supervisor does, and more: an offer counts for nothing while an ask is under way
        wait_until(
            lambda: one.link.send({"t": "offer", "queues": {"low": 1}}) and one.ledger.ends()[task_id],  # noqa: B023
            what="its run",
        )
        took.append(time.monotonic() - began)
    assert sorted(took)[5] < at_most(0.4), "it did not wait for the end of the blocking read"
    assert one.drain() == 0


def test_a_worker_with_limited_queues_only_waits_for_offers_and_drains(worker: MakeWorker) -> None:
    one = worker(COUNT, queues={"low": {"rate_limit": "40/s"}}).start()
    one.enqueue_many("count", 30)
    heard(one)
    assert one.count(Cell.FETCHED) == 0
    one.link.send({"t": "offer", "queues": {"low": 30}})
    first = 1 + int(40 * BURST_S)
    wait_until(lambda: len(one.ledger.ends()) >= first, timeout_s=30, what="the burst")
    one.link.send({"t": "paused", "queues": ["low"]})
    heard(one)
    before = len(one.ledger.starts())
    one.link.send({"t": "offer", "queues": {"low": 30}})
    heard(one)
    assert len(one.ledger.starts()) == before, "paused"
    one.link.send({"t": "paused", "queues": []})
    one.link.send({"t": "offer", "queues": {"low": 30}})
    wait_until(lambda: len(one.ledger.ends()) > before, what="more")
    assert one.drain() == 0


def test_a_queue_with_limits_is_not_read_ahead_and_not_starved_by_one_that_is(worker: MakeWorker) -> None:
    source = """
    async def brief(task): await asyncio.sleep(0.0005)
    async def capped(task):
        with ledger.run(task.id): await asyncio.sleep(0.3)
    """
    one = worker(source, concurrency=4, queues={"default": 10, "low": {"weight": 1, "max_in_flight": 50}})
    one.start()
    one.enqueue_many("brief", 20_000, queue="default")
    wait_until(lambda: one.count(Cell.SUCCEEDED) > 1000, what="it in full flow")
    one.enqueue_many("capped", 8, queue="low")
    for _ in range(200):
        one.link.send({"t": "offer", "queues": {"low": 8}})
        assert one.pending("low") <= 4, "claimed without a slot"
        if len(one.ledger.ends()) == 8:
            break
        time.sleep(0.05)
    assert len(one.ledger.ends()) == 8
    one.close()
