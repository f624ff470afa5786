"""A handler that does not end when its time is over: its worker does, and nobody else pays for it."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable

import pytest

from chronosd import Client
from chronosd.states import State
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.waiting import at_most, wait_until

SOURCE = """
import asyncio, time
from chronosd import Task
from tests.support.ledger import Ledger

ledger = Ledger.of_environment()

def thread(task: Task[dict]) -> None:
    ledger.write("start", task.id, task.attempt)
    while True:
        time.sleep(0.02)
        ledger.write("alive", task.id, task.attempt)

async def stubborn(task: Task[dict]) -> None:
    ledger.write("start", task.id, task.attempt)
    while True:
        try:
            await asyncio.sleep(0.02)
            ledger.write("alive", task.id, task.attempt)
        except BaseException:
            ledger.write("swallowed", task.id, task.attempt)
"""


@pytest.mark.parametrize("kind", ["thread", "stubborn"])
def test_it_is_ended_with_its_worker_and_no_other_task_is_charged_or_kept_waiting(
    daemon: Callable[..., Daemon], client: Client, queue: QueueView, kind: str
) -> None:
    """A timeout that only strikes the slot off the books leaves the first attempt running beside the second
    one; one that waits for the handler to heed it waits for ever."""
    overrunning = {name: {"import": f"handlers:{name}", "timeout": "1s"} for name in ("thread", "stubborn")}
    one = daemon(
        handlers=SOURCE,
        workers=2,
        concurrency=8,
        kill_grace="300ms",
        config={"handlers": {**overrunning, "count": "tests.support.jobs:count"}},
    ).start()
    siblings = [info.id for info in client.enqueue_many([("count", {"sleep": 3.0}, {"max_retry": 0})] * 6)]
    wait_until(lambda: len(one.ledger.starts()) == 6, what="the siblings")
    workers = one.worker_pids()
    hang = client.enqueue(kind, {}, max_retry=1).id
    enqueued: dict[str, float] = {}
    deadline = time.monotonic() + 20
    while hang not in queue.ids(State.ARCHIVED):
        task_id = client.enqueue("count", {}, max_retry=0).id
        enqueued[task_id] = time.monotonic()
        assert time.monotonic() < deadline, one.log_tail()
        time.sleep(0.04)
    queue.wait_finished()
    lateness = sorted(
        entry.at_ns / 1e9 - enqueued[entry.id]
        for entry in one.ledger.entries("start")
        if entry.id in enqueued and entry.attempt == 1
    )
    print(f"{len(lateness)} tasks enqueued meanwhile started at most {lateness[-1] * 1000:.0f} ms later")
    assert lateness[-1] < at_most(1.0)

    runs = [e for e in one.ledger.entries() if e.id == hang]
    first, second = [e for e in runs if e.what == "start"]
    assert max(e.at_ns for e in runs if e.pid == first.pid) < second.at_ns, "its attempts overlap"
    assert (second.at_ns - first.at_ns) / 1e9 > 1.3, "timeout and grace"
    others = [e for e in one.ledger.entries("start") if e.id != hang]
    assert {e.attempt for e in others} == {1}, "somebody else was charged"
    assert set(one.ledger.ends()) == {*siblings, *enqueued}
    assert queue.ids(State.ARCHIVED) == {hang}
    one.wait_workers(2, without=[pid for pid in workers if pid == first.pid])

    (_, killed) = one.log_records("worker killed")
    assert killed["tasks"] == [f"{kind} {hang}"]
    assert f"in {kind}" in killed["stack"]
    assert "_beat_in_thread" not in killed["stack"], "threads that only wait are left out"
    shown = one.run_command("task", "show", "default", hang, "-c", str(one.config_path), "--json")
    evidence = json.loads(shown.stdout)["evidence"]
    assert [death["signal"] for death in evidence] == [9, 9]
    assert all("ran past its timeout" in death["cause"] for death in evidence)
    assert all(f"in {kind}" in death["stack"] for death in evidence)
    text = one.run_command("task", "show", hang, "-c", str(one.config_path)).stdout
    assert f"in {kind}" in text
    assert one.stop() == 0


def test_a_stuck_thread_takes_no_capacity_for_good(
    daemon: Callable[..., Daemon], client: Client, queue: QueueView
) -> None:
    """All slots taken by threads that never end: the process is replaced, with all its slots."""
    one = daemon(
        handlers=SOURCE,
        workers=1,
        concurrency=2,
        kill_grace="100ms",
        config={
            "handlers": {
                "thread": {"import": "handlers:thread", "timeout": "300ms"},
                "sync": "tests.support.jobs:sync",
            }
        },
    ).start()
    stuck = [info.id for info in client.enqueue_many([("thread", {}, {"max_retry": 0})] * 5)]
    quick = client.enqueue("sync", {}).id
    began_at = time.monotonic()
    wait_until(lambda: one.ledger.ends()[quick], timeout_s=20, what="the quick one behind five stuck ones")
    print(f"it waited {time.monotonic() - began_at:.1f} s")
    wait_until(lambda: queue.ids(State.ARCHIVED) == set(stuck), timeout_s=20, what="the end of the stuck")
    assert all(count == 1 for count in one.ledger.starts().values())
    one.wait_workers(1)
    assert one.stop() == 0


def test_on_request_the_log_shows_where_every_handler_is(
    daemon: Callable[..., Daemon], client: Client
) -> None:
    """Only the main thread was shown, which was in its event loop."""
    one = daemon(workers=1, concurrency=4).start()
    for kind in ("count", "sync"):
        client.enqueue(kind, {"sleep": 2.0})
    wait_until(lambda: len(one.ledger.starts()) == 2, what="both running")
    one.send(signal.SIGUSR1)
    (record,) = wait_until(lambda: one.log_records("stack"), what="a stack in the log")
    for name in ("in count", "in sync", "in run"):
        assert name in record["stack"], name
    assert "in _beat_in_thread" not in record["stack"]
    assert one.stop() == 0
