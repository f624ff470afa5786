"""Pausing a queue: nothing of it starts any more within a second, on every host, and all else goes on."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest
import redis as redis_py

from chronosd import Client
from chronosd.inspector import Inspector
from tests.support.daemon import Daemon
from tests.support.proxy import Proxy
from tests.support.queue_view import QueueView
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]
QUEUES = {"default": 1, "mail": 3}


@pytest.fixture
def inspector(redis_url: str, namespace: str) -> Iterator[Inspector]:
    with Inspector(redis_url, namespace=namespace) as one:
        yield one


@pytest.fixture
def mail(redis: redis_py.Redis, namespace: str) -> QueueView:
    return QueueView(redis, namespace, "mail")


def test_a_paused_queue_stands_still_on_every_host_and_the_others_go_on(
    daemon: MakeDaemon, client: Client, inspector: Inspector, mail: QueueView
) -> None:
    hosts = [daemon(workers=2, concurrency=4, queues=QUEUES).start() for _ in range(2)]

    def started() -> set[str]:
        return {task_id for host in hosts for task_id in host.ledger.starts()}

    running = {client.enqueue("count", {"sleep": 2.0}, queue="mail").id for _ in range(4)}
    wait_until(lambda: started() == running, what="running tasks")
    assert inspector.pause("mail")
    for host in hosts:
        wait_until(lambda: host.log_records("queues paused"), what="the news")  # noqa: B023
        said = host.ask("status")
        assert said["paused"] == ["mail"]
        assert "1 of 2 queues paused" in said["status"]
    waiting = {client.enqueue("count", {}, queue="mail", delay=delay).id for delay in (None, 0.1) * 10}
    for _ in range(10):
        others = client.enqueue("count", {}, queue="default").id
        wait_until(lambda: others in started(), what="a task of another queue")  # noqa: B023
    wait_until(
        lambda: mail.entries() == len(waiting), timeout_s=20, what="what ran has ended, what was due waits"
    )
    assert mail.pending() == 0
    assert not waiting & started()
    old = hosts[0].worker_pids()
    hosts[0].send(signal.SIGHUP)
    hosts[0].wait_workers(2, without=old)
    latecomer = client.enqueue("count", {}, queue="default").id
    wait_until(lambda: latecomer in started(), what="a task of another queue")
    assert not waiting & started()
    assert inspector.resume("mail")
    wait_until(lambda: waiting <= started(), what="all of them")
    assert [host.stop() for host in hosts] == [0, 0]


def test_what_is_paused_stays_so_for_a_daemon_that_starts_and_while_redis_is_away(
    daemon: MakeDaemon, client: Client, inspector: Inspector, mail: QueueView, proxy: Proxy
) -> None:
    inspector.pause("mail")
    waiting = client.enqueue("count", {}, queue="mail").id
    one = daemon(workers=1, queues=QUEUES, redis_url=proxy.url).start()
    for _ in range(2):
        other = client.enqueue("count", {}).id
        wait_until(lambda: one.ledger.ends()[other], timeout_s=20, what="the other queue's task")  # noqa: B023
        assert waiting not in one.ledger.starts()
        assert mail.pending() == 0
        if proxy.mode != "refuse":
            proxy.mode = "refuse"
            wait_until(lambda: one.log_records("redis is away"), timeout_s=20, what="it noticed")
            proxy.mode = "pass"
    inspector.resume("mail")
    wait_until(lambda: one.ledger.ends()[waiting], what="its run")
    assert one.stop() == 0


def test_a_burst_ends_although_something_waits_in_a_paused_queue(
    daemon: MakeDaemon, client: Client, inspector: Inspector, mail: QueueView
) -> None:
    inspector.pause("mail")
    client.enqueue("count", {}, queue="mail")
    done = client.enqueue("count", {}).id
    one = daemon(workers=1, queues=QUEUES, args=["--burst"]).start(wait=False)
    assert one.wait() == 0
    assert set(one.ledger.ends()) == {done}
    assert mail.entries() == 1
