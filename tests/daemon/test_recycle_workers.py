"""Workers that have done enough, or grown too large, are replaced: one at a time, the successor first."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis as redis_py

from chronosd import Client
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.reloading import dummy, plan, watched
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]

LEAKING = """
    import asyncio
    from tests.support.ledger import Ledger
    ledger = Ledger.of_environment()
    kept = []

    async def leak(task):
        with ledger.run(task.id, task.attempt):
            kept.append(b"x" * task.args["bytes"])
            await asyncio.sleep(task.args["sleep"])
"""


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace) as one:
        yield one


@pytest.fixture
def queue(redis: redis_py.Redis, namespace: str) -> QueueView:
    return QueueView(redis, namespace)


def test_four_that_leak_to_the_limit_together_are_recycled_one_by_one(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    one = daemon(
        handlers=LEAKING,
        workers=4,
        concurrency=1,
        shutdown_timeout="100ms",
        config={"handlers": {"leak": "handlers:leak"}, "recycle": {"max_memory": "150MiB"}},
    ).start()
    before = one.wait_workers(4)
    ids = [client.enqueue("leak", {"bytes": 150 << 20, "sleep": 1.5}, max_retry=0).id for _ in range(4)]
    with watched(one) as ready:
        most = 0

        def replaced() -> bool:
            nonlocal most
            now = one.worker_pids()
            most = max(most, len(now))
            return len(now) == 4 and not set(now) & set(before)

        wait_until(replaced, timeout_s=40, what="four fresh workers")
    queue.wait_finished()
    print(f"ready {min(ready)} to {max(ready)} in {len(ready)} looks, at most {most} processes")
    assert min(ready) == 4, "never fewer than four ready"
    assert most <= 5, "one by one"
    assert one.ledger.starts() == one.ledger.ends() == Counter(ids), "no task cut"
    assert one.ask("status")["recycled"] == {"recycle": 4}
    assert all(worker["rss_bytes"] < 150 << 20 for worker in one.ask("status")["workers"])


def test_a_worker_that_has_done_its_number_of_tasks_is_replaced(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    one = daemon(workers=1, recycle={"max_tasks": 500}).start()
    ids = [info.id for info in client.enqueue_many([("count", {}, {"max_retry": 0})] * 2000)]
    (first,) = one.wait_workers(1)
    one.wait_workers(1, without=[first])
    queue.wait_finished()
    assert one.ledger.starts() == one.ledger.ends() == Counter(ids)
    (why,) = {record["why"].split()[1] for record in one.log_records("worker is replaced")}
    assert why == "tasks"


def test_a_successor_that_cannot_load_leaves_the_old_worker_at_work(
    tmp_path: Path, redis_url: str, namespace: str
) -> None:
    with dummy(tmp_path / "d", redis_url, namespace, workers=1, recycle={"max_memory": "1MiB"}) as one:
        plan(one, "ok")
        one.start()
        plan(one, "exit=1")
        (pid,) = one.wait_workers(1)
        wait_until(lambda: one.log_records("worker is not replaced, it goes on"), what="a failed successor")
        assert one.ask("status")["ready"] == 1
        one.wait_workers(1)
        plan(one, "ok")
        one.wait_workers(1, without=[pid], timeout_s=20)


def test_a_limit_below_what_a_fresh_worker_has_is_said_and_not_a_fork_loop(
    tmp_path: Path, redis_url: str, namespace: str
) -> None:
    with dummy(tmp_path / "d", redis_url, namespace, workers=2, recycle={"max_memory": "1MiB"}) as one:
        one.start()
        wait_until(lambda: one.log_records("recycle limit is below what a fresh worker has"), what="a word")
        replaced = len(one.log_records("worker is replaced"))
        assert replaced == 1
        assert one.ask("reload", wait=True)["ok"], "a reload ends the pause"
        wait_until(lambda: len(one.log_records("worker is replaced")) == 2)


def test_an_old_worker_that_dies_while_its_successor_loads_is_replaced_once(
    tmp_path: Path, redis_url: str, namespace: str
) -> None:
    with dummy(tmp_path / "d", redis_url, namespace, workers=1) as one:
        one.start()
        (pid,) = one.wait_workers(1)
        plan(one, "slow=1")
        one.send(signal.SIGUSR2)
        one.wait_workers(2)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: one.ask("status")["ready"] == 1 and not one.ask("status")["restarting"])
        one.wait_workers(1, without=[pid])


def test_a_stop_while_one_is_being_replaced_ends_both(tmp_path: Path, redis_url: str, namespace: str) -> None:
    with dummy(tmp_path / "d", redis_url, namespace, workers=1) as one:
        one.start()
        plan(one, "hang")
        one.send(signal.SIGUSR2)
        one.wait_workers(2)
        assert one.stop(timeout_s=5) == 0
