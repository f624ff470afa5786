"""Limits over two daemons, measured by the handlers themselves and not by what Redis says.

``--limit-seconds 30`` makes of the first two what the contract asks for.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence

from chronosd import Client
from chronosd.broker.limit import BURST_S
from tests.support.daemon import Daemon
from tests.support.ledger import Ledger
from tests.support.limits import most_at_once
from tests.support.queue_view import QueueView
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]


def enqueue(client: Client, count: int, **args: object) -> list[str]:
    return [info.id for info in client.enqueue_many([("count", args)] * count)]


def starts(ledgers: Sequence[Ledger]) -> list[list[int]]:
    """When tasks started, on each host; nanoseconds of the monotonic clock."""
    return [[entry.at_ns for entry in ledger.entries("start")] for ledger in ledgers]


def test_a_rate_holds_over_two_daemons(daemon: MakeDaemon, client: Client, limit_s: float) -> None:
    workers, rate = (4, 100) if limit_s >= 30 else (2, 100)
    hosts = [
        daemon(workers=workers, queues={"default": {"rate_limit": f"{rate}/s"}}, concurrency=16).start()
        for _ in range(2)
    ]
    ledgers = [host.ledger for host in hosts]
    began_ns = time.monotonic_ns()
    count = int(rate * limit_s * 1.1)
    enqueue(client, count)
    wait_until(
        lambda: sum(map(len, starts(ledgers))) == count, timeout_s=3 * limit_s + 60, what="all of them"
    )
    at_s = sorted((at_ns - began_ns) / 1e9 for part in starts(ledgers) for at_ns in part)
    for number, seconds in enumerate(at_s, 1):
        assert number <= 1 + rate * (BURST_S + seconds), f"{number} starts within {seconds} s"
    if limit_s >= 30:
        started = sum(1 for seconds in at_s if seconds - at_s[0] <= limit_s)
        print(f"{started} starts in {limit_s:g} s at {rate}/s")
        assert 0.95 * rate * limit_s <= started <= 1.05 * rate * limit_s
        assert all(starts(ledgers)), "both have their part"
    assert [host.stop() for host in hosts] == [0, 0]


def test_no_more_than_so_many_are_in_flight_over_two_daemons(
    daemon: MakeDaemon, client: Client, queue: QueueView, limit_s: float
) -> None:
    count = int(200 * limit_s)
    ids = enqueue(client, count, sleep=0.02)
    queues = {"default": {"max_in_flight": 10}}
    hosts = [daemon(workers=4, queues=queues, concurrency=16).start() for _ in range(2)]
    ledgers = [host.ledger for host in hosts]
    wait_until(lambda: sum(map(len, starts(ledgers))) > count // 3, timeout_s=120, what="some of them")
    old = hosts[0].worker_pids()
    hosts[0].send(signal.SIGUSR2)  # fresh workers, one after the other
    queue.wait_finished(timeout_s=120)
    assert most_at_once(ledgers) == 10
    assert sum((ledger.ends() for ledger in ledgers), Counter[str]()) == Counter(ids)
    hosts[0].wait_workers(4, without=old, timeout_s=60)
    if limit_s >= 30:
        assert all(starts(ledgers)), "both have their part"
    assert [host.stop() for host in hosts] == [0, 0]


def test_the_places_of_a_killed_worker_are_free_again(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    ids = enqueue(client, 30, sleep=0.1)
    one = daemon(workers=2, queues={"default": {"max_in_flight": 3}}, concurrency=8).start()
    for _ in range(3):
        before = len(one.ledger.ends())
        wait_until(lambda: len(one.ledger.ends()) > before, timeout_s=30, what="progress")  # noqa: B023
        pids = one.worker_pids()
        os.kill(pids[-1], signal.SIGKILL)
        one.wait_workers(2, without=pids[-1:], timeout_s=30)
    queue.wait_finished(timeout_s=60)
    assert set(one.ledger.ends()) == set(ids)
    assert one.stop() == 0


def test_a_task_of_an_idle_limited_queue_starts_soon(daemon: MakeDaemon, client: Client) -> None:
    queues = {"default": 1, "low": {"max_in_flight": 5}, "slow": {"rate_limit": "1000/s"}}
    one = daemon(workers=2, queues=queues).start()
    waited = []
    for i in range(12):
        began_ns = time.monotonic_ns()
        task_id = client.enqueue("count", {}, queue=("low", "slow")[i % 2]).id
        wait_until(lambda: one.ledger.ends()[task_id], timeout_s=30, what="its run")  # noqa: B023
        (start,) = (entry for entry in one.ledger.entries("start") if entry.id == task_id)
        waited.append((start.at_ns - began_ns) / 1e9)
    assert sorted(waited)[6] < 0.15, waited
    assert one.stop() == 0


def test_a_reload_changes_the_limits(daemon: MakeDaemon, client: Client, queue: QueueView) -> None:
    enqueue(client, 120, sleep=0.05)
    one = daemon(workers=2, queues={"default": {"rate_limit": "1/h"}}, concurrency=8).start()
    wait_until(lambda: len(one.ledger.ends()) == 1, timeout_s=30, what="the one of this hour")
    one.write_config({"workers": 2, "concurrency": 8, "queues": {"default": {"max_in_flight": 4}}})
    done = one.ask("reload", wait=True)
    assert done["changes"] == [
        "queues.default.max_in_flight: none to 4", "queues.default.rate_limit: 1/h to none",
    ]  # fmt: skip
    wait_until(lambda: len(one.ledger.ends()) > 30, timeout_s=60, what="more than that")
    assert most_at_once([one.ledger]) == 4
    one.write_config({"workers": 2, "concurrency": 8, "queues": {"default": 1}})
    assert one.ask("reload", wait=True)["ok"]
    queue.wait_finished()
    assert len(one.ledger.ends()) == 120
    assert most_at_once([one.ledger]) > 4
    assert one.stop() == 0
