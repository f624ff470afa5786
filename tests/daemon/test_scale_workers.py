"""More workers and fewer, as fast as one likes: exactly the number asked for, and no task is cut."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis as redis_py

from chronosd import Client
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.reloading import dummy, plan
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace) as one:
        yield one


@pytest.fixture
def queue(redis: redis_py.Redis, namespace: str) -> QueueView:
    return QueueView(redis, namespace)


def by_signal(one: Daemon, count: int, target: int) -> None:
    step = 1 if target > count else -1
    for reached in range(count + step, target + step, step):
        one.send(signal.SIGTTIN if step > 0 else signal.SIGTTOU)
        # one by one: two of one kind that are pending together are one
        wait_until(lambda at=reached: one.ask("status")["target"] == at, what=f"a target of {reached}")


@pytest.mark.parametrize("how", ["order", "reload"])
def test_from_one_to_five_to_two_to_five_every_200_ms_with_tasks_of_3_s(
    daemon: MakeDaemon, client: Client, queue: QueueView, how: str
) -> None:
    """circus #997, gunicorn #3312: seven were forked, three killed, and some got a second SIGTERM."""
    one = daemon(workers=1, concurrency=2, kill_grace="1s").start()
    ids = [info.id for info in client.enqueue_many([("count", {"sleep": 3}, {"max_retry": 0})] * 16)]
    wait_until(one.ledger.starts, what="running tasks")
    count = 1
    for target in (5, 2, 5):
        if how == "order" and target == 2:
            assert one.ask("scale", count=target)["ok"]
        elif how == "order":
            by_signal(one, count, target)
        else:
            one.write_config({"workers": target, "concurrency": 2, "kill_grace": "1s"})
            one.send(signal.SIGHUP)
        time.sleep(0.2)
        count = target
        if how != "reload":
            assert one.ask("status")["target"] == target
    wait_until(lambda: one.ask("status")["ready"] == 5, timeout_s=30, what="five")
    queue.wait_finished()
    wait_until(lambda: (s := one.ask("status"))["state"] == "running" and not s["leaving"], timeout_s=30)
    assert len(one.worker_pids()) == 5
    assert one.ledger.starts() == one.ledger.ends() == Counter(ids), "none cut, none repeated"
    ended = one.log_records("worker ended")
    assert all(record["exit_code"] == 0 for record in ended), "each ended by itself"
    assert one.log_records("worker died") == []
    assert "did not stop in time" not in one.log_text()
    assert one.stop() == 0


def test_there_is_never_less_than_one_and_a_stop_ends_all_of_it(
    tmp_path: Path, redis_url: str, namespace: str
) -> None:
    with dummy(tmp_path / "d", redis_url, namespace, workers=2) as one:
        one.start()
        for _ in range(4):
            one.send(signal.SIGTTOU)
            time.sleep(0.01)
        wait_until(lambda: one.ask("status")["target"] == 1)
        one.wait_workers(1)
        one.send(signal.SIGTERM)
        one.send(signal.SIGTTIN)
        one.send(signal.SIGHUP)
        assert one.wait(10) == 0


def test_a_worker_that_loads_when_it_is_one_too_many_is_ended_at_once(
    tmp_path: Path, redis_url: str, namespace: str
) -> None:
    with dummy(tmp_path / "d", redis_url, namespace, workers=1) as one:
        one.start()
        plan(one, "hang")
        one.ask("scale", count=3)
        one.wait_workers(3)
        one.ask("scale", count=1)
        one.wait_workers(1)
        assert one.log_records("worker died") == []


def test_an_order_that_the_link_has_no_room_for_is_given_later(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    """A worker whose loop stands still reads nothing; one whose line was full was killed with its tasks."""
    one = daemon(workers=2, concurrency=2, stall_timeout="60s").start()
    ids = [info.id for info in client.enqueue_many([("block", {"sleep": 3}, {"max_retry": 0})] * 2)]
    wait_until(lambda: len({entry.pid for entry in one.ledger.entries("start")}) == 2, what="blocked loops")
    for _ in range(300):
        one.ask("quiet")
        one.ask("resume")
    assert one.ask("scale", count=1)["ok"]
    queue.wait_finished()
    one.wait_workers(1, timeout_s=20)
    assert one.ledger.starts() == one.ledger.ends() == Counter(ids)
    assert one.log_records("worker died") == []
    more = client.enqueue("count", {}).id
    wait_until(lambda: more in one.ledger.ends(), what="a task after it all")


def test_a_worker_is_a_better_victim_of_the_oom_killer_than_its_supervisor(one_dummy: Daemon) -> None:
    def score(pid: int) -> int:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

    (worker,) = one_dummy.wait_workers(1)
    assert score(worker) == min(score(one_dummy.pid) + 100, 1000)
    assert score(one_dummy.pid) == score(os.getpid()), "the supervisor is as it was started"


@pytest.fixture
def one_dummy(tmp_path: Path, redis_url: str, namespace: str) -> Iterator[Daemon]:
    with dummy(tmp_path / "d", redis_url, namespace, workers=1) as one:
        yield one.start()
