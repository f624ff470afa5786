"""Metrics while workers die: no counter ever goes down, and in the end each says what has happened.

A few seconds in the default run; ``CHRONOSD_TEST_SCRAPE_S=600`` makes it ten minutes.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import redis as redis_py

from chronosd import Client
from chronosd.broker.message import decode
from chronosd.states import State
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.scrape import Scraper, address, scrape, total
from tests.support.waiting import wait_until

SECONDS = float(os.environ.get("CHRONOSD_TEST_SCRAPE_S", "5"))
PROCESSED = "chronos_tasks_processed_total"
KEPT = {"max_retry": 25, "retention": "1d"}
TASKS: list[tuple[Any, ...]] = [
    ("count", {"sleep": 0.02}, KEPT),
    ("count", {"sleep": 0.005, "fail": 2}, KEPT),
    ("count", {"fail": 99}, {"max_retry": 1}),
    ("wrong", {}, {}),
    ("noop", {}, {"max_retry": 25}),
    ("noop", {}, {"max_retry": 25, "queue": "low"}),
]


def retried(redis: redis_py.Redis, namespace: str) -> int:
    """How often the tasks that are still there have been charged and tried again, as Redis has it."""
    charged = 0
    for key in redis.scan_iter(f"{namespace}:{{*}}:t:*", count=500):
        charged += decode(redis.hget(key, "msg")).retried
    return charged


def test_counters_never_go_down_and_add_up_to_what_redis_has(
    daemon: Callable[..., Daemon], client: Client, queue: QueueView, redis: redis_py.Redis, namespace: str
) -> None:
    """A worker is killed every 0.4 s; now and then all are replaced, by a reload or a rolling restart, or the
    web process is shot. A task without retention succeeds once; one that is kept tells how often it failed.

    A worker that is killed in the fraction of a microsecond between counting an end and taking it off its
    board leaves both, and the end is counted twice. So there may be one too many, and never one too few.
    """
    one = daemon(
        workers=3,
        queues={"default": 2, "low": 1},
        retry={"base": "50ms", "cap": "200ms"},
        max_crashes=1000,
        janitor={"max_completed": 0},
        http={"listen": "127.0.0.1:0"},
        log={"level": "info", "format": "json"},
    ).start()
    where = address(one)
    scraper = Scraper(where)
    low = QueueView(redis, namespace, "low")
    dice = random.Random(7)
    sent: Counter[str] = Counter()
    kills, until, kill_at = 0, time.monotonic() + SECONDS, 0.0
    while time.monotonic() < until or kills < 8:
        if queue.unfinished() + low.unfinished() < 1000:
            client.enqueue_many(TASKS * 50)
            sent.update(str(kind) for kind, *_ in TASKS * 50)
        time.sleep(0.02)
        workers = one.children("worker")
        if time.monotonic() < kill_at or not workers or not queue.pending():
            continue  # only who holds something leaves something to be recovered
        os.kill(dice.choice(workers).pid, signal.SIGKILL)
        kills, kill_at = kills + 1, time.monotonic() + 0.4
        if kills % 7 == 3:
            one.send(signal.SIGHUP)
        elif kills % 7 == 5:
            one.send(signal.SIGUSR2)
        elif kills % 7 == 6:
            for child in one.children("web"):
                os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: queue.unfinished() + low.unfinished() == 0, timeout_s=60, what="all tasks ended")
    in_redis = {
        "archived": queue.size(State.ARCHIVED),
        "kept": queue.size(State.COMPLETED),
        "charged again": retried(redis, namespace),
    }
    counted: dict[str, int] = {}

    def settled() -> bool:
        series = scrape(where)
        counted.update(
            succeeded=total(series, PROCESSED, outcome="succeeded", kind="count"),
            noop=total(series, PROCESSED, outcome="succeeded", kind="noop"),
            archived=total(series, PROCESSED, outcome="archived"),
            again=total(series, PROCESSED, outcome="retried", kind="count")
            + total(series, PROCESSED, outcome="crashed", kind="count")
            + total(series, PROCESSED, outcome="crashed", kind="wrong"),
        )
        least = (in_redis["kept"], sent["noop"], in_redis["archived"], in_redis["charged again"])
        found = (counted["succeeded"], counted["noop"], counted["archived"], counted["again"])
        return all(a <= b for a, b in zip(least, found, strict=True)) and sum(found) <= sum(least) + 1

    try:
        wait_until(settled, timeout_s=10, what="counters that say what Redis says")
    except AssertionError:
        raise AssertionError(f"{counted} but {in_redis} and {sent}, after {kills} kills") from None
    scraper.stop()
    assert scraper.fallen == []
    assert scraper.scrapes > SECONDS / 2
    series = scrape(where)
    assert total(series, "chronos_worker_exits_total", reason="died", signal="9") > 0
    assert total(series, "chronos_tasks_recovered_total", path="worker") > 0
    assert total(series, "chronos_recovery_latency_seconds_count", path="worker") > 0
    assert total(series, "chronos_leases_lost_total") == 0
    print(f"{sum(sent.values())} tasks, {kills} kills, {scraper.scrapes} scrapes: {counted}")
