"""Workers die, at random and all the time: no task is lost, and every place has its worker again."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator

import psutil
import pytest
import redis as redis_py

from chronosd import Client
from chronosd.states import State
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


def zombies(daemon: Daemon) -> list[psutil.Process]:
    """Children of the supervisor that have ended and that it has not reaped."""
    found = []
    for child in psutil.Process(daemon.pid).children():
        try:
            if child.status() == psutil.STATUS_ZOMBIE:
                found.append(child)
        except psutil.NoSuchProcess:
            pass
    return found


def overcharged(daemon: Daemon) -> int:
    """Starts that were told of more attempts than there had been starts."""
    seen: Counter[str] = Counter()
    found = 0
    for entry in daemon.ledger.entries("start"):
        seen[entry.id] += 1
        found += entry.attempt > seen[entry.id]
    return found


def test_twenty_thousand_tasks_survive_a_worker_killed_every_300_ms(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    """The promise of the whole thing: each task at least once, none dead-lettered, all workers back."""
    one = daemon(
        workers=4,
        concurrency=8,
        retry={"base": "100ms", "cap": "1s"},
        log={"level": "info", "format": "json"},
    ).start()
    ids = [info.id for info in client.enqueue_many([("count", {"sleep": 0.004}, {"max_retry": 25})] * 20_000)]
    kills, kill_at = 0, time.monotonic()
    while queue.unfinished():
        if time.monotonic() >= kill_at and (pids := one.worker_pids()):
            os.kill(random.choice(pids), signal.SIGKILL)
            kills, kill_at = kills + 1, kill_at + 0.3
        assert kills < 300, f"{queue.unfinished()} tasks left after {kills} kills:\n{one.log_tail()}"
        time.sleep(0.01)
    one.wait_workers(4)
    wait_until(lambda: not zombies(one), what="no zombie")
    starts, ends = one.ledger.starts(), one.ledger.ends()
    assert set(ends) == set(ids)
    assert queue.size(State.ARCHIVED) == 0
    assert queue.pending() == 0
    assert queue.bodies() == set()
    # a kill may hit one task that is on the board as running and had no time to write into the ledger
    assert overcharged(one) <= kills
    repeats = sum(starts.values()) - len(ids)
    print(f"{kills} kills, {repeats} repeated starts")
    asked_at = time.monotonic()
    assert one.stop() == 0
    assert time.monotonic() - asked_at < at_most(5)
