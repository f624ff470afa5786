"""Which queue is served how much, by a daemon under load, as its handlers saw it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from chronosd import Client
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]
WEIGHTS = {"critical": 6, "default": 3, "low": 1}
MEASURED = 3000


def load(client: Client, counts: dict[str, int]) -> dict[str, str]:
    """A backlog in every queue; the queue of each task by its id."""
    queues: dict[str, str] = {}
    for name, count in counts.items():
        tasks = [("count", {}, {"queue": name})] * count
        queues |= {info.id: name for info in client.enqueue_many(tasks)}
    return queues


def order(one: Daemon) -> list[str]:
    """Ids in the order in which they started."""
    return [entry.id for entry in sorted(one.ledger.entries("start"), key=lambda entry: entry.at_ns)]


def test_weights_hold_within_a_tenth_while_every_queue_has_work(daemon: MakeDaemon, client: Client) -> None:
    queues = load(client, {"critical": 3500, "default": 2500, "low": 1500})
    one = daemon(workers=2, concurrency=16, queues=WEIGHTS).start()
    wait_until(lambda: len(one.ledger.starts()) > MEASURED, timeout_s=60, what="a few thousand tasks")
    served = Counter(queues[task_id] for task_id in order(one)[:MEASURED])
    for name, weight in WEIGHTS.items():
        assert served[name] / MEASURED == pytest.approx(weight / 10, rel=0.1), served
    assert one.stop() == 0


def test_strict_priority_drains_the_heavier_queue_first(daemon: MakeDaemon, client: Client) -> None:
    queues = load(client, {"low": 1500, "default": 1500, "critical": 1500})
    one = daemon(workers=2, concurrency=16, queues=WEIGHTS, strict_priority=True).start()
    wait_until(lambda: len(one.ledger.starts()) > MEASURED, timeout_s=60, what="a few thousand tasks")
    first = [queues[task_id] for task_id in order(one)]
    # while the last ones of a queue are fetched, slots that it cannot fill go to the next
    assert Counter(first[:1000]) == {"critical": 1000}
    assert Counter(first[2000:2500]) == {"default": 500}
    again = load(client, {"critical": 100})
    wait_until(lambda: set(again) <= set(one.ledger.starts()), timeout_s=30, what="the critical ones")
    assert one.stop() == 0
