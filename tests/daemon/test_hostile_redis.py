"""A Redis that is silent, slow, cut off or nowhere: the daemon still reaps its workers and obeys SIGTERM."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
import redis as redis_py

from chronosd import Client
from tests.support.daemon import Daemon
from tests.support.proxy import Mode, Proxy
from tests.support.queue_view import QueueView
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]
MODES: tuple[Mode, ...] = ("mute", "drip", "reset")
ALLOWED_S = 2.0
"""How much longer a reaping and a stop may take than with a healthy Redis."""
SLACK_S = 1.0
"""What a busy machine adds to either measurement."""


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace) as one:
        yield one


@pytest.fixture
def queue(redis: redis_py.Redis, namespace: str) -> QueueView:
    return QueueView(redis, namespace)


def reaped_after(daemon: Daemon) -> float:
    """Kills a worker; returns the seconds until nothing of it is left and another is in its place."""
    pids = daemon.wait_workers(2)
    victim = random.choice(pids)
    began_at = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(victim), what="the killed worker reaped")
    took_s = time.monotonic() - began_at
    daemon.wait_workers(2, without=[victim])
    return took_s


def stopped_after(daemon: Daemon) -> float:
    """Sends SIGTERM; returns the seconds until the end."""
    began_at = time.monotonic()
    assert daemon.stop() == 0
    return time.monotonic() - began_at


def under_load(one: Daemon, client: Client, relay: Proxy, mode: Mode) -> tuple[float, float]:
    """With tasks running, the relay turns hostile, a worker is killed, and then the daemon is stopped."""
    one.start()
    before = len(one.ledger.entries("start"))
    client.enqueue_many([("count", {"sleep": 0.2})] * 100)
    wait_until(lambda: len(one.ledger.entries("start")) >= before + 16, what="running tasks")
    relay.mode = mode
    time.sleep(random.uniform(0, 0.5))
    return reaped_after(one), stopped_after(one)


def test_under_load_a_hostile_redis_delays_neither_reaping_nor_the_end(
    daemon: MakeDaemon, client: Client, queue: QueueView, proxy: Proxy
) -> None:
    one = daemon(redis_url=proxy.url, workers=2, max_crashes=100, retry={"base": "100ms", "cap": "200ms"})
    healthy = under_load(one, client, proxy, "pass")
    print(f"healthy: reaped after {healthy[0]:.3f} s, drained after {healthy[1]:.2f} s")
    for mode in MODES:
        hostile = under_load(one, client, proxy, mode)
        print(f"{mode}: reaped after {hostile[0]:.3f} s, drained after {hostile[1]:.2f} s")
        assert hostile[0] < healthy[0] + ALLOWED_S + SLACK_S, mode
        assert hostile[1] < healthy[1] + ALLOWED_S + SLACK_S, f"{mode}:\n{one.log_tail()}"
        proxy.mode = "pass"

    one.start()
    queue.wait_finished()
    ends = one.ledger.ends()
    assert len(ends) == 100 * (1 + len(MODES)), "lost"
    assert ends.total() == len(ends), "what had ended is acknowledged at the next start, not repeated"
    assert one.log_records("supervisor failed") == []
    assert stopped_after(one) < ALLOWED_S + SLACK_S
    assert queue.owners() == {}


@pytest.mark.parametrize("where", [*MODES, "nowhere"])
def test_a_daemon_that_never_reached_redis_reaps_its_workers_and_ends_when_told(
    daemon: MakeDaemon, proxy: Proxy, where: Mode
) -> None:
    url = "redis://no-such-host.invalid:6379/0" if where == "nowhere" else proxy.url
    proxy.mode = "mute" if where == "nowhere" else where
    one = daemon(redis_url=url, workers=2).start(wait=False)
    reaped_s, stopped_s = reaped_after(one), stopped_after(one)
    print(f"{where}: reaped {reaped_s:.3f} s, stopped {stopped_s:.2f} s")
    assert reaped_s < ALLOWED_S + SLACK_S
    assert stopped_s < ALLOWED_S + SLACK_S, one.log_tail()
