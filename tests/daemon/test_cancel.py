"""Cancelling tasks of a real daemon, in every state they can be in."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable

import pytest

from chronosd import AsyncClient, Client, TaskNotFound
from chronosd.client import Cancellation
from chronosd.states import State
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]

SOURCE = """
import asyncio, os, time
from chronosd import RetryIn, Task
from tests.support.ledger import Ledger

ledger = Ledger.of_environment()

async def stubborn(task: Task[dict]) -> None:
    with ledger.run(task.id, task.attempt):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if task.args["then"] == "again":
                raise RetryIn("1s")
            if task.args["then"] == "fail":
                raise RuntimeError("cleaned up")

async def first_long(task: Task[dict]) -> None:
    with ledger.run(task.id, task.attempt):
        try:
            os.close(os.open("seen", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        await asyncio.sleep(60)

def held(task: Task[dict]) -> None:
    with ledger.run(task.id, task.attempt):
        while not os.path.exists("release"):  # in the directory of the daemon
            time.sleep(0.01)
        if task.args.get("fail"):
            raise RuntimeError("told to fail")
"""


def last_error(queue: QueueView, task_id: str) -> str:
    """Of a task that is archived, and of which no run is left."""
    wait_until(lambda: task_id in queue.ids(State.ARCHIVED), what=f"{task_id} archived")
    message = json.loads(queue.field(task_id, "msg") or b"")
    error: str = message.get("last_err") or (queue.field(task_id, "error") or b"").decode()
    return error


def started(one: Daemon, *ids: str) -> None:
    wait_until(lambda: set(ids) <= set(one.ledger.starts()), what="all are running")


def test_each_state_has_its_end(
    daemon: MakeDaemon, client: Client, queue: QueueView, redis_url: str, namespace: str
) -> None:
    kinds = {name: f"handlers:{name}" for name in ("stubborn", "held")}
    kinds["count"] = "tests.support.jobs:count"
    one = daemon(handlers=SOURCE, workers=1, concurrency=6, config={"handlers": kinds}).start()
    sleeps = client.enqueue("count", {"sleep": 60}).id
    again, fails, ignores = (
        client.enqueue("stubborn", {"then": then}).id for then in ("again", "fail", "ignore")
    )
    thread, breaks = client.enqueue("held", {}).id, client.enqueue("held", {"fail": True}).id
    started(one, sleeps, again, fails, ignores, thread, breaks)
    waits = client.enqueue("count", {}).id
    later = client.enqueue("count", {}, delay="1h").id

    # what waits is gone at once; what runs is told
    command = one.run_command("task", "cancel", waits, "-c", str(one.config_path), "--json")
    assert json.loads(command.stdout) == {
        "id": waits,
        "queue": "default",
        "done": "removed",
        "cancelled": True,
    }
    assert client.cancel(later, "default") is Cancellation.REMOVED
    assert not {waits, later} & queue.bodies()
    for task_id in (sleeps, again, ignores, thread, breaks):
        assert client.cancel(task_id) is Cancellation.MARKED

    async def asynchronously() -> Cancellation:
        async with AsyncClient(redis_url, namespace=namespace) as twin:
            return await twin.cancel(fails)

    assert asyncio.run(asynchronously()) is Cancellation.MARKED
    wait_until(lambda: len(one.log_records("cancelling")) == 6, what="its worker is told of all")
    shown = one.run_command("task", "show", thread, "-c", str(one.config_path)).stdout
    assert "cancelled " in shown, "it runs on, and that is told"
    (one.directory / "release").touch()
    assert [last_error(queue, task_id) for task_id in (sleeps, again, fails, breaks)] == ["cancelled"] * 4
    # one that returned in spite of it, and a thread that could not be stopped, have succeeded
    wait_until(lambda: not {ignores, thread} & queue.bodies(), what="both ended")
    assert one.ledger.ends()[thread] == 1
    queue.wait_finished()
    assert {entry.attempt for entry in one.ledger.entries("start")} == {1}
    told = {record["task_id"] for record in one.log_records("task cancelled")}
    assert told == {sleeps, again, fails, breaks}

    with pytest.raises(TaskNotFound):
        client.cancel(thread)
    ended = one.run_command("task", "cancel", "default", sleeps, "-c", str(one.config_path))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "has ended already" in ended.stderr


def test_force_ends_a_thread_with_its_worker_and_charges_nobody_else(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    kinds = {name: f"handlers:{name}" for name in ("held", "first_long")}
    one = daemon(handlers=SOURCE, workers=1, concurrency=3, config={"handlers": kinds}).start()
    (pid,) = one.worker_pids()
    thread = client.enqueue("held", {}, max_retry=5).id
    sibling = client.enqueue("first_long", {}, max_retry=0).id
    started(one, thread, sibling)
    assert client.cancel(thread) is Cancellation.MARKED
    assert client.cancel(thread, force=True) is Cancellation.MARKED
    assert last_error(queue, thread) == "cancelled"
    one.wait_workers(1, without=[pid])
    wait_until(lambda: one.ledger.ends()[sibling], what="the sibling runs again")
    assert queue.ids(State.ARCHIVED) == {thread}
    assert {entry.attempt for entry in one.ledger.entries("start")} == {1}, "nobody was charged"
    assert one.log_records("worker killed")[0]["task_id"] == thread
    assert one.stop() == 0


def test_a_worker_or_a_daemon_that_dies_in_between_does_not_bring_it_back(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    one = daemon(workers=1, concurrency=3).start()
    first = client.enqueue("count", {"sleep": 60}).id
    started(one, first)
    # stopped, so that nobody can act on the mark before the worker dies
    os.kill(one.pid, signal.SIGSTOP)
    client.cancel(first)
    os.kill(one.worker_pids()[0], signal.SIGKILL)
    os.kill(one.pid, signal.SIGCONT)
    assert last_error(queue, first) == "cancelled"

    second = client.enqueue("count", {"sleep": 60}).id
    started(one, second)
    os.kill(one.pid, signal.SIGSTOP)
    client.cancel(second)
    one.kill()
    one.start()
    assert last_error(queue, second) == "cancelled"
    assert one.ledger.starts()[first] == one.ledger.starts()[second] == 1
