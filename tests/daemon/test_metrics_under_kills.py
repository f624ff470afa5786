"""Metrics while workers die: no counter ever goes down, and in the end each says what has happened.

A few seconds in the default run; ``CHRONOSD_TEST_SCRAPE_S=600`` makes it ten minutes.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
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
TOO_LONG = {"text": "x" * 3000}
TASKS: list[tuple[Any, ...]] = [
    ("count", {"sleep": 0.02}, KEPT),
    ("count", {"sleep": 0.005, "fail": 2}, KEPT),
    ("count", {"fail": 99}, {"max_retry": 1}),
    ("wrong", {}, {}),
    ("noop", {}, {"max_retry": 25}),
    ("noop", {}, {"max_retry": 25, "queue": "low"}),
    ("count", TOO_LONG, {}),
    ("sync", TOO_LONG, {"discard": True}),
]
NAMELESS = 20
"""Entries, a batch, that name no task."""


def retried(redis: redis_py.Redis, namespace: str) -> int:
    """How often the tasks that are still there have been charged and tried again, as Redis has it."""
    charged = 0
    for key in redis.scan_iter(f"{namespace}:{{*}}:t:*", count=500):
        charged += decode(redis.hget(key, "msg")).retried
    return charged


@pytest.mark.timeout(SECONDS + 120)
def test_counters_never_go_down_and_add_up_to_what_redis_has(
    daemon: Callable[..., Daemon], client: Client, queue: QueueView, redis: redis_py.Redis, namespace: str
) -> None:
    """A worker is killed every 0.4 s; now and then all are replaced, by a reload or a rolling restart, or the
    web process is shot. A task without retention succeeds once; one that is kept tells how often it failed;
    one whose payload is too long ends where it arrives, and so does an entry that names none.

    A worker that was killed in the fraction of a microsecond between counting an end and taking it off its
    board left both, and the end was counted twice. What ended without having run was not on the board, and
    was not counted if its worker died before it heard of that.
    """
    one = daemon(
        workers=3,
        queues={"default": 2, "low": 1},
        retry={"base": "50ms", "cap": "200ms"},
        max_crashes=1000,
        max_payload="2KiB",
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
            for _ in range(NAMELESS):
                redis.xadd(queue.keys.stream, {"no": "task"})
        time.sleep(0.02)
        workers = one.children("worker")
        if time.monotonic() < kill_at or not workers or not queue.pending():
            continue  # only who holds something leaves something to be recovered
        try:
            os.kill(dice.choice(workers).pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # replaced meanwhile
        kills, kill_at = kills + 1, time.monotonic() + 0.4
        if kills % 7 == 3:
            one.send(signal.SIGHUP)
        elif kills % 7 == 5:
            one.send(signal.SIGUSR2)
        elif kills % 7 == 6:
            for child in one.children("web"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: queue.unfinished() + low.unfinished() == 0, timeout_s=60, what="all tasks ended")
    in_redis = {
        "succeeded": queue.size(State.COMPLETED),
        "noop": sent["noop"],
        "archived": queue.size(State.ARCHIVED),
        "discarded": sent["sync"],
        "again": retried(redis, namespace),
    }
    counted: dict[str, int] = {}

    def settled() -> bool:
        series = scrape(where)
        counted.update(
            succeeded=total(series, PROCESSED, outcome="succeeded", kind="count"),
            noop=total(series, PROCESSED, outcome="succeeded", kind="noop"),
            archived=total(series, PROCESSED, outcome="archived"),
            discarded=total(series, PROCESSED, outcome="discarded"),
            again=total(series, PROCESSED, outcome="retried", kind="count")
            + total(series, PROCESSED, outcome="crashed", kind="count")
            + total(series, PROCESSED, outcome="crashed", kind="wrong"),
        )
        return counted == in_redis

    try:
        wait_until(settled, timeout_s=10, what="counters that say what Redis says")
    except AssertionError:
        raise AssertionError(f"{counted} but {in_redis}, after {kills} kills") from None
    scraper.stop()
    assert scraper.fallen == []
    assert scraper.scrapes > SECONDS / 2
    series = scrape(where)
    assert total(series, "chronos_worker_exits_total", reason="died", signal="9") > 0
    assert total(series, "chronos_tasks_recovered_total", path="worker") > 0
    assert total(series, "chronos_recovery_latency_seconds_count", path="worker") > 0
    assert total(series, "chronos_leases_lost_total") == 0
    print(f"{sum(sent.values())} tasks, {kills} kills, {scraper.scrapes} scrapes: {counted}")
