"""Two daemons on one server, as on two hosts: they share the work, and one takes over what the other left."""

from __future__ import annotations

import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis as redis_py

from chronosd import Client
from chronosd.states import State
from tests.support.daemon import Daemon
from tests.support.processes import wait_gone
from tests.support.queue_view import QueueView
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]

HOLD = """
    import asyncio
    from pathlib import Path

    from tests.support.ledger import Ledger

    ledger = Ledger.of_environment()

    async def hold(task):
        with ledger.run(task.id, task.attempt):
            while not Path(task.args["until"]).exists():
                await asyncio.sleep(0.02)
"""


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
    daemon: MakeDaemon, client: Client, queue: QueueView, tmp_path: Path
) -> None:
    """A host that burns down: no board is left to tell what ran, only entries that nobody renews."""
    keys = {
        "recover_min_idle": "1500ms",
        "recover_interval": "500ms",
        "heartbeat_interval": "400ms",
        "handlers": {"hold": "handlers:hold"},
    }
    doomed, other = (daemon(workers=2, concurrency=n, handlers=HOLD, config=keys) for n in (4, 8))
    released = tmp_path / "released"
    tasks = [("hold", {"until": str(released)})] * 8
    doomed.start()
    theirs = {info.id for info in client.enqueue_many(tasks)}
    wait_until(lambda: set(doomed.ledger.starts()) == theirs, what="tasks that run on the doomed host")
    other.start()
    own = {info.id for info in client.enqueue_many(tasks)}
    wait_until(lambda: set(other.ledger.starts()) == own, what="tasks that run on the other host")
    workers = doomed.worker_pids()
    doomed.send(signal.SIGKILL)
    doomed.wait()
    wait_gone(workers)
    killed_at = time.monotonic()
    shutil.rmtree(doomed.runtime_dir)
    wait_until(lambda: set(other.ledger.starts()) == own | theirs, timeout_s=30, what="a take-over")
    print(f"taken over after {time.monotonic() - killed_at:.1f} s")
    time.sleep(1)  # two more passes of the recoverer, with tasks that are much older than its limit
    released.touch()
    queue.wait_finished(timeout_s=20)
    assert other.ledger.starts() == Counter(own | theirs), "its own live ones were not taken for dead"
    assert other.ledger.ends() == other.ledger.starts()
    recovered = other.log_records("recovered tasks that nobody held any more")
    assert sum(record["again"] for record in recovered) == 8
    assert queue.size(State.ARCHIVED) == 0
    assert queue.pending() == 0
    assert other.stop() == 0
