"""Stopping: nothing starts any more, what runs finishes, what was only fetched goes back, and all in time."""

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
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.waiting import at_most, wait_until

MakeDaemon = Callable[..., Daemon]


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace) as one:
        yield one


@pytest.fixture
def queue(redis: redis_py.Redis, namespace: str) -> QueueView:
    return QueueView(redis, namespace)


def started(daemon: Daemon) -> int:
    return sum(daemon.ledger.starts().values())


def test_after_sigterm_nothing_starts_what_runs_finishes_and_the_rest_goes_back(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    one = daemon(workers=2, concurrency=8, shutdown_timeout="15s").start()
    ids = [info.id for info in client.enqueue_many([("count", {"sleep": 0.7})] * 64)]
    wait_until(lambda: started(one) >= 16, what="running tasks")
    asked_ns = time.monotonic_ns()
    assert one.stop() == 0
    took_s = (time.monotonic_ns() - asked_ns) / 1e9
    # half a second for the signal to be heard on a busy machine; without it they would go on for two
    late = [e for e in one.ledger.entries("start") if e.at_ns > asked_ns + 500_000_000]
    assert late == []
    assert one.ledger.starts() == one.ledger.ends(), "what had started was not finished"
    assert took_s < at_most(5), f"{took_s:.1f} s for tasks of 0.7 s"
    left = set(ids) - set(one.ledger.ends())
    assert queue.owners() == {}, "consumers left behind"
    assert queue.pending() == 0
    assert queue.bodies() == left
    assert all(queue.places(left)[task_id] == ["stream"] for task_id in left)
    print(f"stopped in {took_s:.2f} s")

    one.start()
    queue.wait_finished()
    assert one.ledger.ends() == Counter(ids), "each exactly once over both runs"
    assert one.stop() == 0


def test_tasks_in_full_flow_stop_anywhere_and_none_is_lost_or_late(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    """Delivered in the millisecond of the stop: chronos-go loses such a task until its lease is over, and
    charges it then."""
    one = daemon(workers=2, concurrency=16, log={"level": "info", "format": "json"})
    ids = [info.id for info in client.enqueue_many([("count", {}, {"max_retry": 0})] * 6_000)]
    rounds = 0
    while rounds == 0 or queue.entries():
        one.start()
        before = started(one)
        wait_until(lambda before=before: started(one) > before, what="running tasks")  # type: ignore[misc]
        time.sleep(random.uniform(0, 0.15))
        asked_ns = time.monotonic_ns()
        assert one.stop() == 0
        assert time.monotonic_ns() - asked_ns < 5e9
        assert queue.pending() == 0
        assert queue.owners() == {}
        rounds += 1
    assert one.ledger.starts() == Counter(ids), "each exactly once"
    assert one.ledger.ends() == Counter(ids)
    assert queue.bodies() == set()
    print(f"{rounds} stops")


def test_what_still_runs_at_shutdown_timeout_is_handed_back_uncharged(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    one = daemon(workers=2, concurrency=4, shutdown_timeout="1s").start()
    hanging = [client.enqueue("count", {"sleep": 60}).id for _ in range(3)]
    in_thread = client.enqueue("sync", {"sleep": 60}, max_retry=0).id
    wait_until(lambda: started(one) >= 4, what="running tasks")
    asked_at = time.monotonic()
    assert one.stop() == 0
    took_s = time.monotonic() - asked_at
    assert 1 <= took_s < at_most(4)
    print(f"stopped in {took_s:.2f} s")
    assert queue.owners() == {}
    assert {task_id: places for task_id, places in queue.places([*hanging, in_thread]).items()} == {
        task_id: ["stream"] for task_id in [*hanging, in_thread]
    }
    assert all(queue.field(task_id, "crashes") is None for task_id in [*hanging, in_thread])
    assert all(b'"retried":0' in (queue.field(task_id, "msg") or b"") for task_id in hanging)


def test_an_idle_daemon_stops_within_a_second_also_after_a_worker_was_killed(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    """A stop once waited 25 s and left its tasks, "redis is away" although it was there: the estate of a
    worker that had been killed earlier kept its last settlement for half a minute later."""
    one = daemon(workers=2).start()
    client.enqueue("count", {})
    queue.wait_finished()
    asked_at = time.monotonic()
    assert one.stop() == 0
    assert time.monotonic() - asked_at < at_most(4), "it once took all of shutdown_timeout, 25 s"
    for pause_s in (0, 1.2):
        one.start()
        killed = one.worker_pids()[0]
        os.kill(killed, signal.SIGKILL)
        one.wait_workers(2, without=[killed])
        client.enqueue("count", {})
        queue.wait_finished()
        time.sleep(pause_s)
        asked_at = time.monotonic()
        assert one.stop() == 0
        took_s = time.monotonic() - asked_at
        assert took_s < at_most(4), f"{took_s:.2f} s:\n{one.log_tail()}"
        print(f"stopped in {took_s * 1000:.0f} ms")
    assert queue.owners() == {}
    assert "tasks left for the next start" not in one.log_text()
