"""The daemon itself is killed: its workers die with it, and the next start finds everything they held."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import redis as redis_py

from chronosd import Client
from chronosd.states import State
from tests.support.daemon import Daemon
from tests.support.processes import gone
from tests.support.queue_view import QueueView
from tests.support.waiting import at_most, wait_until

MakeDaemon = Callable[..., Daemon]
ROUNDS = int(os.environ.get("CHRONOSD_TEST_ROUNDS", "4"))
HARDENED = {"max_crashes": 1000, "retry": {"base": "100ms", "cap": "1s"}}
"""Every kill is the test's: no task shall be taken for what kills its workers."""


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace) as one:
        yield one


@pytest.fixture
def queue(redis: redis_py.Redis, namespace: str) -> QueueView:
    return QueueView(redis, namespace)


def started(daemon: Daemon) -> int:
    return sum(daemon.ledger.starts().values())


def test_workers_die_with_their_supervisor_and_the_next_start_recovers_what_they_held(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    one = daemon(workers=4, concurrency=8).start()
    workers = one.worker_pids()
    ids = [info.id for info in client.enqueue_many([("count", {"sleep": 1.0})] * 64)]
    wait_until(lambda: started(one) >= 32, what="running tasks")
    killed_at = time.monotonic()
    one.send(signal.SIGKILL)
    wait_until(lambda: all(map(gone, workers)), timeout_s=1.0, what="no worker a second later")
    print(f"workers gone after {(time.monotonic() - killed_at) * 1000:.0f} ms")
    one.wait()
    held = set(one.ledger.starts()) - set(one.ledger.ends())
    assert held
    assert queue.pending() >= len(held)

    started_at = time.monotonic()
    one.start()
    dead = [name for name in queue.owners() if name.startswith(tuple(_incarnations(one)[:-1]))]
    wait_until(lambda: sum(queue.owners().get(name, 0) for name in dead) == 0, what="nothing left pending")
    recovered_s = time.monotonic() - started_at
    print(f"orphans recovered {recovered_s * 1000:.0f} ms after exec")
    assert recovered_s < at_most(6), "the budget is 2 s; this allows for a busy machine"
    queue.wait_finished()
    starts, ends = one.ledger.starts(), one.ledger.ends()
    assert ends == Counter(ids)
    assert all(starts[task_id] == 2 for task_id in held)
    assert sum(starts.values()) == len(ids) + len(held)
    assert one.stop() == 0


def _incarnations(daemon: Daemon) -> list[str]:
    consumers = [record["consumer"] for record in daemon.log_records("worker forked")]
    return list(dict.fromkeys(consumer.rpartition("-")[0] + "-" for consumer in consumers))


@pytest.mark.timeout(120 + 10 * ROUNDS)
def test_a_kill_during_the_hand_back_neither_loses_nor_multiplies_tasks(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    one = daemon(workers=2, concurrency=8, shutdown_timeout="100ms", kill_grace="100ms", config=HARDENED)
    ids = [info.id for info in client.enqueue_many([("count", {"sleep": 0.3}, {"max_retry": 1000})] * 100)]
    for _ in range(ROUNDS):
        one.start()
        before = started(one)
        wait_until(lambda before=before: started(one) >= before + 8, what="running tasks")  # type: ignore[misc]
        one.send(signal.SIGTERM)
        time.sleep(random.uniform(0, 0.4))
        if one.returncode is None:
            os.kill(one.pid, signal.SIGKILL)
        one.wait()
        left = set(ids) - set(one.ledger.ends())
        places = queue.places(left)
        assert {task_id for task_id in left if not places[task_id]} == set(), "lost"
        double = {task_id: found for task_id, found in places.items() if len(found) > 1}
        assert double == {}, "in two places"
    one.start()
    queue.wait_finished(timeout_s=60)
    assert set(one.ledger.ends()) == set(ids)
    assert queue.size(State.ARCHIVED) == 0
    assert queue.bodies() == set()
    assert one.stop() == 0
    assert queue.owners() == {}


@pytest.mark.timeout(120 + 10 * ROUNDS)
def test_kills_stops_and_restarts_in_any_order_lose_and_archive_nothing(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    one = daemon(workers=2, concurrency=8, shutdown_timeout="300ms", kill_grace="100ms", config=HARDENED)
    ids: list[str] = []
    for n in range(ROUNDS):
        ids += [info.id for info in client.enqueue_many([("count", {"sleep": 0.05})] * 200)]
        ids += [info.id for info in client.enqueue_many([("count", {"fail": 1}, {"delay": 0.1})] * 20)]
        one.start()
        time.sleep(random.uniform(0, 0.2))
        for pid in one.worker_pids()[: n % 3]:
            os.kill(pid, signal.SIGKILL)
        time.sleep(random.uniform(0, 0.1))
        one.send(random.choice([signal.SIGTERM, signal.SIGQUIT, signal.SIGKILL]))
        time.sleep(random.uniform(0, 0.3))
        if one.returncode is None and random.random() < 0.5:
            os.kill(one.pid, signal.SIGKILL)
        one.wait()
    one.start()
    queue.wait_finished(timeout_s=60)
    assert set(one.ledger.ends()) == set(ids)
    assert queue.size(State.ARCHIVED) == 0
    assert queue.bodies() == set()
    assert queue.pending() == 0
    assert one.stop() == 0
    assert queue.owners() == {}
