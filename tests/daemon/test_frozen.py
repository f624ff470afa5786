"""Processes and servers that stand still and then go on, as if nothing had happened."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from chronosd import Client
from chronosd.embedded import EmbeddedServer
from chronosd.inspector import Inspector
from chronosd.states import State
from tests.support.daemon import Daemon
from tests.support.processes import paused
from tests.support.queue_view import QueueView
from tests.support.waiting import wait_until

LEASE_S = 2.0
LEASES = {"recover_min_idle": "2s", "heartbeat_interval": "300ms", "recover_interval": "300ms"}

SOURCE = """
import asyncio, os, time
from chronosd import Task
from tests.support.ledger import Ledger

ledger = Ledger.of_environment()
HOST = os.environ["HOST"]

async def succeed(task: Task[dict]) -> str:
    with ledger.run(task.id, task.attempt):
        await asyncio.sleep(task.args["s"])
    return HOST

async def fail(task: Task[dict]) -> str:
    with ledger.run(task.id, task.attempt):
        try:
            await asyncio.sleep(task.args["s"])
        finally:
            if HOST == "first":
                raise RuntimeError("late")
    return HOST

def thread(task: Task[dict]) -> str:
    with ledger.run(task.id, task.attempt):
        time.sleep(task.args["s"])
    return HOST
"""
KINDS = ("succeed", "fail", "thread")


@pytest.fixture
def host(daemon: Callable[..., Daemon]) -> Callable[[str], Daemon]:
    """A daemon that stands for a host."""

    def make(name: str) -> Daemon:
        return daemon(
            handlers=SOURCE,
            env={"HOST": name},
            config={"handlers": {kind: f"handlers:{kind}" for kind in KINDS}},
            **LEASES,
        )

    return make


def test_a_host_that_wakes_up_late_changes_nothing_that_another_one_has_taken_over(
    host: Callable[[str], Daemon], client: Client, queue: QueueView, namespace: str
) -> None:
    """A stale worker's late failure brought a task back to life that was finished elsewhere, and it ran
    again; its late success deleted the task under the new run."""
    first, second = host("first").start(), host("second")
    options = {"retention": "1h", "max_retry": 1}
    before = [client.enqueue(kind, {"s": 1.0}, **options).id for kind in KINDS]  # type: ignore[arg-type]
    during = [client.enqueue(kind, {"s": 4.0}, **options).id for kind in KINDS]  # type: ignore[arg-type]
    wait_until(lambda: len(first.ledger.starts()) == 6, what="the runs on the first host")
    with paused(first.pid, *first.worker_pids()):
        second.start()
        wait_until(lambda: len(second.ledger.starts()) == 6, timeout_s=20, what="the runs on the second host")
        wait_until(lambda: set(second.ledger.ends()) == set(before), what="the end of the short ones there")
    # The first host wakes up: three of its tasks are finished elsewhere, three are running there.
    wait_until(lambda: first.log_records("leases lost"), what="the loss noticed")
    queue.wait_finished()
    assert first.stop() == 0
    assert second.ledger.starts() == second.ledger.ends() == Counter([*before, *during])
    assert first.ledger.starts() == Counter([*before, *during]), "it started none again"
    assert queue.size(State.ARCHIVED) == 0
    assert queue.ids(State.COMPLETED) == {*before, *during}
    with Inspector(first.redis_url, namespace=namespace) as look:
        for task_id in (*before, *during):
            found = look.show_task("default", task_id)
            assert found.result == "second", "the new run is the only truth"
            assert found.message is not None
            assert found.message.retried == 1, "the loss was charged, the late failure was not"
    assert second.stop() == 0


def test_a_worker_frozen_alone_keeps_its_leases(
    host: Callable[[str], Daemon], client: Client, queue: QueueView
) -> None:
    first = host("first").start()
    ids = [client.enqueue(kind, {"s": 1.0}).id for kind in ("succeed", "thread") for _ in range(2)]
    wait_until(lambda: len(first.ledger.starts()) == 4, what="the runs")
    with paused(*first.worker_pids()):
        second = host("second").start()
        time.sleep(3 * LEASE_S)  # so long that without a heartbeat the second host would have them
        assert queue.pending() == 4
    queue.wait_finished()
    assert first.ledger.starts() == first.ledger.ends() == Counter(ids)
    assert second.ledger.starts() == Counter()
    assert [first.stop(), second.stop()] == [0, 0]


def test_a_server_that_stood_still_and_then_restarted_makes_no_task_run_twice(
    daemon: Callable[..., Daemon], fresh_server: EmbeddedServer, namespace: str, outage_s: float
) -> None:
    """While nobody can renew a lease every live entry grows old: an outage is no proof of death. Whoever
    comes back first must not take what belongs to the other."""
    both = [daemon(redis_url=fresh_server.url, workers=2, concurrency=4, **LEASES).start() for _ in range(2)]
    long = {"sleep": outage_s + 4}
    with Client(fresh_server.url, namespace=namespace) as client:
        tasks = [("count", long, {"max_retry": 0})] * 6 + [("sync", long, {"max_retry": 0})] * 6
        ids = Counter(info.id for info in client.enqueue_many(tasks))
    starts: Callable[[], Counter[str]] = lambda: sum((one.ledger.starts() for one in both), Counter())  # noqa: E731
    ends: Callable[[], Counter[str]] = lambda: sum((one.ledger.ends() for one in both), Counter())  # noqa: E731
    wait_until(lambda: len(starts()) == 12, what="all of them running")
    assert all(one.ledger.starts() for one in both), "on both hosts"
    assert fresh_server.pid is not None
    with paused(fresh_server.pid):
        time.sleep(outage_s)
    time.sleep(2 * LEASE_S)
    fresh_server.kill()
    fresh_server.start()
    wait_until(lambda: len(ends()) == 12, timeout_s=outage_s + 20, what="the end of all")
    assert [one.stop() for one in both] == [0, 0]
    assert starts() == ends() == ids
