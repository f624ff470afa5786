"""A task that is to run alone: what its worker does until it is, and how it comes to its turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chronosd import tally
from chronosd.board import Cell, SlotState
from chronosd.broker import sweep
from chronosd.broker.keys import GROUP
from chronosd.broker.message import Message, encode
from chronosd.metrics import End
from chronosd.states import State
from chronosd.worker import patience
from tests.support.waiting import wait_until
from tests.support.worker import WorkerProcess

Make = Callable[..., WorkerProcess]

PUT_OFF = "task put off, it is to run alone"
HANDLERS = """
async def lasts(task: Task[Any]) -> None:
    with ledger.run(task.id, task.attempt):
        while not os.path.exists(ledger.path.parent / "ended"):
            await asyncio.sleep(0.01)

async def tick(task: Task[Any]) -> None:
    ledger.write("start", task.id, task.attempt)
"""
EVIDENCE = '[{"signal":11},{"signal":11}]'


def suspect(one: WorkerProcess, task_id: str, queue: str = "default") -> Message:
    """A task that has crashed twice, and is ready."""
    message = Message(task_id, "tick", queue, b"{}", max_retry=9, retried=2, last_err="signal 11")
    keys = one.queues[queue]
    fields = {"state": "1", "msg": encode(message, State.PENDING), "crashes": 2, "evidence": EVIDENCE}
    one.redis.hset(keys.task(task_id), mapping=fields)
    one.redis.xadd(keys.stream, {"task_id": task_id})
    return message


def beside_one_that_lasts(one: WorkerProcess) -> str:
    """Starts the worker with a task that ends when :func:`end_it` says so."""
    lasting = one.enqueue("lasts")
    one.start()
    wait_until(lambda: one.ledger.starts()[lasting], what="the task that lasts")
    return lasting


def end_it(one: WorkerProcess) -> None:
    (one.directory / "ended").touch()


def forward_due(one: WorkerProcess) -> None:
    for queue in one.queues.values():
        one.runner.run(sweep.forward(queue, State.RETRY))


def waits(one: WorkerProcess) -> list[dict[str, Any]]:
    """The log lines of waits that were in vain."""
    return [line for line in one.log_records(PUT_OFF) if line["waited_s"]]


def runs_others(one: WorkerProcess, queue: str = "default") -> None:
    ids = set(one.enqueue_many("tick", 20, queue=queue))
    wait_until(lambda: ids <= set(one.ledger.starts()), what=f"others:\n{one.log_tail()}")


def test_one_that_is_put_off_is_as_it_was_and_counts_as_nothing(
    worker: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "SOLO_WAIT_S", 0.2)
    one = worker(HANDLERS, max_crashes=3)
    beside_one_that_lasts(one)
    message = suspect(one, "s")
    before = one.hash("s")

    def waited(times: int) -> bool:
        forward_due(one)
        return len(waits(one)) >= times

    for times in (1, 2):
        wait_until(lambda: waited(times), what=one.log_tail())  # noqa: B023
        wait_until(lambda: one.ids(State.RETRY) == {"s"}, what=one.log_tail())
        runs_others(one)
        after = {**before, "state": b"4", "sid": b"", "msg": encode(message, State.RETRY)}
        assert one.hash("s") == after
    end_it(one)
    wait_until(lambda: forward_due(one) or one.hash("s") == {}, what=one.log_tail())
    one.wait_settled()
    (start,) = [entry for entry in one.ledger.entries("start") if entry.id == "s"]
    assert start.attempt == 3
    lines = waits(one)[:2]
    assert [line["delay_s"] for line in lines] == [0.2, 0.4]
    assert {(line["task_id"], line["attempt"], line["running"]) for line in lines} == {("s", 3, 1)}
    assert all(line["waited_s"] >= line["delay_s"] for line in lines)
    outcomes = tally.read(one.board).outcomes.values()
    counted = {end: sum(counts[end] for counts in outcomes) for end in End}
    assert {end: count for end, count in counted.items() if count} == {End.SUCCEEDED: 42}


def test_while_it_has_not_rested_it_waits_for_no_other(worker: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, many of them would have kept it from fetching anything all the time."""
    monkeypatch.setattr(patience, "SOLO_WAIT_S", 2.0)
    one = worker(HANDLERS, max_crashes=3)
    beside_one_that_lasts(one)
    ids = {f"s{number}" for number in range(6)}
    for task_id in ids:
        suspect(one, task_id)
    wait_until(lambda: one.ids(State.RETRY) == ids, what=one.log_tail())
    wait_until(lambda: len(one.log_records(PUT_OFF)) == 6, what=one.log_tail())
    assert len(waits(one)) == 1
    runs_others(one)
    end_it(one)
    wait_until(lambda: not one.slots(), what=one.log_tail())
    one.forward()
    one.wait_settled()
    assert [one.ledger.starts()[task_id] for task_id in ids] == [1] * 6, "beside nothing they need not wait"


@pytest.mark.parametrize("order", ["quiet", "paused", "cancel", "lost"])
def test_what_is_ordered_while_it_waits_is_done_at_once(worker: Make, order: str) -> None:
    one = worker(HANDLERS, max_crashes=3, queues={"default": 1, "other": 1})
    beside_one_that_lasts(one)
    suspect(one, "s", "other")
    (slot,) = wait_until(lambda: one.slots(SlotState.CLAIMED), what=one.log_tail())
    other = one.queues["other"]
    entries = [["other", slot.entry]]
    if order == "quiet":
        one.link.send({"t": "quiet"})
        wait_until(lambda: one.hash("s", "other")["state"] == b"1")
        assert one.pending("other") == 0
        one.link.send({"t": "resume"})
        wait_until(lambda: one.slots(SlotState.CLAIMED))
        end_it(one)
        wait_until(lambda: one.ledger.starts()["s"])
        return
    if order == "paused":
        one.link.send({"t": "paused", "queues": ["other"]})
        wait_until(lambda: one.hash("s", "other")["state"] == b"1")
        assert one.pending("other") == 0
    elif order == "cancel":
        one.redis.hset(other.task("s"), "cancel", slot.entry)
        one.link.send({"t": "cancel", "entries": entries})
        wait_until(lambda: one.ids(State.ARCHIVED, "other") == {"s"})
    else:
        one.redis.xclaim(other.stream, GROUP, "elsewhere", 0, [slot.entry])
        one.link.send({"t": "lost", "entries": entries})
        wait_until(lambda: one.count(Cell.LEASES_LOST) == 1)
    runs_others(one)
    assert "s" not in one.ledger.starts()
