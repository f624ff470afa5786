"""Who has lost a task to somebody else changes nothing about it, and starts nothing it may have lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chronosd.board import Cell, SlotState
from chronosd.broker import consume
from chronosd.broker.keys import GROUP
from chronosd.states import State
from tests.support.waiting import wait_until
from tests.support.worker import WorkerProcess

Make = Callable[..., WorkerProcess]

HANDLERS = """
async def awaits(task: Task[dict[str, Any]]) -> None:
    ledger.write("start", task.id, task.attempt)
    try:
        await asyncio.sleep(task.args.get("s", 60))
    except asyncio.CancelledError:
        ledger.write("cancelled", task.id, task.attempt)
        raise
    ledger.write("end", task.id, task.attempt)
    if task.args.get("fail"):
        raise RuntimeError("too late")

def thread(task: Task[dict[str, Any]]) -> None:
    ledger.write("start", task.id, task.attempt)
    time.sleep(task.args["s"])
    ledger.write("end", task.id, task.attempt)
    if task.args.get("fail"):
        raise RuntimeError("too late")

async def blocks(task: Task[dict[str, Any]]) -> None:
    ledger.write("start", task.id, task.attempt)
    time.sleep(task.args["s"])
    ledger.write("end", task.id, task.attempt)

async def tick(task: Task[Any]) -> None:
    ledger.write("start", task.id, task.attempt)

def sync_tick(task: Task[Any]) -> None:
    ledger.write("start", task.id, task.attempt)
"""


def take_over(one: WorkerProcess, state: SlotState) -> list[str]:
    """Makes the entries in slots of that state another consumer's, as a recoverer of another host does."""
    entries = [slot.entry for slot in one.slots(state)]
    one.redis.xclaim(one.queue.stream, GROUP, "elsewhere", 0, entries)
    return entries


def test_a_lost_lease_cancels_an_async_handler_and_drops_its_result(worker: Make) -> None:
    one = worker(HANDLERS).start()
    task_id = one.enqueue("awaits")
    wait_until(lambda: one.slots(SlotState.RUNNING))
    (entry,) = take_over(one, SlotState.RUNNING)
    before = one.hash(task_id)
    one.link.send({"t": "lost", "entries": [["default", entry], ["default", "1-1"], ["nowhere", entry]]})
    wait_until(lambda: one.ledger.entries("cancelled"))
    wait_until(lambda: one.slots() == [])
    probe = one.enqueue("tick")
    wait_until(lambda: one.hash(probe) == {})
    after = one.hash(task_id)
    assert {k: v for k, v in after.items() if k != "run"} == {k: v for k, v in before.items() if k != "run"}
    assert one.pending() == 1
    assert one.count(Cell.LEASES_LOST) == 1
    assert one.drain() == 0


def test_a_lost_lease_drops_the_result_of_a_sync_handler(worker: Make) -> None:
    one = worker(HANDLERS).start()
    task_id = one.enqueue("thread", {"s": 0.4, "fail": True}, max_retry=0)
    wait_until(lambda: one.slots(SlotState.RUNNING))
    (entry,) = take_over(one, SlotState.RUNNING)
    one.link.send({"t": "lost", "entries": [["default", entry]]})
    wait_until(lambda: one.ledger.ends()[task_id])
    wait_until(lambda: one.slots() == [])
    assert one.hash(task_id)["state"] == b"2"
    assert one.ids(State.ARCHIVED) == set()
    assert one.drain() == 0


@pytest.mark.parametrize("kind", ["awaits", "thread"])
@pytest.mark.parametrize("fail", [False, True])
def test_a_late_end_of_a_stale_owner_changes_nothing(worker: Make, kind: str, fail: bool) -> None:
    """chronos-go moved the task whatever its XACK said: a task finished elsewhere was resurrected."""
    one = worker(HANDLERS, concurrency=1).start()
    task_id = one.enqueue(kind, {"s": 0.3, "fail": fail}, max_retry=5)
    (slot,) = wait_until(lambda: one.slots(SlotState.RUNNING))
    # recovered: the task has a new entry, which is another worker's
    one.runner.run(consume.release(one.queue, [(slot.entry.encode(), task_id)]))
    (found,) = one.redis.xreadgroup(GROUP, "elsewhere", {one.queue.stream: ">"})
    (delivered,) = one.runner.run(consume.fetch(one.queue, "elsewhere", 0, [found[1][0][0]])).tasks
    before = one.hash(task_id)
    wait_until(lambda: one.count(Cell.LEASES_LOST) == 1, what=one.log_tail())
    assert one.ledger.ends() == {task_id: 1}
    assert one.hash(task_id) == before
    assert one.redis.zcard(one.queue.retry) == 0
    assert one.slots() == []
    # and the new owner's end counts
    assert one.runner.run(consume.complete(one.queue, [consume.Done(delivered.entry, task_id)])) == []
    assert one.hash(task_id) == {}


@pytest.mark.parametrize("how", ["set back", "made anew"])
@pytest.mark.parametrize("by", ["a blocking read", "a cycle"])
def test_what_is_delivered_again_while_it_runs_is_not_started_twice(worker: Make, how: str, by: str) -> None:
    """Somebody has set the group back, or deleted it. The second run took the first one's place: one slot was
    freed twice and one never, and the supervisor killed the worker for it at the deadline."""
    one = worker(HANDLERS, concurrency=3).start()
    running = [one.enqueue("awaits", {"s": 1.0}), one.enqueue("thread", {"s": 1.0})]
    wait_until(lambda: len(one.slots(SlotState.RUNNING)) == 2)
    if by == "a blocking read":
        one.wait_blocked()
    if how == "set back":
        one.redis.xgroup_setid(one.queue.stream, GROUP, "0")
    else:
        one.redis.xgroup_destroy(one.queue.stream, GROUP)
    more = [one.enqueue("tick") for _ in range(10)]
    one.wait_settled()
    assert one.ledger.starts() == dict.fromkeys([*running, *more], 1)
    assert one.count(Cell.LEASES_LOST) == 0


def test_what_was_taken_over_while_the_loop_stood_still_is_not_started(worker: Make) -> None:
    """The supervisor hands back what a worker with a blocked loop has claimed and not started, after two
    seconds. Once its loop turned again the worker started it nevertheless: two live runs.
    """
    one = worker(HANDLERS, concurrency=16)
    blocker = one.enqueue("blocks", {"s": 1.5})
    one.enqueue_many("tick", 10)
    one.start()
    wait_until(lambda: one.ledger.starts()[blocker])
    lost = take_over(one, SlotState.CLAIMED)
    assert len(lost) == 10, "they were to wait behind the blocker"
    wait_until(lambda: one.ledger.ends()[blocker])
    wait_until(lambda: one.slots() == [], what=one.log_tail())
    assert one.ledger.starts() == {blocker: 1}
    assert one.count(Cell.LEASES_LOST) == 10
    probe = one.enqueue("tick")
    wait_until(lambda: one.ledger.starts()[probe])


def test_what_was_read_ahead_and_taken_over_meanwhile_is_not_started(worker: Make) -> None:
    one = worker(HANDLERS, concurrency=1)
    one.enqueue_many("tick", 1500)
    blocker = one.enqueue("blocks", {"s": 1.5})
    ids = one.enqueue_many("tick", 50)
    one.start()
    wait_until(lambda: one.ledger.starts()[blocker])
    lost = take_over(one, SlotState.CLAIMED)
    assert lost, "it had not read ahead: this test shows nothing"
    wait_until(lambda: one.ledger.ends()[blocker])
    wait_until(lambda: len(one.ledger.starts()) == 1551 - len(lost), what=one.log_tail())
    assert sum(one.ledger.starts()[i] for i in ids) == 50 - len(lost)
    assert set(one.ledger.starts().values()) == {1}


def test_what_is_still_its_own_after_a_standstill_is_started(worker: Make) -> None:
    one = worker(HANDLERS, concurrency=16)
    blocker = one.enqueue("blocks", {"s": 1.3})
    ids = [blocker, *one.enqueue_many("tick", 10), *one.enqueue_many("sync_tick", 10)]
    one.start()
    one.wait_settled()
    assert one.ledger.starts() == dict.fromkeys(ids, 1)
    assert one.count(Cell.LEASES_LOST) == 0


def test_a_task_that_has_crashed_twice_runs_alone(worker: Make) -> None:
    one = worker(HANDLERS, concurrency=8, max_crashes=3)
    for _ in range(4):
        one.enqueue("awaits", {"s": 0.3})
    suspect = one.enqueue("awaits", {"s": 0.3}, max_retry=9)
    msg = one.hash(suspect)["msg"].replace(b'"retried":0', b'"retried":2')
    one.redis.hset(one.queue.task(suspect), mapping={"msg": msg, "crashes": 2})
    for _ in range(30):
        one.enqueue("awaits", {"s": 0.05})
    one.start()
    one.wait_settled()
    assert set(one.ledger.starts().values()) == {1}
    running: set[str] = set()
    beside: set[str] = set()
    for entry in one.ledger.entries():
        if entry.what == "start":
            running.add(entry.id)
        else:
            running.discard(entry.id)
        if suspect in running:
            beside |= running
    assert beside == {suspect}


def test_crashes_that_were_never_charged_are_not_the_tasks_own(worker: Make) -> None:
    """Go stores a new task under an old id and leaves our fields in the hash."""
    one = worker(HANDLERS, concurrency=2, max_crashes=3)
    suspect = one.enqueue("awaits", {"s": 0.3})
    one.redis.hset(one.queue.task(suspect), "crashes", 2)
    one.enqueue("awaits", {"s": 0.3})
    one.start()
    wait_until(lambda: len(one.slots(SlotState.RUNNING)) == 2)


def test_with_one_crash_allowed_tasks_still_run_side_by_side(worker: Make) -> None:
    """max_crashes - 1 is 0 then, and every task has crashed 0 times: each ran alone."""
    one = worker(HANDLERS, concurrency=4, max_crashes=1)
    one.enqueue_many("awaits", 4, {"s": 0.3})
    one.start()
    wait_until(lambda: len(one.slots(SlotState.RUNNING)) == 4)


def test_a_run_that_outlives_its_cycle_is_marked(worker: Make) -> None:
    one = worker(HANDLERS).start()
    task_id = one.enqueue("awaits")
    found = wait_until(lambda: one.hash(task_id).get("run"))
    assert found == one.hash(task_id)["sid"]
