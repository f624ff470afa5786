"""Cases of group D: schedules, cron, clocks."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import redis as redis_py

from chronosd import Client
from chronosd.inspector import Inspector
from tests.support.bench import Bench
from tests.support.clocks import Clock
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]

HANG = """
    import asyncio

    from tests.support.ledger import Ledger

    ledger = Ledger.of_environment()

    async def hang(task):
        ledger.write("start", task.id.rpartition(":")[2], task.attempt)
        await asyncio.sleep(60)
"""


def test_d43_a_kill_in_the_middle_of_a_scheduled_task_stops_no_later_one_and_no_lock_of_others_is_touched(
    daemon: MakeDaemon, redis: redis_py.Redis, namespace: str
) -> None:
    """A lock against overlap survived the kill: nothing ran again. A start that flushed locks broke others'.

    Here no lock stands between the times of a schedule, and what a task needs its handler keeps.
    """
    one = daemon(
        handlers=HANG,
        config={"handlers": {"hang": "handlers:hang"}},
        schedules={"s": {"every": "1s", "kind": "hang"}},
        shutdown_timeout="0s",
    ).start()
    wait_until(lambda: one.ledger.starts())
    (lease,) = redis.scan_iter(match=f"{namespace}:sched:*:lease")
    one.kill()
    redis.set(lease, "another host", px=60_000)
    before = {e.id for e in one.ledger.entries("start")}
    one.start()
    wait_until(lambda: {e.id for e in one.ledger.entries("start")} - before, what="a later time to run")
    assert redis.get(lease) == b"another host"
    one.send(signal.SIGQUIT)
    assert one.wait() == 0
    assert redis.get(lease) == b"another host"


def test_d54_steps_of_a_host_s_clock_kill_no_worker_expire_no_lease_and_fail_no_watchdog(
    daemon: MakeDaemon, client: Client, queue: QueueView, tmp_path: Path
) -> None:
    """Ages that were measured by the wall clock: a step killed every worker."""
    clock = Clock(tmp_path / "clock")
    one = daemon(
        workers=2,
        concurrency=4,
        recover_min_idle="1s",
        heartbeat_interval="200ms",
        recover_interval="100ms",
        env=clock.environment | {"WATCHDOG_USEC": "1000000"},
    ).start()
    workers = one.worker_pids()
    ids = [client.enqueue("count", {"sleep": 2.5}).id for _ in range(8)]
    wait_until(lambda: len(one.ledger.starts()) == 8)
    for ahead_s in (3600.0, -7200.0, 0.0):
        clock.step(ahead_s)
        seen = one.read_notifications().count("WATCHDOG=1")
        wait_until(lambda seen=seen: one.read_notifications().count("WATCHDOG=1") > seen)  # type: ignore[misc] # bound
    queue.wait_finished()
    assert one.ledger.starts() == one.ledger.ends() == Counter(ids)
    assert one.worker_pids() == workers
    assert [
        event for event in ("worker died", "supervisor stood still", "lease lost") if one.log_records(event)
    ] == []
    assert one.stop() == 0


def test_d55_entry_ids_that_are_ahead_of_the_clock_make_no_age_negative_or_huge(
    bench: Bench, bench_url: str
) -> None:
    """The server's clock went back an hour: new entries keep the old millisecond, and count up behind it."""
    ahead_ms = int(time.time() * 1000) + 3_600_000
    bench.group()
    bench.redis.xadd(bench.queue.stream, {"task_id": "gone"}, id=f"{ahead_ms}-0")
    bench.redis.xdel(bench.queue.stream, f"{ahead_ms}-0")
    bench.add("a", nonce="n")
    ((entry, _),) = bench.redis.xrange(bench.queue.stream)  # type: ignore[misc, union-attr] # synchronous
    assert entry == f"{ahead_ms}-1".encode()
    with Inspector(bench_url, namespace=bench.namespace.prefix) as inspector:
        stats = inspector.queue_stats("q")
        shown = inspector.show_task("q", "a")
        assert stats.oldest_pending_s is not None
        assert 0 <= stats.oldest_pending_s < 5
        assert shown.enqueued_at is not None
        assert abs(inspector.server_time() - shown.enqueued_at) < 5, "a field of its own, not the entry's id"
        (run,) = bench.fetch()
        assert bench.done(run) == []
        assert inspector.queue_stats("q").oldest_pending_s is None
    bench.look().check()


def test_d55_a_schedule_waits_for_a_clock_that_went_back_and_fires_nothing_again(bench: Bench) -> None:
    """Its mark is an hour ahead: what had fired by then does not fire a second time."""
    from tests.broker.test_schedule import fired, keys, last, make, once, scheduler, server_now

    one = make()
    ahead = server_now(bench) + 3600
    bench.redis.set(keys(bench, one).last, ahead)
    mine = scheduler(bench, one)
    for _ in range(3):
        done = once(bench, mine)
    assert fired(bench) == []
    assert last(bench, one) == ahead
    assert (done.next_in_s or 0) > 0.5, "and it does not spin meanwhile"
