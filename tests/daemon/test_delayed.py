"""Delayed tasks: at their time, never before; however many are due at once, the daemon hears its signals."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import redis as redis_py

from chronosd import Client
from chronosd.states import State
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.waiting import at_most, wait_until

MakeDaemon = Callable[..., Daemon]

MARK = """
    from tests.support.ledger import Ledger

    ledger = Ledger.of_environment()

    async def mark(task):
        ledger.write("start", task.id, task.attempt)
"""


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace) as one:
        yield one


@pytest.fixture
def queue(redis: redis_py.Redis, namespace: str) -> QueueView:
    return QueueView(redis, namespace)


def test_five_hundred_tasks_with_random_delays_start_when_they_are_due_and_none_before(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    one = daemon(workers=2, concurrency=16).start()
    tasks = [("count", {}, {"delay": random.uniform(0.2, 5)}) for _ in range(500)]
    ids = [info.id for info in client.enqueue_many(tasks)]
    due_at = {
        task_id.decode(): score
        for task_id, score in queue.redis.zrange(queue.keys.scheduled, 0, -1, withscores=True)
    }
    assert set(due_at) == set(ids)
    queue.wait_finished(timeout_s=15)
    assert one.ledger.ends() == Counter(ids)
    offset_s = time.time() - time.monotonic()
    late_ms = sorted(
        (entry.at_ns / 1e9 + offset_s - due_at[entry.id]) * 1000 for entry in one.ledger.entries("start")
    )
    print(f"late by {late_ms[250]:.1f} ms (p50), {late_ms[495]:.1f} ms (p99), {late_ms[-1]:.1f} ms (most)")
    assert late_ms[0] > -1, "early, beyond what reading two clocks explains"
    assert late_ms[495] < at_most(500), "the budget is 10 ms; this only tells the right order from none"
    assert one.stop() == 0


def test_a_hundred_thousand_tasks_due_at_once_drain_and_sigterm_is_heard_meanwhile(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    one = daemon(
        workers=2,
        concurrency=64,
        handlers=MARK,
        config={"handlers": {"mark": "handlers:mark"}},
        log={"level": "info", "format": "json"},
    )
    ids: set[str] = set()
    for _ in range(10):
        ids |= {info.id for info in client.enqueue_many([("mark", {}, {"delay": "1h"})] * 10_000)}
    # all due at once, as after an outage: each score is halved
    queue.redis.zunionstore(queue.keys.scheduled, {queue.keys.scheduled: 0.5})
    assert queue.size(State.SCHEDULED) == 100_000
    began_at = time.monotonic()
    one.start()
    wait_until(lambda: queue.size(State.SCHEDULED) < 60_000, timeout_s=30, what="a drain half done")
    asked_at = time.monotonic()
    assert one.stop() == 0
    took_s = time.monotonic() - asked_at
    assert took_s < at_most(5), f"SIGTERM was served after {took_s:.1f} s"
    assert queue.size(State.SCHEDULED) > 0, "the stop came too late to prove anything"
    assert queue.pending() == 0
    print(f"stopped in {took_s * 1000:.0f} ms with {queue.size(State.SCHEDULED)} still scheduled")

    one.start()
    queue.wait_finished(timeout_s=60)
    print(f"drained within {time.monotonic() - began_at:.1f} s")
    starts = one.ledger.starts()
    assert set(starts) == ids
    assert sum(starts.values()) == 100_000, "each once"
    assert queue.bodies() == set()
    assert one.stop() == 0
