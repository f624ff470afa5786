"""Two daemons on one server, as on two hosts: they share the work, and one takes over what the other left."""

from __future__ import annotations

import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import redis as redis_py

from chronosd import Client
from chronosd.states import State
from tests.support.daemon import Daemon
from tests.support.processes import wait_gone
from tests.support.queue_view import QueueView
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace) as one:
        yield one


@pytest.fixture
def queue(redis: redis_py.Redis, namespace: str) -> QueueView:
    return QueueView(redis, namespace)


def test_two_daemons_share_ready_and_due_tasks_and_run_none_twice(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    retry = {"base": "100ms", "cap": "200ms"}
    both = [daemon(workers=2, concurrency=16, retry=retry).start() for _ in range(2)]
    at = time.time() + 1.5
    tasks = [("count", {"sleep": 0.002})] * 4000
    tasks += [("count", {}, {"delay": at - time.time()})] * 4000
    tasks += [("count", {"fail": 1}, {"max_retry": 3})] * 20
    ids = Counter(info.id for info in client.enqueue_many(tasks))
    wait_until(lambda: time.time() > at, what="the time at which the delayed ones are due")
    queue.wait_finished()
    ends = [one.ledger.ends() for one in both]
    assert ends[0] + ends[1] == ids
    assert sum((both[0].ledger.starts() + both[1].ledger.starts()).values()) == len(ids) + 20
    print(f"{ends[0].total()} and {ends[1].total()} tasks")
    assert all(len(one_ends) > 400 for one_ends in ends), "one of them did next to nothing"
    assert [one.stop() for one in both] == [0, 0]
    assert queue.owners() == {}


def test_a_daemon_that_vanished_with_all_it_knew_is_succeeded_by_the_other_one(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    """A host that burns down: no board is left to tell what ran, only entries that nobody renews."""
    timing = {"recover_min_idle": "1500ms", "recover_interval": "500ms", "heartbeat_interval": "400ms"}
    doomed, other = (daemon(workers=2, concurrency=n, **timing) for n in (4, 8))
    doomed.start()
    ids = Counter(info.id for info in client.enqueue_many([("count", {"sleep": 3.5})] * 8))
    wait_until(lambda: len(doomed.ledger.entries("start")) == 8, what="tasks that run on the doomed host")
    other.start()
    own = [info.id for info in client.enqueue_many([("count", {"sleep": 3.5})] * 8)]
    wait_until(lambda: len(other.ledger.entries("start")) == 8, what="tasks that run on the other host")
    time.sleep(0.3)
    workers = doomed.worker_pids()
    doomed.send(signal.SIGKILL)
    doomed.wait()
    wait_gone(workers)
    killed_at = time.monotonic()
    shutil.rmtree(doomed.runtime_dir)
    wait_until(lambda: len(other.ledger.entries("start")) > 8, timeout_s=20, what="a task taken over")
    recovered = other.log_records("recovered tasks that nobody held any more")
    print(f"taken over after {time.monotonic() - killed_at:.1f} s")
    assert sum(record["again"] for record in recovered) == 8
    queue.wait_finished(timeout_s=20)
    starts = other.ledger.starts()
    assert starts == ids + Counter(own), "each once on the other host, its own live ones not twice"
    assert other.ledger.ends() == starts
    assert queue.size(State.ARCHIVED) == 0
    assert queue.pending() == 0
    assert other.stop() == 0
