"""What a worker does with tasks: runs them, acknowledges every end, keeps to the weights."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from chronosd import tally
from chronosd.board import Cell
from chronosd.client import Cancellation
from chronosd.metrics import End
from chronosd.states import State
from tests.support.waiting import wait_until
from tests.support.worker import WorkerProcess

Make = Callable[..., WorkerProcess]

HANDLERS = """
async def ok(task: Task[dict[str, Any]]) -> None:
    ledger.write("start", task.id, task.attempt)

async def result(task: Task[Any]) -> Any:
    return {"of": task.id}

def sync(task: Task[Any]) -> None:
    ledger.write("start", task.id, task.attempt)

async def fail(task: Task[Any]) -> None:
    raise RuntimeError("told to")

def sync_fail(task: Task[Any]) -> None:
    raise RuntimeError("told to")

async def skip(task: Task[Any]) -> None:
    raise SkipRetry("never")

async def later(task: Task[Any]) -> None:
    raise RetryIn("1h", "not now", charge=task.args["charge"])

async def typed(task: Task[dict[str, int]]) -> None:
    pass

async def unstorable(task: Task[Any]) -> Any:
    return float("nan")

async def cancels_itself(task: Task[Any]) -> None:
    asyncio.current_task().cancel()
    await asyncio.sleep(10)

async def slow(task: Task[Any]) -> None:
    await asyncio.sleep(60)
"""


def test_a_task_runs_once_and_leaves_nothing_behind(worker: Make) -> None:
    one = worker(HANDLERS).start()
    ids = [one.enqueue("ok"), one.enqueue("sync")]
    one.wait_settled()
    assert one.ledger.starts() == dict.fromkeys(ids, 1)
    assert [one.hash(task_id) for task_id in ids] == [{}, {}]
    assert one.drain() == 0
    assert one.slots() == []


EXITS = {
    "success": ("ok", {}, {}),
    "success in a thread": ("sync", {}, {}),
    "a kept success": ("result", {}, {"retention": "1h"}),
    "a retry": ("fail", {}, {}),
    "a retry in a thread": ("sync_fail", {}, {}),
    "retries spent": ("fail", {}, {"max_retry": 0}),
    "a discard": ("fail", {}, {"max_retry": 0, "discard": True}),
    "SkipRetry": ("skip", {}, {}),
    "RetryIn": ("later", {"charge": True}, {}),
    "RetryIn uncharged": ("later", {"charge": False}, {}),
    "an invalid payload": ("typed", {"a": "b"}, {}),
    "a result that cannot be stored": ("unstorable", {}, {}),
    "a handler that cancels itself": ("cancels_itself", {}, {}),
    "an unknown kind": ("nobody:knows", {}, {}),
    "a timeout": ("slow", {}, {}),
}


def test_every_way_to_end_acknowledges_its_entry(worker: Make) -> None:
    one = worker(HANDLERS, handlers={"slow": {"import": "{module}:slow", "timeout": "100ms"}}).start()
    for kind, args, options in EXITS.values():
        for _ in range(40):
            one.enqueue(kind, args, **options)
    one.wait_settled()
    states = {
        state: len(one.ids(state))
        for state in (State.RETRY, State.ARCHIVED, State.COMPLETED, State.SCHEDULED)
    }
    assert states == {State.RETRY: 280, State.ARCHIVED: 160, State.COMPLETED: 40, State.SCHEDULED: 0}
    assert one.drain() == 0
    assert one.slots() == []
    consumers = one.redis.xinfo_consumers(one.queue.stream, "chronos")
    assert [c["pending"] for c in consumers] == [0]


def test_a_timeout_fails_the_attempt_with_timeout_error(worker: Make) -> None:
    one = worker(HANDLERS, handlers={"slow": {"import": "{module}:slow", "timeout": "50ms"}}).start()
    task_id = one.enqueue("slow")
    one.wait_settled()
    assert one.message(task_id)["last_err"] == "TimeoutError: timed out after 50ms"
    assert one.message(task_id)["retried"] == 1


def test_queues_share_by_weight_and_the_lightest_progresses(worker: Make) -> None:
    queues = {"critical": 6, "default": 3, "low": 1}
    one = worker(
        "async def tick(task: Task[Any]) -> None:\n    ledger.write('start', task.queue)\n",
        queues=queues,
        concurrency=4,
    )
    for name in queues:
        one.enqueue_many("tick", 3000, queue=name)
    one.start()
    wait_until(lambda: len(one.ledger.entries()) >= 2500)
    one.drain()
    first = one.ledger.entries()[:2500]
    counts = {name: sum(entry.id == name for entry in first) for name in queues}
    for name, weight in queues.items():
        assert counts[name] / 2500 == pytest.approx(weight / 10, rel=0.1)


def test_strict_priority_drains_the_heavier_queue_first(worker: Make) -> None:
    queues = {"low": 1, "critical": 6}
    one = worker(
        "async def tick(task: Task[Any]) -> None:\n    ledger.write('start', task.queue)\n",
        queues=queues,
        concurrency=4,
        strict_priority=True,
    )
    for name in queues:
        one.enqueue_many("tick", 500, queue=name)
    one.start()
    one.wait_settled()
    order = [entry.id for entry in one.ledger.entries()]
    assert order.index("low") > 480


def test_an_idle_worker_starts_a_task_of_any_queue_at_once(worker: Make) -> None:
    """chronos-go blocks on one queue for a second: a task of another waits that long."""
    queues = {"critical": 6, "default": 3, "low": 1}
    source = "async def now(task: Task[Any]) -> None:\n    ledger.write('start', task.id)\n"
    one = worker(source, queues=queues, concurrency=1).start()
    for name in [*queues] * 5:
        one.wait_blocked()
        sent_ns = time.monotonic_ns()
        task_id = one.enqueue("now", queue=name)
        wait_until(lambda task_id=task_id: one.ledger.starts()[task_id])
        (started,) = [e.at_ns for e in one.ledger.entries() if e.id == task_id]
        assert (started - sent_ns) / 1e9 < 0.4
    assert one.count(Cell.SUCCEEDED) == 15


def test_an_idle_worker_asks_little(worker: Make) -> None:
    one = worker(HANDLERS, queues={"a": 1, "b": 1, "c": 1}).start()
    one.wait_blocked()
    before = one.count(Cell.CYCLES)
    began = time.monotonic()
    wait_until(lambda: one.count(Cell.CYCLES) >= before + 2)
    assert time.monotonic() - began > 0.8


CANCELLED = """
async def fails(task: Task[str]) -> None:
    ledger.write("start", task.id, task.attempt)
    while not os.path.exists(task.args):
        await asyncio.sleep(0.01)
    raise RuntimeError("told to")
"""


@pytest.mark.parametrize("end", ["a failure", "a hand-back"])
def test_what_was_cancelled_and_ends_before_its_worker_is_told_counts_as_cancelled(
    worker: Make, end: str
) -> None:
    """It was told to be tried again, and counted so, although it never ran again."""
    one = worker(CANCELLED).start()
    until = one.directory / "until"
    task_id = one.enqueue("fails", str(until))
    wait_until(lambda: one.ledger.starts()[task_id], what=one.log_tail())
    assert one.client.cancel(task_id) is Cancellation.MARKED
    if end == "a failure":
        until.touch()
        one.wait_settled()
        assert one.drain() == 0
    else:
        assert one.drain(0.1) == 0
    assert one.ids(State.ARCHIVED) == {task_id}
    (counts,) = tally.read(one.board).outcomes.values()
    assert {End(i): n for i, n in enumerate(counts) if n} == {End.CANCELLED: 1}
    (told,) = one.log_records("task cancelled")
    assert (told["task_id"], told["error"]) == (task_id, "cancelled")
