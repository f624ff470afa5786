"""A task that takes its worker down is found out, and those that run beside it do not pay for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from chronosd import Client
from chronosd.states import State
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.waiting import wait_until

SOURCE = """
import asyncio, ctypes, os, signal, time
from chronosd import Task
from tests.support.ledger import Ledger

ledger = Ledger.of_environment()

async def segfault(task: Task[dict]) -> None:
    ledger.write("start", task.id, task.attempt)
    ctypes.string_at(0)

def in_thread(task: Task[dict]) -> None:
    ledger.write("start", task.id, task.attempt)
    ctypes.string_at(0)

def in_thread_later(task: Task[dict]) -> None:
    ledger.write("start", task.id, task.attempt)
    time.sleep(0.5)
    ctypes.string_at(0)

async def oom(task: Task[dict]) -> None:
    ledger.write("start", task.id, task.attempt)
    os.kill(os.getpid(), signal.SIGKILL)

async def lasts(task: Task[dict]) -> None:
    with ledger.run(task.id, task.attempt):
        while not os.path.exists("ended"):
            await asyncio.sleep(0.01)
"""
PUT_OFF = "task put off, it is to run alone"
CONFIG = {
    "workers": 2,
    "concurrency": 20,
    "retry": {"base": "100ms", "cap": "200ms"},
    "handlers": {
        **{kind: f"handlers:{kind}" for kind in ("segfault", "in_thread", "in_thread_later", "oom", "lasts")},
        **{kind: f"tests.support.jobs:{kind}" for kind in ("count", "block")},
    },
}


@pytest.mark.parametrize(("good", "seconds"), [(200, 0.05), (40, 5.0)], ids=["200-of-50ms", "40-of-5s"])
def test_a_segfault_is_archived_with_its_signals_and_every_task_beside_it_succeeds(
    daemon: Callable[..., Daemon],
    client: Client,
    queue: QueueView,
    poison_rounds: int,
    good: int,
    seconds: float,
) -> None:
    """Innocent tasks of the process that crashed had their crash counts raised too, and ended among the dead
    letters with the culprit."""
    one = daemon(handlers=SOURCE, config=CONFIG).start()
    repeats = 0
    for number in range(1, poison_rounds + 1):
        before = sum(one.ledger.starts().values())
        # without a retry to spend: a single charge would be the end of it
        tasks = [("count", {"sleep": seconds}, {"max_retry": 0})] * good
        head = [info.id for info in client.enqueue_many(tasks[: good // 2])]
        poison = client.enqueue("segfault", {}).id
        ids = {*head, *(info.id for info in client.enqueue_many(tasks[good // 2 :]))}
        queue.wait_finished(timeout_s=60, what=f"in round {number}:\n{one.log_tail(20)}")
        assert ids <= set(one.ledger.ends())
        assert poison in queue.ids(State.ARCHIVED)
        assert queue.size(State.ARCHIVED) == number, "a good task was archived"
        assert one.ledger.starts()[poison] == 3
        evidence = json.loads(queue.field(poison, "evidence") or b"[]")
        assert [death["signal"] for death in evidence] == [11, 11, 11]
        assert all("in segfault" in death["stack"] for death in evidence)
        repeats += sum(one.ledger.starts().values()) - before - good - 3
    ended = one.ledger.ends()
    assert {e.attempt for e in one.ledger.entries("start") if e.id in ended} == {1}
    deaths = one.log_records("worker died")
    assert len(deaths) == 3 * poison_rounds
    assert all(death["tasks"]["charged"] == 1 for death in deaths)
    print(f"{poison_rounds} rounds, {len(deaths)} deaths, {repeats} uncharged restarts of good tasks")
    assert one.stop() == 0


@pytest.mark.parametrize("kind", ["in_thread", "oom"])
def test_where_nothing_tells_who_crashed_all_are_suspected_and_only_the_guilty_is_archived(
    daemon: Callable[..., Daemon], client: Client, queue: QueueView, kind: str
) -> None:
    """The board cannot tell which of twenty killed their worker, so all are charged: once back at once, then
    with a backoff, then each alone. No requeue storm, and nineteen of them succeed."""
    one = daemon(handlers=SOURCE, config=CONFIG | {"workers": 1}).start()
    sleepers = {info.id for info in client.enqueue_many([("count", {"sleep": 0.3})] * 19)}
    wait_until(lambda: len(one.ledger.starts()) == 19, what="the sleepers")
    poison = client.enqueue(kind, {}).id
    queue.wait_finished(timeout_s=60, what=f"of all:\n{one.log_tail()}")
    assert set(one.ledger.ends()) == sleepers
    assert queue.ids(State.ARCHIVED) == {poison}
    evidence = json.loads(queue.field(poison, "evidence") or b"[]")
    assert [death["signal"] for death in evidence] == [9 if kind == "oom" else 11] * 3
    deaths = one.log_records("worker died")
    assert len(deaths) == one.ledger.starts()[poison] == 3
    assert deaths[-1]["tasks"]["running"] == 1, "the last time it ran alone"
    assert one.stop() == 0


def test_a_coroutine_that_a_crashing_thread_interrupts_is_not_taken_for_the_culprit(
    daemon: Callable[..., Daemon], client: Client, queue: QueueView
) -> None:
    """The loop was in the middle of a coroutine when another thread took the process down: the coroutine was
    charged, and the sync handler that had crashed was handed back free, to do it again."""
    one = daemon(handlers=SOURCE, config=CONFIG | {"workers": 1}).start()
    poison = client.enqueue("in_thread_later", {}).id
    wait_until(lambda: one.ledger.starts()[poison] == 1, what="the thread")
    innocent = client.enqueue("block", {"sleep": 1.5}).id
    queue.wait_finished(timeout_s=30)
    assert queue.ids(State.ARCHIVED) == {poison}
    assert one.ledger.ends()[innocent] == 1
    assert one.ledger.starts()[poison] == 3, "every crash was charged to it"
    assert one.stop() == 0


def test_a_task_that_is_to_run_alone_is_put_off_beside_one_that_lasts_and_keeps_its_crashes(
    daemon: Callable[..., Daemon], client: Client, queue: QueueView
) -> None:
    """The worker fetched nothing until all it ran had ended: beside a handler of many minutes it stood idle
    for as long, and with one such task per worker the whole daemon did."""
    hasty = SOURCE + "from chronosd.worker import patience\npatience.SOLO_WAIT_S = 0.2\n"
    one = daemon(handlers=hasty, config=CONFIG | {"workers": 1}).start()
    lasting = client.enqueue("lasts", {}).id
    wait_until(lambda: one.ledger.starts()[lasting] == 1, what="the task that lasts")
    poison = client.enqueue("segfault", {}).id

    def put_off(times: int) -> list[dict[str, Any]]:
        lines = [r for r in one.log_records(PUT_OFF) if r["waited_s"]]
        return lines if len(lines) >= times else []

    for times in (1, 2, 3):
        wait_until(lambda: put_off(times), what=f"{PUT_OFF}:\n{one.log_tail()}")  # noqa: B023
        ids = {info.id for info in client.enqueue_many([("count", {})] * 30)}
        wait_until(lambda: ids <= set(one.ledger.ends()), what=f"its others:\n{one.log_tail()}")  # noqa: B023
    assert one.ledger.starts()[poison] == 2
    lines = put_off(3)
    assert {(line["task_id"], line["attempt"], line["crashes"]) for line in lines} == {(poison, 3, 2)}
    assert [line["delay_s"] for line in lines[:3]] == [0.2, 0.4, 0.8]
    (one.directory / "ended").touch()
    queue.wait_finished(timeout_s=60, what=f"of all:\n{one.log_tail()}")
    assert queue.ids(State.ARCHIVED) == {poison}
    assert one.ledger.starts()[poison] == 3
    assert [e.attempt for e in one.ledger.entries("start") if e.id == poison] == [1, 2, 3]
    evidence = json.loads(queue.field(poison, "evidence") or b"[]")
    assert [death["signal"] for death in evidence] == [11, 11, 11]
    wait_until(lambda: len(one.log_records("worker died")) == 3, what=f"three deaths:\n{one.log_tail()}")
    assert one.log_records("worker died")[-1]["tasks"]["running"] == 1, "the last time it ran alone"
    assert one.ledger.ends()[lasting] == 1
    assert one.stop() == 0
